"""Linear readouts: checked, made wider, and fitted to a memory that stays as it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

import numpy as np
import scipy.linalg
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from linmem._ranks import agreed, rows_of_all, total
from linmem.layers.recurrent import RecurrentLayer
from linmem.pretraining.activations import batches_of, is_stream, output_sequences

Fit = Literal["least_squares", "logistic"] | Callable[[Tensor, Tensor, nn.Linear], nn.Linear]

#: Weight of the squared weights in a logistic fit, which would otherwise have no end where classes are separable.
L2 = 1e-6


def check_readout(readout: nn.Linear, layer: RecurrentLayer) -> None:
    """Refuse a readout that cannot read the layer's output."""
    if not isinstance(readout, nn.Linear):
        raise TypeError(f"readout should be of type torch.nn.Linear, got: {type(readout).__name__}")
    if readout.in_features != layer.output_size:
        raise ValueError(
            f"readout reads {readout.in_features} features: expected {layer.output_size}, the output_size of the layer"
        )


def like(readout: nn.Linear, weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """Return a new readout with these weights, of the precision and on the device of another."""
    old = readout.weight
    new = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device=old.device, dtype=old.dtype)
    with torch.no_grad():
        new.weight.copy_(weight)
        if bias is not None:
            new.bias.copy_(bias)
    return new


def check_targets(layer: RecurrentLayer, readout: nn.Linear, sequences: Any, targets: Any, fit: Fit) -> None:
    """Refuse targets that a fit could not use, before any work is done for it."""
    for some_sequences, some_targets in in_pairs(sequences, targets):
        lengths = [len(x) for batch in batches_of(some_sequences, layer) for x in batch]
        parts, per_sequence = targets_of(some_targets, lengths, readout.out_features)
        if fit == "least_squares" and per_sequence:
            raise ValueError("targets are classes: expected readout_fit='logistic', or numbers for 'least_squares'")
        if fit == "logistic" and not per_sequence:
            low, high = min(float(part.min()) for part in parts), max(float(part.max()) for part in parts)
            if low < 0 or high > 1:
                raise ValueError(f"targets go from {low:g} to {high:g}: expected 0 to 1 for a logistic fit")


def in_pairs(sequences: Any, targets: Any) -> Iterable[tuple[Any, Any]]:
    """Return batches of sequences with their targets: one pair, if they do not come as streams."""
    return zip(sequences, targets, strict=True) if is_stream(sequences) else [(sequences, targets)]


def fit_readout(
    layer: RecurrentLayer, readout: nn.Linear, sequences: Any, targets: Any, fit: Fit, distributed: bool = False
) -> nn.Linear:
    """Return a readout of the layer's output that predicts the targets better than the one given, which it starts from.

    `targets` has, for each sequence, (T, outputs) numbers or, as one vector of integers, the class of each sequence,
    which is read from its last memory.
    """
    codes, wanted = [], []
    for some_sequences, some_targets in in_pairs(sequences, targets):
        rows = [row for batch in output_sequences(layer, some_sequences) for row in batch]
        parts, per_sequence = targets_of(some_targets, [len(row) for row in rows], readout.out_features)
        codes += [row[-1:] for row in rows] if per_sequence else rows
        wanted += parts
    memory, target = torch.cat(codes), torch.cat(wanted).to(codes[0].device)
    if callable(fit):
        return fit(memory, target, readout)
    find = least_squares if fit == "least_squares" else logistic
    return find(memory, target, readout, distributed)


def targets_of(targets: Any, lengths: list[int], outputs: int) -> tuple[list[Tensor], bool]:
    """Return targets as one tensor for each sequence, and whether they are classes of whole sequences."""
    if isinstance(targets, (np.ndarray, Tensor)) and targets.ndim == 1:
        labels = torch.as_tensor(targets)
        if labels.is_floating_point() or len(labels) != len(lengths):
            raise ValueError(
                f"targets are {len(labels)} of {labels.dtype}: expected a class for each of {len(lengths)} sequences"
            )
        if not ((labels >= 0) & (labels < outputs)).all():
            raise ValueError(f"targets have classes from {labels.min()} to {labels.max()}: expected 0 to {outputs - 1}")
        return list(torch.split(labels.long(), 1)), True
    if len(targets) != len(lengths):
        raise ValueError(f"targets has {len(targets)} items: expected one for each of {len(lengths)} sequences")
    parts = [torch.as_tensor(np.asarray(part) if not isinstance(part, Tensor) else part) for part in targets]
    for i, (part, length) in enumerate(zip(parts, lengths, strict=True)):
        if part.shape != (length, outputs):
            raise ValueError(f"targets[{i}] has shape {tuple(part.shape)}: expected {(length, outputs)}")
        if not torch.isfinite(part.double()).all():
            raise ValueError(f"targets[{i}] contains NaN or inf: expected finite numbers")
    return [part.double() for part in parts], False


def least_squares(memory: Tensor, target: Tensor, readout: nn.Linear, distributed: bool = False) -> nn.Linear:
    """Return the readout with the least squared error, and among those the smallest."""
    x, y = memory.double(), target.double()
    if readout.bias is not None:
        sums = total(torch.cat([x.sum(0), y.sum(0), x.new_tensor([len(x)])]), distributed)
        means = sums[:-1] / sums[-1]
        mean_x, mean_y = means[: x.shape[1]], means[x.shape[1] :]
        x, y = x - mean_x, y - mean_y
    if distributed:  # through the orthogonal factor of all rows, as below through that of these
        xy = torch.linalg.qr(rows_of_all(torch.linalg.qr(torch.cat([x, y], 1), mode="r").R, distributed), mode="r").R
        x, y = xy[:, : x.shape[1]], xy[:, x.shape[1] :]
    w = torch.from_numpy(scipy.linalg.lstsq(x.numpy(force=True), y.numpy(force=True))[0].T.copy()).to(x)
    return like(readout, agreed(w, distributed), None if readout.bias is None else mean_y - w @ mean_x)


def logistic(
    memory: Tensor,
    target: Tensor,
    readout: nn.Linear,
    distributed: bool = False,
    *,
    l2: float = L2,
    steps: int = 100,
) -> nn.Linear:
    """Return the readout with the least cross-entropy, found with L-BFGS from the given one on.

    Targets are classes, (N,), or zeros and ones for each output, (N, outputs).
    """
    x = memory.detach()
    y = target.long() if target.ndim == 1 else target.to(x)
    new = like(readout, readout.weight, readout.bias)
    optimizer = torch.optim.LBFGS(new.parameters(), max_iter=steps, line_search_fn="strong_wolfe")

    rows, processes = total(torch.tensor([len(x), 1.0], dtype=torch.float64, device=x.device), distributed).tolist()

    def loss() -> Tensor:
        optimizer.zero_grad()
        if y.ndim == 1:
            errors = cross_entropy(new(x), y, reduction="sum")
        else:
            errors = binary_cross_entropy_with_logits(new(x), y, reduction="sum")
        value = errors / rows + l2 / processes * new.weight.square().sum()
        value.backward()
        for parameter in new.parameters():
            assert parameter.grad is not None
            total(parameter.grad, distributed)
        return total(value.detach(), distributed)

    with torch.enable_grad():
        optimizer.step(loss)  # type: ignore[no-untyped-call]
    return new
