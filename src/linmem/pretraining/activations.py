"""Sequences in, hidden sequences out: what the algorithms learn from, collected without gradients.

Sequences come in any container of :class:`linmem.LinearAutoencoder` (a 2-D array, a 3-D batch, a list), or as an
iterable of such containers: a stream of batches, which is read once for each pass, so it must start anew each time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from linmem.autoencoder import LinearAutoencoder
from linmem.autoencoder.sequences import as_sequences, check_finite
from linmem.autoencoder.stack import dense
from linmem.layers.parameters import any_parameter
from linmem.layers.recurrent import RecurrentLayer

#: Frames, with padding, that go through a layer at a time.
BATCH_FRAMES = 65_536


def autoencoder(memory_size: int, solver: str, forgetting: float, distributed: bool) -> LinearAutoencoder:
    """Return what will encode activations: in float64, as near the full rank as they may be."""
    return LinearAutoencoder(
        memory_size, solver=solver, forgetting=forgetting, dtype="float64", distributed=distributed
    )


@contextmanager
def evaluating(layer: nn.Module) -> Iterator[None]:
    """Run a layer without dropout and without gradients."""
    was = layer.training
    layer.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        layer.train(was)


def is_stream(sequences: Any) -> bool:
    """Whether this is an iterable of batches, and not itself a container of sequences."""
    array = isinstance(sequences, (np.ndarray, Tensor, Sequence)) or scipy.sparse.issparse(sequences)
    return not array and isinstance(sequences, Iterable)


def batches_of(sequences: Any, layer: nn.Module, name: str = "sequences") -> Iterator[list[Tensor]]:
    """Yield the sequences in order, some at a time, as tensors where the layer is and of its precision."""
    if is_stream(sequences) and iter(sequences) is sequences:
        raise ValueError(
            f"{name} can be read only once: expected a list, or an iterable that starts anew, not a generator"
        )
    weight = any_parameter(layer)
    parts = sequences if is_stream(sequences) else [sequences]
    some = False
    for part in parts:
        known = as_sequences(part, name)
        check_finite(known, name)
        batch: list[Tensor] = []
        for array in known.arrays:
            longest = max([len(x) for x in batch] + [array.shape[0]])
            if batch and (len(batch) + 1) * longest > BATCH_FRAMES:
                yield batch
                batch = []
            batch.append(dense(array, weight.dtype, weight.device))
        some = True
        yield batch
    if not some:
        raise ValueError(f"{name} is empty: expected at least one sequence")


def check_input(sequences: Any, layer: RecurrentLayer) -> None:
    """Check the first sequences against the layer that will read them, before any work starts."""
    width = next(batches_of(sequences, layer))[0].shape[1]
    if width != layer.input_size:
        raise ValueError(f"sequences have {width} features: expected {layer.input_size}, the input_size of the layer")


def padded(batch: list[Tensor], layer: RecurrentLayer) -> tuple[Tensor, Tensor]:
    """Return sequences as a layer reads them, and their lengths."""
    lengths = torch.tensor([len(x) for x in batch], device=batch[0].device)
    return pad_sequence(batch, batch_first=layer.batch_first), lengths


def unpadded(y: Tensor, lengths: Tensor, layer: RecurrentLayer) -> list[Tensor]:
    """Return what a layer made of padded sequences as one tensor for each."""
    rows = y if layer.batch_first else y.transpose(0, 1)
    return [row[:length] for row, length in zip(rows, lengths.tolist(), strict=True)]


def hidden_sequences(layer: RecurrentLayer, sequences: Any, index: int) -> list[list[Tensor]]:
    """Return the hidden sequences of one layer of a stack, for each direction, in the order that it reads them."""
    directions: list[list[Tensor]] = [[] for _ in range(layer.num_directions)]
    with evaluating(layer):
        for batch in batches_of(sequences, layer):
            x, lengths = padded(batch, layer)
            h = layer.activations(x, lengths=lengths, layer=index)
            for row in unpadded(h, lengths, layer):
                parts = torch.split(row, layer.hidden_size, dim=1)
                directions[0].append(parts[0].clone())  # not a view that keeps the padded batch alive
                if layer.bidirectional:
                    directions[1].append(parts[1].flip(0))
    return directions


def output_sequences(layer: RecurrentLayer, sequences: Any) -> Iterator[list[Tensor]]:
    """Yield what a layer returns for the sequences, some at a time."""
    with evaluating(layer):
        for batch in batches_of(sequences, layer):
            x, lengths = padded(batch, layer)
            y, _ = layer(x, lengths=lengths)
            yield unpadded(y, lengths, layer)
