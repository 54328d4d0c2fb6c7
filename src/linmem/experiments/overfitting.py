"""Why a reader of a memory that never forgets overfits: its codes tell of the piece, and little of the last frames.

    python -m linmem.experiments.overfitting [--set MuseData] [--units 200] [--data FOLDER] [--out results]

Nothing is trained but linear maps from codes to past frames. Codes are taken in units of their size in training.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import Ridge

from linmem import LinearMemory, compute_codes
from linmem.datasets import piano_rolls
from linmem.experiments.frames import window
from linmem.files import write_atomically

DISCOUNTS = (0.7, 0.9, 0.95, 0.99, 1.0)

#: Steps ago.
LAGS = (0, 1, 2, 4, 8, 16, 32)


def between_pieces(codes: NDArray[Any], piece: NDArray[Any]) -> float:
    """Return the share of the variance of codes that is the variance of the means of pieces.

    Examples
    --------
    >>> between_pieces(np.array([[1.0], [1.0], [3.0], [3.0]]), np.array([0, 0, 1, 1]))
    1.0
    """
    means = np.stack([codes[piece == k].mean(0) for k in np.unique(piece)])
    sizes = np.unique(piece, return_counts=True)[1][:, None]
    mean = codes.mean(0)
    return float((sizes * (means - mean) ** 2).sum() / ((codes - mean) ** 2).sum())


def correlation_steps(parts: Sequence[NDArray[Any]], most: int = 200) -> int:
    """Return after how many steps the correlation of a code with itself is below 1/e: sooner means more news."""
    mean = np.concatenate(parts).mean(0)
    centred = [part - mean for part in parts]
    power = np.mean([np.mean(c**2) for c in centred])
    for step in range(1, most + 1):
        products = [np.mean(c[step:] * c[:-step]) for c in centred if len(c) > step]
        if not products or np.mean(products) < power / np.e:
            return step
    return most


@dataclass
class Frames:
    """Codes of pieces, in units of their size in training, and the pieces."""

    codes: NDArray[Any]
    rolls: list[NDArray[Any]]

    def before(self, lag: int) -> NDArray[Any]:
        """Return, for each code, the frame of its piece so many steps earlier, silent before the first."""
        return np.concatenate([np.pad(roll, ((lag, 0), (0, 0)))[: len(roll)] for roll in self.rolls]).astype(float)


def decoded(train: Frames, valid: Frames, lag: int) -> float:
    """Return what share of the frame so many steps ago can be told from codes by a linear map, on validation data."""
    (x, y), (x_valid, y_valid) = ((part.codes, part.before(lag)) for part in (train, valid))
    model = Ridge(alpha=1e-4 * len(x)).fit(x, y)
    error = np.square(model.predict(x_valid) - y_valid).sum()
    return float(1 - error / np.square(y_valid - y.mean(0)).sum())


def figures(memory: LinearMemory, train: list[Any], valid: list[Any]) -> dict[str, Any]:
    """Return what can be said of the codes of a memory."""
    codes = compute_codes(memory, train)
    frames, valid_frames = (c.frames.double().numpy() for c in (codes, compute_codes(memory, valid)))
    size = np.sqrt(np.square(frames).mean(0))
    used = size > 1e-6 * size.max()
    frames, valid_frames = frames[:, used] / size[used], valid_frames[:, used] / size[used]
    pieces = np.repeat(np.arange(len(codes)), codes.lengths)
    known, unknown = Frames(frames, train), Frames(valid_frames, valid)
    return {
        "between pieces": between_pieces(frames, pieces),
        "steps of correlation": correlation_steps(np.split(frames, np.cumsum(codes.lengths)[:-1])),
        "decoded by lag": {lag: decoded(known, unknown, lag) for lag in LAGS},
    }


def row(found: dict[str, Any]) -> str:
    """Return the figures of a memory in a line."""
    lags = "".join(f"{share:6.2f}" for share in found["decoded by lag"].values())
    return f"{found['between pieces']:8.3f}{found['steps of correlation']:6d}  {lags}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print and write the figures."""
    parser = argparse.ArgumentParser(prog="python -m linmem.experiments.overfitting", description=main.__doc__)
    parser.add_argument("--set", choices=piano_rolls.PUBLISHED, default="MuseData")
    parser.add_argument("--units", type=int, default=200)
    parser.add_argument("--data", help="folder with the piano rolls")
    parser.add_argument("--out", type=Path, default=Path("results"))
    a = parser.parse_args(arguments)
    torch.set_num_threads(1)
    parts = piano_rolls.load(a.set, a.data)
    train, valid = list(parts.train), list(parts.valid)
    memories = {f"forgetting {f:g}": LinearMemory.fit(train, a.units, forgetting=f) for f in DISCOUNTS}
    record: dict[str, Any] = {"set": a.set, "units": a.units}
    print("share of the variance between pieces; steps of correlation; share decoded of the frame 0, 1, 2 … steps ago")
    for name, memory in {"window of 4": window(train[0].shape[1], 4), **memories}.items():
        record[name] = figures(memory, train, valid)
        print(f"{name:16}" + row(record[name]), flush=True)
    a.out.mkdir(parents=True, exist_ok=True)
    write_atomically((a.out / f"overfitting_{a.set}.json").resolve(), json.dumps(record, indent=1).encode())


if __name__ == "__main__":
    main()
