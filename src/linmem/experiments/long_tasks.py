"""Tasks whose answer is known at the end of a sequence and lies anywhere in it: where windows of frames come to an end.

Every task is made from a seed, and has sequences to learn from, to select by and to test on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from linmem.datasets import store, words

#: What is asked: independent bits, one class of several, or a number.
Kind = Literal["bits", "class", "number"]

#: A pattern to recall: steps, and bits in each.
STEPS, BITS = 5, 8

#: The synthetic stand-in for the Common Suffix words, with its sound, so that frames may follow each other faster.
WORDS_ARCHIVE = "common_suffix_espeak_seven_timit_layout.tar.xz"


class Sequences(NamedTuple):
    """Sequences one beside the other, what is asked at their end, and how long each is."""

    x: Tensor
    """(N, T, features), zero behind the end; small integers where that saves memory."""
    y: Tensor
    """(N, answers), or (N,) classes."""
    lengths: Tensor
    """(N,)"""

    def take(self, rows: Any) -> Sequences:
        """Return some of the sequences."""
        return Sequences(self.x[rows], self.y[rows], self.lengths[rows])


@dataclass(frozen=True)
class Task:
    """Sequences to learn from, to select by, and to test on."""

    name: str
    kind: Kind
    outputs: int
    """Numbers that a model has to give."""
    train: Sequences
    valid: Sequences
    test: Sequences

    @property
    def features(self) -> int:
        """Numbers in a frame."""
        return self.train.x.shape[-1]

    @property
    def longest(self) -> int:
        """Steps of the longest sequence to learn from."""
        return int(self.train.lengths.max())


def recall(delay: int, sizes: tuple[int, int, int], seed: int, *, noise: bool = False) -> Task:
    """Ask for a random pattern that was shown at the start, after a delay and a call.

    Bits are ±1 and silence is 0. In the delay there is silence or, with `noise`, more random bits on the same lines,
    which only their place tells from the pattern. The call is 1 on a line of its own.

    Examples
    --------
    >>> task = recall(7, (3, 2, 2), seed=0)
    >>> task.train.x.shape, task.train.y.shape
    (torch.Size([3, 13, 9]), torch.Size([3, 40]))
    """
    rng = np.random.default_rng([seed, delay, noise])
    n = sum(sizes)
    bits = rng.integers(0, 2, (n, STEPS, BITS), dtype=np.int8)
    x = np.zeros((n, STEPS + delay + 1, BITS + 1), np.int8)
    x[:, :STEPS, :BITS] = 2 * bits - 1
    if noise:
        x[:, STEPS:-1, :BITS] = 2 * rng.integers(0, 2, (n, delay, BITS), dtype=np.int8) - 1
    x[:, -1, -1] = 1
    name = f"recall-{delay}" + "-noise" * noise
    return _divided(name, "bits", STEPS * BITS, x, bits.reshape(n, -1).astype(np.float32), sizes)


def adding(length: int, sizes: tuple[int, int, int], seed: int) -> Task:
    """Ask for the sum of two numbers among many: one is marked in each half of the sequence.

    A frame is a number between 0 and 1, and its mark, 0 or 1.

    Examples
    --------
    >>> task = adding(10, (3, 2, 2), seed=0)
    >>> number, mark = task.train.x[0].T
    >>> bool(torch.isclose((number * mark).sum(), task.train.y[0, 0])), float(mark.sum())
    (True, 2.0)
    """
    rng = np.random.default_rng([seed, length])
    n, half = sum(sizes), length // 2
    x = np.zeros((n, length, 2), np.float32)
    x[:, :, 0] = rng.random((n, length))
    x[np.arange(n), rng.integers(0, half, n), 1] = 1
    x[np.arange(n), rng.integers(half, length, n), 1] = 1
    return _divided(f"adding-{length}", "number", 1, x, (x[:, :, :1] * x[:, :, 1:]).sum(1), sizes)


def digits(seed: int, sizes: tuple[int, int, int] = (1197, 300, 300)) -> Task:
    """Ask which handwritten digit was seen, pixel by pixel: scikit-learn's, 8 by 8.

    Examples
    --------
    >>> digits(0).train.x.shape
    torch.Size([1197, 64, 1])
    """
    data = load_digits()
    order = np.random.default_rng(seed).permutation(len(data.target))
    x = data.images[order].reshape(-1, 64, 1).astype(np.float32)
    seen = x[: sizes[0]]
    return _divided("digits", "class", 10, (x - seen.mean()) / seen.std(), data.target[order], sizes)


def spoken_words(data: words.Utterances, seed: int) -> Task:
    """Ask which of 25 words was spoken; of each word two utterances are for testing, and one to select by."""
    task = words.task(data, seed=seed)
    rng = np.random.default_rng(seed)
    columns = [rng.permutation(np.flatnonzero(task.train.labels == label)) for label in range(len(words.WORDS))]
    valid = task.train.take(int(column[0]) for column in columns)
    train = task.train.take(int(i) for column in columns for i in column[1:])
    name = "words-synthetic" if data.synthetic else "words"
    return Task(name, "class", len(words.WORDS), *map(_padded, (train, valid, task.test)))


@cache
def utterances() -> words.Utterances:
    """Return the synthetic words in frames of 1 ms, from the data folder or this user's cache."""
    return words.timit(store.find([WORDS_ARCHIVE], kind="words"), step=0.001)


def _padded(part: words.Utterances) -> Sequences:
    frames = [torch.from_numpy(x) for x in part.features]
    lengths = torch.tensor([len(x) for x in frames])
    return Sequences(pad_sequence(frames, batch_first=True), torch.from_numpy(part.labels), lengths)


def _divided(
    name: str, kind: Kind, outputs: int, x: NDArray[Any], y: NDArray[Any], sizes: tuple[int, int, int]
) -> Task:
    if min(sizes) < 1 or sum(sizes) > len(x):
        raise ValueError(f"sizes={sizes}: expected three numbers of at least 1, and {len(x)} at most together")
    whole = Sequences(torch.from_numpy(x), torch.from_numpy(y), torch.full((len(x),), x.shape[1]))
    ends = np.cumsum((0, *sizes)).tolist()
    train, valid, test = (whole.take(slice(start, end)) for start, end in pairwise(ends))
    return Task(name, kind, outputs, train, valid, test)


#: The tasks of the experiment by name, each made from a seed. Long sequences are few.
TASKS: dict[str, Callable[[int], Task]] = {
    "recall-100": lambda seed: recall(100, (2000, 250, 500), seed),
    "recall-1000": lambda seed: recall(1000, (1000, 250, 500), seed),
    "recall-10000": lambda seed: recall(10_000, (400, 100, 200), seed),
    "recall-100-noise": lambda seed: recall(100, (2000, 250, 500), seed, noise=True),
    "recall-1000-noise": lambda seed: recall(1000, (1000, 250, 500), seed, noise=True),
    "recall-10000-noise": lambda seed: recall(10_000, (400, 100, 200), seed, noise=True),
    "adding-100": lambda seed: adding(100, (8000, 500, 1000), seed),
    "adding-1000": lambda seed: adding(1000, (2000, 250, 500), seed),
    "digits": digits,
    "words-synthetic": lambda seed: spoken_words(utterances(), seed),
}
