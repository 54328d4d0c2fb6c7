"""The rest of torch's contract: options, states, transforms of torch, and errors."""

import inspect
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.testing import assert_close
from torch.utils._pytree import tree_leaves, tree_map

import linmem

LAYERS = {
    "LMN": partial(linmem.LMN, 3, 4, memory_size=5),
    "LinearMemory": partial(linmem.LinearMemory, 3, 4),
    "MultiScaleLMN": partial(linmem.MultiScaleLMN, 3, 4, num_modules=3, memory_size=6),
    "ClockworkRNN": partial(linmem.ClockworkRNN, 3, 6, num_modules=3),
    "UnrolledRNN": partial(linmem.UnrolledRNN, 3, 4, order=2),
}
each_layer = pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)


@each_layer
def test_arguments_are_in_the_order_of_gru(make: Callable[..., nn.Module]) -> None:
    arguments = make.keywords
    signature = inspect.signature(make.func)
    names = tuple(n for n, p in signature.parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD)
    width = "memory_size" if make.func is linmem.LinearMemory else "hidden_size"  # it has no hidden state
    assert names == (
        "input_size",
        width,
        "num_layers",
        "bias",
        "batch_first",
        "dropout",
        "bidirectional",
    )
    layer = make.func(*make.args, 2, False, True, 0.5, True, **arguments)
    gru = nn.GRU(3, 4, 2, False, True, 0.5, True)
    for name in names[2:]:
        assert getattr(layer, name) == getattr(gru, name)


@each_layer
def test_parameters_are_named_in_torchs_style(make: Callable[..., nn.Module]) -> None:
    names = [name for name, _ in make(num_layers=2, bidirectional=True).named_parameters()]
    assert {n.rpartition("_l")[2] for n in names} == {"0", "0_reverse", "1", "1_reverse"}
    assert {n.split("_")[0] for n in names} == {"weight", "bias"}
    without = [n for n, _ in make(num_layers=2, bidirectional=True, bias=False).named_parameters()]
    assert without == [n for n in names if not n.startswith("bias")]


@each_layer
def test_dropout_is_between_layers_and_in_training_only(make: Callable[..., nn.Module]) -> None:
    x = torch.randn(5, 2, 3)
    layer = make(num_layers=3, dropout=1.0)
    y, _ = layer(x)
    assert_close(y[:, 0], y[:, 1])  # nothing of x arrives at the last layer
    y, _ = layer.eval()(x)
    assert not torch.allclose(y[:, 0], y[:, 1])
    half = make(num_layers=2, dropout=0.5)
    first = half.activations(x, layer=0)
    assert torch.equal(first, half.activations(x, layer=0))  # the first layer's own output is not dropped
    torch.manual_seed(1)
    a = half(x)[0]
    torch.manual_seed(1)
    assert torch.equal(a, half(x)[0])
    assert not torch.equal(a, half(x)[0])


@each_layer
def test_learned_initial_state(make: Callable[..., nn.Module]) -> None:
    layer = make(num_layers=2, bidirectional=True, learn_initial_state=True)
    x = torch.randn(4, 2, 3)
    starts = [p for name, p in layer.named_parameters() if name.startswith("initial_state")]
    assert [p.shape for p in starts] == [(layer.state_size,)] * 4
    layer(x)[0].sum().backward()
    assert all(p.grad.any() for p in starts)
    for p in starts:
        nn.init.normal_(p)
    given = torch.stack(starts)[:, None].expand(4, 2, -1)
    assert_close(layer(x), layer(x, given), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["tanh", "relu", "sigmoid", "identity"])
def test_nonlinearities(name: str) -> None:
    layer = linmem.LMN(3, 4, nonlinearity=name)
    expected = {"identity": lambda x: x}.get(name) or getattr(torch, name)
    x = torch.randn(1, 1, 3)
    assert_close(layer.activations(x), expected(x @ layer.weight_xh_l0.T + layer.bias_h_l0))


@each_layer
def test_flatten_parameters_changes_nothing(make: Callable[..., nn.Module]) -> None:
    layer = make()
    before = {k: v.clone() for k, v in layer.state_dict().items()}
    assert layer.flatten_parameters() is None
    assert_close(dict(layer.state_dict()), before, rtol=0, atol=0)


@each_layer
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_float_dtypes(make: Callable[..., nn.Module], dtype: torch.dtype) -> None:
    layer = make(dtype=dtype)
    y, state = layer(torch.randn(5, 2, 3, dtype=dtype), lengths=torch.tensor([5, 3]))
    assert y.dtype == tree_leaves(state)[0].dtype == dtype
    y.sum().backward()
    assert all(p.grad.dtype == dtype and p.grad.isfinite().all() for p in layer.parameters())


# Transforms of torch


@each_layer
def test_compile_fullgraph(make: Callable[..., nn.Module], plain_linmem: Any) -> None:
    torch.compiler.reset()
    plain = getattr(plain_linmem, make.func.__name__)
    layer = plain(*make.args, bidirectional=True, **make.keywords)
    x, lengths = torch.randn(3, 2, 3), torch.tensor([3, 2])
    hx = tree_map(Tensor.detach, layer(x)[1])
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    assert_close(compiled(x, hx), layer(x, hx))
    assert_close(compiled(x, lengths=lengths), layer(x, lengths=lengths))
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    layer.zero_grad()
    results = compiled(x)
    assert_close(results, layer(x))
    results[0].sum().backward()
    gradients = [p.grad.clone() for p in layer.parameters()]
    layer.zero_grad()
    layer(x)[0].sum().backward()
    assert_close(gradients, [p.grad for p in layer.parameters()])


@each_layer
def test_vmap_of_grad(make: Callable[..., nn.Module]) -> None:
    """Gradients for each sample, all at once, equal those one by one."""
    layer = make(num_layers=2, bidirectional=True, dtype=torch.float64)
    parameters = {k: v.detach() for k, v in layer.named_parameters()}
    x = torch.randn(3, 5, 3, dtype=torch.float64)

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(layer, parameters, (x,))[0].square().sum()

    together = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)
    for row in range(3):
        alone = torch.func.grad(loss)(parameters, x[row])
        assert_close({k: v[row] for k, v in together.items()}, alone)


# torch.func.jvp registers its decompositions with torch.jit.script, which torch itself deprecates.
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
@each_layer
def test_hessian_vector_product(make: Callable[..., nn.Module]) -> None:
    """A second backward pass through the first equals forward over reverse."""
    layer = make(dtype=torch.float64)
    x, v = torch.randn(2, 4, 2, 3, dtype=torch.float64)
    x.requires_grad_()
    (gradient,) = torch.autograd.grad(layer(x)[0].square().sum(), x, create_graph=True)
    (product,) = torch.autograd.grad(gradient, x, v)
    gradient_of = torch.func.grad(lambda x: layer(x)[0].square().sum())
    assert_close(product, torch.func.jvp(gradient_of, (x.detach(),), (v,))[1])


@each_layer
def test_autocast_keeps_the_precision_of_the_weights(make: Callable[..., nn.Module]) -> None:
    """In a model under autocast the layer takes bfloat16 input, but the recurrence runs in float32."""
    layer, below, above = make(), nn.Linear(3, 3), nn.Linear(make().output_size, 2)
    x = torch.randn(5, 2, 3)
    with torch.autocast("cpu", torch.bfloat16):
        z = below(x)
        y, state = layer(z)
        y2, _ = layer(z, state)
        out = above(y)
        packed, _ = layer(pack_padded_sequence(z, torch.tensor([5, 2])))
    assert (z.dtype, y.dtype, out.dtype) == (torch.bfloat16, torch.float32, torch.bfloat16)
    assert packed.data.dtype == y2.dtype == torch.float32
    assert_close(y, layer(z.float())[0], rtol=0, atol=0)
    out.float().sum().backward()
    assert all(p.grad.dtype == torch.float32 for p in layer.parameters())


@pytest.mark.filterwarnings("ignore:.torch.jit.trace:DeprecationWarning")
@pytest.mark.usefixtures("unchecked")
@each_layer
def test_tracing_is_refused(make: Callable[..., nn.Module]) -> None:
    """A trace would fix the length in silence."""
    with pytest.raises(RuntimeError, match="would fix the length of its sequences"):
        torch.jit.trace(make(), torch.zeros(4, 2, 3))


@each_layer
def test_same_seed_same_bits(make: Callable[..., nn.Module]) -> None:
    results = []
    for _ in range(2):
        torch.manual_seed(3)
        layer = make()
        y, _ = layer(torch.randn(6, 2, 3))
        y.sum().backward()
        results.append((y, [p.grad for p in layer.parameters()]))
    assert_close(results[0], results[1], rtol=0, atol=0)


# Errors: torch's type, one sentence


def check_error(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        call()
    assert type(caught.value) is error
    assert str(caught.value) == message


@pytest.mark.usefixtures("unchecked")
@each_layer
def test_wrong_constructor_arguments(make: Callable[..., nn.Module]) -> None:
    name = make.func
    cases = [
        ({"num_layers": -1}, ValueError, "num_layers must be greater than zero"),
        ({"num_layers": 1.5}, TypeError, "num_layers should be of type int, got: float"),
        ({"bidirectional": 1}, TypeError, "bidirectional should be of type bool, got: int"),
        ({"learn_initial_state": "no"}, TypeError, "learn_initial_state should be of type bool, got: str"),
        (
            {"nonlinearity": "tan"},
            ValueError,
            "nonlinearity must be one of 'tanh', 'relu', 'sigmoid', 'identity', got 'tan'",
        ),
        (
            {"dropout": 1.5},
            ValueError,
            "dropout should be a number in range [0, 1] representing the probability of an element being "
            "zeroed, got 1.5",
        ),
    ]
    for options, error, message in cases:
        if options.keys() <= inspect.signature(name).parameters.keys():
            check_error(partial(make, **options), error, message)
    for sizes in [(-1, 4), (True, 4), (3, -4), (3, "4")]:
        with pytest.raises((TypeError, ValueError), match=r"_size (must be greater|should be of type int)"):
            name(*sizes)
    with pytest.warns(UserWarning, match="dropout option adds dropout after all but last"):
        make(dropout=0.5)


@pytest.mark.usefixtures("unchecked")
@each_layer
def test_wrong_input(make: Callable[..., nn.Module]) -> None:
    layer, name = make(), make.func.__name__
    cases: list[tuple[Any, type[Exception], str]] = [
        (torch.zeros(3), ValueError, f"{name}: Expected input to be 2D or 3D, got 1D instead"),
        (torch.zeros(2, 2, 2, 3), ValueError, f"{name}: Expected input to be 2D or 3D, got 4D instead"),
        (
            torch.zeros(2, 2, 7),
            RuntimeError,
            "input.size(-1) must be equal to input_size. Expected 3, got 7",
        ),
        (
            torch.zeros(2, 2, 3, dtype=torch.int64),
            ValueError,
            "RNN input dtype (torch.int64) does not match weight dtype (torch.float32). Convert input: "
            "input.to(torch.float32), or convert model: model.to(torch.int64)",
        ),
        (
            torch.zeros(2, 2, 3, device="meta"),
            RuntimeError,
            "Input and parameter tensors are not at the same device, found input tensor at meta and "
            "parameter tensor at cpu",
        ),
        ([1.0], TypeError, f"{name}: Expected input to be a Tensor or a PackedSequence, got list"),
        (torch.zeros(0, 2, 3), RuntimeError, "Expected sequence length to be larger than 0 in RNN"),
    ]
    for x, error, message in cases:
        check_error(partial(layer, x), error, message)
    packed = pack_padded_sequence(torch.zeros(2, 2, 7), torch.tensor([2, 1]))
    check_error(partial(layer, packed), RuntimeError, cases[2][2])
    packed = pack_padded_sequence(torch.zeros(2, 2, 3), torch.tensor([2, 1]))
    check_error(
        partial(layer, packed, lengths=torch.tensor([2, 1])),
        ValueError,
        f"{name}: a PackedSequence has its own lengths, so lengths must be None",
    )


@pytest.mark.usefixtures("unchecked")
@each_layer
def test_wrong_lengths(make: Callable[..., nn.Module]) -> None:
    layer, name, x = make(), make.func.__name__, torch.zeros(5, 2, 3)
    cases: list[tuple[Any, type[Exception], str]] = [
        ([6, 1], RuntimeError, "Expected lengths between 0 and the 5 steps of the input, got 6"),
        ([5, -1], RuntimeError, "Expected lengths between 0 and the 5 steps of the input, got -1"),
        ([5], RuntimeError, "Expected lengths of size (2,), got [1]"),
        ([[5, 5]], RuntimeError, "Expected lengths of size (2,), got [1, 2]"),
        ([5.0, 5.0], ValueError, f"{name}: Expected lengths to be of an integer type, got torch.float32"),
    ]
    for lengths, error, message in cases:
        check_error(partial(layer, x, lengths=torch.tensor(lengths)), error, message)
    check_error(
        partial(layer, x[:, 0], lengths=torch.tensor([5])),
        ValueError,
        f"{name}: lengths are for batched input, but the input is 2D",
    )


@pytest.mark.usefixtures("unchecked")
@each_layer
def test_wrong_state(make: Callable[..., nn.Module]) -> None:
    layer, name, x = make(), make.func.__name__, torch.zeros(5, 2, 3)
    width, clocked = layer.state_size, layer.equations.clocked
    wanted = "a Tensor or a tuple (state, clock)" if clocked else "a Tensor"
    cases: list[tuple[Any, type[Exception], str]] = [
        (
            torch.zeros(2, width),
            RuntimeError,
            "For batched 3-D input, hx should also be 3-D but got 2-D tensor",
        ),
        (
            torch.zeros(1, 3, width),
            RuntimeError,
            f"Expected hidden size (1, 2, {width}), got [1, 3, {width}]",
        ),
        (
            torch.zeros(2, 2, width),
            RuntimeError,
            f"Expected hidden size (1, 2, {width}), got [2, 2, {width}]",
        ),
        (torch.zeros(1, 2, 99), RuntimeError, f"Expected hidden size (1, 2, {width}), got [1, 2, 99]"),
        (
            torch.zeros(1, 2, width, dtype=torch.float64),
            RuntimeError,
            "Input and hidden tensors are not the same dtype, found input tensor with torch.float32 and "
            "hidden tensor with torch.float64",
        ),
        (
            torch.zeros(1, 2, width, device="meta"),
            RuntimeError,
            "Input and hidden tensors are not at the same device, found input tensor at cpu and hidden tensor at meta",
        ),
        ([1.0], TypeError, f"{name}: Expected hx to be {wanted}, got list"),
    ]
    if not clocked:
        state = (torch.zeros(1, 2, width), torch.zeros(2, dtype=torch.int64))
        cases.append((state, TypeError, f"{name}: Expected hx to be a Tensor, got tuple"))
    for hx, error, message in cases:
        check_error(partial(layer, x, hx), error, message)
    check_error(
        partial(layer, x[:, 0], torch.zeros(1, 2, width)),
        RuntimeError,
        "For unbatched 2-D input, hx should also be 2-D but got 3-D tensor",
    )
    check_error(
        partial(layer, x[:, 0], torch.zeros(2, width)),
        RuntimeError,
        f"Expected hidden size (1, {width}), got [2, {width}]",
    )


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", ["MultiScaleLMN", "ClockworkRNN"])
def test_wrong_clock(name: str) -> None:
    layer, x, state = LAYERS[name](), torch.zeros(5, 2, 3), torch.zeros(1, 2, 6)
    cases: list[tuple[Any, type[Exception], str]] = [
        (
            torch.zeros(2),
            ValueError,
            "Expected the clock of hx to be of dtype torch.int64, got torch.float32",
        ),
        (
            torch.zeros(2, dtype=torch.int32),
            ValueError,
            "Expected the clock of hx to be of dtype torch.int64, got torch.int32",
        ),
        (torch.zeros(3, dtype=torch.int64), RuntimeError, "Expected clock size (2,), got [3]"),
        (torch.tensor(0), RuntimeError, "Expected clock size (2,), got []"),
        (4, TypeError, "Expected the clock of hx to be a Tensor, got int"),
        (
            torch.zeros(2, dtype=torch.int64, device="meta"),
            RuntimeError,
            "Input and clock tensors are not at the same device, found input tensor at cpu and clock tensor at meta",
        ),
    ]
    for clock, error, message in cases:
        check_error(partial(layer, x, (state, clock)), error, message)
    check_error(
        partial(layer, x, (state, torch.zeros(2).long(), 1)),
        TypeError,
        f"{name}: Expected hx to be a Tensor or a tuple (state, clock), got tuple",
    )


def test_no_warning_in_ordinary_use() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for make in LAYERS.values():
            make(num_layers=2, dropout=0.5)(torch.zeros(2, 2, 3))[0].sum().backward()
