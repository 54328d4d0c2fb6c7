"""The native kernels against the reference: values and gradients, at every size around the edges of a tile."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import linmem
from linmem import kernels
from linmem.kernels import LEVELS, NONLINEARITIES, Modules, native, reference

available = kernels.available()
pytestmark = pytest.mark.skipif(available.used == "reference", reason=f"no native kernels: {available.why}")

TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-11}
MODELS = ["lmn", "multiscale_lmn", "clockwork_rnn", "linear_memory", "unrolled_rnn"]
sizes = st.integers(1, 67)  # past every edge of a tile: 4, 6 and 8 rows; 8, 16, 24 and 48 columns


@dataclass
class Case:
    """A model with everything that it is called with."""

    model: str
    tensors: list[Tensor | None]
    options: dict[str, Any]

    def run(self, kernels: Any) -> tuple[Tensor, ...]:
        return getattr(kernels, self.model)(*self.tensors, **self.options)  # type: ignore[no-any-return]

    def results(self, kernels: Any) -> dict[str, Tensor]:
        """Return values, and gradients of all inputs for given gradients of all values."""
        values = self.run(kernels)
        inputs = [t for t in self.tensors if t is not None and t.requires_grad]
        generator = torch.Generator().manual_seed(0)
        incoming = [torch.randn(v.shape, dtype=v.dtype, generator=generator) for v in values]
        gradients = torch.autograd.grad(values, inputs, incoming)
        named = {f"value {i}": v.detach() for i, v in enumerate(values)}
        return named | {f"gradient {i}": g for i, g in enumerate(gradients)}


def draw_case(data: st.DataObject, model: str, ragged: bool | None = None) -> Case:
    draw = data.draw
    dtype = draw(st.sampled_from(sorted(TOLERANCE, key=str)))
    T, B, N_x, N_h = draw(st.integers(1, 20)), draw(st.integers(1, 20)), draw(sizes), draw(sizes)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    bias = draw(st.booleans())

    def rand(*shape: int) -> Tensor:
        """Weights scaled so that states neither fade nor explode, whatever the sizes."""
        return (torch.randn(*shape, dtype=dtype, generator=generator) / shape[-1] ** 0.5).requires_grad_()

    def vector(n: int) -> Tensor | None:
        return rand(n) if bias else None

    lengths = None
    if draw(st.booleans()) if ragged is None else ragged:
        lengths = torch.tensor(draw(st.lists(st.integers(0, T), min_size=B, max_size=B)))
    x = rand(T, B, N_x)
    if model == "linear_memory":
        N_m = draw(sizes)
        return Case(model, [x, rand(B, N_m), rand(N_m, N_x), rand(N_m, N_m), vector(N_m)], {"lengths": lengths})
    options: dict[str, Any] = {"nonlinearity": draw(st.sampled_from(sorted(NONLINEARITIES))), "lengths": lengths}
    if model in ("lmn", "multiscale_lmn"):
        options["output"] = draw(st.sampled_from(["memory", "hidden"]))
    if model == "lmn":
        N_m = draw(sizes)
        weights = [rand(N_h, N_x), rand(N_h, N_m), rand(N_m, N_h), rand(N_m, N_m), vector(N_h), vector(N_m)]
        return Case(model, [x, rand(B, N_m), *weights], options)
    if model == "unrolled_rnn":
        order = draw(st.integers(1, 25))
        options["output"] = draw(st.sampled_from(["tape", "hidden"]))
        weights = [rand(N_h, N_x), rand(N_h, order * N_h), vector(N_h)]
        return Case(model, [x, rand(B, order * N_h), *weights], options)
    count = draw(st.integers(1, 5))
    widths = draw(st.lists(st.integers(1, 40), min_size=count, max_size=count))
    periods = [2**k for k in range(count)]
    if draw(st.booleans()):
        periods = sorted(draw(st.sets(st.integers(1, 9), min_size=count, max_size=count)))
    connections = draw(st.sampled_from(["slow_to_fast", "fast_to_slow", "full"]))
    modules = options["modules"] = Modules(tuple(widths), tuple(periods), connections)
    clocks = st.integers(0, 100)
    clock = torch.tensor([draw(clocks)] if draw(st.booleans()) else [draw(clocks) for _ in range(B)])
    width = modules.width
    w_mm = (torch.randn(modules.packed_size, dtype=dtype, generator=generator) / width**0.5).requires_grad_()
    if model == "clockwork_rnn":
        return Case(model, [x, rand(B, width), clock, rand(width, N_x), w_mm, vector(width)], options)
    weights = [rand(N_h, N_x), rand(N_h, width), rand(width, N_h), w_mm, vector(N_h), vector(width)]
    return Case(model, [x, rand(B, width), clock, *weights], options)


def assert_agree(case: Case, actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    for name, value in expected.items():
        scale = float(value.abs().max()) if value.numel() else 0.0
        difference = float((actual[name] - value).abs().max()) if value.numel() else 0.0
        allowed = TOLERANCE[value.dtype] * max(scale, 1.0)
        assert difference <= allowed, f"{case.model}, {name}: differs by {difference:.1e} of {scale:.1e}"


@pytest.mark.parametrize("model", MODELS)
@given(data=st.data())
def test_values_and_gradients_are_those_of_the_reference(model: str, data: st.DataObject) -> None:
    case = draw_case(data, model)
    expected = case.results(reference)
    assert_agree(case, case.results(native), expected)
    with torch.no_grad():
        values = {f"value {i}": value for i, value in enumerate(case.run(native))}
    assert_agree(case, values, {name: expected[name] for name in values})


@pytest.mark.parametrize("model", MODELS)
@given(data=st.data())
def test_padding_reaches_nothing(model: str, data: st.DataObject) -> None:
    """NaN in the padding of the input changes no value and no gradient; its own gradient is zero."""
    case = draw_case(data, model, ragged=True)
    x = case.tensors[0]
    assert x is not None
    expected = case.results(native)
    padding = torch.arange(x.shape[0])[:, None] >= case.options["lengths"]
    case.tensors[0] = x.detach().masked_fill(padding[..., None], torch.nan).requires_grad_()
    actual = case.results(native)
    assert all(torch.equal(actual[name], value) for name, value in expected.items())
    assert not actual["gradient 0"][padding].any()


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


LARGE = {
    "LMN": linmem.LMN(20, 60, memory_size=70),
    "MultiScaleLMN": linmem.MultiScaleLMN(20, 60, num_modules=4, memory_size=80),
    "ClockworkRNN": linmem.ClockworkRNN(20, 80, num_modules=4),
    "LinearMemory": linmem.LinearMemory(20, 70),
    "UnrolledRNN": linmem.UnrolledRNN(20, 60, order=3),
}


def gradients(layer: torch.nn.Module, x: Tensor) -> list[Tensor]:
    layer.zero_grad()
    y, _ = layer(x)
    y.square().mean().backward()
    return [y.detach(), *(p.grad for p in layer.parameters() if p.grad is not None)]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", LARGE)
def test_the_number_of_threads_changes_rounding_only(name: str, threads: Callable[[int], None]) -> None:
    """And the same number gives the same bits."""
    torch.manual_seed(0)
    x = torch.randn(50, 13, 20)
    results = []
    for number in (1, 2, 3, 3):
        threads(number)
        results.append(gradients(LARGE[name], x))
    one, two, three, again = results
    assert all(torch.equal(a, b) for a, b in zip(three, again, strict=True))
    for several in (two, three):
        torch.testing.assert_close(several, one, rtol=1e-5, atol=1e-6)


FORK = """
import os, torch, linmem
layer, x = linmem.LMN(20, 60), torch.randn(50, 13, 20)
torch.set_num_threads(2)
with torch.no_grad():
    y, _ = layer(x)
    if child := os.fork():
        raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    os._exit(0 if (layer(x)[0].numpy() == y.numpy()).all() else 1)  # torch's own operations would hang
"""


def test_a_forked_child_computes_the_same() -> None:
    """It has none of the threads that its parent ran in."""
    result = subprocess.run([sys.executable, "-W", "ignore", "-c", FORK], timeout=60)
    assert result.returncode == 0, "the child's numbers differ, or it crashed"


@pytest.mark.parametrize("rows", [1, 16])
def test_a_long_linear_memory_is_exact(rows: int) -> None:
    """It neither forgets nor grows, so an error of any step would still be there at the last one."""
    torch.manual_seed(0)
    W = torch.linalg.qr(torch.randn(30, 30, dtype=torch.float64)).Q
    w_x, b = torch.randn(30, 5, dtype=torch.float64), torch.randn(30, dtype=torch.float64)
    x, state = torch.randn(3000, rows, 5, dtype=torch.float64), torch.randn(rows, 30, dtype=torch.float64)
    m, end = native.linear_memory(x, state, w_x, W, b)
    for x_t in x:
        state = x_t @ w_x.T + state @ W.T + b
    assert float((end - state).abs().max() / state.abs().max()) <= 1e-12
    assert torch.equal(m[-1], end)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", LARGE)
def test_unwanted_gradients_are_left_out(name: str) -> None:
    layer = LARGE[name]
    x = torch.randn(12, 3, 20, requires_grad=True)
    complete = torch.autograd.grad(layer(x)[0].square().sum(), [x, *layer.parameters()])
    for wanted, expected in zip([x, *layer.parameters()], complete, strict=True):
        for p in (x, *layer.parameters()):
            p.requires_grad_(p is wanted)
        (alone,) = torch.autograd.grad(layer(x)[0].square().sum(), [wanted])
        torch.testing.assert_close(alone, expected, rtol=1e-6, atol=1e-6)
    layer.requires_grad_(True)


@pytest.mark.parametrize("layout", ["transposed", "strided", "expanded", "odd storage offset"])
def test_input_may_lie_as_it_likes(layout: str) -> None:
    layer = linmem.LMN(5, 6, dtype=torch.float64)
    x = {
        "transposed": torch.randn(5, 3, 9, dtype=torch.float64).permute(2, 1, 0),
        "strided": torch.randn(18, 3, 10, dtype=torch.float64)[::2, :, ::2],
        "expanded": torch.randn(9, 1, 5, dtype=torch.float64).expand(9, 3, 5),
        "odd storage offset": torch.randn(136, dtype=torch.float64)[1:].view(9, 3, 5),
    }[layout]
    y, _ = layer(x)
    assert torch.equal(y, layer(x.contiguous())[0])
    # Gradients come as they like, too: that of a sum is one number, expanded.
    weight = torch.autograd.grad(y.sum(), layer.weight_hm_l0, retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad((y * torch.ones_like(y)).sum(), layer.weight_hm_l0), weight)


def test_weights_may_lie_as_they_like() -> None:
    layer = linmem.LMN(5, 5, dtype=torch.float64)
    transposed = torch.randn(5, 5, dtype=torch.float64)
    x = torch.randn(12, 3, 5, dtype=torch.float64)
    layer.weight_mm_l0.data = transposed.t()
    y, _ = layer(x)
    layer.weight_mm_l0.data = transposed.t().contiguous()
    assert torch.equal(y, layer(x)[0])


CHANGES = {
    "an optimiser's step": lambda layer: torch.optim.SGD(layer.parameters(), lr=0.1).step(),
    "an edit in place": lambda layer: layer.weight_mm_l0.mul_(0.5),
    "a write to .data": lambda layer: layer.weight_hm_l0.data.mul_(0.5),
    "a new .data": lambda layer: setattr(layer.weight_hm_l0, "data", torch.randn_like(layer.weight_hm_l0)),
    "a transposed .data": lambda layer: setattr(layer.weight_mm_l0, "data", layer.weight_mm_l0.data.t()),
    "a new parameter": lambda layer: setattr(
        layer, "weight_xh_l0", torch.nn.Parameter(torch.randn_like(layer.weight_xh_l0))
    ),
    "load_state_dict": lambda layer: layer.load_state_dict(
        {name: torch.randn_like(value) for name, value in layer.state_dict().items()}
    ),
    "load_state_dict(assign=True)": lambda layer: layer.load_state_dict(
        {name: torch.randn_like(value) for name, value in layer.state_dict().items()}, assign=True
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_stream_sees_every_change_of_a_weight(change: str) -> None:
    torch.manual_seed(0)
    layer = linmem.LMN(5, 6, memory_size=6)
    layer(torch.randn(4, 1, 5))[0].sum().backward()
    x, state = torch.randn(1, 1, 5), torch.randn(1, 1, 6)
    with torch.no_grad():
        before, _ = layer(x, state)
        CHANGES[change](layer)
        after, _ = layer(x, state)
        weights = [p.detach().clone() for p in layer.parameters()]
    expected, _ = reference.lmn(x, state[0], *weights)
    assert not torch.equal(before, after)
    torch.testing.assert_close(after, expected)


def test_a_copied_or_moved_layer_streams_by_its_own_weights() -> None:
    import copy
    import pickle

    layer = linmem.LMN(5, 6)
    x, state = torch.randn(1, 1, 5), torch.randn(1, 1, 6)
    with torch.no_grad():
        y, _ = layer(x, state)
        for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
            layer.weight_xh_l0.data.zero_()
            assert torch.equal(other(x, state)[0], y)
            layer.load_state_dict(other.state_dict())
        double = copy.deepcopy(layer).double()
        torch.testing.assert_close(double(x.double(), state.double())[0].float(), y)


@pytest.mark.parametrize("kind", ["meta", "nan", "mixed"])
def test_what_the_library_cannot_read_goes_another_way(kind: str) -> None:
    layer = linmem.LMN(5, 6)
    if kind == "meta":
        assert layer.to("meta")(torch.randn(4, 2, 5, device="meta"))[0].shape == (4, 2, 6)
    elif kind == "nan":
        y, _ = layer(torch.full((20, 2, 5), torch.nan))
        assert y.isnan().all()
    else:
        layer.weight_mm_l0.data = layer.weight_mm_l0.data.double()
        with pytest.raises(RuntimeError, match="dtype"):
            layer(torch.randn(4, 2, 5))


PRINT_USED = "import linmem.kernels; print(linmem.kernels.available().used)"


def run(code: str, level: str) -> "subprocess.CompletedProcess[str]":
    environment = os.environ | {"LINMEM_NATIVE": level}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)


def test_the_environment_switches_the_kernels_off() -> None:
    assert run(PRINT_USED, "0").stdout.strip() == "reference"


def test_an_unknown_level_is_refused() -> None:
    result = run(PRINT_USED, "sse9")
    assert result.returncode != 0
    assert "LINMEM_NATIVE must be 0 or one of portable" in result.stderr


COMPARE = """
import torch, linmem
from linmem.kernels import native, reference

def agree(name, x, m, weights, tolerance):
    results = []
    for kernels in (native, reference):
        y, end = getattr(kernels, name)(x, m, *weights)
        results.append([y, *torch.autograd.grad(y.square().sum() + end.sum(), weights)])
    for a, b in zip(*results):
        assert (a - b).abs().max() <= tolerance * max(1, b.abs().max()), (name, x.dtype, x.shape)

torch.manual_seed(0)
for dtype, tolerance in ((torch.float32, 2e-5), (torch.float64, 1e-11)):
    for size in (1, 3, 8, 17, 50, 67):
        layer = linmem.LMN(size, size + 1, memory_size=size + 2, dtype=dtype)
        x, m = torch.randn(9, 5, size, dtype=dtype), torch.randn(5, size + 2, dtype=dtype)
        agree("lmn", x, m, list(layer.parameters()), tolerance)
        memory = linmem.LinearMemory(size, size + 2, dtype=dtype)
        agree("linear_memory", x, m, list(memory.parameters()), tolerance)
print(linmem.kernels.available().used)
"""


@pytest.mark.parametrize("level", LEVELS)
def test_every_level_computes_the_same(level: str) -> None:
    result = run(COMPARE, level)
    if "this machine cannot run it" in result.stderr or "it was not built" in result.stderr:
        pytest.skip(f"{level}: not on this machine")
    assert result.stdout.strip() == level, result.stderr


def test_the_module_says_what_is_used() -> None:
    result = subprocess.run([sys.executable, "-m", "linmem.kernels"], capture_output=True, text=True, check=True)
    assert available.used in result.stdout
    assert available.why in result.stdout


def test_extreme_inputs_of_the_nonlinearities() -> None:
    """Saturation, tiny numbers, infinities and NaN come out as torch has them."""
    x = torch.tensor([0.0, 1e-30, -1e-8, 0.3, -5.0, 9.1, -40.0, 89.0, -200.0, 1e30, torch.inf, -torch.inf, torch.nan])
    for name, function in NONLINEARITIES.items():
        for dtype in (torch.float32, torch.float64):
            column = x.to(dtype)[:, None, None]  # one step after the other, through the input alone
            one, zero = torch.ones(1, 1, dtype=dtype), torch.zeros(1, 1, dtype=dtype)
            h, _ = native.lmn(column, zero, one, zero, zero, zero, None, None, nonlinearity=name, output="hidden")
            # An infinite h would meet the zero weight of the memory as NaN, so each input is a sequence of its own.
            each, _ = native.lmn(
                column.transpose(0, 1),
                zero.expand(13, 1),
                one,
                zero,
                zero,
                zero,
                None,
                None,
                nonlinearity=name,
                output="hidden",
            )
            assert h.shape == column.shape
            rtol = 1e-6 if dtype == torch.float32 else 1e-14
            torch.testing.assert_close(each.flatten(), function(x.to(dtype)), rtol=rtol, atol=1e-38, equal_nan=True)


def test_a_long_stream_takes_no_more_memory_than_its_output() -> None:
    """Forward without gradients keeps a block of hidden states, not all of them."""
    code = """
import resource, torch, linmem
layer = linmem.LMN(1, 64, memory_size=1, output="memory")
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
with torch.inference_mode():
    layer(torch.zeros(1000, 1, 1))
    x = torch.zeros(1_000_000, 1, 1)
    before = peak()
    layer(x)
print(peak() - before)
"""
    grown = int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    assert grown < 16e6, f"the output has 4 MB, all hidden states would have 256 MB; the process grew by {grown / 1e6}"
