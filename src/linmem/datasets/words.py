"""The Common Suffix task: 25 spoken words in five groups that end alike, so that only their beginning tells them apart.

The words come from TIMIT, which is licensed and cannot be shipped: give `timit` its directory. Synthetic speech in
the same layout takes its place where there is none (`stand_in`). A figure on it is not a figure on TIMIT.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from linmem.datasets import store
from linmem.datasets.mfcc import mfcc
from linmem.datasets.waveforms import recording

#: The words in the order of their classes, with the code of the sentence that each is taken from.
WORDS = {
    "making": "SX430",
    "walking": "SX320",
    "cooking": "SX177",
    "looking": "SX229",
    "working": "SX4",
    "biblical": "SX42",
    "cyclical": "SX146",
    "technical": "SX135",
    "classical": "SX52",
    "critical": "SX52",
    "tradition": "SX137",
    "addition": "SX45",
    "audition": "SX194",
    "recognition": "SX251",
    "competition": "SX141",
    "musicians": "SX15",
    "discussions": "SX40",
    "regulations": "SX41",
    "accusations": "SX191",
    "conditions": "SX349",
    "subway": "SX246",
    "leeway": "SX230",
    "freeway": "SX233",
    "highway": "SX233",
    "hallway": "SX106",
}

UTTERANCES = 7  #: of each word
TESTS = 2  #: of them are for testing
SAMPLE_RATE = 16_000

#: Neighbouring words of TIMIT may share a sound, which lasts no longer than this many samples.
SHARED = SAMPLE_RATE // 10

MOST_BYTES = 2**28  #: arrays that unpack to more are refused
LONGEST_WRD = 10_000  #: bytes
MARKER = "SYNTHETIC.txt"  #: in a folder, it says that nobody spoke


@dataclass(frozen=True)
class Utterances:
    """Spoken words as sequences of features.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> data = Utterances([rng.random((9, 13))], np.array([3]), ("FESB0",), ("TRAIN",), synthetic=True)
    >>> data.words
    ['looking']
    """

    features: list[NDArray[Any]]
    """(frames, coefficients) each."""
    labels: NDArray[np.int64]
    """Classes, from 0 to 24."""
    speakers: tuple[str, ...]
    usage: tuple[str, ...]
    """``TRAIN`` or ``TEST``: the part of the corpus that an utterance comes from."""
    synthetic: bool
    """Whether a machine spoke: say so wherever a figure appears."""

    def __len__(self) -> int:
        return len(self.features)

    @property
    def words(self) -> list[str]:
        """The word of each utterance."""
        names = list(WORDS)
        return [names[label] for label in self.labels]

    def take(self, which: Iterable[int]) -> Utterances:
        """Return some of the utterances."""
        which = list(which)
        return replace(
            self,
            features=[self.features[i] for i in which],
            labels=self.labels[which],
            speakers=tuple(self.speakers[i] for i in which),
            usage=tuple(self.usage[i] for i in which),
        )


# ------------------------------------------------------------------------------------------------- loading


def timit(path: str | os.PathLike[str], *, step: float = 0.010) -> Utterances:
    """Return the words of the task from a directory in TIMIT's layout.

    Parameters
    ----------
    path
        The directory, or one above it, or an archive of it: ``TRAIN`` and ``TEST`` with folders of dialects, speakers
        and files such as ``SX430.WAV`` and ``SX430.WRD``, in any letter case.
    step
        Seconds from one frame to the next. The paper says 1 ms, but its longest word has 97 frames, as at 10 ms.

    Raises
    ------
    ValueError
        If a word is missing, or a file is not what it should be.
    """
    folder = store.folder_at(path)
    files = _files(folder)
    synthetic = (folder / MARKER).exists()
    features, labels, speakers, usage = [], [], [], []
    for label, (word, code) in enumerate(WORDS.items()):
        found = sorted(key for key in files if key[2] == code and len(files[key]) == 2)
        if len(found) < UTTERANCES:
            raise ValueError(
                f"{path} has {len(found)} recordings of {code} with their words: expected {UTTERANCES}, for {word!r}"
            )
        for key in found[:UTTERANCES]:
            sound = recording(files[key]["WAV"], SAMPLE_RATE)
            synthetic = synthetic or b"espeak" in start_of(files[key]["WAV"])
            start, end = find_word(files[key]["WRD"], word, len(sound))
            # As 16-bit integers, which the log energy is relative to.
            features.append(mfcc(32768 * sound[start:end], SAMPLE_RATE, step=step).astype(np.float32))
            labels.append(label)
            speakers.append(key[1])
            usage.append(key[0])
    return Utterances(features, np.array(labels), tuple(speakers), tuple(usage), synthetic)


def start_of(path: Path) -> bytes:
    """Return the beginning of a file, where SPHERE files say where they come from."""
    with open(path, "rb") as file:
        return file.read(1024)


def _files(folder: Path) -> dict[tuple[str, str, str], dict[str, Path]]:
    """Return recordings and their words by (usage, speaker, sentence)."""
    files: dict[tuple[str, str, str], dict[str, Path]] = {}
    codes = set(WORDS.values())
    for path in sorted(folder.rglob("*")):
        code, _, ending = path.name.upper().partition(".")
        kind = ending.rpartition(".")[2]  # some copies have .WAV.wav
        parents = [part.upper() for part in path.relative_to(folder).parts[:-1]]
        usage = next((part for part in reversed(parents) if part in ("TRAIN", "TEST")), None)
        if code in codes and kind in ("WAV", "WRD") and usage and path.is_file():
            files.setdefault((usage, parents[-1], code), {}).setdefault(kind, path)
    if not files:
        raise ValueError(f"{folder}: expected TIMIT's folders TRAIN and TEST with recordings of its sentences")
    return files


def find_word(path: Path, word: str, samples: int) -> tuple[int, int]:
    """Return the first and one past the last sample of a word, from a file of words of a recording so long."""
    if path.stat().st_size > LONGEST_WRD:
        raise ValueError(f"{path} has {path.stat().st_size} bytes: expected the words of one sentence")
    spans: list[tuple[int, int, str]] = []
    with open(path, encoding="ascii", errors="replace") as file:
        for number, line in enumerate(file, 1):
            parts = line[:200].split()
            if not parts:
                continue
            if len(parts) != 3 or not (parts[0].isdecimal() and parts[1].isdecimal()):
                raise ValueError(f"{path}, line {number}: expected the first sample, the last and a word")
            spans.append((int(parts[0]), int(parts[1]), parts[2].lower().strip(".,;:?!\"'")))
    at = next((i for i, span in enumerate(spans) if span[2] == word), None)
    if at is None:
        raise ValueError(f"{path} has no {word!r}: expected it among its words")
    start, end, _ = spans[at]
    if not start < end <= samples:
        raise ValueError(f"{path}: {word!r} is at {start} to {end} of {samples} samples: expected it inside of them")
    before, after = spans[:at], spans[at + 1 :]
    apart = all(s < start and e < end for s, e, _ in before) and all(s > start and e > end for s, e, _ in after)
    shared_before = max((e for _, e, _ in before), default=0) - start
    shared_behind = end - min((s for s, _, _ in after), default=samples)
    if not apart or max(shared_before, shared_behind) > SHARED:
        raise ValueError(f"{path}: {word!r}, {start} to {end}, overlaps another word: expected one behind the other")
    return start, end


def stand_in(voices: Literal["many", "seven"] = "many", path: str | os.PathLike[str] | None = None) -> Utterances:
    """Return synthetic words: looked for as a file, and else spoken by espeak-ng, which needs the extra `speech`.

    Parameters
    ----------
    voices
        161 voices that say one sentence each, or seven that say all.
    path
        The file, or the folder that has it. By default it is looked for in the folder named by ``LINMEM_DATA`` and
        in this user's cache.
    """
    if voices not in ("many", "seven"):
        raise ValueError(f"voices={voices!r}: expected 'many' or 'seven'")
    name = f"common_suffix_espeak_{voices}_mfcc10ms.npz"
    try:
        return read(store.find([name], kind="words", path=path))
    except FileNotFoundError:
        if path is not None:
            raise
    from linmem.datasets import speech

    folder = store.cache_folder() / "words" / f"espeak_{voices}"
    try:
        if not folder.is_dir():
            speech.write_corpus(folder, voices)
    except (RuntimeError, FileExistsError):
        if not folder.is_dir():  # another process was faster
            raise
    return timit(folder)


def read(path: str | os.PathLike[str]) -> Utterances:
    """Read features that were computed before, from ``.npz``; they are always synthetic."""
    path = Path(path)
    try:
        arrays = store.read_arrays(path, ("x", "lengths", "y", "speaker", "usage"), MOST_BYTES)
        x, lengths, y, speaker, use = arrays.values()
        kinds = "".join(array.dtype.kind for array in arrays.values()).replace("u", "i")
        if kinds != "fiiUU" or any(array.ndim != 1 for array in (lengths, y, speaker, use)):
            raise ValueError("arrays of the wrong kind")
        speakers, usage = tuple(map(str, speaker)), tuple(map(str, use))
        if x.ndim != 2 or not np.isfinite(x).all() or sum(lengths.tolist()) != len(x) or min(lengths.tolist()) < 1:
            raise ValueError("features and lengths contradict each other")
        if not len(y) == len(lengths) == len(speakers) == len(usage) or not ((y >= 0) & (y < len(WORDS))).all():
            raise ValueError("labels, speakers and lengths contradict each other")
    except ValueError as error:
        raise ValueError(f"{path}: expected the features of spoken words ({error})") from None
    features = np.split(x, np.cumsum(lengths)[:-1])
    return Utterances(features, y.astype(np.int64), speakers, usage, synthetic=True)


# ---------------------------------------------------------------------------------------------- the task


@dataclass(frozen=True)
class Task:
    """Utterances to learn from and to test on, both normalised by the mean and deviation of the former."""

    train: Utterances
    test: Utterances
    mean: NDArray[np.float64]
    deviation: NDArray[np.float64]


def task(data: Utterances, *, seed: int | None = None, test: Iterable[tuple[str, str]] | None = None) -> Task:
    """Divide utterances, five and two of each word, and normalise them.

    Parameters
    ----------
    data
        What `timit` or `stand_in` returns.
    seed
        Divide at random.
    test
        Or take these (word, speaker) for testing. With neither, those in the folder ``TEST`` of the corpus, which in
        the stand-in are two of each word; in TIMIT all who say a sentence are in the same folder, so give a seed.
    """
    if seed is not None and test is not None:
        raise ValueError("seed and test are both given: expected one of them, or none")
    if seed is not None:
        rng = np.random.default_rng(seed)
        chosen = [rng.permutation(np.flatnonzero(data.labels == label))[:TESTS] for label in range(len(WORDS))]
        testing = {int(i) for i in np.concatenate(chosen)}
    elif test is not None:
        known = {pair: i for i, pair in enumerate(zip(data.words, data.speakers, strict=True))}
        wanted = list(test)
        unknown = [pair for pair in wanted if pair not in known]
        if unknown:
            raise ValueError(f"test has {unknown[0]}: expected pairs of a word and a speaker who says it")
        testing = {known[pair] for pair in wanted}
    else:
        testing = {i for i, usage in enumerate(data.usage) if usage == "TEST"}
    counts = np.bincount(data.labels[sorted(testing)], minlength=len(WORDS))
    if (counts != TESTS).any():
        word = list(WORDS)[int(np.flatnonzero(counts != TESTS)[0])]
        raise ValueError(f"{word!r} would be tested {counts[counts != TESTS][0]} times: expected {TESTS}; give a seed")
    train = data.take(i for i in range(len(data)) if i not in testing)
    frames = np.concatenate(train.features).astype(np.float64)
    mean, deviation = frames.mean(0), frames.std(0)
    deviation = np.where(deviation > 0, deviation, 1)

    def normalised(part: Utterances) -> Utterances:
        return replace(part, features=[((x - mean) / deviation).astype(np.float32) for x in part.features])

    return Task(normalised(train), normalised(data.take(sorted(testing))), mean, deviation)


def balanced_batches(train: Utterances, seed: int, noise: float = 0.6) -> Iterator[Utterances]:
    """Yield an epoch of batches with one utterance of each word, with Gaussian noise on every feature.

    Parameters
    ----------
    train
        As many utterances of each word.
    seed
        Another seed for another epoch: it decides who is with whom, and the noise.
    noise
        Standard deviation; 0 for none.
    """
    rng = np.random.default_rng(seed)
    columns = [rng.permutation(np.flatnonzero(train.labels == label)) for label in np.unique(train.labels)]
    if len({len(column) for column in columns}) != 1:
        raise ValueError("train has more utterances of some words than of others: expected as many of each")
    for row in np.stack(columns, axis=1):
        batch = train.take(row.tolist())
        if noise:
            noisy = [x + noise * rng.standard_normal(x.shape, dtype=np.float32) for x in batch.features]
            batch = replace(batch, features=noisy)
        yield batch
