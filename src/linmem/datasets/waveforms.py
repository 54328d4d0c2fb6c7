"""Short excerpts of sound."""

from __future__ import annotations

from importlib.resources import as_file, files
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray


def embedded(kind: Literal["recorded", "synthetic"] = "recorded") -> NDArray[Any]:
    """Excerpts of 300 samples at 44.1 kHz that come with the package, scaled to [-1, 1].

    Parameters
    ----------
    kind : {"recorded", "synthetic"}
        Recorded ones are guitars and a choir, placed in the public domain by Sub-d and Exsomniel.

    Returns
    -------
    excerpts : (excerpts, 300) float32 array

    Examples
    --------
    >>> embedded().shape
    (4, 300)
    """
    names = {"recorded": "excerpts_cc0.npy", "synthetic": "excerpts_synthetic.npy"}
    if kind not in names:
        raise ValueError(f"kind={kind!r}: expected one of {sorted(names)}")
    with as_file(files("linmem.datasets") / "data" / names[kind]) as path:
        excerpts: NDArray[Any] = np.load(path, allow_pickle=False)
    return excerpts
