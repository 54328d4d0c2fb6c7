"""A small training loop for models that predict the next frame of a piano roll.

Adam, gradients clipped, batches of pieces of about the same length, everything from one seed. Two quantities are
watched on validation data, likelihood and accuracy, because the one may still rise while the other falls: training
stops when neither has improved for some epochs, and the best state by either is kept. In a folder, a run can be cut off
at any moment and goes on where it was.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from tqdm import tqdm

from linmem.experiments.batches import Batch, detach, next_frame_batches, unpacked
from linmem.experiments.checkpoints import Folder, digest_of_data, digest_of_model
from linmem.experiments.metrics import RollMetrics
from linmem.files import Saved, contradictions
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

    def add(self, epoch: Epoch, state: Mapping[str, Tensor]) -> None:
        """Note an epoch and, where it is the best so far by either quantity, the state behind it."""
        self.epochs.append(epoch)
        better: dict[Quantity, bool] = {
            "nats": not self.best or epoch.valid_nats < self.best["nats"].valid_nats,
            "accuracy": not self.best or epoch.valid_accuracy > self.best["accuracy"].valid_accuracy,
        }
        for quantity, improved in better.items():
            if improved:
                self.best[quantity] = epoch
                self.states[quantity] = {name: value.clone() for name, value in state.items()}

    @property
    def trained(self) -> int:
        """Epochs of training."""
        return max(0, len(self.epochs) - 1)

    @property
    def waited(self) -> int:
        """Epochs since either quantity improved."""
        return self.trained - max((epoch.number for epoch in self.best.values()), default=0)

    @property
    def seconds(self) -> float:
        """Seconds of all epochs together."""
        return sum(epoch.seconds for epoch in self.epochs)

    def facts(self) -> dict[str, Any]:
        """Return what JSON can say of the run."""
        return {"epochs": [asdict(e) for e in self.epochs], "best": {k: asdict(e) for k, e in self.best.items()}}


class DivergedError(RuntimeError):
    """The loss is no number any more.

    Attributes
    ----------
    run
        The run up to the last good epoch, if there was one.
    """

    run: Run | None = None


def train(
    model: nn.Module,
    rolls: Sequence[Any],
    valid: Sequence[Any],
    settings: Settings,
    *,
    select: Quantity = "nats",
    report: Callable[[Epoch], Any] | None = None,
    folder: str | os.PathLike[str] | None = None,
) -> Run:
    """Train a model, and leave it in its best state by the quantity `select`, measured on validation data.

    On a terminal, a line shows how far it is; the remaining time is what it takes if training does not stop earlier.

    Parameters
    ----------
    model
        A :class:`NextFrame`, or another module that is called in the same way; see `loss_of`. Its parameters are
        trained in place.
    rolls, valid
        Pieces to learn from, and to stop by.
    settings
        How.
    select
        ``"nats"`` for the best likelihood, ``"accuracy"`` for the best pooled accuracy at .5.
    report
        Called after every epoch, in place of the line; if it returns True, that was the last.
    folder
        Keeps the run after every epoch, in `checkpoint.safetensors`, and its scores, in `epochs.csv`. The same call
        with the same folder goes on where a run was cut off, and ends with the same bits as one that was not; a run
        that has ended is only read, unless `report` ended it. The model must start as it did, so draw its weights from
        a seed.

    Raises
    ------
    DivergedError
        If the loss or the scores are no numbers any more. The model is then in its best state before that; the error
        has the run up to there, and so does the folder.
    ValueError
        If the folder has the checkpoint of another run, or a damaged one.
    OSError
        If the folder cannot be written into. The last checkpoint is still there.

    Examples
    --------
    >>> import linmem, tempfile
    >>> from linmem.datasets import piano_rolls
    >>> parts = piano_rolls.split(piano_rolls.synthetic(20))
    >>> def run(folder):
    ...     _ = torch.manual_seed(0)
    ...     return train(NextFrame(linmem.LMN(88, 10)), parts.train, parts.valid, Settings(epochs=2), folder=folder)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run(folder).seconds == run(folder).seconds  # the second one is read
    True
    """
    optimizer = torch.optim.Adam(
        model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay, foreach=True
    )
    rolls, valid = unpacked(rolls), unpacked(valid)
    kept = None if folder is None else Folder(Path(folder), identity_of(model, rolls, valid, settings))
    run = Run() if kept is None else resumed(kept, model, optimizer)
    frames = sum(len(roll) - 1 for roll in rolls)
    with tqdm(
        total=settings.epochs * frames,
        initial=run.trained * frames,
        unit=" frames",
        unit_scale=True,
        disable=None if report is None else True,  # None: where there is no terminal
    ) as line:
        for number in range(len(run.epochs), settings.epochs + 1):  # the start itself may be the best there is
            if run.epochs and run.waited >= settings.patience:
                break
            try:
                epoch = one_epoch(model, rolls, valid, optimizer, settings, number, line.update)
            except DivergedError as error:
                if run.epochs:
                    model.load_state_dict(run.states[select])
                diverged = DivergedError(f"{error}; that was in epoch {number}")
                diverged.run = run
                raise diverged from None
            run.add(epoch, model.state_dict())
            if kept is not None:
                kept.write(tensors_of(model, optimizer, run), run.facts())
                kept.write_log(run.facts()["epochs"])
            line.set_description(f"epoch {number}/{settings.epochs}", refresh=False)
            line.set_postfix_str(
                f"best {run.best['nats'].valid_nats:.3f} nats, {100 * run.best['accuracy'].valid_accuracy:.2f} %"
            )
            if report is not None and report(epoch):
                break
    model.load_state_dict(run.states[select])
    return run


def identity_of(model: nn.Module, rolls: Sequence[Any], valid: Sequence[Any], settings: Settings) -> dict[str, str]:
    """Return what the bits of a run depend on."""
    return {
        "settings": repr(settings),
        "training data": digest_of_data(rolls),
        "validation data": digest_of_data(valid),
        "model": digest_of_model(model),
    }


def resumed(kept: Folder, model: nn.Module, optimizer: torch.optim.Optimizer) -> Run:
    """Put everything where the checkpoint says it was, if there is one, and return the run up to there."""
    saved = kept.read()
    if saved is None:
        return Run()
    with contradictions(kept.checkpoint):
        run = restored(saved, model, optimizer)
    kept.write_log(run.facts()["epochs"])  # it may lack the last epoch
    return run


def tensors_of(model: nn.Module, optimizer: torch.optim.Optimizer, run: Run) -> dict[str, Tensor]:
    """Return all that the next epoch depends on, and the best states so far."""
    parts = {"model": model.state_dict()}
    parts |= {f"best.{quantity}": state for quantity, state in run.states.items()}
    parts |= {f"optimizer.{number}": state for number, state in optimizer.state_dict()["state"].items()}
    # Copies, because what a file holds must not share memory, as tied weights do.
    tensors = {f"{part}.{name}": value.clone() for part, state in parts.items() for name, value in state.items()}
    return tensors | {"generator": torch.get_rng_state()}  # of dropout, and of whatever else is drawn in training


def restored(saved: Saved, model: nn.Module, optimizer: torch.optim.Optimizer) -> Run:
    """Put a model, its optimizer and torch's generator into the state that `tensors_of` told, and return the run."""
    tensors, facts = saved.tensors, saved.facts
    epochs = [Epoch(**epoch) for epoch in facts["epochs"]]
    if not epochs or [epoch.number for epoch in epochs] != list(range(len(epochs))):
        raise ValueError("its epochs are not numbered from 0 on")

    def named(prefix: str, names: Iterable[str]) -> dict[str, Tensor]:
        return {name: tensors[f"{prefix}.{name}"].clone() for name in names}

    model.load_state_dict(named("model", model.state_dict()))
    groups = optimizer.state_dict()["param_groups"]
    states = {
        i: named(f"optimizer.{i}", ("step", "exp_avg", "exp_avg_sq"))
        for group in groups
        for i in group["params"]
        if f"optimizer.{i}.step" in tensors  # a parameter without a gradient has none
    }
    optimizer.load_state_dict({"state": states, "param_groups": groups})
    torch.set_rng_state(tensors["generator"])
    return Run(
        epochs,
        {quantity: Epoch(**facts["best"][quantity]) for quantity in QUANTITIES},
        {quantity: named(f"best.{quantity}", model.state_dict()) for quantity in QUANTITIES},
    )


def one_epoch(
    model: nn.Module,
    rolls: Sequence[Any],
    valid: Sequence[Any],
    optimizer: torch.optim.Optimizer,
    settings: Settings,
    number: int,
    advance: Callable[[int], Any],
) -> Epoch:
    """Train for an epoch, unless it is number 0, and score the model."""
    start = time.perf_counter()
    train_nats = train_epoch(model, rolls, optimizer, settings, number, advance) if number else math.nan
    try:
        scores = evaluate(model, valid)
    except ValueError as error:
        if number == 0:
            raise
        # The same data could be scored before: it is the model that has changed.
        raise DivergedError(f"the model cannot be scored any more ({error})") from error
    if number and not math.isfinite(scores.nats):
        raise DivergedError(f"the validation loss became {scores.nats}: expected a finite number")
    return Epoch(number, train_nats, scores.nats, scores.pooled(), time.perf_counter() - start)


def train_epoch(
    model: nn.Module,
    rolls: Sequence[Any],
    optimizer: torch.optim.Optimizer,
    settings: Settings,
    number: int,
    advance: Callable[[int], Any] = lambda frames: None,
) -> float:
    """Train for one epoch, and return the mean loss of a frame on the way; `advance` hears of the frames done."""
    model.train()
    nats = frames = 0.0
    for batch in next_frame_batches(rolls, settings.batch_size, seed=settings.seed * 2**20 + number):
        nats += train_batch(model, batch, optimizer, settings)
        done = int(batch.lengths.sum())
        frames += done
        advance(done)
    return nats / frames


def loss_of(model: nn.Module, batch: Batch, state: Any = None) -> tuple[Tensor, Any]:
    """Return what training makes small, for each frame, (T, B), and the state at the end.

    That is the negative log-likelihood, unless the model has a method `loss` that says something else.
    """
    own: Callable[[Batch, Any], tuple[Tensor, Any]] | None = getattr(model, "loss", None)
    if own is not None:
        return own(batch, state)
    logits, state = model(batch.x, state, batch.lengths)
    return binary_cross_entropy_with_logits(logits, batch.y, reduction="none").sum(-1), state


def train_batch(model: nn.Module, batch: Batch, optimizer: torch.optim.Optimizer, settings: Settings) -> float:
    """Take a step for the batch, or for each chunk of it, and return the sum of the loss over its frames."""
    total, state = 0.0, None
    for part in [batch] if settings.chunk is None else batch.chunks(settings.chunk):
        loss, state = loss_of(model, part, state)
        state = detach(state)
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
