"""Sequences in, hidden sequences out: what the algorithms learn from, collected without gradients.

Sequences come in any container of :class:`linmem.LinearAutoencoder` (a 2-D array, a 3-D batch, a list), or as an
iterable of such containers: a stream of batches, which is read once for each pass, so it must start anew each time, and
in the same order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from linmem._ranks import check_ranks, check_same, largest, together
from linmem.autoencoder import LinearAutoencoder
from linmem.autoencoder.sequences import as_sequences, check_finite
from linmem.autoencoder.stack import dense
from linmem.layers.parameters import any_parameter
from linmem.layers.recurrent import RecurrentLayer

#: Frames, with padding, that go through a layer at a time.
BATCH_FRAMES = 65_536


def autoencoder(memory_size: int, solver: str, forgetting: float, distributed: bool) -> LinearAutoencoder:
    """Return what will encode activations, in float64: they may be close to full rank. What it is told is checked."""
    check_ranks(distributed)
    laes = LinearAutoencoder(
        memory_size, solver=solver, forgetting=forgetting, dtype="float64", distributed=distributed
    )
    laes._check_parameters()
    return laes


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
    """Whether this is an iterable of batches, and not itself a container of sequences, an array or a data frame."""
    return isinstance(sequences, Iterable) and not isinstance(sequences, Sequence) and not hasattr(sequences, "ndim")


def parts_of(sequences: Any, name: str = "sequences") -> Iterator[Any]:
    """Yield the containers of a stream, or the one container that this is."""
    if not is_stream(sequences):
        yield sequences
        return
    if iter(sequences) is sequences:
        raise ValueError(f"{name} can be read only once: expected a list, or an iterable that starts anew")
    empty = True
    for part in sequences:
        empty = False
        yield part
    if empty:
        raise ValueError(f"{name} is empty: expected at least one sequence")


def batches_of(sequences: Any, layer: nn.Module) -> Iterator[list[Tensor]]:
    """Yield the sequences in order, some at a time, as tensors where the layer is and of its precision."""
    weight = any_parameter(layer)
    for part in parts_of(sequences):
        batch: list[Tensor] = []
        longest = 0
        for array in as_sequences(part, "sequences").arrays:
            longest = max(longest, array.shape[0])
            if batch and (len(batch) + 1) * longest > BATCH_FRAMES:
                yield batch
                batch, longest = [], array.shape[0]
            batch.append(dense(array, weight.dtype, weight.device))
        yield batch


def check_input(sequences: Any, layer: RecurrentLayer, distributed: bool = False) -> int:
    """Check all sequences against the layer that will read them, before any work starts; return the longest length."""
    longest, device = 0, any_parameter(layer).device
    with together(distributed, device):
        for part in parts_of(sequences):
            known = as_sequences(part, "sequences")
            check_finite(known, "sequences")
            width = known.arrays[0].shape[1]
            if width != layer.input_size:
                raise ValueError(
                    f"sequences have {width} features: expected {layer.input_size}, the input_size of the layer"
                )
            longest = max(longest, *(array.shape[0] for array in known.arrays))
    if distributed:
        sums = [float(p.detach().double().abs().sum()) for p in layer.parameters()]
        check_same("the layer's weights", sum(sums), distributed, device)
    return int(largest(longest, distributed, device))


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
    return [hidden for hidden, _ in hidden_and_inputs(layer, sequences, index)]


def hidden_and_inputs(
    layer: RecurrentLayer, sequences: Any, index: int, inputs: bool = False
) -> list[tuple[list[Tensor], list[Tensor]]]:
    """Return, for each direction, the hidden sequences of one layer of a stack and, if wanted, what it reads.

    Both in the order in which it reads, and from one pass over the sequences.
    """
    found: list[tuple[list[Tensor], list[Tensor]]] = [([], []) for _ in range(layer.num_directions)]
    with evaluating(layer):
        for batch in batches_of(sequences, layer):
            x, lengths = padded(batch, layer)
            hidden = unpadded(layer.activations(x, lengths=lengths, layer=index), lengths, layer)
            read = batch
            if inputs and index > 0:
                read = unpadded(layer._run(x, None, lengths, index, layer.output)[0], lengths, layer)
            for h, row in zip(hidden, read, strict=True):
                for reverse, (all_hidden, all_inputs) in enumerate(found):
                    part = torch.split(h, layer.hidden_size, dim=1)[reverse]
                    # Not views that keep the padded batch alive.
                    all_hidden.append(part.flip(0) if reverse else part.clone())
                    if inputs:
                        all_inputs.append(row.flip(0) if reverse else row.clone())
    return found


def output_sequences(layer: RecurrentLayer, sequences: Any) -> Iterator[list[Tensor]]:
    """Yield what a layer returns for the sequences, some at a time."""
    with evaluating(layer):
        for batch in batches_of(sequences, layer):
            x, lengths = padded(batch, layer)
            y, _ = layer(x, lengths=lengths)
            yield unpadded(y, lengths, layer)
