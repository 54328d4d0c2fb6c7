"""Training a network of fixed memories: what its last reader reads is computed once, and frames come in any order."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from linmem import LinearMemory
from linmem.experiments.metrics import RollMetrics
from linmem.experiments.training import DivergedError, Epoch, Quantity, Run
from linmem.networks import MemoryNetwork

#: Frames that are evaluated at a time.
EVALUATED = 8192


@dataclass(frozen=True)
class FrameSettings:
    """How a reader is trained."""

    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    batch_size: int = 256
    """Frames."""
    epochs: int = 60
    """The learning rate falls to zero over so many, along a cosine."""
    noise: float = 0.0
    """Standard deviation of what is added to the memory in training, in units of the memory's own."""
    shift: int = 0
    """In every epoch, each piece is transposed at random by up to so many keys."""
    seed: int = 0


class Frames(NamedTuple):
    """What a reader reads at every frame that has a successor, and the successor."""

    m: Tensor
    """(frames, units)"""
    x: Tensor
    """(frames, input)"""
    y: Tensor
    """(frames, keys)"""


def window(keys: int, frames: int) -> LinearMemory:
    """Return the memory that holds the last frames as they were: a tape, and a control for every other memory.

    Examples
    --------
    >>> tape = window(1, 3)
    >>> tape(torch.tensor([[1.0], [2.0], [3.0], [4.0]]))[0][-1]
    tensor([4., 3., 2.])
    """
    memory = LinearMemory(keys, keys * frames, bias=False, trainable=False)
    write, shift = torch.eye(keys * frames, keys), torch.diag(torch.ones(keys * (frames - 1)), -keys)
    memory.load_state_dict({"weight_xm_l0": write, "weight_mm_l0": shift})
    return memory


def frames_of(network: MemoryNetwork, rolls: Sequence[Any]) -> Frames:
    """Compute what the last reader of a network reads in rolls."""
    m, x = network.inputs(rolls)
    lengths = np.array([len(roll) for roll in rolls])
    keep = np.ones(len(x), bool)
    keep[np.cumsum(lengths) - 1] = False  # nothing follows the last frame of a piece
    kept = torch.from_numpy(np.flatnonzero(keep))
    keys = torch.from_numpy(np.concatenate([np.asarray(roll) for roll in rolls]))
    return Frames(m[kept], x[kept], keys[kept + 1].to(x.dtype))


def transposed(rolls: Sequence[Any], most: int, rng: np.random.Generator) -> list[Any]:
    """Return every roll, higher or lower by up to `most` keys, as far as none of its keys falls off the keyboard.

    Examples
    --------
    >>> roll = np.eye(4, dtype=bool)[[0, 1]]
    >>> transposed([roll], 9, np.random.default_rng(1))[0].astype(int)
    array([[0, 1, 0, 0],
           [0, 0, 1, 0]])
    """
    result = []
    for roll in rolls:
        used = np.flatnonzero(np.asarray(roll).any(0))
        low, high = (used[0], roll.shape[1] - 1 - used[-1]) if len(used) else (0, 0)
        shift = int(rng.integers(-min(most, low), min(most, high) + 1))
        result.append(np.roll(roll, shift, axis=1))
    return result


def train_reader(
    network: MemoryNetwork,
    rolls: Sequence[Any],
    valid: Sequence[Any],
    settings: FrameSettings,
    *,
    select: Quantity = "nats",
    report: Callable[[Epoch], Any] | None = None,
) -> Run:
    """Train the last reader of a network to predict the next frame, and leave it in its best state by `select`.

    The readout starts at the log-odds of each key, which is epoch 0.

    Parameters
    ----------
    network
        Its last reader is trained in place.
    rolls, valid
        Pieces to learn from, and to choose the best epoch by.
    settings
        How.
    select, report
        As in :func:`linmem.experiments.training.train`.
    """
    start = time.perf_counter()
    reader = network.readers[-1]
    optimizer = torch.optim.Adam(
        reader.parameters(), settings.learning_rate, weight_decay=settings.weight_decay, foreach=True
    )
    generator = torch.Generator().manual_seed(settings.seed)
    torch.manual_seed(settings.seed)  # for dropout
    frames, valid_frames = frames_of(network, rolls), frames_of(network, valid)
    deviation = settings.noise * frames.m.std(0)
    with torch.no_grad():
        reader.readout.bias.copy_(frames.y.mean(0).clamp(1e-4, 1 - 1e-4).logit())
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, settings.epochs))
    run, spent = Run(), 0.0
    for number in range(settings.epochs + 1):
        train_nats = math.nan
        if number and settings.shift:
            rng = np.random.default_rng((settings.seed, number))
            frames = frames_of(network, transposed(rolls, settings.shift, rng))
        if number:
            train_nats = train_epoch(reader, frames, optimizer, settings.batch_size, deviation, generator)
            schedule.step()
        scores = evaluate_frames(reader, valid_frames)
        now = time.perf_counter() - start
        epoch, spent = Epoch(number, train_nats, scores.nats, scores.pooled(), now - spent), now
        run.add(epoch, reader.state_dict())
        if report is not None and report(epoch):
            break
    reader.load_state_dict(run.states[select])
    return run


def train_epoch(
    reader: nn.Module,
    frames: Frames,
    optimizer: torch.optim.Optimizer,
    batch_size: int,
    deviation: Tensor,
    generator: torch.Generator,
) -> float:
    """Train for one epoch, and return the mean loss of a frame on the way."""
    reader.train()
    nats, noisy = 0.0, bool(deviation.any())
    for m, x, y in shuffled(frames, batch_size, generator):
        if noisy:
            m = m + deviation * torch.randn(m.shape, generator=generator)
        loss = binary_cross_entropy_with_logits(reader(m, x), y, reduction="sum")
        optimizer.zero_grad()
        (loss / len(y)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        nats += float(loss.detach())
    if not math.isfinite(nats):
        raise DivergedError(f"the loss became {nats}: expected a number; try a smaller learning rate")
    return nats / len(frames.y)


def shuffled(frames: Frames, batch_size: int, generator: torch.Generator) -> Iterator[Frames]:
    """Yield all frames in batches, in a random order."""
    for some in torch.split(torch.randperm(len(frames.y), generator=generator), batch_size):
        yield Frames(*(part[some] for part in frames))


@torch.no_grad()
def evaluate_frames(reader: nn.Module, frames: Frames) -> RollMetrics:
    """Score a reader."""
    reader.eval()
    metrics = RollMetrics()
    for m, x, y in zip(*(torch.split(part, EVALUATED) for part in frames), strict=True):
        metrics.update(reader(m, x), y)
    return metrics
