"""What each layer is: equivalences between the models, modules, periods, sizes."""

from typing import Any

import pytest
import torch
from torch.testing import assert_close

import linmem


def test_a_multiscale_lmn_with_one_module_is_an_lmn() -> None:
    torch.manual_seed(0)
    lmn = linmem.LMN(3, 4, 2, memory_size=5, bidirectional=True, dtype=torch.float64)
    one = linmem.MultiScaleLMN(3, 4, 2, memory_size=5, bidirectional=True, dtype=torch.float64)
    one.load_state_dict({k: v.flatten() if "mm" in k else v for k, v in lmn.state_dict().items()})
    x = torch.randn(7, 2, 3, dtype=torch.float64)
    y, m = lmn(x)
    y1, (m1, _) = one(x)
    assert_close((y1, m1), (y, m), rtol=0, atol=0)


def test_a_clockwork_rnn_with_one_module_and_an_unrolled_rnn_of_order_one_are_elman_networks() -> None:
    torch.manual_seed(0)
    rnn = torch.nn.RNN(3, 4, dtype=torch.float64)
    bias = rnn.bias_ih_l0 + rnn.bias_hh_l0
    x = torch.randn(7, 2, 3, dtype=torch.float64)
    expected, state = rnn(x)
    clockwork = linmem.ClockworkRNN(3, 4, dtype=torch.float64)
    parameters = {
        "weight_xh_l0": rnn.weight_ih_l0,
        "weight_hh_l0": rnn.weight_hh_l0.flatten(),
        "bias_h_l0": bias,
    }
    clockwork.load_state_dict(parameters)
    unrolled = linmem.UnrolledRNN(3, 4, dtype=torch.float64, output="hidden")
    unrolled.load_state_dict(parameters | {"weight_hh_l0": rnn.weight_hh_l0})
    y, (h, _) = clockwork(x)
    assert_close((y, h), (expected, state), rtol=0, atol=1e-12)
    assert_close(unrolled(x), (expected, state), rtol=0, atol=1e-12)


@pytest.mark.parametrize("order", [1, 3])
def test_the_tape_holds_the_past(order: int) -> None:
    """Blocks h^t … h^{t-k}, zeros before the start; a linear layer on it is the paper's readout."""
    layer = linmem.UnrolledRNN(3, 4, order=order)
    x = torch.randn(6, 2, 3)
    tape, state = layer(x)
    hidden = layer.activations(x)
    assert tape.shape[-1] == layer.output_size == (order + 1) * 4
    readout = torch.nn.Linear(layer.output_size, 5)
    blocks = readout.weight.split(4, dim=1)
    for t in range(6):
        past = [hidden[t - i] if t >= i else torch.zeros(2, 4) for i in range(order + 1)]
        assert torch.equal(tape[t], torch.cat(past, -1))
        expected = sum(h @ w.T for h, w in zip(past, blocks, strict=True)) + readout.bias
        assert_close(readout(tape[t]), expected)
    assert torch.equal(state[0], tape[-1, :, : order * 4])


@pytest.mark.parametrize("connections", ["slow_to_fast", "fast_to_slow", "full"])
def test_only_real_blocks_are_parameters(connections: Any) -> None:
    """The count says so, and no optimiser, not even one with noise, moves an absent block away from zero."""
    layer = linmem.MultiScaleLMN(3, 4, memory_size=[2, 3, 1], connections=connections)
    g = len(layer.layout.sizes)
    heard = {
        "slow_to_fast": lambda k, i: i >= k,
        "fast_to_slow": lambda k, i: i <= k,
        "full": lambda k, i: True,
    }
    blocks = [(k, i) for k in range(g) for i in range(g) if heard[connections](k, i)]
    real = sum(layer.layout.sizes[k] * layer.layout.sizes[i] for k, i in blocks)
    assert layer.weight_mm_l0.numel() == layer.state_dict()["weight_mm_l0"].numel() == real
    optimiser = torch.optim.AdamW(layer.parameters(), lr=0.1, weight_decay=0.1)
    for _ in range(3):
        optimiser.zero_grad()
        layer(torch.randn(5, 2, 3))[0].square().sum().backward()
        optimiser.step()
        with torch.no_grad():
            for p in layer.parameters():
                p += 0.1 * torch.randn_like(p)
    present = torch.zeros(6, 6, dtype=torch.bool)
    edges = [0, 2, 5, 6]
    for k, i in blocks:
        present[edges[k] : edges[k + 1], edges[i] : edges[i + 1]] = True
    assert torch.equal(layer.memory_matrix() != 0, present)


def test_modules_update_at_their_periods() -> None:
    layer = linmem.MultiScaleLMN(1, 2, num_modules=4, memory_size=8)
    y, _ = layer(torch.randn(16, 1, 1))
    changed = (y[1:] != y[:-1]).view(15, 4, 2).all(-1)
    for k in range(4):
        assert changed[:, k].nonzero().squeeze(1).add(1).tolist() == [t for t in range(1, 16) if t % 2**k == 0]


@pytest.mark.parametrize("layer", ["MultiScaleLMN", "ClockworkRNN"])
def test_rows_may_stand_at_different_clocks(layer: str) -> None:
    """As they do after a ragged batch: each row goes on with its own clock."""
    net = getattr(linmem, layer)(1, 4, num_modules=2)
    x, lengths = torch.randn(5, 2, 1), torch.tensor([5, 2])
    _, (state, clock) = net(x, lengths=lengths)
    assert torch.equal(clock, lengths)
    nxt = torch.randn(1, 2, 1)
    y, (_, after) = net(nxt, (state, clock))
    assert torch.equal(y[0, 0, 2:], state[0, 0, 2:])  # at step 5 the second module sleeps
    assert not torch.equal(y[0, 1, 2:], state[0, 1, 2:])  # at step 2 it fires
    assert after.tolist() == [6, 3]


def test_a_state_without_a_clock_stands_at_zero() -> None:
    layer = linmem.MultiScaleLMN(3, 4, num_modules=2, memory_size=6)
    x, m = torch.randn(3, 2, 3), torch.randn(1, 2, 6)
    assert_close(layer(x, m), layer(x, (m, torch.zeros(2, dtype=torch.int64))), rtol=0, atol=0)


@pytest.mark.parametrize(("length", "modules"), [(1, 0), (2, 1), (97, 6), (255, 7), (256, 8), (300, 8)])
def test_max_modules(length: int, modules: int) -> None:
    assert linmem.MultiScaleLMN.max_modules(length) == modules


@pytest.mark.usefixtures("unchecked")
def test_wrong_modules() -> None:
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"num_modules": 3}, ValueError, "memory_size must be divisible by the 3 modules, got 4"),
        ({"num_modules": 0}, ValueError, "num_modules must be greater than zero"),
        ({"num_modules": 2.0}, TypeError, "num_modules should be of type int, got: float"),
        ({"periods": (1, 1)}, ValueError, r"periods must be increasing, got \(1, 1\)"),
        ({"periods": (4, 2)}, ValueError, r"periods must be increasing, got \(4, 2\)"),
        ({"periods": (0, 2)}, ValueError, "periods must be greater than zero"),
        ({"periods": (1, 2.5)}, TypeError, "periods should be of type int, got: float"),
        ({"periods": ()}, ValueError, "periods must list at least one module"),
        (
            {"periods": (1, 2), "num_modules": 4},
            ValueError,
            "the number of modules is not clear: num_modules says 4, periods says 2",
        ),
        ({"memory_size": [4, 0]}, ValueError, "memory_size must be greater than zero"),
        ({"memory_size": []}, ValueError, "memory_size must list at least one module"),
        ({"memory_size": -4}, ValueError, "memory_size must be greater than zero"),
        ({"memory_size": 4.5}, TypeError, "memory_size should be of type int, got: float"),
        (
            {"connections": "slow"},
            ValueError,
            "connections must be one of 'slow_to_fast', 'fast_to_slow', 'full', got 'slow'",
        ),
        ({"output": "tape"}, ValueError, "output must be one of 'memory', 'hidden', got 'tape'"),
        ({"init": "ones"}, ValueError, "init must be one of 'uniform', 'orthogonal', .*, got 'ones'"),
        ({"window": 0}, ValueError, "window must be greater than zero"),
    ]
    for options, error, message in cases:
        with pytest.raises(error, match=f"^{message}$"):
            linmem.MultiScaleLMN(3, 4, **options)
    with pytest.raises(ValueError, match="order must be greater than zero"):
        linmem.UnrolledRNN(3, 4, order=0)
    with pytest.raises(ValueError, match="memory_size must be greater than zero"):
        linmem.LMN(3, 4, memory_size=0)
    with pytest.raises(ValueError, match="length must be greater than zero"):
        linmem.MultiScaleLMN.max_modules(0)
