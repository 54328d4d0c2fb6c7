"""How much a memory should forget: chosen on validation data, with everything in closed form."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import Ridge

from linmem.autoencoder import LinearAutoencoder
from linmem.autoencoder.sequences import Sequences, as_sequences, check_finite
from linmem.autoencoder.stack import dense

#: Discounts that are tried by default.
CANDIDATES = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 1.0)

#: Weight of the squared weights of a readout of unit deviations, relative to the frames it is fitted to.
RIDGE = 1e-4


@dataclass(frozen=True)
class ForgettingChoice:
    """Which discount serves best, and how all of them did."""

    best: float
    errors: dict[float, float]
    """Mean squared error on validation data, over the variance of the targets there, by discount."""


def choose_forgetting(
    train: Any,
    valid: Any,
    memory_size: int,
    *,
    targets: tuple[Sequence[Any], Sequence[Any]] | None = None,
    candidates: Sequence[float] = CANDIDATES,
    solver: str = "auto",
) -> ForgettingChoice:
    """Return the discount of the past with which a linear readout of memory and newest frame predicts best.

    For each candidate an autoencoder is fitted to the training sequences, and to its codes a ridge regression. Nothing
    is iterated, so this takes seconds where training a network for each candidate would take hours.

    Parameters
    ----------
    train, valid
        Sequences, in any container of :class:`linmem.LinearAutoencoder`.
    memory_size
        Units of the memory.
    targets
        For both, (frames, outputs) for each sequence. By default the next frame is to be predicted.
    candidates
        Discounts to try.
    solver
        As in :class:`linmem.LinearAutoencoder`.

    Examples
    --------
    What matters here is the frame before the last:

    >>> rng = np.random.default_rng(0)
    >>> sequences = [rng.standard_normal((50, 4)) for _ in range(8)]
    >>> echo = [np.roll(x, 1, axis=0) for x in sequences]
    >>> choose_forgetting(sequences[:6], sequences[6:], 8, targets=(echo[:6], echo[6:]), candidates=[0.5, 1.0]).best
    0.5
    """
    known = {"train": as_sequences(train, "train"), "valid": as_sequences(valid, "valid")}
    for name, sequences in known.items():
        check_finite(sequences, name)
    wanted = {name: _targets(name, part, targets, i) for i, (name, part) in enumerate(known.items())}
    if not candidates:
        raise ValueError("candidates is empty: expected at least one discount to try")
    variance = float(wanted["valid"].var(0).sum())
    if variance == 0:
        raise ValueError("the targets of valid are constant: expected some variance to relate errors to")
    errors = {}
    for forgetting in candidates:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="n_components=.* is above the numerical rank")
            laes = LinearAutoencoder(memory_size, solver=solver, forgetting=forgetting).fit(known["train"].arrays)
        x, scale = _features(laes, known["train"], targets is None)
        model = Ridge(alpha=RIDGE * len(x)).fit(x, wanted["train"])
        x, _ = _features(laes, known["valid"], targets is None, scale)
        errors[float(forgetting)] = float(np.square(model.predict(x) - wanted["valid"]).sum(1).mean()) / variance
    return ForgettingChoice(min(errors, key=errors.__getitem__), errors)


def _features(
    laes: LinearAutoencoder, sequences: Sequences, predict: bool, scale: NDArray[Any] | None = None
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return memory and newest frame, at every frame that has a target, in units of their deviation in training."""
    codes = laes.transform(sequences.arrays)
    parts = [
        np.concatenate([_numbers(code), _numbers(x)], axis=1)[: -1 if predict else None]
        for code, x in zip(codes, sequences.arrays, strict=True)
    ]
    features = np.concatenate(parts)
    if scale is None:
        deviation = features.std(0)
        scale = np.where(deviation > 0, 1 / np.where(deviation > 0, deviation, 1), 0)
    return features * scale, scale


def _targets(name: str, sequences: Sequences, targets: Any, i: int) -> NDArray[Any]:
    arrays = sequences.arrays
    if targets is None:
        if max(array.shape[0] for array in arrays) < 2:
            raise ValueError(f"{name} has no sequence of two frames: expected one, or targets")
        return np.concatenate([_numbers(array)[1:] for array in arrays])
    if len(targets) != 2:
        raise ValueError(f"targets has {len(targets)} items: expected those of train and those of valid")
    parts = [np.asarray(part) for part in targets[i]]
    lengths = [int(array.shape[0]) for array in arrays]
    if [part.shape[0] if part.ndim == 2 else None for part in parts] != lengths:
        raise ValueError(f"targets of {name} do not fit: expected (frames, outputs) for each sequence of {name}")
    return np.concatenate(parts).astype(np.float64)


def _numbers(array: Any) -> NDArray[Any]:
    return dense(array, torch.float32, torch.device("cpu")).numpy()
