"""Short excerpts of sound."""

from __future__ import annotations

import os
from importlib.resources import as_file, files
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import maximum_filter1d, minimum_filter1d

#: Recordings of more samples are refused: an hour in the resolution of studios.
MOST_SAMPLES = 96_000 * 3600

#: A window counts as silent if its range is below this share of that of the loudest window.
SILENCE = 0.05


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


def excerpts(
    path: str | os.PathLike[str],
    count: int = 1,
    length: int = 300,
    *,
    seed: int = 0,
    sample_rate: int | None = None,
) -> NDArray[np.float32]:
    """Cut pieces out of a recording, at random places that are not silent.

    Parameters
    ----------
    path
        An audio file of any kind that soundfile reads. Channels are averaged.
    count
        How many excerpts; their places are drawn independently.
    length
        Samples of each.
    seed
        Another seed gives other places.
    sample_rate
        The rate that the recording must have; by default any.

    Returns
    -------
    excerpts : (count, length) float32 array
        Each scaled to [-1, 1].
    """
    for name, value in (("count", count), ("length", length)):
        if value < 1:
            raise ValueError(f"{name}={value}: expected a positive integer")
    sound = recording(path, sample_rate)
    if len(sound) < length:
        raise ValueError(f"{path} has {len(sound)} samples: expected at least length={length}")
    # The range of every window, at its middle; at the ends, where windows are cut off, there is none.
    middle = slice(length // 2, len(sound) - (length - 1) // 2)
    loudness = (maximum_filter1d(sound, length) - minimum_filter1d(sound, length))[middle]
    loud = np.flatnonzero(loudness > SILENCE * loudness.max())
    if len(loud) == 0:
        raise ValueError(f"{path} is silent: expected sound")
    starts = np.random.default_rng(seed).choice(loud, count)
    windows = sound[starts[:, None] + np.arange(length)]
    low, high = windows.min(1, keepdims=True), windows.max(1, keepdims=True)
    scaled: NDArray[np.float32] = (2 * (windows - low) / (high - low) - 1).astype(np.float32)
    return scaled


def recording(path: str | os.PathLike[str], sample_rate: int | None = None) -> NDArray[np.float64]:
    """Return all samples of an audio file, its channels averaged.

    Raises
    ------
    ValueError
        If it is no audio file, is empty or too long, or has another rate than `sample_rate`.
    """
    try:
        import soundfile
    except ImportError:
        raise ImportError("audio files need soundfile: pip install 'linmem[experiments]'") from None
    try:
        with open(path, "rb") as data, soundfile.SoundFile(data) as file:
            if sample_rate is not None and file.samplerate != sample_rate:
                raise ValueError(f"{path} has {file.samplerate} samples a second: expected {sample_rate}")
            if not 0 < file.frames <= MOST_SAMPLES:
                raise ValueError(f"{path} has {file.frames} samples: expected 1 to {MOST_SAMPLES}")
            sound = file.read(dtype="float64", always_2d=True)
    except soundfile.LibsndfileError as error:
        raise ValueError(f"{path}: expected an audio file ({error})") from None
    if len(sound) == 0 or not np.isfinite(sound).all():
        raise ValueError(f"{path}: expected an intact audio file")
    mono: NDArray[np.float64] = sound.mean(1)
    return mono
