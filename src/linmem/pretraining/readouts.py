"""Linear readouts: checked, made wider, and fitted to a memory that stays as it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import zip_longest
from numbers import Integral
from typing import Any, Literal

import numpy as np
import scipy.linalg
import torch
from scipy.sparse import issparse
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from linmem._ranks import agreed, first_says, is_first, rows_of_all, together, total
from linmem.autoencoder.sequences import as_sequences
from linmem.autoencoder.stack import dense
from linmem.layers.parameters import any_parameter
from linmem.layers.recurrent import RecurrentLayer
from linmem.pretraining.activations import is_stream, output_sequences, parts_of

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
    mine, its = readout.weight, any_parameter(layer)
    if (mine.dtype, mine.device) != (its.dtype, its.device):
        raise ValueError(
            f"readout is of {mine.dtype} on {mine.device}: expected {its.dtype} on {its.device}, as the layer"
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


def check_targets(
    layer: RecurrentLayer, readout: nn.Linear, sequences: Any, targets: Any, fit: Fit, distributed: bool
) -> None:
    """Refuse targets that a fit could not use, before any work is done for it."""
    if callable(fit) and distributed:
        raise ValueError("readout_fit is a function, which would see this process's part: expected a name")
    with together(distributed, any_parameter(layer).device):
        for some_sequences, some_targets in in_pairs(sequences, targets):
            lengths = [array.shape[0] for array in as_sequences(some_sequences, "sequences").arrays]
            parts, per_sequence = targets_of(some_targets, lengths, readout.out_features)
            if fit == "least_squares" and per_sequence:
                raise ValueError("targets are classes: expected readout_fit='logistic', or numbers for 'least_squares'")
            if fit == "logistic" and not per_sequence:
                low, high = min(float(part.min()) for part in parts), max(float(part.max()) for part in parts)
                if low < 0 or high > 1:
                    raise ValueError(f"targets go from {low:g} to {high:g}: expected 0 to 1 for a logistic fit")


def in_pairs(sequences: Any, targets: Any) -> Iterator[tuple[Any, Any]]:
    """Yield batches of sequences with their targets: one pair, if they do not come as streams."""
    if is_stream(sequences) != is_stream(targets):
        kinds = ["a stream of batches" if is_stream(x) else "no stream" for x in (sequences, targets)]
        raise ValueError(f"sequences are {kinds[0]}, targets {kinds[1]}: expected both or neither")
    nothing = object()
    for pair in zip_longest(parts_of(sequences), parts_of(targets, "targets"), fillvalue=nothing):
        if any(part is nothing for part in pair):
            raise ValueError("targets has another number of batches than sequences: expected as many")
        some_sequences, some_targets = pair
        single = as_sequences(some_sequences, "sequences").container == "array"
        yield some_sequences, [some_targets] if single and getattr(some_targets, "ndim", 0) == 2 else some_targets


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
        with torch.enable_grad():
            found = fit(memory.detach(), target, readout)
        check_readout(found, layer)
        if found.out_features != readout.out_features:
            raise ValueError(
                f"readout_fit returned a readout of {found.out_features} outputs: expected {readout.out_features}"
            )
        return found
    find = least_squares if fit == "least_squares" else logistic
    return find(memory, target, readout, distributed)


def targets_of(targets: Any, lengths: list[int], outputs: int) -> tuple[list[Tensor], bool]:
    """Return targets as one tensor for each sequence, and whether they are classes of whole sequences."""
    if isinstance(targets, (list, tuple)) and targets and all(isinstance(t, Integral) for t in targets):
        targets = np.asarray(targets)
    if isinstance(targets, (np.ndarray, Tensor)) and targets.ndim == 1 and targets.dtype != object:
        if isinstance(targets, np.ndarray) and targets.dtype.kind == "u":  # torch does not compare them
            targets = targets.astype(np.int64)
        labels = torch.as_tensor(targets)
        if labels.is_floating_point() or len(labels) != len(lengths):
            raise ValueError(
                f"targets are {len(labels)} of {labels.dtype}: expected a class for each of {len(lengths)} sequences"
            )
        if not ((labels >= 0) & (labels < outputs)).all():
            raise ValueError(f"targets have classes from {labels.min()} to {labels.max()}: expected 0 to {outputs - 1}")
        return list(torch.split(labels.long(), 1)), True
    if not hasattr(targets, "__len__") or getattr(targets, "ndim", 1) == 0:
        raise ValueError(f"targets is a {type(targets).__name__}: expected a list of arrays, or a vector of classes")
    if len(targets) != len(lengths):
        raise ValueError(f"targets has {len(targets)} items: expected one for each of {len(lengths)} sequences")
    arrays = [part if isinstance(part, Tensor) or issparse(part) else np.asarray(part) for part in targets]
    parts = [dense(array, torch.float64, torch.device("cpu")) for array in arrays]
    for i, (part, length) in enumerate(zip(parts, lengths, strict=True)):
        if part.shape != (length, outputs):
            raise ValueError(f"targets[{i}] has shape {tuple(part.shape)}: expected {(length, outputs)}")
        if not torch.isfinite(part).all():
            raise ValueError(f"targets[{i}] contains NaN or inf: expected finite numbers")
    return parts, False


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
    # Directions of the memory that are rounding, in its own precision, would get enormous weights.
    cutoff = float(torch.finfo(memory.dtype).eps ** 0.5)
    w = torch.from_numpy(scipy.linalg.lstsq(x.numpy(force=True), y.numpy(force=True), cond=cutoff)[0].T.copy()).to(x)
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

    def totals() -> Tensor:
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

    def share_parameters() -> None:
        for parameter in new.parameters():
            parameter.data = agreed(parameter.data, distributed)

    def loss() -> Tensor:  # the first process searches, and the others give it their sums as long as it asks for them
        first_says(True, distributed, x.device)
        share_parameters()
        return totals()

    with torch.enable_grad():
        if is_first(distributed):
            optimizer.step(loss)  # type: ignore[no-untyped-call]
            first_says(False, distributed, x.device)
        else:
            while first_says(True, distributed, x.device):
                share_parameters()
                totals()
    share_parameters()
    return new
