"""Clockwork RNN: hidden units in modules that update at different rates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from linmem import kernels
from linmem.kernels import Connections, Modules, Output, Prepared
from linmem.layers.cell import RecurrentCell
from linmem.layers.checks import check_nonlinearity
from linmem.layers.clocks import make_modules, modules_repr
from linmem.layers.equations import Equations
from linmem.layers.initial import contract_, uniform_
from linmem.layers.parameters import Parameters
from linmem.layers.recurrent import RecurrentLayer


@dataclass(frozen=True)
class _ClockworkEquations(Equations):
    """The Clockwork RNN for one layer and direction."""

    modules: Modules
    nonlinearity: str = "tanh"

    clocked = True

    @property
    def state_size(self) -> int:
        return self.modules.width

    def width(self, output: str) -> int:
        return {"hidden": self.modules.width}[output]

    def shapes(self, input_size: int) -> dict[str, tuple[int, ...]]:
        return {
            "weight_xh": (self.modules.width, input_size),
            "weight_hh": (self.modules.packed_size,),
            "bias_h": (self.modules.width,),
        }

    def initialize(self, p: Parameters) -> None:
        uniform_(p["weight_xh"])
        for slab in self.modules.slabs(p["weight_hh"]):
            uniform_(slab)
        if "bias_h" in p:
            uniform_(p["bias_h"])
        contract_(self.transition(p), (p["weight_hh"],))

    def transition(self, p: Parameters) -> Tensor:
        return self.modules.dense(p["weight_hh"])

    def run(
        self, p: Parameters, x: Tensor, state: Tensor, clock: Tensor | None, lengths: Tensor | None, output: Output
    ) -> tuple[Tensor, Tensor]:
        assert clock is not None
        return kernels.clockwork_rnn(
            x,
            state,
            clock,
            p["weight_xh"],
            p["weight_hh"],
            p.get("bias_h"),
            modules=self.modules,
            nonlinearity=self.nonlinearity,
            lengths=lengths,
        )

    def prepare(self, p: Parameters, output: Output) -> Prepared | None:
        weights = (None, None, p["weight_xh"], p["weight_hh"], None, p.get("bias_h"))
        return kernels.prepare_clocked(*weights, modules=self.modules, nonlinearity=self.nonlinearity)


class ClockworkRNN(RecurrentLayer):
    r"""Clockwork RNN: a drop-in for :class:`torch.nn.RNN` whose hidden units keep different clocks.

    Module k has period :math:`p_k` (1, 2, 4, … by default) and updates at the steps t that it divides:

    .. math::

        h_k^t = \begin{cases}
            \sigma(W^{x h_k} x^t + \sum_{i \ge k} W^{h_i h_k} h_i^{t-1} + b^{h_k}) & t \bmod p_k = 0 \\
            h_k^{t-1} & \text{otherwise}
        \end{cases}

    The first step is t = 0, at which every module fires.

    Parameters
    ----------
    input_size, num_layers, bias, batch_first, dropout, bidirectional
        As in :class:`torch.nn.GRU`.
    hidden_size
        Units of all modules together, divided evenly, or the units of each module, fastest first.
    num_modules, periods, connections
        As in :class:`MultiScaleLMN`.
    nonlinearity, learn_initial_state
        As in :class:`LMN`.
    device, dtype
        As in :class:`torch.nn.GRU`.

    Notes
    -----
    The state is the tuple (hidden, clock), as explained for :class:`MultiScaleLMN`. ``weight_hh`` holds only
    the blocks that exist; :meth:`hidden_matrix` shows it as a matrix.

    Examples
    --------
    >>> layer = ClockworkRNN(1, 36, num_modules=9)
    >>> y, (h, clock) = layer(torch.zeros(300, 2, 1))
    >>> y.shape, h.shape, clock
    (torch.Size([300, 2, 36]), torch.Size([1, 2, 36]), tensor([300, 300]))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int | Sequence[int],
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        num_modules: int | None = None,
        periods: Sequence[int] | None = None,
        connections: Connections = "slow_to_fast",
        nonlinearity: str = "tanh",
        learn_initial_state: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        modules = make_modules("hidden_size", hidden_size, num_modules, periods, connections)
        check_nonlinearity(nonlinearity)
        super().__init__(
            _ClockworkEquations(modules, nonlinearity),
            input_size,
            modules.width,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            output="hidden",
            learn_initial_state=learn_initial_state,
            device=device,
            dtype=dtype,
        )
        self.layout = modules
        self.num_modules = len(modules.sizes)
        self.nonlinearity = nonlinearity

    def hidden_matrix(self, layer: int = 0, *, reverse: bool = False) -> Tensor:
        """W^hh of one layer and direction as a matrix, with zeros where there is no block."""
        return self.layout.dense(self._parameters_of(layer, reverse)["weight_hh"])

    def _arguments(self) -> dict[str, Any]:
        arguments = super()._arguments()
        del arguments["output"]  # there is one only
        clocks = {"hidden_size": list(self.layout.sizes), "periods": list(self.layout.periods)}
        return arguments | clocks | {"connections": self.layout.connections, "nonlinearity": self.nonlinearity}

    def extra_repr(self) -> str:
        """Sizes, and whatever differs from the defaults."""
        text = super().extra_repr() + modules_repr(self.layout)
        return text if self.nonlinearity == "tanh" else f"{text}, nonlinearity={self.nonlinearity!r}"


class ClockworkRNNCell(RecurrentCell):
    """One step of a :class:`ClockworkRNN`: (hidden, clock) in, (hidden, clock) out.

    Parameters
    ----------
    input_size, bias, device, dtype
        As in :class:`torch.nn.GRUCell`.
    hidden_size, num_modules, periods, connections, nonlinearity
        As in :class:`ClockworkRNN`.

    Examples
    --------
    >>> cell = ClockworkRNNCell(3, 4, num_modules=2)
    >>> h, clock = cell(torch.zeros(2, 3))
    >>> clock
    tensor([1, 1])
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int | Sequence[int],
        bias: bool = True,
        *,
        num_modules: int | None = None,
        periods: Sequence[int] | None = None,
        connections: Connections = "slow_to_fast",
        nonlinearity: str = "tanh",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        modules = make_modules("hidden_size", hidden_size, num_modules, periods, connections)
        check_nonlinearity(nonlinearity)
        equations = _ClockworkEquations(modules, nonlinearity)
        super().__init__(equations, input_size, modules.width, bias, device=device, dtype=dtype)
