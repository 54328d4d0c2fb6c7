"""Ragged sequences as batches to train on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

#: Sequences are sorted by length among so many batches' worth of them: enough for little padding, few enough for
#: batches to differ from one epoch to the next.
POOL = 16

#: Sets of more bytes stay packed: those of the paper have 35 MB at most, a byte for each key and frame.
MOST_UNPACKED = 2**28


class Batch(NamedTuple):
    """Padded sequences, what they should be mapped to, and how long each is."""

    x: Tensor
    """(T, B, features)"""
    y: Tensor
    """(T, B, features)"""
    lengths: Tensor
    """(B,)"""

    @property
    def mask(self) -> Tensor:
        """Which frames exist, (T, B)."""
        return torch.arange(len(self.x))[:, None] < self.lengths

    def chunks(self, steps: int) -> Iterator[Batch]:
        """Yield the batch in pieces of at most so many steps, for truncated back-propagation.

        The rows stay the same, so a state carries over from piece to piece; a row that has ended has length 0.

        Examples
        --------
        >>> batch = next_frames([np.eye(6)[:, :2], np.eye(3)[:, :2]])
        >>> [chunk.lengths.tolist() for chunk in batch.chunks(2)]
        [[2, 2], [2, 0], [1, 0]]
        """
        if steps < 1:
            raise ValueError(f"steps={steps}: expected at least 1")
        for start in range(0, len(self.x), steps):
            stop = start + steps
            yield Batch(self.x[start:stop], self.y[start:stop], (self.lengths - start).clamp(0, steps))


def next_frames(sequences: Sequence[Any]) -> Batch:
    """Pad sequences of at least two frames into a batch whose targets are the frames that follow.

    Examples
    --------
    >>> batch = next_frames([np.array([[1.0], [2.0], [3.0]])])
    >>> batch.x.flatten().tolist(), batch.y.flatten().tolist()
    ([1.0, 2.0], [2.0, 3.0])
    """
    tensors = [torch.as_tensor(np.asarray(s, dtype=np.float32)) for s in sequences]
    short = next((i for i, s in enumerate(tensors) if len(s) < 2), None)
    if short is not None:
        raise ValueError(f"sequences[{short}] has {len(tensors[short])} frames: expected at least 2, to predict one")
    padded = pad_sequence(tensors)
    return Batch(padded[:-1], padded[1:], torch.tensor([len(s) - 1 for s in tensors]))


def in_batches(lengths: Sequence[int], size: int, seed: int | None = None) -> list[list[int]]:
    """Divide sequences into batches of about the same length each.

    Parameters
    ----------
    lengths
        Frames of each sequence.
    size
        Sequences in a batch; the last one may have fewer.
    seed
        Decides who is with whom, and the order of the batches: give another one in each epoch. None sorts by length,
        for evaluation.

    Returns
    -------
    batches
        Positions in `lengths`, each exactly once.
    """
    if size < 1:
        raise ValueError(f"size={size}: expected at least 1")
    n, rng = len(lengths), np.random.default_rng(seed)
    order = np.arange(n) if seed is None else rng.permutation(n)
    pool = n if seed is None else size * POOL
    batches = []
    for start in range(0, n, max(1, pool)):
        some = sorted(order[start : start + pool].tolist(), key=lambda i: lengths[i])
        batches += [some[i : i + size] for i in range(0, len(some), size)]
    if seed is not None:
        batches = [batches[i] for i in rng.permutation(len(batches))]
    return batches


def unpacked(rolls: Sequence[Any]) -> Sequence[Any]:
    """Return a set with all of its pieces in memory, a byte for each key, or as it was if that were too much.

    For sets of which many epochs are made: unpacking is a fifth to a quarter of the work of making batches.
    """
    known: Any = getattr(rolls, "lengths", None)
    if known is None or len(rolls) == 0 or int(known.sum()) * rolls[0].shape[1] > MOST_UNPACKED:
        return rolls
    return [rolls[i] for i in range(len(rolls))]


def next_frame_batches(rolls: Sequence[Any], size: int, seed: int | None = None) -> Iterator[Batch]:
    """Yield an epoch of batches; a sequence is expanded when its batch is made, and not before.

    Parameters
    ----------
    rolls
        Sequences of frames, such as :class:`linmem.datasets.piano_rolls.Rolls`. Those of a single frame, which has
        nothing to predict, are left out.
    size, seed
        As in `in_batches`.
    """
    known: Any = getattr(rolls, "lengths", None)
    lengths = [len(roll) for roll in rolls] if known is None else np.asarray(known).tolist()
    usable = [i for i, length in enumerate(lengths) if length > 1]
    for batch in in_batches([lengths[i] for i in usable], size, seed):
        yield next_frames([rolls[usable[i]] for i in batch])


def detach(state: Any) -> Any:
    """Return a layer's state without its past, for the next piece of a sequence."""
    return tuple(s.detach() for s in state) if isinstance(state, tuple) else state.detach()
