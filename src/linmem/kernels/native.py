"""The equations of :mod:`linmem.kernels.reference`, run by the native library.

Every model here takes and returns what its namesake in `reference` does, for calls that :func:`can_run` accepts.
The C++ side sees a call as one flat structure of sizes and addresses, whose fields stand in its headers in the order
in which they are packed here, and a second one of gradients on the way back.

A step of a stream takes a few millionths of a second, so what every call goes through is written to be short.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from functools import cache, lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from linmem.kernels import reference
from linmem.kernels.library import choose
from linmem.kernels.modules import Modules
from linmem.kernels.reference import NONLINEARITIES, Output

MODELS = ("lmn", "clocked", "linear", "unrolled")
NUMBER = {name: i for i, name in enumerate(NONLINEARITIES)}
REAL = {torch.float32: "float", torch.float64: "double"}
PLAIN = (Tensor, nn.Parameter)

Optional = Tensor | None
Results = tuple[Tensor, ...]


def can_run(x: Any, *others: Any) -> bool:
    """Whether the native library can take over a call with these arguments."""
    return x.dtype in REAL and nobody_looks_in() and plain(x.dtype, x, *others) and x.numel() > 0


def nobody_looks_in() -> bool:
    """Whether there is a library, and nobody who needs to see torch's own operations.

    A compiler, vmap and forward-mode differentiation look into the computation.
    """
    return (
        not torch.compiler.is_compiling()
        and choose()[1] is not None
        and not torch._C._are_functorch_transforms_active()
        and not torch._C._len_torch_dispatch_stack()
        and forward_ad._current_level < 0
    )


def plain(dtype: torch.dtype, *arguments: Any) -> bool:
    """Whether the tensors among the arguments are ordinary numbers in ordinary memory, the real ones of `dtype`."""
    for a in arguments:
        if a is None:
            continue
        if type(a) in PLAIN:
            if not a.is_cpu or a.layout is not torch.strided or a.is_neg():
                return False
            if a.dtype is not dtype and a.dtype.is_floating_point:
                return False
        elif isinstance(a, Tensor):
            return False
    return True


def check_shapes(**expected: tuple[Optional, tuple[int, ...]]) -> None:
    """Check what the library trusts."""
    for name, (tensor, shape) in expected.items():
        if tensor is not None and tensor.shape != shape:
            raise RuntimeError(f"{name} must have the shape {shape}, got {tuple(tensor.shape)}")


# ------------------------------------------------------------------------------------------- calling


Field = int | Tensor | None


def call(model: str, dtype: torch.dtype, fields: Sequence[Field], gradients: Sequence[Field] | None = None) -> None:
    """Run a model of the library forward or, with the fields for gradients, backward.

    A field is a size, or a tensor of which the library gets the address; None is an array that nobody wants.
    """
    packed = None if gradients is None else pack(gradients)
    if run_function(REAL[dtype])(MODELS.index(model), pack(fields), packed):
        raise MemoryError(f"linmem: {model} ran out of memory")


def pack(fields: Sequence[Field]) -> bytes:
    """Lay fields side by side as the library reads them."""
    numbers = [f if type(f) is int else 0 if f is None else f.data_ptr() for f in fields]  # type: ignore[union-attr]
    return struct.pack(f"{len(numbers)}q", *numbers)


@cache
def run_function(real: str) -> Callable[[int, bytes, bytes | None], int]:
    """Return the function of the library for numbers of one kind."""
    function = getattr(choose()[1], f"linmem_run_{real}")
    function.argtypes = (ctypes.c_int64, ctypes.c_char_p, ctypes.c_char_p)
    return function  # type: ignore[no-any-return]


def sequence(x: Optional) -> tuple[Field, int, int]:
    """Describe a sequence: its numbers, how far apart its steps are, and its rows."""
    return (None, 0, 0) if x is None else (x, x.stride(0), x.stride(1))


def rows(x: Tensor) -> Tensor:
    """Make the last dimension contiguous; the others may lie as they like."""
    return x if x.stride(-1) == 1 else x.contiguous()


def contiguous(*tensors: Optional) -> list[Optional]:
    """Return each tensor with its numbers side by side: itself, if they are."""
    return [t if t is None or t.is_contiguous() else t.contiguous() for t in tensors]


# ------------------------------------------------------------------------------------------ gradients


def differentiable(*tensors: Optional) -> bool:
    """Whether gradients will be asked for."""
    if torch.is_grad_enabled():
        for t in tensors:
            if t is not None and t.requires_grad:
                return True
    return False


def wanted_gradients(ctx: Any, first: int, *tensors: Optional) -> list[Optional]:
    """Zeros for the gradients that are asked for, of the inputs from number `first` on."""
    asked = ctx.needs_input_grad[first:]
    return [
        torch.zeros_like(t, memory_format=torch.contiguous_format) if a and t is not None else None
        for t, a in zip(tensors, asked, strict=True)
    ]


def by_reference(
    run: Callable[..., Results], inputs: Sequence[Optional], gradients: Sequence[Optional]
) -> list[Optional]:
    """Return gradients that can be differentiated again, by running the reference."""
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        results = run(*inputs)
    asked = [i for i in inputs if i is not None and i.requires_grad]
    known = [(r, g) for r, g in zip(results, gradients, strict=True) if g is not None]
    found = iter(
        torch.autograd.grad(
            [r for r, _ in known], asked, [g for _, g in known], create_graph=create_graph, allow_unused=True
        )
    )
    return [next(found) if i is not None and i.requires_grad else None for i in inputs]


def from_long_to_short(
    run: Callable[[Tensor, Tensor, Optional], tuple[Tensor, Tensor]], x: Tensor, state: Tensor, lengths: Optional
) -> tuple[Tensor, Tensor]:
    """Run sequences in the order the library wants: those that are alive at a step are the first ones."""
    if lengths is None:
        return run(x, state, None)
    lengths = lengths.to(torch.int64)
    if bool((lengths[1:] <= lengths[:-1]).all()):
        return run(x, state, lengths.contiguous())
    order = lengths.argsort(descending=True, stable=True)
    back = order.argsort()
    y, final = run(x[:, order], state[order], lengths[order])
    return y[:, back], final[back]


# -------------------------------------------------------------------------------------------- the LMN


def lmn(
    x: Tensor,
    m: Tensor,
    w_xh: Tensor,
    w_mh: Tensor,
    w_hm: Tensor,
    w_mm: Tensor,
    b_h: Optional,
    b_m: Optional,
    *,
    nonlinearity: str = "tanh",
    lengths: Optional = None,
    output: Output = "memory",
) -> tuple[Tensor, Tensor]:
    """Linear Memory Network: see :func:`linmem.kernels.reference.lmn`."""
    (_, B, N_x), N_h, N_m = x.shape, w_xh.shape[0], m.shape[1]
    check_shapes(
        m=(m, (B, N_m)),
        w_xh=(w_xh, (N_h, N_x)),
        w_mh=(w_mh, (N_h, N_m)),
        w_hm=(w_hm, (N_m, N_h)),
        w_mm=(w_mm, (N_m, N_m)),
        b_h=(b_h, (N_h,)),
        b_m=(b_m, (N_m,)),
        lengths=(lengths, (B,)),
    )
    weights = (w_xh, w_mh, w_hm, w_mm, b_h, b_m)
    if lengths is not None:
        return from_long_to_short(partial(_lmn, nonlinearity, output, weights), x, m, lengths)
    return _lmn(nonlinearity, output, weights, x, m, None)


def _lmn(
    nonlinearity: str, output: Output, weights: Sequence[Optional], x: Tensor, start: Tensor, lengths: Optional
) -> tuple[Tensor, Tensor]:
    if differentiable(x, start, *weights):
        return _LMN.apply(nonlinearity, output, lengths, x, start, *weights)  # type: ignore[no-any-return, no-untyped-call]
    (T, B, _), (N_h, N_m) = x.shape, weights[1].shape  # type: ignore[union-attr]
    y = torch.empty((T, B, N_h if output == "hidden" else N_m), dtype=x.dtype)
    end = torch.empty((B, N_m), dtype=x.dtype)
    h, m = (y, None) if output == "hidden" else (None, y)
    call("lmn", x.dtype, _lmn_fields(nonlinearity, lengths, x, start, weights, h, m, end))
    return y, end


def _lmn_fields(
    nonlinearity: str,
    lengths: Optional,
    x: Tensor,
    start: Tensor,
    weights: Sequence[Optional],
    h: Optional,
    m: Optional,
    end: Optional,
) -> list[Field]:
    N_h, N_m = weights[1].shape  # type: ignore[union-attr]
    sizes = (*x.shape, N_h, N_m, torch.get_num_threads(), NUMBER[nonlinearity])
    return [*sizes, lengths, *sequence(rows(x)), *contiguous(start, *weights), h, m, end]


class _LMN(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        nonlinearity: str,
        output: Output,
        lengths: Optional,
        x: Tensor,
        start: Tensor,
        *weights: Optional,
    ) -> tuple[Tensor, Tensor]:
        (T, B, _), (N_h, N_m) = x.shape, weights[1].shape  # type: ignore[union-attr]
        h, m = x.new_empty((T, B, N_h)), x.new_empty((T, B, N_m))
        end = torch.empty_like(start, memory_format=torch.contiguous_format)
        call("lmn", x.dtype, _lmn_fields(nonlinearity, lengths, x, start, weights, h, m, end))
        ctx.nonlinearity, ctx.output, ctx.lengths = nonlinearity, output, lengths
        ctx.save_for_backward(h, m, x, start, *weights)
        ctx.set_materialize_grads(False)
        return (h if output == "hidden" else m), end

    @staticmethod
    def backward(ctx: Any, g_sequence: Optional, g_end: Optional) -> Any:
        h, m, *inputs = ctx.saved_tensors
        x, start, *weights = inputs
        if torch.is_grad_enabled() or not nobody_looks_in() or not plain(x.dtype, g_sequence, g_end):
            run = partial(reference.lmn, nonlinearity=ctx.nonlinearity, lengths=ctx.lengths, output=ctx.output)
            return None, None, None, *by_reference(run, inputs, (g_sequence, g_end))
        wanted = wanted_gradients(ctx, 3, *inputs)
        fields = _lmn_fields(ctx.nonlinearity, ctx.lengths, x, start, weights, h, m, None)
        call("lmn", x.dtype, fields, _gradient_fields(ctx.output == "hidden", g_sequence, g_end, wanted))
        return None, None, None, *wanted


def _gradient_fields(hidden: bool, g_sequence: Optional, g_end: Optional, wanted: Sequence[Optional]) -> list[Field]:
    """Pack the gradients of the sequence h or m and of the final state, and of the inputs."""
    g = None if g_sequence is None else rows(g_sequence)
    return [*sequence(g if hidden else None), *sequence(None if hidden else g), *contiguous(g_end), *wanted]


# ------------------------------------------------------------------------------------ the linear memory


def linear_memory(
    x: Tensor, m: Tensor, w_xm: Tensor, w_mm: Tensor, b_m: Optional, *, lengths: Optional = None
) -> tuple[Tensor, Tensor]:
    """Linear memory: see :func:`linmem.kernels.reference.linear_memory`."""
    (_, B, N_x), N_m = x.shape, m.shape[1]
    check_shapes(
        m=(m, (B, N_m)), w_xm=(w_xm, (N_m, N_x)), w_mm=(w_mm, (N_m, N_m)), b_m=(b_m, (N_m,)), lengths=(lengths, (B,))
    )
    return from_long_to_short(partial(_linear, (w_xm, w_mm, b_m)), x, m, lengths)


def _linear(weights: Sequence[Optional], x: Tensor, start: Tensor, lengths: Optional) -> tuple[Tensor, Tensor]:
    if differentiable(x, start, *weights):
        return _Linear.apply(lengths, x, start, *weights)  # type: ignore[no-any-return, no-untyped-call]
    m = x.new_empty((*x.shape[:2], start.shape[1]))
    end = torch.empty_like(start, memory_format=torch.contiguous_format)
    call("linear", x.dtype, _linear_fields(lengths, x, start, weights, m, end))
    return m, end


def _linear_fields(
    lengths: Optional, x: Tensor, start: Tensor, weights: Sequence[Optional], m: Optional, end: Optional
) -> list[Field]:
    sizes = (*x.shape, start.shape[1], torch.get_num_threads())
    return [*sizes, lengths, *sequence(rows(x)), *contiguous(start, *weights), m, end]


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, lengths: Optional, x: Tensor, start: Tensor, *weights: Optional) -> tuple[Tensor, Tensor]:
        m, end = _linear(weights, x, start, lengths)  # autograd does not look in here
        ctx.lengths = lengths
        ctx.save_for_backward(m, x, start, *weights)
        ctx.set_materialize_grads(False)
        return m, end

    @staticmethod
    def backward(ctx: Any, g_m: Optional, g_end: Optional) -> Any:
        m, *inputs = ctx.saved_tensors
        x, start, *weights = inputs
        if torch.is_grad_enabled() or not nobody_looks_in() or not plain(x.dtype, g_m, g_end):
            run = partial(reference.linear_memory, lengths=ctx.lengths)
            return None, *by_reference(run, inputs, (g_m, g_end))
        wanted = wanted_gradients(ctx, 1, *inputs)
        fields = _linear_fields(ctx.lengths, x, start, weights, m, None)
        g = None if g_m is None else rows(g_m)
        call("linear", x.dtype, fields, [*sequence(g), *contiguous(g_end), *wanted])
        return None, *wanted


# ---------------------------------------------------------------------------------- models with clocks


def multiscale_lmn(
    x: Tensor,
    m: Tensor,
    clock: Tensor,
    w_xh: Tensor,
    w_mh: Tensor,
    w_hm: Tensor,
    w_mm: Tensor,
    b_h: Optional,
    b_m: Optional,
    *,
    modules: Modules,
    nonlinearity: str = "tanh",
    lengths: Optional = None,
    output: Output = "memory",
) -> tuple[Tensor, Tensor]:
    """MultiScale Linear Memory Network: see :func:`linmem.kernels.reference.multiscale_lmn`."""
    (_, B, N_x), N_h, N_m = x.shape, w_xh.shape[0], modules.width
    check_shapes(
        m=(m, (B, N_m)),
        w_xh=(w_xh, (N_h, N_x)),
        w_mh=(w_mh, (N_h, N_m)),
        w_hm=(w_hm, (N_m, N_h)),
        w_mm=(w_mm, (modules.packed_size,)),
        b_h=(b_h, (N_h,)),
        b_m=(b_m, (N_m,)),
        lengths=(lengths, (B,)),
    )
    if modules.periods == (1,):
        square = w_mm.view(N_m, N_m)
        return lmn(x, m, w_xh, w_mh, w_hm, square, b_h, b_m, nonlinearity=nonlinearity, lengths=lengths, output=output)
    options = {"modules": modules, "nonlinearity": nonlinearity, "output": output}
    return _clocked(x, m, clock, lengths, options, w_xh, w_mh, w_hm, w_mm, b_h, b_m)


def clockwork_rnn(
    x: Tensor,
    h: Tensor,
    clock: Tensor,
    w_xh: Tensor,
    w_hh: Tensor,
    b_h: Optional,
    *,
    modules: Modules,
    nonlinearity: str = "tanh",
    lengths: Optional = None,
) -> tuple[Tensor, Tensor]:
    """Clockwork RNN: see :func:`linmem.kernels.reference.clockwork_rnn`."""
    (_, B, N_x), N_h = x.shape, modules.width
    check_shapes(
        h=(h, (B, N_h)),
        w_xh=(w_xh, (N_h, N_x)),
        w_hh=(w_hh, (modules.packed_size,)),
        b_h=(b_h, (N_h,)),
        lengths=(lengths, (B,)),
    )
    if modules.periods == (1,) and nonlinearity == "identity":
        return linear_memory(x, h, w_xh, w_hh.view(N_h, N_h), b_h, lengths=lengths)
    options = {"modules": modules, "nonlinearity": nonlinearity}
    return _clocked(x, h, clock, lengths, options, None, None, w_xh, w_hh, None, b_h)


def _clocked(
    x: Tensor, start: Tensor, clock: Tensor, lengths: Optional, options: dict[str, Any], *weights: Optional
) -> tuple[Tensor, Tensor]:
    """Run the sequences whose clocks agree together: they fire at the same steps."""
    phases = [steps % options["modules"].period for steps in clock.tolist()]
    run = partial(_in_phase, options, weights)
    if len(set(phases)) == 1:
        return from_long_to_short(partial(run, phases[0]), x, start, lengths)
    groups = {phase: torch.tensor([i for i, p in enumerate(phases) if p == phase]) for phase in sorted(set(phases))}
    parts = [
        from_long_to_short(partial(run, phase), x[:, r], start[r], None if lengths is None else lengths[r])
        for phase, r in groups.items()
    ]
    back = torch.cat(list(groups.values())).argsort()
    return torch.cat([y for y, _ in parts], 1)[:, back], torch.cat([end for _, end in parts])[back]


def _in_phase(
    options: dict[str, Any], weights: Sequence[Optional], phase: int, x: Tensor, start: Tensor, lengths: Optional
) -> tuple[Tensor, Tensor]:
    if differentiable(x, start, *weights):
        return _Clocked.apply(options, phase, lengths, x, start, *weights)  # type: ignore[no-any-return, no-untyped-call]
    w_xh, hidden = weights[0], options.get("output") == "hidden"
    h = x.new_empty((*x.shape[:2], w_xh.shape[0])) if hidden and w_xh is not None else None
    m = None if hidden else x.new_empty((*x.shape[:2], start.shape[1]))
    end = torch.empty_like(start, memory_format=torch.contiguous_format)
    call("clocked", x.dtype, _clocked_fields(options, phase, lengths, x, start, weights, h, m, end))
    return (h if hidden else m), end  # type: ignore[return-value]


GROUP_UNITS = 16
"""Neighbouring modules are computed together until they have as many units: a product of less costs as much."""


@lru_cache
def layout(modules: Modules) -> Tensor:
    """Describe modules to the library: size, period, first unit heard, one past the last, group."""
    together = modules.connections != "slow_to_fast"  # what fast modules give to slow ones is new at every step
    table, group, units = [], 0, 0
    for size, period, (start, end) in zip(modules.sizes, modules.periods, modules.columns, strict=True):
        if units >= GROUP_UNITS and not together:
            group, units = group + 1, 0
        units += size
        table.append((size, period, start, end, group))
    return torch.tensor(table, device="cpu")


def _clocked_fields(
    options: dict[str, Any],
    phase: int,
    lengths: Optional,
    x: Tensor,
    start: Tensor,
    weights: Sequence[Optional],
    h: Optional,
    m: Optional,
    end: Optional,
) -> list[Field]:
    modules, N_h = options["modules"], 0 if weights[0] is None else weights[0].shape[0]
    sizes = (*x.shape, N_h, len(modules.sizes), torch.get_num_threads(), NUMBER[options["nonlinearity"]], phase)
    return [*sizes, layout(modules), lengths, *sequence(rows(x)), *contiguous(start, *weights), h, m, end]


class _Clocked(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        options: dict[str, Any],
        phase: int,
        lengths: Optional,
        x: Tensor,
        start: Tensor,
        *weights: Optional,
    ) -> tuple[Tensor, Tensor]:
        w_xh = weights[0]
        h = None if w_xh is None else x.new_empty((*x.shape[:2], w_xh.shape[0]))
        m = x.new_empty((*x.shape[:2], start.shape[1]))
        end = torch.empty_like(start, memory_format=torch.contiguous_format)
        call("clocked", x.dtype, _clocked_fields(options, phase, lengths, x, start, weights, h, m, end))
        ctx.options, ctx.phase, ctx.lengths = options, phase, lengths
        ctx.save_for_backward(h, m, x, start, *weights)
        ctx.set_materialize_grads(False)
        return (h if options.get("output") == "hidden" else m), end  # type: ignore[return-value]

    @staticmethod
    def backward(ctx: Any, g_sequence: Optional, g_end: Optional) -> Any:
        h, m, *inputs = ctx.saved_tensors
        x, start, *weights = inputs
        if torch.is_grad_enabled() or not nobody_looks_in() or not plain(x.dtype, g_sequence, g_end):
            run = partial(_clocked_by_reference, ctx.options, ctx.phase, ctx.lengths)
            return None, None, None, *by_reference(run, inputs, (g_sequence, g_end))
        wanted = wanted_gradients(ctx, 3, *inputs)
        fields = _clocked_fields(ctx.options, ctx.phase, ctx.lengths, x, start, weights, h, m, None)
        hidden = ctx.options.get("output") == "hidden"
        call("clocked", x.dtype, fields, _gradient_fields(hidden, g_sequence, g_end, wanted))
        return None, None, None, *wanted


def _clocked_by_reference(
    options: dict[str, Any],
    phase: int,
    lengths: Optional,
    x: Tensor,
    start: Tensor,
    w_xh: Optional,
    w_mh: Optional,
    w_u: Tensor,
    w_mm: Tensor,
    b_h: Optional,
    b_m: Optional,
) -> Results:
    clock = torch.tensor([phase])
    if w_xh is None or w_mh is None:
        return reference.clockwork_rnn(x, start, clock, w_u, w_mm, b_m, lengths=lengths, **options)
    return reference.multiscale_lmn(x, start, clock, w_xh, w_mh, w_u, w_mm, b_h, b_m, lengths=lengths, **options)


# ---------------------------------------------------------------------------------- without gradients


class Prepared:
    """A layer's weights made ready for calls without gradients, as the steps of a stream are.

    A step takes less time than looking at all weights again would. So they are looked at once, and a call only
    makes sure that they still lie where they lay. What they hold is read anew in every call.

    Parameters
    ----------
    model
        The name of the model in `MODELS`.
    weights
        All weights; None are those that the layer does not have.
    fields
        The call as the library reads it.
    width
        Width of the output.
    period
        After how many steps all modules fire at once again.
    """

    def __init__(
        self, model: str, weights: Sequence[Optional], fields: Sequence[Field], width: int, period: int = 1
    ) -> None:
        present = [w for w in weights if w is not None]
        self.weights = [(w, w.data_ptr()) for w in present]
        self.model, self.call, self.width, self.period = MODELS.index(model), pack(fields), width, period
        self.dtype = present[0].dtype
        self.forward = forward_function(REAL[self.dtype])

    def fits(self, weights: Sequence[Optional]) -> bool:
        """Whether these are the weights that it was made for, where they were."""
        if len(weights) != len(self.weights):
            return False
        dtype = self.dtype
        for w, (mine, address) in zip(weights, self.weights):  # noqa: B905 (checked above, and every word here counts)
            if w is not mine or mine.data_ptr() != address or mine.dtype is not dtype or not mine.is_contiguous():
                return False
        return True

    def run(self, x: Tensor, batch: int, state: Tensor, clock: int = 0) -> tuple[Tensor, Tensor] | None:
        """Run over a batch of whole sequences; None if its tensors are out of the ordinary.

        Parameters
        ----------
        x
            Time, the batch (which is dimension `batch`, 0 or 1), and features.
        state
            (1, B, width).
        clock
            Steps before this one.

        Returns
        -------
        output, state
            As `x`, and as `state`.
        """
        if not plain(self.dtype, x, state) or x.stride(2) != 1 or not state.is_contiguous():
            return None
        T, B = x.shape[1 - batch], x.shape[batch]
        end = torch.empty_like(state)
        shape = (T, B, self.width)
        y = torch.empty_like(state) if shape == state.shape else x.new_empty(shape)
        sizes = (T, B, torch.get_num_threads(), clock % self.period)
        arrays = (x.data_ptr(), x.stride(1 - batch), x.stride(batch), state.data_ptr(), y.data_ptr(), end.data_ptr())
        if self.forward(self.model, self.call, *sizes, *arrays):
            raise MemoryError("linmem: a layer ran out of memory")
        return y if batch == 1 else y.transpose(0, 1), end


def prepare_lmn(*weights: Optional, nonlinearity: str, output: Output) -> Prepared | None:
    """Make the weights of an LMN, in the order of :func:`lmn`, ready; None if the library cannot read them."""
    w_xh, w_mh = weights[:2]
    if w_xh is None or w_mh is None or not ready(w_xh, *weights):
        return None
    N_h, N_m = w_mh.shape
    x, start = w_xh.new_empty(1, 1, w_xh.shape[1]), w_xh.new_empty(1, N_m)
    h, m = (x, None) if output == "hidden" else (None, x)
    fields = _lmn_fields(nonlinearity, None, x, start, weights, h, m, None)
    return Prepared("lmn", weights, fields, N_h if output == "hidden" else N_m)


def prepare_clocked(
    *weights: Optional, modules: Modules, nonlinearity: str, output: Output = "memory"
) -> Prepared | None:
    """Do the same for models with clocks: weights as in :func:`multiscale_lmn`, of a Clockwork RNN the last four."""
    w_u = weights[2]
    if w_u is None or not ready(w_u, *weights):
        return None
    w_xh = weights[0]
    if w_xh is None and modules.periods == (1,) and nonlinearity == "identity":
        return prepare_linear(w_u, *weights[3::2])
    options = {"modules": modules, "nonlinearity": nonlinearity, "output": output}
    x, start = w_u.new_empty(1, 1, (w_u if w_xh is None else w_xh).shape[1]), w_u.new_empty(1, modules.width)
    h, m = (x, None) if output == "hidden" else (None, x)
    fields = _clocked_fields(options, 0, None, x, start, weights, h, m, None)
    width = modules.width if output == "memory" or w_xh is None else w_xh.shape[0]
    return Prepared("clocked", weights, fields, width, modules.period)


def prepare_linear(w_xm: Tensor, w_mm: Optional, b_m: Optional) -> Prepared:
    """Do the same for a linear memory, with weights as in :func:`linear_memory` that the library can read."""
    N_m, N_x = w_xm.shape
    weights = (w_xm, w_mm, b_m)
    fields = _linear_fields(None, w_xm.new_empty(1, 1, N_x), w_xm.new_empty(1, N_m), weights, None, None)
    return Prepared("linear", weights, fields, N_m)


def ready(first: Tensor, *weights: Optional) -> bool:
    """Whether the library can read the weights where they lie."""
    return first.dtype in REAL and plain(first.dtype, *weights) and all(w is None or w.is_contiguous() for w in weights)


@cache
def forward_function(real: str) -> Callable[..., int]:
    """Return the function of the library that runs a prepared call, for numbers of one kind."""
    function = getattr(choose()[1], f"linmem_forward_{real}")
    function.argtypes = (ctypes.c_int64, ctypes.c_char_p, *[ctypes.c_int64] * 10)
    return function  # type: ignore[no-any-return]


# ------------------------------------------------------------------------------------ the unrolled RNN


def unrolled_rnn(
    x: Tensor,
    tape: Tensor,
    w_xh: Tensor,
    w_hh: Tensor,
    b_h: Optional,
    *,
    nonlinearity: str = "tanh",
    lengths: Optional = None,
    output: Output = "tape",
) -> tuple[Tensor, Tensor]:
    """Unrolled RNN: see :func:`linmem.kernels.reference.unrolled_rnn`."""
    (T, B, N_x), (N_h, width) = x.shape, w_hh.shape
    order = width // N_h
    check_shapes(
        tape=(tape, (B, width)),
        w_xh=(w_xh, (N_h, N_x)),
        w_hh=(w_hh, (N_h, order * N_h)),
        b_h=(b_h, (N_h,)),
        lengths=(lengths, (B,)),
    )

    def run(x: Tensor, tape: Tensor, lengths: Optional) -> tuple[Tensor, Tensor]:
        if differentiable(x, tape, w_xh, w_hh, b_h):
            h = _Unrolled.apply(nonlinearity, lengths, x, tape, w_xh, w_hh, b_h)  # type: ignore[no-untyped-call]
        else:
            h = _unrolled_forward(nonlinearity, lengths, x, tape, w_xh, w_hh, b_h)
        if lengths is None:
            last = h[T:].flip(0).transpose(0, 1)  # (B, order, N_h)
        else:
            last = h[lengths[:, None] + torch.arange(order - 1, -1, -1), torch.arange(B)[:, None]]
        if output == "hidden":
            return h[order:], last.reshape(B, width)
        longer = torch.cat([h[order - i : order - i + T] for i in range(order + 1)], -1)  # (T, B, (k+1) N_h)
        alive = None if lengths is None else (torch.arange(T)[:, None] < lengths)[..., None]
        return reference.zero_padding(longer, alive), last.reshape(B, width)

    return from_long_to_short(run, x, tape, lengths)


def _unrolled_forward(
    nonlinearity: str, lengths: Optional, x: Tensor, tape: Tensor, w_xh: Tensor, w_hh: Tensor, b_h: Optional
) -> Tensor:
    """Return the hidden states of the tape, oldest first, and behind them those of all steps."""
    (T, B, _), N_h = x.shape, w_xh.shape[0]
    order = w_hh.shape[1] // N_h
    h = x.new_empty(order + T, B, N_h)
    h[:order] = tape.reshape(B, order, N_h).transpose(0, 1).flip(0)
    call("unrolled", x.dtype, _unrolled_fields(nonlinearity, lengths, x, (w_xh, w_hh, b_h), h))
    return h


def _unrolled_fields(
    nonlinearity: str, lengths: Optional, x: Tensor, weights: Sequence[Optional], h: Tensor
) -> list[Field]:
    sizes = (*x.shape, h.shape[2], h.shape[0] - x.shape[0], torch.get_num_threads(), NUMBER[nonlinearity])
    return [*sizes, lengths, *sequence(rows(x)), *contiguous(*weights), h]


class _Unrolled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, nonlinearity: str, lengths: Optional, *inputs: Any) -> Tensor:
        h = _unrolled_forward(nonlinearity, lengths, *inputs)
        ctx.nonlinearity, ctx.lengths = nonlinearity, lengths
        ctx.save_for_backward(h, *inputs)
        return h

    @staticmethod
    def backward(ctx: Any, g_h: Tensor) -> Any:
        h, *inputs = ctx.saved_tensors
        x, tape, *weights = inputs
        if torch.is_grad_enabled() or not nobody_looks_in() or not plain(x.dtype, g_h):
            run = partial(_unrolled_by_reference, ctx.nonlinearity, ctx.lengths)
            return None, None, *by_reference(run, inputs, (g_h,))
        d_h = g_h.clone(memory_format=torch.contiguous_format)
        g_x, g_tape, *g_weights = wanted_gradients(ctx, 2, *inputs)
        fields = _unrolled_fields(ctx.nonlinearity, ctx.lengths, x, weights, h)
        call("unrolled", x.dtype, fields, [d_h, g_x, *g_weights])
        if g_tape is not None:
            g_tape = d_h[: len(h) - len(x)].flip(0).transpose(0, 1).reshape(tape.shape)
        return None, None, g_x, g_tape, *g_weights


def _unrolled_by_reference(
    nonlinearity: str,
    lengths: Optional,
    x: Tensor,
    tape: Tensor,
    w_xh: Tensor,
    w_hh: Tensor,
    b_h: Optional,
) -> Results:
    h, _ = reference.unrolled_rnn(x, tape, w_xh, w_hh, b_h, nonlinearity=nonlinearity, lengths=lengths, output="hidden")
    before = tape.reshape(len(tape), -1, h.shape[2]).transpose(0, 1).flip(0)
    return (torch.cat([before, h]),)
