"""Unrolled RNN: a recurrence that reads a tape of its last k hidden states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from linmem import kernels
from linmem.kernels import Output
from linmem.layers.cell import RecurrentCell
from linmem.layers.checks import check_choice, check_nonlinearity, check_size
from linmem.layers.equations import Equations
from linmem.layers.initial import RADIUS_LIMIT, growth_rate, uniform_
from linmem.layers.parameters import Parameters
from linmem.layers.recurrent import RecurrentLayer


@dataclass(frozen=True)
class _UnrolledEquations(Equations):
    """The unrolled RNN for one layer and direction."""

    hidden_size: int
    order: int
    nonlinearity: str = "tanh"

    clocked = False

    @property
    def state_size(self) -> int:
        return self.order * self.hidden_size

    def width(self, output: str) -> int:
        return {"tape": (self.order + 1) * self.hidden_size, "hidden": self.hidden_size}[output]

    def shapes(self, input_size: int) -> dict[str, tuple[int, ...]]:
        return {
            "weight_xh": (self.hidden_size, input_size),
            "weight_hh": (self.hidden_size, self.order * self.hidden_size),
            "bias_h": (self.hidden_size,),
        }

    def initialize(self, p: Parameters) -> None:
        uniform_(p["weight_xh"])
        uniform_(p["weight_hh"])
        if "bias_h" in p:
            uniform_(p["bias_h"])
        # Multiplying the block of lag i by c^i multiplies every eigenvalue of the recurrence by c.
        rate = growth_rate(p["weight_hh"])
        if rate > RADIUS_LIMIT:
            shrink = RADIUS_LIMIT / rate
            for lag, block in enumerate(p["weight_hh"].chunk(self.order, 1), start=1):
                block.mul_(shrink**lag)

    def transition(self, p: Parameters) -> Tensor:
        """Return the companion matrix: new hidden state on top, the tape moves down by one."""
        w = p["weight_hh"]
        move = torch.eye(w.shape[1] - self.hidden_size, w.shape[1], dtype=w.dtype, device=w.device)
        return torch.cat([w, move])

    def run(
        self, p: Parameters, x: Tensor, state: Tensor, clock: Tensor | None, lengths: Tensor | None, output: Output
    ) -> tuple[Tensor, Tensor]:
        return kernels.unrolled_rnn(
            x,
            state,
            p["weight_xh"],
            p["weight_hh"],
            p.get("bias_h"),
            nonlinearity=self.nonlinearity,
            lengths=lengths,
            output=output,
        )


class UnrolledRNN(RecurrentLayer):
    r"""Unrolled RNN of order k: its memory is the tape of the last k hidden states.

    .. math:: h^t = \sigma(W^{xh} x^t + \sum_{i=1}^{k} W^{hh}_i h^{t-i} + b^h)

    It returns the tape :math:`(h^t, h^{t-1}, \dots, h^{t-k})`, newest first, of k + 1 blocks. So the paper's
    readout :math:`y^t = \sum_{i=0}^{k} W^{hy}_i h^{t-i}` is one ``nn.Linear(layer.output_size, n)``. Before
    the start of a sequence the tape holds zeros.

    Parameters
    ----------
    input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional
        As in :class:`torch.nn.GRU`.
    order
        k, the hidden states that the next one reads. 1 is an Elman network.
    output
        ``"tape"`` or ``"hidden"``, the hidden sequence alone. A layer above in a stack reads what the layer
        below returns.
    nonlinearity, learn_initial_state
        As in :class:`LMN`.
    device, dtype
        As in :class:`torch.nn.GRU`.

    Notes
    -----
    The state is the tape :math:`(h^t, \dots, h^{t-k+1})`, of k · hidden_size units. ``weight_hh`` is
    :math:`[W^{hh}_1 \dots W^{hh}_k]`.

    Examples
    --------
    >>> layer = UnrolledRNN(88, 50, order=10, batch_first=True)
    >>> readout = torch.nn.Linear(layer.output_size, 88)
    >>> tape, state = layer(torch.zeros(4, 20, 88))
    >>> tape.shape, state.shape, readout(tape).shape
    (torch.Size([4, 20, 550]), torch.Size([1, 4, 500]), torch.Size([4, 20, 88]))
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
        order: int = 1,
        output: Output = "tape",
        nonlinearity: str = "tanh",
        learn_initial_state: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_size("hidden_size", hidden_size)
        check_size("order", order)
        check_choice("output", output, ("tape", "hidden"))
        check_nonlinearity(nonlinearity)
        super().__init__(
            _UnrolledEquations(hidden_size, order, nonlinearity),
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
        self.order = order
        self.nonlinearity = nonlinearity

    def _arguments(self) -> dict[str, Any]:
        return super()._arguments() | {"order": self.order, "nonlinearity": self.nonlinearity}

    def extra_repr(self) -> str:
        """Sizes, and whatever differs from the defaults."""
        text = f"{super().extra_repr()}, order={self.order}"
        defaults = {"output": "tape", "nonlinearity": "tanh"}
        return text + "".join(f", {k}={getattr(self, k)!r}" for k, v in defaults.items() if getattr(self, k) != v)


class UnrolledRNNCell(RecurrentCell):
    """One step of an :class:`UnrolledRNN`: the tape of k hidden states in, the next tape out.

    What the layer returns for the step, (h^t … h^{t-k}), is the new hidden state in front of the old tape:
    ``torch.cat([new[:, :hidden_size], old], 1)``.

    Parameters
    ----------
    input_size, hidden_size, bias, device, dtype
        As in :class:`torch.nn.GRUCell`.
    order, nonlinearity
        As in :class:`UnrolledRNN`.

    Examples
    --------
    >>> cell = UnrolledRNNCell(3, 4, order=2)
    >>> tape = cell(torch.zeros(2, 3))
    >>> tape.shape
    torch.Size([2, 8])
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        *,
        order: int = 1,
        nonlinearity: str = "tanh",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_size("hidden_size", hidden_size)
        check_size("order", order)
        check_nonlinearity(nonlinearity)
        equations = _UnrolledEquations(hidden_size, order, nonlinearity)
        super().__init__(equations, input_size, hidden_size, bias, device=device, dtype=dtype)
