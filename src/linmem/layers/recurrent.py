"""torch's contract for a recurrent layer, written once."""

from __future__ import annotations

import reprlib
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout
from torch.nn.utils.rnn import PackedSequence

from linmem.files import Saved
from linmem.kernels import Output, Prepared, nobody_looks_in
from linmem.layers.checks import (
    check_bool,
    check_clock,
    check_dropout,
    check_same_kind,
    check_size,
    check_state,
)
from linmem.layers.equations import Equations
from linmem.layers.initial import spectral_radius
from linmem.layers.parameters import Parameters, any_parameter, named_parameters
from linmem.layers.sequences import pack_like, pad_packed, reverse

Container = TypeVar("Container", Tensor, PackedSequence)
State = Tensor | tuple[Tensor, Tensor]


class RecurrentLayer(nn.Module):
    """A stack of recurrent layers in one or two directions, as :class:`torch.nn.GRU` is one.

    Everything that is not the model itself happens here: checking arguments, batch_first and unbatched and
    ragged input, stacking, directions, dropout, names of parameters, and the state that goes in and out.
    The model is the `equations`.

    Parameters
    ----------
    equations
        The model for one layer and direction.
    output
        Which sequence of the model the layer returns.
    """

    def __init__(
        self,
        equations: Equations,
        input_size: int,
        hidden_size: int,
        num_layers: int,
        bias: bool,
        batch_first: bool,
        dropout: float,
        bidirectional: bool,
        *,
        output: Output,
        learn_initial_state: bool,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        check_size("input_size", input_size)
        check_size("hidden_size", hidden_size)
        check_size("num_layers", num_layers)
        check_bool("bias", bias)
        check_bool("batch_first", batch_first)
        check_bool("bidirectional", bidirectional)
        check_bool("learn_initial_state", learn_initial_state)
        check_dropout(dropout)
        if dropout > 0 and num_layers == 1:
            warnings.warn(
                "dropout option adds dropout after all but last recurrent layer, so non-zero dropout "
                f"expects num_layers greater than 1, but got dropout={dropout} and num_layers={num_layers}",
                stacklevel=3,
            )
        self.equations = equations
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.bias = bias
        self.batch_first = batch_first
        self.dropout = float(dropout)
        self.bidirectional = bidirectional
        self.output = output
        self.learn_initial_state = learn_initial_state
        # For every layer and direction, the names of its parameters here by their names in the equations.
        self._names: list[list[dict[str, str]]] = []
        for layer in range(num_layers):
            width = input_size if layer == 0 else self.output_size
            shapes = equations.shapes(width)
            if learn_initial_state:
                shapes["initial_state"] = (equations.state_size,)
            if not bias:
                shapes = {name: shape for name, shape in shapes.items() if not name.startswith("bias")}
            self._names.append([{name: name + suffix for name in shapes} for suffix in self._suffixes(layer)])
            for names in self._names[-1]:
                for name, shape in shapes.items():
                    empty = torch.empty(shape, device=device, dtype=dtype)
                    self.register_parameter(names[name], nn.Parameter(empty))
        self._weight_names = [full for name, full in self._names[0][0].items() if name != "initial_state"]
        self.reset_parameters()

    # What the user sees of the sizes

    @property
    def num_directions(self) -> int:
        """2 if bidirectional, else 1."""
        return 2 if self.bidirectional else 1

    @property
    def output_size(self) -> int:
        """Width of the output sequence, both directions together."""
        return self.num_directions * self.equations.width(self.output)

    @property
    def state_size(self) -> int:
        """Width of the state of one layer and direction."""
        return self.equations.state_size

    # Parameters

    def reset_parameters(self) -> None:
        """Draw new starting values."""
        if any_parameter(self).is_meta:
            return
        with torch.no_grad():
            for layer in range(self.num_layers):
                for backwards in range(self.num_directions):
                    p = self._parameters_of(layer, backwards)
                    self.equations.initialize(p)
                    if self.learn_initial_state:
                        p["initial_state"].zero_()

    def flatten_parameters(self) -> None:
        """Do nothing: there is no buffer to compact. It exists because nn.GRU has it."""

    def composite_radius(self) -> float:
        """Return the spectral radius of the whole recurrence, linearised at zero; the largest of a stack.

        For an LMN this is the radius of W^mm + W^hm·W^mh: the loop through the hidden state counts, not W^mm
        alone. For clocked layers it is the radius of a step in which every module fires. It takes the
        eigenvalues of a square matrix as wide as the state, seconds from a width of 2000 on.
        """
        return max(
            spectral_radius(self.equations.transition(self._parameters_of(layer, backwards)))
            for layer in range(self.num_layers)
            for backwards in range(self.num_directions)
        )

    def _suffixes(self, layer: int) -> list[str]:
        return [f"_l{layer}", f"_l{layer}_reverse"][: self.num_directions]

    def _parameters_of(self, layer: int, backwards: int = False) -> Parameters:
        """Return the parameters of one layer and direction by their names in the equations."""
        if not 0 <= layer < self.num_layers:
            raise IndexError(f"layer must be from 0 to {self.num_layers - 1}, got {layer}")
        return named_parameters(self, self._names[layer][backwards])

    # Running

    def forward(
        self, input: Container, hx: State | None = None, *, lengths: Tensor | None = None
    ) -> tuple[Container, State]:
        """Run over a batch of sequences.

        Parameters
        ----------
        input
            (T, B, input_size), or (B, T, input_size) with `batch_first`, or (T, input_size) for a single
            sequence, or a PackedSequence.
        hx
            The state to start from, as returned by an earlier call.
        lengths
            For a padded batch, the length of each sequence, (B,). Outputs beyond it are zero and the state
            is the one at the end of each sequence. A length may be 0: such a row keeps its state.

        Returns
        -------
        output
            In the same container as `input`.
        h_n
            The final state, (num_layers · directions, B, state_size) and, if the layer has a clock, the
            clock, (B,).
        """
        if lengths is None and type(input) is Tensor and not torch.is_grad_enabled():
            result = self._short_way(input, hx)
            if result is not None:
                return result
        return self._run(input, hx, lengths, self.num_layers, self.output)

    _prepared: Prepared | None = None

    def _short_way(self, input: Tensor, hx: State | None) -> tuple[Tensor, State] | None:
        """Run without gradients where a call is plainly an ordinary one; else None, and :meth:`_run` looks closer."""
        batch = 1 - self.batch_first
        if self.num_layers > 1 or self.bidirectional or input.dim() != 3 or input.numel() == 0:
            return None
        clocked, rows = self.equations.clocked, input.shape[batch]
        if hx is None:
            if self.learn_initial_state:
                return None
            state, clock = input.new_zeros(1, rows, self.state_size), None
        elif clocked != isinstance(hx, tuple):
            return None
        else:
            state, clock = hx if isinstance(hx, tuple) else (hx, None)
        if type(state) is not Tensor or state.shape != (1, rows, self.state_size) or input.shape[2] != self.input_size:
            return None
        if not nobody_looks_in() or torch.is_autocast_enabled("cpu"):
            return None
        steps = 0
        if clock is not None:
            if (
                type(clock) is not Tensor
                or clock.dtype is not torch.int64
                or clock.shape != (rows,)
                or not clock.is_cpu
            ):
                return None
            steps, *others = clock.tolist()
            if any(other != steps for other in others):
                return None
        weights = [self._parameters.get(name) for name in self._weight_names]
        if self._prepared is None or not self._prepared.fits(weights):
            self._prepared = self.equations.prepare(self._parameters_of(0), self.output)
            if self._prepared is None:
                return None
        result = self._prepared.run(input, batch, state, steps)
        if result is None or not clocked:
            return result
        length = input.shape[1 - batch]
        return result[0], (result[1], torch.full((rows,), length) if clock is None else clock + length)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out where the weights lie, which is another place in a copy."""
        return {name: value for name, value in self.__dict__.items() if name != "_prepared"}

    def activations(
        self,
        input: Container,
        hx: State | None = None,
        *,
        lengths: Tensor | None = None,
        layer: int = -1,
    ) -> Container:
        """Return the hidden sequence h^1, h^2, … of one layer of the stack, by default the last.

        The arguments are those of a call, and the same container comes back.
        """
        if not -self.num_layers <= layer < self.num_layers:
            raise IndexError(f"layer must be from {-self.num_layers} to {self.num_layers - 1}, got {layer}")
        return self._run(input, hx, lengths, layer % self.num_layers + 1, "hidden")[0]

    def _run(
        self, input: Container, hx: State | None, lengths: Tensor | None, num_layers: int, output: Output
    ) -> tuple[Container, State]:
        if torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
            raise RuntimeError(
                f"Tracing {type(self).__name__} would fix the length of its sequences; use "
                "linmem.export.to_onnx or torch.export.export, which keep it free"
            )
        weight = any_parameter(self)
        kind = weight.device.type
        if autocasts(kind):
            # A linear memory adds up what it is given over thousands of steps, and with it every rounding
            # error. So the recurrence keeps the precision of its weights.
            with torch.autocast(kind, enabled=False):
                input, hx = cast(input, weight.dtype), cast(hx, weight.dtype)
                return self._run(input, hx, lengths, num_layers, output)
        x, lengths, restore = self._read(input, lengths)
        single = isinstance(input, Tensor) and input.dim() == 2
        state, clock = self._initial_state(hx, x, single)
        y, state = self._stack(x, state, clock, lengths, num_layers, output)
        if single:
            state = state.squeeze(1)
        if clock is None:
            return restore(y), state
        clock = clock + (x.shape[0] if lengths is None else lengths)
        return restore(y), (state, clock.squeeze(0) if single else clock)

    def _stack(
        self, x: Tensor, state: Tensor, clock: Tensor | None, lengths: Tensor | None, num_layers: int, output: Output
    ) -> tuple[Tensor, Tensor]:
        """Run the first `num_layers` layers; the last of them returns `output`."""
        finals: list[Tensor] = []
        for layer in range(num_layers):
            last = layer == num_layers - 1
            sequences = []
            for backwards in range(self.num_directions):
                y, final = self.equations.run(
                    self._parameters_of(layer, backwards),
                    reverse(x, lengths) if backwards else x,
                    state[len(finals)],
                    clock,
                    lengths,
                    output if last else self.output,
                )
                sequences.append(reverse(y, lengths) if backwards else y)
                finals.append(final)
            x = torch.cat(sequences, -1) if self.bidirectional else sequences[0]
            if self.dropout and not last:
                x = dropout(x, self.dropout, self.training)
        return x, finals[0].unsqueeze(0) if len(finals) == 1 else torch.stack(finals)

    def _read(
        self, input: Container, lengths: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Callable[[Tensor], Container]]:
        """Any container as (T, B, N_x) with lengths, and the way back to the container."""
        name, weight = type(self).__name__, any_parameter(self)
        if isinstance(input, PackedSequence):
            if lengths is not None:
                raise ValueError(f"{name}: a PackedSequence has its own lengths, so lengths must be None")
            check_same_kind(input.data, weight)
            if input.data.dim() != 2:
                raise RuntimeError(f"input must have 2 dimensions, got {input.data.dim()}")
            self._check_width(input.data)
            packed: PackedSequence = input
            return *pad_packed(packed), partial(pack_like, packed=packed)
        if not isinstance(input, Tensor):
            raise TypeError(f"{name}: Expected input to be a Tensor or a PackedSequence, got {type(input).__name__}")
        if input.dim() not in (2, 3):
            raise ValueError(f"{name}: Expected input to be 2D or 3D, got {input.dim()}D instead")
        check_same_kind(input, weight)
        self._check_width(input)
        if input.dim() == 2:
            x, restore = input.unsqueeze(1), lambda y: y.squeeze(1)
        elif self.batch_first:
            x, restore = input.transpose(0, 1), lambda y: y.transpose(0, 1)
        else:
            x, restore = input, lambda y: y
        if x.shape[0] == 0:
            raise RuntimeError("Expected sequence length to be larger than 0 in RNN")
        if lengths is not None:
            lengths = self._check_lengths(lengths, x, input.dim() == 2)
        return x, lengths, restore

    def _check_width(self, x: Tensor) -> None:
        if x.shape[-1] != self.input_size:
            raise RuntimeError(
                f"input.size(-1) must be equal to input_size. Expected {self.input_size}, got {x.shape[-1]}"
            )

    def _check_lengths(self, lengths: Tensor, x: Tensor, single: bool) -> Tensor:
        name = type(self).__name__
        if single:
            raise ValueError(f"{name}: lengths are for batched input, but the input is 2D")
        lengths = torch.as_tensor(lengths, device=x.device)
        if lengths.is_floating_point() or lengths.is_complex() or lengths.dtype == torch.bool:
            raise ValueError(f"{name}: Expected lengths to be of an integer type, got {lengths.dtype}")
        if lengths.shape != x.shape[1:2]:
            raise RuntimeError(f"Expected lengths of size ({x.shape[1]},), got {list(lengths.shape)}")
        # A compiled or exported graph cannot look at values.
        if not torch.compiler.is_compiling() and not lengths.is_meta and lengths.numel():
            low, high = int(lengths.min()), int(lengths.max())
            if low < 0 or high > x.shape[0]:
                raise RuntimeError(
                    f"Expected lengths between 0 and the {x.shape[0]} steps of the input, "
                    f"got {low if low < 0 else high}"
                )
        return lengths.long()

    def _initial_state(self, hx: State | None, x: Tensor, single: bool) -> tuple[Tensor, Tensor | None]:
        """Return the state at entry as (num_layers · directions, B, state_size), and the clocks, (B,), if any."""
        rows, batch = self.num_layers * self.num_directions, x.shape[1]
        zero = torch.zeros(batch, dtype=torch.int64, device=x.device) if self.equations.clocked else None
        if hx is None:
            if not self.learn_initial_state:
                return x.new_zeros(rows, batch, self.state_size), zero
            suffixes = [s for layer in range(self.num_layers) for s in self._suffixes(layer)]
            start = torch.stack([getattr(self, "initial_state" + s) for s in suffixes])
            return start[:, None].expand(rows, batch, self.state_size), zero
        state, clock = split_state(hx, self.equations.clocked, type(self).__name__)
        dim, kind = (2, "unbatched 2-D") if single else (3, "batched 3-D")
        if state.dim() != dim:
            raise RuntimeError(f"For {kind} input, hx should also be {dim}-D but got {state.dim()}-D tensor")
        expected = (rows, self.state_size) if single else (rows, batch, self.state_size)
        if state.shape != expected:
            raise RuntimeError(f"Expected hidden size {expected}, got {list(state.shape)}")
        check_state(state, x)
        if clock is None:
            return state.unsqueeze(1) if single else state, zero
        check_clock(clock, () if single else (batch,), x)
        return (state.unsqueeze(1), clock.unsqueeze(0)) if single else (state, clock)

    # Files

    def _arguments(self) -> dict[str, Any]:
        """What the constructor needs to make a layer like this one, but for device and dtype."""
        names = ("input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout", "bidirectional")
        return {name: getattr(self, name) for name in (*names, "output", "learn_initial_state")}

    def _common_arguments(self) -> dict[str, Any]:
        """What a layer of another kind needs to be as large, on the same device and of the same precision."""
        weight, arguments = any_parameter(self), RecurrentLayer._arguments(self)
        del arguments["output"]
        return arguments | {"device": weight.device, "dtype": weight.dtype}

    def _to_saved(self) -> Saved:
        return Saved(dict(self.state_dict()), self._arguments(), {})

    @classmethod
    def _from_saved(cls, saved: Saved) -> Self:
        layers, kinds = saved.arguments.get("num_layers"), {tensor.dtype for tensor in saved.tensors.values()}
        if not isinstance(layers, int) or layers > len(saved.tensors):
            raise ValueError(f"num_layers is {reprlib.repr(layers)} with {len(saved.tensors)} tensors")
        if len(kinds) != 1 or not next(iter(kinds)).is_floating_point:
            raise ValueError(f"tensors of {sorted(map(str, kinds))}, expected one floating type")
        layer = cls(**saved.arguments, device="meta")  # takes no memory, whatever sizes the file claims
        if layer._arguments() != saved.arguments:
            raise ValueError(f"arguments {reprlib.repr(saved.arguments)} do not make a {cls.__name__}")
        layer.load_state_dict(saved.tensors, assign=True)
        return layer

    def extra_repr(self) -> str:
        """Sizes, and whatever differs from the defaults."""
        parts = [f"{self.input_size}, {self.hidden_size}"]
        defaults = {
            "num_layers": 1,
            "bias": True,
            "batch_first": False,
            "dropout": 0.0,
            "bidirectional": False,
            "learn_initial_state": False,
        }
        parts += [f"{k}={getattr(self, k)}" for k, v in defaults.items() if getattr(self, k) != v]
        return ", ".join(parts)


def autocasts(device_type: str) -> bool:
    """Whether autocast is on; the meta device, for one, does not know it."""
    return torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type)


def cast(value: Any, dtype: torch.dtype) -> Any:
    """Bring the floating tensors of an input or a state to `dtype`."""
    if isinstance(value, PackedSequence):
        return value._replace(data=value.data.to(dtype))
    if isinstance(value, Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, tuple):
        return tuple(cast(v, dtype) for v in value)
    return value


def split_state(hx: State, clocked: bool, name: str) -> tuple[Tensor, Tensor | None]:
    """Split a state into itself and its clock; a state that comes without a clock stands at step 0."""
    if isinstance(hx, Tensor):
        return hx, None
    if clocked and isinstance(hx, tuple) and len(hx) == 2 and isinstance(hx[0], Tensor):
        return hx
    wanted = "a Tensor or a tuple (state, clock)" if clocked else "a Tensor"
    raise TypeError(f"{name}: Expected hx to be {wanted}, got {type(hx).__name__}")
