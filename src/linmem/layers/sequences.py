"""Ragged batches: a PackedSequence to a padded batch and back, and reversal within each row's length."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from linmem._shapes import Float, Int


def pad_packed(packed: PackedSequence) -> tuple[Float[Tensor, "T B N"], Int[Tensor, " B"]]:
    """Return the padded batch of a packed one, its rows in the caller's order, and their lengths."""
    length, batch = len(packed.batch_sizes), int(packed.batch_sizes[0])
    padded = packed.data.new_zeros(length * batch, packed.data.shape[-1])
    padded = padded.index_copy(0, _places(packed), packed.data).view(length, batch, -1)
    lengths = (torch.arange(batch)[:, None] < packed.batch_sizes).sum(1).to(packed.data.device)
    if packed.unsorted_indices is not None:
        padded = padded.index_select(1, packed.unsorted_indices)
        lengths = lengths[packed.unsorted_indices]
    return padded, lengths


def pack_like(padded: Float[Tensor, "T B N"], packed: PackedSequence) -> PackedSequence:
    """Pack a padded batch as `packed` is packed."""
    if packed.sorted_indices is not None:
        padded = padded.index_select(1, packed.sorted_indices)
    data = padded.flatten(0, 1).index_select(0, _places(packed))
    return PackedSequence(data, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)


def _places(packed: PackedSequence) -> Int[Tensor, " steps"]:
    """Where each packed row lies in the flattened (T, B) batch whose rows go from long to short."""
    there = torch.arange(int(packed.batch_sizes[0])) < packed.batch_sizes[:, None]  # (T, B)
    return there.flatten().nonzero().squeeze(1).to(packed.data.device)


def reverse(x: Float[Tensor, "T B N"], lengths: Int[Tensor, " B"] | None) -> Float[Tensor, "T B N"]:
    """Turn each row around within its own length; padding stays where it is.

    Examples
    --------
    >>> x = torch.arange(6.0).reshape(3, 2, 1)
    >>> reverse(x, torch.tensor([3, 2]))[..., 0]
    tensor([[4., 3.],
            [2., 1.],
            [0., 5.]])
    """
    if lengths is None:
        return x.flip(0)
    t = torch.arange(x.shape[0], device=x.device)[:, None]  # (T, 1)
    source = torch.where(t < lengths, lengths - 1 - t, t)  # (T, B)
    return x.gather(0, source[..., None].expand(x.shape))
