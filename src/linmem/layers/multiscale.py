"""MultiScale Linear Memory Network: memory modules that sample the hidden states at different rates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from linmem import kernels
from linmem.kernels import Connections, Modules, Output, Prepared
from linmem.layers.cell import RecurrentCell
from linmem.layers.checks import check_size
from linmem.layers.clocks import make_modules, modules_repr
from linmem.layers.equations import Equations
from linmem.layers.initial import contract_, uniform_
from linmem.layers.lmn import (
    check_memory_options,
    designed_memory,
    initialize_functional_part,
    install_,
    memory_options,
    memory_options_repr,
)
from linmem.layers.parameters import Parameters
from linmem.layers.recurrent import RecurrentLayer


@dataclass(frozen=True)
class _MultiScaleEquations(Equations):
    """The MultiScale LMN for one layer and direction."""

    hidden_size: int
    modules: Modules
    nonlinearity: str = "tanh"
    init: str = "uniform"
    window: int | None = None

    clocked = True

    @property
    def state_size(self) -> int:
        return self.modules.width

    def width(self, output: str) -> int:
        return {"memory": self.modules.width, "hidden": self.hidden_size}[output]

    def shapes(self, input_size: int) -> dict[str, tuple[int, ...]]:
        return {
            "weight_xh": (self.hidden_size, input_size),
            "weight_mh": (self.hidden_size, self.modules.width),
            "weight_hm": (self.modules.width, self.hidden_size),
            "weight_mm": (self.modules.packed_size,),
            "bias_h": (self.hidden_size,),
            "bias_m": (self.modules.width,),
        }

    def initialize(self, p: Parameters) -> None:
        initialize_functional_part(p)
        if self.init == "uniform":
            uniform_(p["weight_hm"])
            for slab in self.modules.slabs(p["weight_mm"]):
                uniform_(slab)
            contract_(self.transition(p), (p["weight_hm"], p["weight_mm"]))
            return
        # Each module gets the designed memory of its own size; between modules there is nothing at first.
        p["weight_mm"].zero_()
        encoders = torch.split_with_sizes(p["weight_hm"], self.modules.sizes)
        for encoder, block in zip(encoders, self.modules.diagonal(p["weight_mm"]), strict=True):
            encode, carry = designed_memory(self.init, p["weight_xh"], self.hidden_size, block.shape[0], self.window)
            encoder.copy_(encode)
            block.copy_(carry)

    def transition(self, p: Parameters) -> Tensor:
        return self.modules.dense(p["weight_mm"]) + p["weight_hm"] @ p["weight_mh"]

    def run(
        self, p: Parameters, x: Tensor, state: Tensor, clock: Tensor | None, lengths: Tensor | None, output: Output
    ) -> tuple[Tensor, Tensor]:
        assert clock is not None
        return kernels.multiscale_lmn(
            x,
            state,
            clock,
            p["weight_xh"],
            p["weight_mh"],
            p["weight_hm"],
            p["weight_mm"],
            p.get("bias_h"),
            p.get("bias_m"),
            modules=self.modules,
            nonlinearity=self.nonlinearity,
            lengths=lengths,
            output=output,
        )

    def prepare(self, p: Parameters, output: Output) -> Prepared | None:
        weights = (p.get(name) for name in self.shapes(1))
        return kernels.prepare_clocked(*weights, modules=self.modules, nonlinearity=self.nonlinearity, output=output)


class MultiScaleLMN(RecurrentLayer):
    r"""MultiScale Linear Memory Network: an :class:`LMN` whose memory has modules of different clocks.

    Module k has period :math:`p_k` (1, 2, 4, … by default) and updates at the steps t that it divides:

    .. math::

        h^t &= \sigma(W^{xh} x^t + \sum_i W^{m_i h} m_i^{t-1} + b^h) \\
        m_k^t &= \begin{cases}
            W^{h m_k} h^t + \sum_{i \ge k} W^{m_i m_k} m_i^{t-1} + b^{m_k} & t \bmod p_k = 0 \\
            m_k^{t-1} & \text{otherwise}
        \end{cases}

    The first step is t = 0, at which every module fires.

    Parameters
    ----------
    input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional
        As in :class:`torch.nn.GRU`.
    num_modules
        How many memory modules, by default 1; :meth:`max_modules` says how many make sense.
    memory_size
        Units of all modules together, divided evenly, or the units of each module, fastest first. By
        default `hidden_size`.
    periods
        The modules' periods, increasing; by default 1, 2, 4, ….
    connections
        ``"slow_to_fast"``: slower modules feed faster ones. ``"fast_to_slow"``: the reverse. ``"full"``.
    output, nonlinearity, learn_initial_state
        As in :class:`LMN`.
    init, window
        As in :class:`LMN`, for each module by itself; a designed memory starts with nothing between the
        modules. The window is in steps of the module, so a module of period p covers p · `window` steps.
    device, dtype
        As in :class:`torch.nn.GRU`.

    Notes
    -----
    The state is the tuple (memory, clock). The clock is an int64 tensor, (B,), that counts the steps each
    sequence has seen, so a sequence cut anywhere gives the same numbers. A state given as the memory alone
    stands at clock 0. All layers and both directions share the clock.

    ``weight_mm`` holds only the blocks that exist, packed into a vector as ``layer.layout`` says
    (:class:`linmem.kernels.Modules`); :meth:`memory_matrix` shows it as a matrix.

    Examples
    --------
    >>> layer = MultiScaleLMN(13, 25, num_modules=7, memory_size=7 * 25, batch_first=True)
    >>> y, (memory, clock) = layer(torch.zeros(4, 10, 13))
    >>> y.shape, memory.shape, clock
    (torch.Size([4, 10, 175]), torch.Size([1, 4, 175]), tensor([10, 10, 10, 10]))
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
        num_modules: int | None = None,
        memory_size: int | Sequence[int] | None = None,
        periods: Sequence[int] | None = None,
        connections: Connections = "slow_to_fast",
        output: Output = "memory",
        nonlinearity: str = "tanh",
        init: str = "uniform",
        window: int | None = None,
        learn_initial_state: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_size("hidden_size", hidden_size)
        memory_size = hidden_size if memory_size is None else memory_size
        modules = make_modules("memory_size", memory_size, num_modules, periods, connections)
        check_memory_options(output, init, nonlinearity, window)
        super().__init__(
            _MultiScaleEquations(hidden_size, modules, nonlinearity, init, window),
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
        self.layout = modules
        self.num_modules = len(modules.sizes)
        self.memory_size = modules.width
        self.nonlinearity = nonlinearity
        self.init = init
        self.window = window

    @staticmethod
    def max_modules(length: int) -> int:
        """How many modules sequences of at most `length` steps can use: ⌊log2 length⌋.

        Examples
        --------
        >>> MultiScaleLMN.max_modules(300)
        8
        """
        check_size("length", length)
        return length.bit_length() - 1

    def memory_matrix(self, layer: int = 0, *, reverse: bool = False) -> Tensor:
        """W^mm of one layer and direction as a matrix, with zeros where there is no block."""
        return self.layout.dense(self._parameters_of(layer, reverse)["weight_mm"])

    @torch.no_grad()
    def set_memory_(
        self,
        encode: ArrayLike | Tensor,
        carry: ArrayLike | Tensor,
        *,
        module: int,
        layer: int = 0,
        reverse: bool = False,
    ) -> None:
        """Install a computed memory as one module, in place: W^{h m_k} = `encode`, W^{m_k m_k} = `carry`.

        The module's bias becomes zero, and so does what it hears from other modules. What others hear from
        it stays. Parameters as in :meth:`LMN.set_memory_`.
        """
        if not 0 <= module < self.num_modules:
            raise IndexError(f"module must be from 0 to {self.num_modules - 1}, got {module}")
        p = self._parameters_of(layer, reverse)
        install_(torch.split_with_sizes(p["weight_hm"], self.layout.sizes)[module], encode, "encode")
        block = self.layout.diagonal(p["weight_mm"])[module]
        values = torch.as_tensor(carry).to(block, copy=True)
        self.layout.slabs(p["weight_mm"])[module].zero_()
        install_(block, values, "carry")
        if "bias_m" in p:
            torch.split_with_sizes(p["bias_m"], self.layout.sizes)[module].zero_()

    def _arguments(self) -> dict[str, Any]:
        clocks = {"memory_size": list(self.layout.sizes), "periods": list(self.layout.periods)}
        return super()._arguments() | clocks | {"connections": self.layout.connections} | memory_options(self)

    def extra_repr(self) -> str:
        """Sizes, and whatever differs from the defaults."""
        text = super().extra_repr()
        if self.memory_size != self.hidden_size:
            text += f", memory_size={self.memory_size}"
        return text + modules_repr(self.layout) + memory_options_repr(self)


class MultiScaleLMNCell(RecurrentCell):
    """One step of a :class:`MultiScaleLMN`: (memory, clock) in, (memory, clock) out.

    Parameters
    ----------
    input_size, hidden_size, bias, device, dtype
        As in :class:`torch.nn.GRUCell`.
    num_modules, memory_size, periods, connections, nonlinearity, init, window
        As in :class:`MultiScaleLMN`.

    Examples
    --------
    >>> cell = MultiScaleLMNCell(3, 4, num_modules=2, memory_size=6)
    >>> memory, clock = cell(torch.zeros(2, 3))
    >>> memory, clock = cell(torch.zeros(2, 3), (memory, clock))
    >>> clock
    tensor([2, 2])
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        *,
        num_modules: int | None = None,
        memory_size: int | Sequence[int] | None = None,
        periods: Sequence[int] | None = None,
        connections: Connections = "slow_to_fast",
        nonlinearity: str = "tanh",
        init: str = "uniform",
        window: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_size("hidden_size", hidden_size)
        memory_size = hidden_size if memory_size is None else memory_size
        modules = make_modules("memory_size", memory_size, num_modules, periods, connections)
        check_memory_options("memory", init, nonlinearity, window)
        equations = _MultiScaleEquations(hidden_size, modules, nonlinearity, init, window)
        super().__init__(equations, input_size, hidden_size, bias, device=device, dtype=dtype)
