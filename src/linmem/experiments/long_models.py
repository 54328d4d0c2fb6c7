"""Models that answer at the end of a sequence: frozen memories and windows before a feed-forward net, recurrent nets.

All have the same number of parameters, those of a frozen memory included: the width of the net is the largest that does
not exceed it.
"""

from __future__ import annotations

import math
import warnings
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TypeVar

import torch
from torch import Tensor, nn

import linmem
from linmem.experiments.long_tasks import Sequences, Task
from linmem.experiments.training import width_of

#: Parameters of a model, trained and fixed; none has more, and none less than 95 % of it.
PARAMETERS = 20_000

#: Units of a linear memory; with so many it has about half of the parameters.
MEMORY = 100

#: A memory is fitted to every k-th sequence, so that they have about so many frames at most.
FITTED_FRAMES = 60_000

#: Sequences encoded at a time, and steps of them.
ROWS, CHUNK = 256, 500


@dataclass(frozen=True)
class Model:
    """What looks at sequences, and the net that reads what is seen, answers, and is trained."""

    see: Callable[[Sequences], Sequences]
    """What the net reads of sequences: computed once, before training."""
    make_net: Callable[[Sequences], nn.Module]
    """Makes the net for sequences as they are seen, from `x` and `lengths` of which it answers."""
    fixed: int = 0
    """Parameters that are never trained."""


Net = TypeVar("Net", bound=nn.Module)

#: How to make the models of a family that compete on validation data, by name.
Makers = dict[str, Callable[[], Model]]


def count(module: nn.Module) -> int:
    """Count all parameters."""
    return sum(parameter.numel() for parameter in module.parameters())


def widest(make: Callable[..., Net], allowed: int = PARAMETERS) -> Net:
    """Make the widest net that has no more parameters than are allowed.

    Examples
    --------
    >>> net = widest(partial(nn.Linear, 10), allowed=100)
    >>> net.out_features, count(net)
    (9, 99)
    """
    width = bisect_right(range(1, 4096), allowed, key=lambda width: count(make(width, device="meta")))
    if width == 0:
        least = count(make(1, device="meta"))
        raise ValueError(f"allowed={allowed}: expected at least {least}, the parameters of a net of one unit")
    return make(width)


# --------------------------------------------------------------------------------------- the nets that are trained


class FeedForward(nn.Module):
    """Two layers of ReLU units, and a linear one."""

    mean: Tensor
    scale: Tensor

    def __init__(self, inputs: int, outputs: int, width: int, *, device: str | None = None) -> None:
        super().__init__()
        sizes = (inputs, width, width, outputs)
        linear = [nn.Linear(a, b, device=device) for a, b in pairwise(sizes)]
        self.layers = nn.Sequential(linear[0], nn.ReLU(), linear[1], nn.ReLU(), linear[2])
        self.register_buffer("mean", torch.zeros(inputs, device=device))
        self.register_buffer("scale", torch.ones((), device=device))

    def scaled_to(self, x: Tensor) -> FeedForward:
        """Scale inputs as these (N, inputs) need it for zero means and a unit deviation, one for all together.

        The first layer could do so: these are no parameters. What a memory holds most of stays the largest.
        """
        self.mean = x.mean(0)
        deviation = (x - self.mean).square().mean().sqrt()
        self.scale = 1 / deviation if deviation > 0 else deviation
        return self

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Read (N, inputs); how long the sequences behind it were says nothing."""
        answers: Tensor = self.layers((x - self.mean) * self.scale)
        return answers


class Recurrent(nn.Module):
    """A recurrent layer, and a linear readout of its output at the last step."""

    def __init__(self, layer: nn.Module, outputs: int, *, device: str | None = None) -> None:
        super().__init__()
        self.layer = layer
        self.readout = nn.Linear(width_of(layer), outputs, device=device)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Read (N, T, features)."""
        y, _ = self.layer(x.float())  # what comes behind the end of a sequence does not matter to its last step
        answers: Tensor = self.readout(y[torch.arange(len(y)), lengths - 1])
        return answers


def lstm(features: int, outputs: int, width: int, *, forget: float, device: str | None = None) -> Recurrent:
    """Make an LSTM whose forget gates start with this bias."""
    layer = nn.LSTM(features, width, batch_first=True, device=device)
    with torch.no_grad():
        for name, value in (("bias_ih_l0", 0.0), ("bias_hh_l0", forget)):
            layer.get_parameter(name)[width : 2 * width] = value  # torch's order: input, forget, cell, output
    return Recurrent(layer, outputs, device=device)


def gru(features: int, outputs: int, width: int, *, device: str | None = None) -> Recurrent:
    """Make a GRU."""
    return Recurrent(nn.GRU(features, width, batch_first=True, device=device), outputs, device=device)


def multiscale(features: int, outputs: int, width: int, *, longest: int, device: str | None = None) -> Recurrent:
    """Make a MultiScale LMN with as many clocks as the sequences can use."""
    modules = linmem.MultiScaleLMN.max_modules(longest)
    sizes = [MEMORY // modules + (k < MEMORY % modules) for k in range(modules)]
    layer = linmem.MultiScaleLMN(features, width, memory_size=sizes, batch_first=True, device=device)
    return Recurrent(layer, outputs, device=device)


# ----------------------------------------------------------------------------------------------- what is frozen


@torch.no_grad()
def final_codes(memory: linmem.LinearMemory, part: Sequences) -> Tensor:
    """Return what a memory holds at the end of each sequence, (N, memory_size); it streams in constant memory."""
    codes = []
    for start in range(0, len(part.x), ROWS):
        rows = part.take(slice(start, start + ROWS))
        state = None
        for at in range(0, rows.x.shape[1], CHUNK):
            x = rows.x[:, at : at + CHUNK].float()
            _, state = memory(x, state, lengths=(rows.lengths - at).clamp(0, x.shape[1]))
        codes.append(state[0][0] if isinstance(state, tuple) else state[0])  # type: ignore[index]
    return torch.cat(codes)


def last_frames(part: Sequences, frames: int) -> Tensor:
    """Return the last frames of each sequence, (N, frames · features), with zeros before its start.

    Examples
    --------
    >>> part = Sequences(torch.tensor([[[1], [2], [3]], [[4], [0], [0]]]), torch.zeros(2), torch.tensor([3, 1]))
    >>> last_frames(part, 2)
    tensor([[2., 3.],
            [0., 4.]])
    """
    at = part.lengths[:, None] - torch.arange(frames, 0, -1)  # (N, frames)
    seen = part.x[torch.arange(len(part.x))[:, None], at.clamp(min=0)].float()
    return torch.where(at[..., None] < 0, 0.0, seen).flatten(1)


def before_a_net(task: Task, see: Callable[[Sequences], Tensor], fixed: int = 0) -> Model:
    """Put a feed-forward net behind what is computed once."""

    def make_net(seen: Sequences) -> nn.Module:
        net = widest(partial(FeedForward, seen.x.shape[1], task.outputs), PARAMETERS - fixed)
        return net.scaled_to(seen.x)

    return Model(lambda part: part._replace(x=see(part)), make_net, fixed)


def frozen(task: Task, make: Callable[[], linmem.LinearMemory]) -> Model:
    """Put a feed-forward net behind the last codes of a memory that is not trained."""
    memory = make()
    return before_a_net(task, partial(final_codes, memory), count(memory))


def fitted(task: Task, forgetting: float, periods: tuple[int, ...]) -> linmem.LinearMemory:
    """Fit one memory in closed form, or several with different clocks side by side."""
    stride = math.ceil(int(task.train.lengths.sum()) / FITTED_FRAMES)  # not the first ones: classes come in order
    some = task.train.take(slice(None, None, stride))
    sequences = [x[:length].numpy() for x, length in zip(some.x, some.lengths.tolist(), strict=True)]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="n_components=")  # short sequences have less to remember
        return linmem.LinearMemory.fit(
            sequences, MEMORY, forgetting=[forgetting] * len(periods), periods=list(periods), batch_first=True
        )


# ------------------------------------------------------------------------------------------------------ families


def closed_form(task: Task) -> Makers:
    """Closed-form memories: of one discount, or of several clocks with the same discount in their own time."""
    slow = max(1, task.longest // 4)
    two, four = (tuple(base**k for k in range(16) if base**k <= slow) for base in (2, 4))
    options = {f"forgetting {value:g}": (value, (1,)) for value in (1.0, 0.99, 0.9)}
    options |= {"clocks 1, 2, 4, …": (0.9, two), "clocks 1, 4, 16, …": (0.9, four)}
    return {name: partial(frozen, task, partial(fitted, task, *option)) for name, option in options.items()}


def designed(task: Task, init: str) -> Makers:
    """A memory that is designed, or drawn, without data."""
    window = task.longest if init == "legendre" else None
    options = {"init": init, "window": window, "bias": False, "trainable": False, "batch_first": True}
    return {init: partial(frozen, task, partial(linmem.LinearMemory, task.features, MEMORY, **options))}  # type: ignore[arg-type]


def window(task: Task, frames: int) -> Makers:
    """The last frames."""
    return {f"{frames}": partial(before_a_net, task, partial(last_frames, frames=frames))}


def trained(task: Task, **nets: Callable[..., nn.Module]) -> Makers:
    """Recurrent nets trained through all steps."""

    def model(make: Callable[..., nn.Module]) -> Model:
        return Model(lambda part: part, lambda seen: widest(partial(make, task.features, task.outputs)))

    return {name: partial(model, make) for name, make in nets.items()}


#: All families by name.
FAMILIES: dict[str, Callable[[Task], Makers]] = {
    "closed-form": closed_form,
    "legendre": partial(designed, init="legendre"),
    "orthogonal": partial(designed, init="orthogonal"),
    "multiscale-lmn": lambda task: trained(task, modules=partial(multiscale, longest=task.longest)),
    "lstm": lambda task: trained(task, forget_1=partial(lstm, forget=1.0), forget_5=partial(lstm, forget=5.0)),
    "gru": lambda task: trained(task, gru=gru),
    "window-1": partial(window, frames=1),
    "window-4": partial(window, frames=4),
    "window-16": partial(window, frames=16),
    "window-64": partial(window, frames=64),
}
