"""torch's own samples and error cases for nn.GRU and nn.GRUCell, run on linmem's layers and cells."""

import copy
import io
import itertools
import pickle
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck
from torch.nn.utils.rnn import PackedSequence
from torch.testing import assert_close
from torch.testing._internal.common_modules import (
    ModuleErrorEnum,
    ModuleInput,
    module_error_inputs_torch_nn_RNN_GRU,
    module_error_inputs_torch_nn_RNN_GRU_Cell,
    module_inputs_torch_nn_RNN_GRU,
    module_inputs_torch_nn_RNN_GRU_Cell,
)
from torch.utils._pytree import tree_leaves

import linmem


def linear_memory(input_size: int, hidden_size: int, *arguments: Any, **options: Any) -> nn.Module:
    """Give what torch's samples call hidden_size to a layer that has a memory only."""
    return linmem.LinearMemory(input_size, hidden_size, *arguments, **options)


LAYERS = {
    "LMN": linmem.LMN,
    "LMN, wide memory": partial(linmem.LMN, memory_size=5),
    "LMN-h": partial(linmem.LMN, output="hidden", learn_initial_state=True),
    "MultiScaleLMN": linmem.MultiScaleLMN,
    "MultiScaleLMN, 2 modules": partial(linmem.MultiScaleLMN, num_modules=2, memory_size=6),
    "ClockworkRNN": linmem.ClockworkRNN,
    "ClockworkRNN, full": partial(linmem.ClockworkRNN, connections="full", periods=[2]),
    "UnrolledRNN": linmem.UnrolledRNN,
    "UnrolledRNN, order 3": partial(linmem.UnrolledRNN, order=3),
    "LinearMemory": linear_memory,
    "LinearMemory, Legendre": partial(linear_memory, init="legendre", learn_initial_state=True),
    "LinearMemory, period 2": partial(linear_memory, periods=[2]),
}
CELLS = {
    "LMNCell": linmem.LMNCell,
    "MultiScaleLMNCell": linmem.MultiScaleLMNCell,
    "ClockworkRNNCell": linmem.ClockworkRNNCell,
    "UnrolledRNNCell": linmem.UnrolledRNNCell,
    "LinearMemoryCell": linmem.LinearMemoryCell,
}
DTYPES = (torch.float32, torch.float64)
pytestmark = pytest.mark.usefixtures("unchecked")
each_layer = pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS.keys())
each_cell = pytest.mark.parametrize("make", CELLS.values(), ids=CELLS.keys())
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)

# Layers whose state has another width than hidden_size cannot take the state of torch's samples.
WIDER_STATE = {"LMN, wide memory", "MultiScaleLMN, 2 modules", "UnrolledRNN, order 3"}


def samples(make: Callable[..., nn.Module], dtype: torch.dtype, packed: bool = True) -> list[ModuleInput]:
    """torch's samples for nn.GRU; a state that does not fit the layer is left away."""
    found = module_inputs_torch_nn_RNN_GRU(
        None, "cpu", dtype, requires_grad=True, training=True, is_rnn=False, with_packed_sequence=packed
    )
    wide = any(make is LAYERS[name] for name in WIDER_STATE)
    if wide:
        for sample in found:
            sample.forward_input.args = sample.forward_input.args[:1]
    return found


def build(make: Callable[..., nn.Module], sample: ModuleInput, dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    constructor = sample.constructor_input
    return make(*constructor.args, **constructor.kwargs, dtype=dtype)


def built(make: Callable[..., nn.Module], dtype: torch.dtype, packed: bool = True) -> Iterator[tuple[Any, ...]]:
    for sample in samples(make, dtype, packed):
        yield build(make, sample, dtype), sample.forward_input.args, sample


@each_dtype
@each_layer
def test_unbatched_input_equals_a_batch_of_one(make: Callable[..., nn.Module], dtype: torch.dtype) -> None:
    for layer, args, _ in built(make, dtype, packed=False):
        batch_dim = 0 if layer.batch_first else 1
        x, hx = args[0], args[1] if len(args) > 1 else None
        y, state = layer(x, hx)
        y1, state1 = layer(x.unsqueeze(batch_dim), None if hx is None else hx.unsqueeze(1))
        assert_close(y, y1.squeeze(batch_dim), rtol=0, atol=0)
        leaves, leaves1 = tree_leaves(state), tree_leaves(state1)
        assert_close(leaves[0], leaves1[0].squeeze(1), rtol=0, atol=0)
        assert_close(leaves[1:], [clock.squeeze(0) for clock in leaves1[1:]])


@each_dtype
@each_layer
def test_factory_kwargs(make: Callable[..., nn.Module], dtype: torch.dtype) -> None:
    for sample in samples(make, dtype):
        constructor = sample.constructor_input
        layer = make(*constructor.args, **constructor.kwargs, device="meta", dtype=dtype)
        assert all(p.device.type == "meta" and p.dtype == dtype for p in layer.parameters())
        x = torch.empty(4, 2, constructor.kwargs["input_size"], device="meta", dtype=dtype)
        y, _ = layer(x)
        assert y.shape == (4, 2, layer.output_size)
        assert y.device.type == "meta"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.nn.init, "uniform_", lambda weight, *_: weight.data.zero_())
            layer = layer.to_empty(device="cpu")
            layer.reset_parameters()
        assert all(torch.isfinite(p).all() for p in layer.parameters())


@each_layer
def test_repr_evaluates_to_the_same_layer(make: Callable[..., nn.Module]) -> None:
    for layer, _, _ in built(make, torch.float32):
        again = eval(repr(layer), vars(linmem))
        shapes = {name: p.shape for name, p in layer.state_dict().items()}
        assert {name: p.shape for name, p in again.state_dict().items()} == shapes
        assert repr(again) == repr(layer)


@each_dtype
@each_layer
def test_copies_compute_the_same(make: Callable[..., nn.Module], dtype: torch.dtype) -> None:
    for layer, args, sample in built(make, dtype):
        saved = io.BytesIO()
        torch.save(layer.state_dict(), saved)
        saved.seek(0)
        torch.manual_seed(1)
        loaded = make(*sample.constructor_input.args, **sample.constructor_input.kwargs, dtype=dtype)
        loaded.load_state_dict(torch.load(saved))
        expected = layer(*args)
        for copied in (pickle.loads(pickle.dumps(layer)), copy.deepcopy(layer), loaded):
            assert_close(copied(*args), expected, rtol=0, atol=0)


@each_dtype
@each_layer
def test_non_contiguous_input_and_gradients(make: Callable[..., nn.Module], dtype: torch.dtype) -> None:
    for layer, args, _ in built(make, dtype, packed=False):
        results = []
        for convert in (Tensor.contiguous, _non_contiguous):
            leaves = [convert(a.detach()).requires_grad_() for a in args]
            outputs = [t for t in tree_leaves(layer(*leaves)) if t.is_floating_point()]
            layer.zero_grad()
            torch.autograd.backward(outputs, [convert(torch.ones_like(t)) for t in outputs])
            results.append((outputs, [a.grad for a in leaves], [p.grad for p in layer.parameters()]))
        assert_close(results[0], results[1])


def _non_contiguous(tensor: Tensor) -> Tensor:
    wide = torch.repeat_interleave(tensor, 2, dim=-1)[..., ::2]
    assert not wide.is_contiguous() or wide.numel() <= 1
    return wide


@each_layer
@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
def test_gradients(make: Callable[..., nn.Module], check: Callable[..., bool]) -> None:
    """Of output and state with respect to input, state and every parameter."""
    # The samples are 8 kinds of layer times 4 of input. Every seventh gives all kinds of input, and layers
    # with and without each option.
    for layer, args, _ in itertools.islice(built(make, torch.float64), 0, None, 7):
        packed = args[0] if isinstance(args[0], PackedSequence) else None
        tensors = args if packed is None else (packed.data, *args[1:])
        weights = [p.detach().requires_grad_() for p in layer.parameters()]
        run = partial(_run_with, layer, packed, len(tensors))
        assert check(run, (*tensors, *weights), fast_mode=True)


def _run_with(layer: nn.Module, packed: PackedSequence | None, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
    """All float results of a layer as a function of `count` arguments and its parameters."""
    (x, *state), weights = tensors[:count], tensors[count:]
    names = [name for name, _ in layer.named_parameters()]
    inputs = x if packed is None else packed._replace(data=x)
    results = torch.func.functional_call(layer, dict(zip(names, weights, strict=True)), (inputs, *state))
    return tuple(t for t in tree_leaves(results) if isinstance(t, Tensor) and t.is_floating_point())


@each_layer
def test_empty_batch(make: Callable[..., nn.Module]) -> None:
    layer = make(3, 4, num_layers=2)
    x = torch.randn(5, 0, 3, requires_grad=True)
    y, state = layer(x)
    y.sum().backward()
    assert y.shape == (5, 0, layer.output_size)
    assert tree_leaves(state)[0].shape == (2, 0, layer.state_size)
    assert x.grad is not None
    assert all(p.grad is not None and not p.grad.any() for p in layer.parameters())


@each_layer
@pytest.mark.parametrize(("batch_first", "shape"), [(False, (0, 2, 3)), (True, (2, 0, 3)), (False, (0, 3))])
def test_empty_sequence_is_an_error(make: Callable[..., nn.Module], batch_first: bool, shape: tuple[int, ...]) -> None:
    with pytest.raises(RuntimeError, match="Expected sequence length to be larger than 0 in RNN"):
        make(3, 4, batch_first=batch_first)(torch.zeros(shape))


@each_dtype
@each_layer
def test_torch_error_cases(make: Callable[..., nn.Module], dtype: torch.dtype) -> None:
    cases = module_error_inputs_torch_nn_RNN_GRU(None, "cpu", dtype, requires_grad=False, training=True)
    for case in cases:
        constructor = case.module_error_input.constructor_input
        if case.error_on == ModuleErrorEnum.CONSTRUCTION_ERROR:
            own_word = case.error_regex.replace("hidden_size", "(hidden|memory)_size")
            with pytest.raises(case.error_type, match=own_word):
                make(*constructor.args, **constructor.kwargs)
        else:
            layer = make(*constructor.args, **constructor.kwargs)
            with pytest.raises(case.error_type, match=case.error_regex):
                layer(*case.module_error_input.forward_input.args)


@each_dtype
@each_cell
def test_cell_samples(make: Callable[..., nn.Module], dtype: torch.dtype) -> None:
    for sample in module_inputs_torch_nn_RNN_GRU_Cell(None, "cpu", dtype, requires_grad=True, training=True):
        cell = build(make, sample, dtype)
        x, hx = sample.forward_input.args
        state = tree_leaves(cell(x, hx))
        assert_close(state, [t.squeeze(0) for t in tree_leaves(cell(x[None], hx[None]))], rtol=0, atol=0)
        for copied in (pickle.loads(pickle.dumps(cell)), copy.deepcopy(cell)):
            assert_close(tree_leaves(copied(x, hx)), state, rtol=0, atol=0)
        assert repr(eval(repr(cell), vars(linmem))) == repr(cell)
        meta = make(5, 10, device="meta", dtype=dtype)
        assert tree_leaves(meta(torch.empty(2, 5, device="meta", dtype=dtype)))[0].shape == (2, 10)


@each_cell
@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
def test_cell_gradients(make: Callable[..., nn.Module], check: Callable[..., bool]) -> None:
    cell = make(3, 4, dtype=torch.float64)
    x, hx = torch.randn(2, 3).double().requires_grad_(), torch.randn(2, 4).double().requires_grad_()
    assert check(lambda x, hx, *_: tree_leaves(cell(x, hx))[0], (x, hx, *cell.parameters()))


@each_dtype
@each_cell
def test_cell_error_cases(make: Callable[..., nn.Module], dtype: torch.dtype) -> None:
    cases = module_error_inputs_torch_nn_RNN_GRU_Cell(None, "cpu", dtype, requires_grad=False, training=True)
    for case in cases:
        cell = make(*case.module_error_input.constructor_input.args, dtype=dtype)
        with pytest.raises(case.error_type, match=case.error_regex):
            cell(*case.module_error_input.forward_input.args)
