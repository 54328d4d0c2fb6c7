"""Linear Memory Network: a feed-forward map that reads a linear memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from linmem import kernels
from linmem.kernels import Output, Prepared
from linmem.layers.cell import RecurrentCell
from linmem.layers.checks import check_choice, check_nonlinearity, check_size
from linmem.layers.equations import Equations
from linmem.layers.initial import (
    autoencoder_memory,
    contract_,
    legendre_memory,
    orthogonal_memory,
    uniform_,
)
from linmem.layers.parameters import Parameters
from linmem.layers.recurrent import RecurrentLayer

if TYPE_CHECKING:
    from linmem.layers.multiscale import MultiScaleLMN

INITS = ("uniform", "orthogonal", "legendre", "autoencoder")


@dataclass(frozen=True)
class _LMNEquations(Equations):
    """The LMN for one layer and direction."""

    hidden_size: int
    memory_size: int
    nonlinearity: str = "tanh"
    init: str = "uniform"
    window: int | None = None

    clocked = False

    @property
    def state_size(self) -> int:
        return self.memory_size

    def width(self, output: str) -> int:
        return {"memory": self.memory_size, "hidden": self.hidden_size}[output]

    def shapes(self, input_size: int) -> dict[str, tuple[int, ...]]:
        return {
            "weight_xh": (self.hidden_size, input_size),
            "weight_mh": (self.hidden_size, self.memory_size),
            "weight_hm": (self.memory_size, self.hidden_size),
            "weight_mm": (self.memory_size, self.memory_size),
            "bias_h": (self.hidden_size,),
            "bias_m": (self.memory_size,),
        }

    def initialize(self, p: Parameters) -> None:
        initialize_functional_part(p)
        if self.init == "uniform":
            uniform_(p["weight_hm"])
            uniform_(p["weight_mm"])
            contract_(self.transition(p), (p["weight_hm"], p["weight_mm"]))
        else:
            encode, carry = designed_memory(self.init, p["weight_xh"], self.hidden_size, self.memory_size, self.window)
            p["weight_hm"].copy_(encode)
            p["weight_mm"].copy_(carry)

    def transition(self, p: Parameters) -> Tensor:
        return p["weight_mm"] + p["weight_hm"] @ p["weight_mh"]

    def run(
        self, p: Parameters, x: Tensor, state: Tensor, clock: Tensor | None, lengths: Tensor | None, output: Output
    ) -> tuple[Tensor, Tensor]:
        return kernels.lmn(
            x,
            state,
            p["weight_xh"],
            p["weight_mh"],
            p["weight_hm"],
            p["weight_mm"],
            p.get("bias_h"),
            p.get("bias_m"),
            nonlinearity=self.nonlinearity,
            lengths=lengths,
            output=output,
        )

    def prepare(self, p: Parameters, output: Output) -> Prepared | None:
        weights = (p.get(name) for name in self.shapes(1))
        return kernels.prepare_lmn(*weights, nonlinearity=self.nonlinearity, output=output)


def initialize_functional_part(p: Parameters) -> None:
    """Start what an LMN and a MultiScaleLMN share: random input and reading weights, no memory bias."""
    uniform_(p["weight_xh"])
    uniform_(p["weight_mh"])
    if "bias_h" in p:
        uniform_(p["bias_h"])
        p["bias_m"].zero_()  # the autoencoder has none, and a constant would pile up in the memory


def designed_memory(
    init: str, w_xh: Tensor, hidden_size: int, memory_size: int, window: int | None, channels: int = 1
) -> tuple[Tensor, Tensor]:
    """W^hm and W^mm of a memory that is designed rather than drawn weight by weight; `channels` are Legendre's."""
    if init == "orthogonal":
        return orthogonal_memory(hidden_size, memory_size)
    if init == "legendre":
        return legendre_memory(hidden_size, memory_size, window, channels)
    return autoencoder_memory(w_xh, memory_size, window)


def check_memory_options(output: str, init: str, nonlinearity: str, window: int | None) -> None:
    """Check the options that an LMN and a MultiScaleLMN share."""
    check_choice("output", output, ("memory", "hidden"))
    check_choice("init", init, INITS)
    check_nonlinearity(nonlinearity)
    if window is not None:
        check_size("window", window)


class LMN(RecurrentLayer):
    r"""Linear Memory Network: a drop-in for :class:`torch.nn.GRU` whose memory is linear.

    .. math::

        h^t &= \sigma(W^{xh} x^t + W^{mh} m^{t-1} + b^h) \\
        m^t &= W^{hm} h^t + W^{mm} m^{t-1} + b^m

    Parameters
    ----------
    input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional
        As in :class:`torch.nn.GRU`.
    memory_size
        Width of the memory m, by default `hidden_size`. The state is the memory.
    output
        ``"memory"`` returns the memory sequence (LMN-m), ``"hidden"`` the hidden one (LMN-h).
    nonlinearity
        The nonlinearity of h: ``"tanh"``, ``"relu"``, ``"sigmoid"`` or ``"identity"``.
    init
        How the memory starts. ``"uniform"`` draws every weight from ±1/√fan_in and shrinks W^hm and W^mm
        if :meth:`composite_radius` would exceed 0.95. ``"orthogonal"`` never forgets. ``"legendre"`` is
        the fixed memory of the Legendre Memory Unit, a designed memory to compare a computed one with.
        ``"autoencoder"`` is the closed-form autoencoder of the untrained network's own features under white
        noise; with data, see :meth:`set_memory_`. The last three design W^hm and W^mm alone, are trained like
        any other weights afterwards, and do not bound :meth:`composite_radius`.
    window
        The steps that a Legendre or autoencoder memory is designed for, by default `memory_size`.
    learn_initial_state
        Make the initial memory a parameter, used when a call brings no state; it starts at zero.
    device, dtype
        As in :class:`torch.nn.GRU`.

    Notes
    -----
    Under autocast the recurrence keeps the precision of its weights.

    Examples
    --------
    >>> layer = LMN(88, 100, memory_size=250, batch_first=True)
    >>> y, m = layer(torch.zeros(4, 20, 88))
    >>> y.shape, m.shape
    (torch.Size([4, 20, 250]), torch.Size([1, 4, 250]))

    The state makes a stream of it:

    >>> y, m = layer(torch.zeros(4, 1, 88), m)
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        memory_size: int | None = None,
        output: Output = "memory",
        nonlinearity: str = "tanh",
        init: str = "uniform",
        window: int | None = None,
        learn_initial_state: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        memory_size = hidden_size if memory_size is None else memory_size
        check_size("hidden_size", hidden_size)
        check_size("memory_size", memory_size)
        check_memory_options(output, init, nonlinearity, window)
        super().__init__(
            _LMNEquations(hidden_size, memory_size, nonlinearity, init, window),
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            output=output,
            learn_initial_state=learn_initial_state,
            device=device,
            dtype=dtype,
        )
        self.memory_size = memory_size
        self.nonlinearity = nonlinearity
        self.init = init
        self.window = window

    @torch.no_grad()
    def set_memory_(
        self, encode: ArrayLike | Tensor, carry: ArrayLike | Tensor, *, layer: int = 0, reverse: bool = False
    ) -> None:
        """Install a computed memory in place: W^hm = `encode`, W^mm = `carry`, b^m = 0.

        With a :class:`linmem.LinearAutoencoder` fitted on this layer's :meth:`activations`, these are its
        ``A_`` and ``B_``: the memory then encodes what the functional part computes.

        Parameters
        ----------
        encode
            (memory_size, hidden_size).
        carry
            (memory_size, memory_size).
        layer, reverse
            Which layer of a stack, and which direction.
        """
        p = self._parameters_of(layer, reverse)
        install_(p["weight_hm"], encode, "encode")
        install_(p["weight_mm"], carry, "carry")
        if "bias_m" in p:
            p["bias_m"].zero_()

    def _arguments(self) -> dict[str, Any]:
        return super()._arguments() | {"memory_size": self.memory_size} | memory_options(self)

    def extra_repr(self) -> str:
        """Sizes, and whatever differs from the defaults."""
        text = super().extra_repr()
        if self.memory_size != self.hidden_size:
            text += f", memory_size={self.memory_size}"
        return text + memory_options_repr(self)


def memory_options(layer: LMN | MultiScaleLMN) -> dict[str, Any]:
    """The options that an LMN and a MultiScaleLMN share, beside their output."""
    return {"nonlinearity": layer.nonlinearity, "init": layer.init, "window": layer.window}


def memory_options_repr(layer: RecurrentLayer) -> str:
    """Show the options that an LMN and a MultiScaleLMN share, where they differ from the defaults."""
    defaults = {"output": "memory", "nonlinearity": "tanh", "init": "uniform", "window": None}
    return "".join(f", {k}={getattr(layer, k)!r}" for k, v in defaults.items() if getattr(layer, k) != v)


def install_(parameter: Tensor, values: ArrayLike | Tensor, name: str) -> None:
    """Write `values` into `parameter`, which must have their shape."""
    values = torch.as_tensor(values)
    if values.shape != parameter.shape:
        raise RuntimeError(f"Expected {name} of size {tuple(parameter.shape)}, got {list(values.shape)}")
    parameter.copy_(values)


class LMNCell(RecurrentCell):
    """One step of an :class:`LMN`, as :class:`torch.nn.GRUCell` is one of GRU: memory in, memory out.

    Parameters
    ----------
    input_size, hidden_size, bias, device, dtype
        As in :class:`torch.nn.GRUCell`.
    memory_size, nonlinearity, init, window
        As in :class:`LMN`.

    Examples
    --------
    >>> cell = LMNCell(3, 4, memory_size=6)
    >>> m = cell(torch.zeros(2, 3))
    >>> m = cell(torch.zeros(2, 3), m)
    >>> m.shape
    torch.Size([2, 6])
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        *,
        memory_size: int | None = None,
        nonlinearity: str = "tanh",
        init: str = "uniform",
        window: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        memory_size = hidden_size if memory_size is None else memory_size
        check_size("hidden_size", hidden_size)
        check_size("memory_size", memory_size)
        check_memory_options("memory", init, nonlinearity, window)
        equations = _LMNEquations(hidden_size, memory_size, nonlinearity, init, window)
        super().__init__(equations, input_size, hidden_size, bias, device=device, dtype=dtype)
        self.memory_size = memory_size
