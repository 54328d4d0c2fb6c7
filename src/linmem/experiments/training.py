"""A small training loop for models that predict the next frame of a piano roll.

Adam, gradients clipped, batches of pieces of about the same length, everything from one seed. Two quantities are
watched on validation data, likelihood and accuracy, because the one may still rise while the other falls: training
stops when neither has improved for some epochs, and the best state by either is kept.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from linmem.experiments.batches import Batch, detach, next_frame_batches
from linmem.experiments.metrics import RollMetrics
from linmem.layers.recurrent import RecurrentLayer

Quantity = Literal["nats", "accuracy"]
QUANTITIES: tuple[Quantity, ...] = ("nats", "accuracy")

#: Pieces that are evaluated at a time.
EVALUATED = 16


@dataclass(frozen=True)
class Settings:
    """How a model is trained."""

    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    clip: float = 1.0
    """Largest norm of the gradient."""
    batch_size: int = 4
    epochs: int = 200
    """At most."""
    patience: int = 20
    """Epochs without any improvement after which training stops."""
    chunk: int | None = None
    """Steps after which back-propagation is cut off; by default it goes through whole pieces."""
    seed: int = 0


class NextFrame(nn.Module):
    """A recurrent layer and a linear readout of its output, which gives the logits of the next frame.

    Parameters
    ----------
    layer
        One of linmem's or of torch's, time first.
    readout
        By default a new one.
    keys
        Width of a frame, for a new readout.

    Examples
    --------
    >>> import linmem
    >>> model = NextFrame(linmem.LMN(88, 20))
    >>> logits, state = model(torch.zeros(7, 2, 88))
    >>> logits.shape
    torch.Size([7, 2, 88])
    """

    def __init__(self, layer: nn.Module, readout: nn.Linear | None = None, *, keys: int = 88) -> None:
        super().__init__()
        self.layer = layer
        self.readout = nn.Linear(width_of(layer), keys) if readout is None else readout

    def forward(self, x: Tensor, state: Any = None, lengths: Tensor | None = None) -> tuple[Tensor, Any]:
        """Return logits, and the state at the end."""
        if isinstance(self.layer, RecurrentLayer):
            y, state = self.layer(x, state, lengths=lengths)
        else:  # torch's layers run over the padding, which no loss looks at
            y, state = self.layer(x, state)
        return self.readout(y), state

    @torch.no_grad()
    def start_at_frequencies(self, rolls: Sequence[Any]) -> NextFrame:
        """Set the readout's bias to the log-odds of each key; without that, an unrolled RNN hardly learns."""
        mean = torch.from_numpy(np.concatenate([np.asarray(roll) for roll in rolls]).mean(0))
        self.readout.bias.copy_(mean.clamp(1e-4, 1 - 1e-4).logit())
        return self


def width_of(layer: nn.Module) -> int:
    """Return the width of a layer's output."""
    if isinstance(layer, RecurrentLayer):
        return layer.output_size
    if isinstance(layer, nn.RNNBase):
        return layer.hidden_size
    raise TypeError(f"layer should be a recurrent layer of linmem or torch, got: {type(layer).__name__}")


@dataclass(frozen=True)
class Epoch:
    """What an epoch brought; number 0 is the start, before any training."""

    number: int
    train_nats: float
    """On the way through the epoch, so that the model is not yet as good as behind it."""
    valid_nats: float
    valid_accuracy: float
    """Pooled, at .5."""
    seconds: float


@dataclass
class Run:
    """A training run: all epochs, and the best state by either quantity."""

    epochs: list[Epoch] = field(default_factory=list)
    """From number 0 on."""
    best: dict[Quantity, Epoch] = field(default_factory=dict)
    states: dict[Quantity, dict[str, Tensor]] = field(default_factory=dict)

    def add(self, epoch: Epoch, state: Mapping[str, Tensor]) -> bool:
        """Note an epoch and, where it is the best so far, the state behind it; say whether it was, by any quantity."""
        self.epochs.append(epoch)
        better: dict[Quantity, bool] = {
            "nats": not self.best or epoch.valid_nats < self.best["nats"].valid_nats,
            "accuracy": not self.best or epoch.valid_accuracy > self.best["accuracy"].valid_accuracy,
        }
        for quantity, improved in better.items():
            if improved:
                self.best[quantity] = epoch
                self.states[quantity] = {name: value.clone() for name, value in state.items()}
        return any(better.values())

    @property
    def trained(self) -> int:
        """Epochs of training."""
        return max(0, len(self.epochs) - 1)

    @property
    def seconds(self) -> float:
        """Seconds of all epochs together."""
        return sum(epoch.seconds for epoch in self.epochs)

    def facts(self) -> dict[str, Any]:
        """Return what JSON can say of the run."""
        return {"epochs": [asdict(e) for e in self.epochs], "best": {k: asdict(e) for k, e in self.best.items()}}


class DivergedError(RuntimeError):
    """The loss is no number any more."""


def train(
    model: nn.Module,
    rolls: Sequence[Any],
    valid: Sequence[Any],
    settings: Settings,
    *,
    select: Quantity = "nats",
    report: Callable[[Epoch], Any] | None = None,
) -> Run:
    """Train a model, and leave it in its best state by the quantity `select`, measured on validation data.

    Parameters
    ----------
    model
        A :class:`NextFrame`, or another module that is called in the same way. Its parameters are trained in place.
    rolls, valid
        Pieces to learn from, and to stop by.
    settings
        How.
    select
        ``"nats"`` for the best likelihood, ``"accuracy"`` for the best pooled accuracy at .5.
    report
        Called after every epoch; if it returns True, that was the last.
    """
    optimizer = torch.optim.Adam(
        model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay, foreach=True
    )
    run, last_improvement = Run(), 0
    for number in range(settings.epochs + 1):  # the start itself may be the best there is
        start = time.perf_counter()
        train_nats = train_epoch(model, rolls, optimizer, settings, number) if number else math.nan
        scores = evaluate(model, valid)
        epoch = Epoch(number, train_nats, scores.nats, scores.pooled(), time.perf_counter() - start)
        if run.add(epoch, model.state_dict()):
            last_improvement = number
        enough = report is not None and report(epoch)
        if enough or number - last_improvement >= settings.patience:
            break
    model.load_state_dict(run.states[select])
    return run


def train_epoch(
    model: nn.Module, rolls: Sequence[Any], optimizer: torch.optim.Optimizer, settings: Settings, number: int
) -> float:
    """Train for one epoch, and return the mean loss of a frame on the way."""
    model.train()
    nats = frames = 0.0
    for batch in next_frame_batches(rolls, settings.batch_size, seed=settings.seed * 2**20 + number):
        nats += train_batch(model, batch, optimizer, settings)
        frames += int(batch.lengths.sum())
    return nats / frames


def train_batch(model: nn.Module, batch: Batch, optimizer: torch.optim.Optimizer, settings: Settings) -> float:
    """Take a step for the batch, or for each chunk of it, and return the sum of the loss over its frames."""
    total, state = 0.0, None
    for part in [batch] if settings.chunk is None else batch.chunks(settings.chunk):
        logits, state = model(part.x, state, part.lengths)
        state = detach(state)
        loss = binary_cross_entropy_with_logits(logits, part.y, reduction="none").sum(-1)  # (T, B)
        loss = torch.where(part.mask, loss, 0.0).sum()
        if not torch.isfinite(loss):
            raise DivergedError(
                f"the loss became {float(loss.detach())}: expected a number; try a smaller learning rate or clip"
            )
        optimizer.zero_grad()
        (loss / part.lengths.sum()).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
        optimizer.step()
        total += float(loss.detach())
    return total


@torch.no_grad()
def evaluate(model: nn.Module, rolls: Sequence[Any], cuts: Sequence[float] = (0.5,)) -> RollMetrics:
    """Score a model on whole pieces."""
    model.eval()
    metrics = RollMetrics(cuts)
    for batch in next_frame_batches(rolls, EVALUATED):
        logits, _ = model(batch.x, None, batch.lengths)
        metrics.update(logits, batch.y, batch.mask)
    return metrics
