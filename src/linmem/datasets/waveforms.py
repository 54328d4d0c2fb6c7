"""Short excerpts of sound."""

from __future__ import annotations

import math
import os
import re
from importlib.resources import as_file, files
from numbers import Integral
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import maximum_filter1d, minimum_filter1d

#: Recordings of more samples, all channels together, are refused: half an hour of stereo.
MOST_SAMPLES = 200_000_000

#: Samples that are read at once.
BLOCK = 2**20

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
    for name, value, least in (("count", count, 1), ("length", length, 2)):
        if not isinstance(value, Integral) or value < least:
            raise ValueError(f"{name}={value}: expected an integer of at least {least}")
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


def recording(path: str | os.PathLike[str], sample_rate: int | None = None) -> NDArray[np.float32]:
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
        with open(path, "rb") as data:
            check_complete(path, data.read(4096), os.fstat(data.fileno()).st_size)
            data.seek(0)
            with soundfile.SoundFile(data) as file:
                if sample_rate is not None and file.samplerate != sample_rate:
                    raise ValueError(f"{path} has {file.samplerate} samples a second: expected {sample_rate}")
                if not 0 < file.frames * file.channels <= MOST_SAMPLES:
                    raise ValueError(
                        f"{path} has {file.frames} samples in {file.channels} channels: expected 1 to {MOST_SAMPLES}"
                    )
                blocks = file.blocks(BLOCK // file.channels + 1, dtype="float32", always_2d=True)
                mono: NDArray[np.float32] = np.concatenate([block.mean(1, dtype=np.float32) for block in blocks])
    except (soundfile.LibsndfileError, TypeError) as error:  # raw samples, for one, have no rate
        raise ValueError(f"{path}: expected an audio file ({error})") from None
    if len(mono) == 0 or not np.isfinite(mono).all():
        raise ValueError(f"{path}: expected an intact audio file")
    return mono


def check_complete(path: str | os.PathLike[str], start: bytes, size: int) -> None:
    """Refuse a file that is shorter than it says; the library would read what is there. Not every format says it."""
    declared = 0
    if start[:4] in (b"RIFF", b"FORM"):
        declared = int.from_bytes(start[4:8], "little" if start[:4] == b"RIFF" else "big") + 8
        declared = 0 if declared == 2**32 + 7 else declared  # written as a stream, whose length was not known
    elif start.startswith(b"NIST_1A"):
        fields = dict(re.findall(rb"(\w+) -i (\d{1,12})\n", start[:1024]))
        samples = [int(fields.get(name, b"1")) for name in (b"sample_count", b"channel_count", b"sample_n_bytes")]
        declared = 1024 + math.prod(samples) if b"sample_coding -s3 pcm" in start[:1024] else 0
    if declared > size:
        raise ValueError(f"{path} has {size} bytes and says {declared}: expected an intact audio file")
