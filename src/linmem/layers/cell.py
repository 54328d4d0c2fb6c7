"""torch's contract for one step of a recurrence, written once."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from linmem.layers.checks import check_clock, check_same_kind, check_size, check_state
from linmem.layers.equations import Equations
from linmem.layers.parameters import any_parameter, named_parameters
from linmem.layers.recurrent import State, autocasts, cast, split_state


class RecurrentCell(nn.Module):
    """One step of a model, as :class:`torch.nn.GRUCell` is one of GRU: state in, state out.

    The state has the width of a layer's; a clocked model's is the tuple (state, clock).
    """

    def __init__(
        self,
        equations: Equations,
        input_size: int,
        hidden_size: int,
        bias: bool,
        *,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        check_size("input_size", input_size)
        check_size("hidden_size", hidden_size)
        self.equations = equations
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.bias = bias
        shapes = equations.shapes(input_size)
        self._names = {name: name for name in shapes if bias or not name.startswith("bias")}
        for name in self._names:
            self.register_parameter(name, nn.Parameter(torch.empty(shapes[name], device=device, dtype=dtype)))
        self.reset_parameters()

    @property
    def state_size(self) -> int:
        """Width of the state."""
        return self.equations.state_size

    def reset_parameters(self) -> None:
        """Draw new starting values."""
        if any_parameter(self).is_meta:
            return
        with torch.no_grad():
            self.equations.initialize(named_parameters(self, self._names))

    def forward(self, input: Tensor, hx: State | None = None) -> State:
        """Take one step.

        Parameters
        ----------
        input
            (B, input_size), or (input_size,) for a single sequence.
        hx
            The state so far; None stands for zeros and a clock at 0.

        Returns
        -------
        h_n
            The next state, in the form of `hx`.
        """
        weight = any_parameter(self)
        kind = weight.device.type
        if autocasts(kind):
            with torch.autocast(kind, enabled=False):
                return self.forward(cast(input, weight.dtype), cast(hx, weight.dtype))
        name = type(self).__name__
        if input.dim() not in (1, 2):
            raise ValueError(f"{name}: Expected input to be 1D or 2D, got {input.dim()}D instead")
        state, clock = (None, None) if hx is None else split_state(hx, self.equations.clocked, name)
        if state is not None and state.dim() not in (1, 2):
            raise ValueError(f"{name}: Expected hidden to be 1D or 2D, got {state.dim()}D instead")
        single = input.dim() == 1
        x = input.unsqueeze(0) if single else input
        if x.shape[1] != self.input_size:
            raise RuntimeError(f"input has inconsistent input_size: got {x.shape[1]} expected {self.input_size}")
        if state is None:
            state = x.new_zeros(x.shape[0], self.state_size)
        elif single:
            state = state.reshape(-1, state.shape[-1])
        self._check_state(x, state)
        if self.equations.clocked:
            batch = () if single else (x.shape[0],)
            if clock is None:
                clock = torch.zeros(batch, dtype=torch.int64, device=x.device)
            check_clock(clock, batch, x)
        clocks = None if clock is None else clock.reshape(-1)
        parameters = named_parameters(self, self._names)
        _, state = self.equations.run(parameters, x[None], state, clocks, None, "hidden")
        state = state.squeeze(0) if single else state
        return state if clock is None else (state, clock + 1)

    def _check_state(self, x: Tensor, state: Tensor) -> None:
        if x.shape[0] != state.shape[0]:
            raise RuntimeError(f"Input batch size {x.shape[0]} doesn't match hidden0 batch size {state.shape[0]}")
        if state.shape[1] != self.state_size:
            raise RuntimeError(
                f"hidden0 has inconsistent hidden_size: got {state.shape[1]}, expected {self.state_size}"
            )
        check_same_kind(x, any_parameter(self))
        check_state(state, x)

    def extra_repr(self) -> str:
        """Sizes, and the bias if there is none."""
        text = f"{self.input_size}, {self.hidden_size}"
        if self.state_size != self.hidden_size:
            text += f", state_size={self.state_size}"
        return text if self.bias else text + ", bias=False"
