"""The layers against the paper's equations, transcribed once more in NumPy.

The transcription follows the text of the paper: one sequence at a time, one module at a time, sums written
as loops. It shares nothing with the reference kernels, the layout of packed weights included.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import linmem

Array = np.ndarray
Weights = dict[str, Array]

SIGMA: dict[str, Callable[[Array], Array]] = {
    "tanh": np.tanh,
    "relu": lambda a: np.maximum(a, 0),
    "sigmoid": lambda a: 1 / (1 + np.exp(-a)),
    "identity": lambda a: a,
}


# The models: from one sequence (l, N_x) to all hidden states, all outputs and the last state.


def lmn(x: Array, m: Array, t0: int, w: Weights, o: dict[str, Any]) -> tuple[list[Array], list[Array], Array]:
    hidden, memory = [], []
    for x_t in x:
        h = SIGMA[o["nonlinearity"]](w["weight_xh"] @ x_t + w["weight_mh"] @ m + w.get("bias_h", 0))
        m = w["weight_hm"] @ h + w["weight_mm"] @ m + w.get("bias_m", 0)
        hidden.append(h)
        memory.append(m)
    return hidden, memory, m


def multiscale(x: Array, m: Array, t0: int, w: Weights, o: dict[str, Any]) -> tuple[list[Array], ...]:
    sizes, periods = o["sizes"], o["periods"]
    g = len(sizes)
    blocks = unpack(w["weight_mm"], sizes, o["connections"])
    w_hm, w_mh = split(w["weight_hm"], sizes), split(w["weight_mh"].T, sizes)
    bias = split(w.get("bias_m", np.zeros(sum(sizes))), sizes)
    modules = split(m, sizes)
    hidden, memory = [], []
    for t, x_t in enumerate(x, start=t0):
        total = w["weight_xh"] @ x_t + w.get("bias_h", 0)
        for i in range(g):
            total = total + w_mh[i].T @ modules[i]
        h = SIGMA[o["nonlinearity"]](total)
        old = list(modules)
        for k in range(g):
            if t % periods[k] == 0:
                modules[k] = w_hm[k] @ h + bias[k]
                for i in range(g):
                    if (k, i) in blocks:
                        modules[k] = modules[k] + blocks[k, i] @ old[i]
        hidden.append(h)
        memory.append(np.concatenate(modules))
    return hidden, memory, np.concatenate(modules)


def clockwork(x: Array, h: Array, t0: int, w: Weights, o: dict[str, Any]) -> tuple[list[Array], ...]:
    sizes, periods = o["sizes"], o["periods"]
    g = len(sizes)
    blocks = unpack(w["weight_hh"], sizes, o["connections"])
    w_xh, bias = split(w["weight_xh"], sizes), split(w.get("bias_h", np.zeros(sum(sizes))), sizes)
    modules = split(h, sizes)
    hidden = []
    for t, x_t in enumerate(x, start=t0):
        old = list(modules)
        for k in range(g):
            if t % periods[k] == 0:
                total = w_xh[k] @ x_t + bias[k]
                for i in range(g):
                    if (k, i) in blocks:
                        total = total + blocks[k, i] @ old[i]
                modules[k] = SIGMA[o["nonlinearity"]](total)
        hidden.append(np.concatenate(modules))
    return hidden, hidden, np.concatenate(modules)


def unrolled(x: Array, tape: Array, t0: int, w: Weights, o: dict[str, Any]) -> tuple[list[Array], ...]:
    k, n = o["order"], len(w["weight_xh"])
    past = [tape[i * n : (i + 1) * n] for i in range(k)]  # h^{t-1}, …, h^{t-k}
    hidden, tapes = [], []
    for x_t in x:
        total = w["weight_xh"] @ x_t + w.get("bias_h", 0)
        for i in range(1, k + 1):
            total = total + w["weight_hh"][:, (i - 1) * n : i * n] @ past[i - 1]
        h = SIGMA[o["nonlinearity"]](total)
        tapes.append(np.concatenate([h, *past]))  # h^t, …, h^{t-k}
        past = [h, *past[: k - 1]]
        hidden.append(h)
    return hidden, tapes, np.concatenate(past)


def linear(x: Array, m: Array, t0: int, w: Weights, o: dict[str, Any]) -> tuple[list[Array], ...]:
    sizes, periods = o["sizes"], o["periods"]
    blocks = unpack(w["weight_mm"].ravel(), sizes, o["connections"])
    w_xm, bias = split(w["weight_xm"], sizes), split(w.get("bias_m", np.zeros(sum(sizes))), sizes)
    modules = split(m, sizes)
    memory = []
    for t, x_t in enumerate(x, start=t0):
        old = list(modules)
        for k in range(len(sizes)):
            if t % periods[k] == 0:
                modules[k] = w_xm[k] @ x_t + bias[k]
                for (to, i), block in blocks.items():
                    if to == k:
                        modules[k] = modules[k] + block @ old[i]
        memory.append(np.concatenate(modules))
    return memory, memory, np.concatenate(modules)


def split(a: Array, sizes: list[int]) -> list[Array]:
    return np.split(a, np.cumsum(sizes)[:-1])


def unpack(packed: Array, sizes: list[int], connections: str) -> dict[tuple[int, int], Array]:
    """The blocks W^{m_i m_k} as {(k, i): block}, read number by number."""
    numbers = iter(packed)
    hears = {
        "slow_to_fast": lambda k, i: i >= k,
        "fast_to_slow": lambda k, i: i <= k,
        "full": lambda k, i: True,
    }[connections]
    blocks = {}
    for k, rows in enumerate(sizes):
        heard = [i for i in range(len(sizes)) if hears(k, i)]
        for i in heard:
            blocks[k, i] = np.empty((rows, sizes[i]))
        for row in range(rows):
            for i in heard:
                for column in range(sizes[i]):
                    blocks[k, i][row, column] = next(numbers)
    assert next(numbers, None) is None
    return blocks


# Stacks and directions, for one sequence.


def run_stack(
    model: Callable[..., Any], layer: torch.nn.Module, x: Array, state: Array, t0: int, o: dict[str, Any]
) -> tuple[Array, Array, Array]:
    """All outputs, all hidden states of the last layer, and the final states."""
    weights = {name: p.detach().numpy() for name, p in layer.named_parameters()}
    finals = []
    for number in range(layer.num_layers):
        sides = []
        for suffix in [f"_l{number}", f"_l{number}_reverse"][: 2 if layer.bidirectional else 1]:
            w = {n.removesuffix(suffix): v for n, v in weights.items() if n.endswith(suffix)}
            backwards = suffix.endswith("reverse")
            hidden, output, final = model(x[::-1] if backwards else x, state[len(finals)], t0, w, o)
            finals.append(final)
            step = -1 if backwards else 1
            sides.append((np.array(hidden)[::step], np.array(output)[::step]))
        hidden_sequence = np.concatenate([h for h, _ in sides], -1)
        x = np.concatenate([h if o.get("output") == "hidden" else y for h, y in sides], -1)
    return x, hidden_sequence, np.array(finals)


@st.composite
def module_layouts(draw: st.DrawFn) -> dict[str, Any]:
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    periods = sorted(draw(st.sets(st.integers(1, 6), min_size=len(sizes), max_size=len(sizes))))
    connections = draw(st.sampled_from(["slow_to_fast", "fast_to_slow", "full"]))
    return {"sizes": sizes, "periods": periods, "connections": connections}


def options(draw: st.DrawFn, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments of the constructor, and what the transcription has to know."""
    o: dict[str, Any] = {"nonlinearity": draw(st.sampled_from(sorted(SIGMA)))}
    if name in ("MultiScaleLMN", "ClockworkRNN", "LinearMemory"):
        layout = draw(module_layouts())
        size = "hidden_size" if name == "ClockworkRNN" else "memory_size"
        made = {size: layout["sizes"], "periods": layout["periods"], "connections": layout["connections"]}
        o |= layout
    elif name == "UnrolledRNN":
        made = {"order": draw(st.integers(1, 4))}
        o |= made
    else:
        made = {"memory_size": draw(st.integers(1, 5))}
    if name not in ("ClockworkRNN", "LinearMemory"):
        output = draw(st.sampled_from(["hidden", "tape" if name == "UnrolledRNN" else "memory"]))
        made["output"] = o["output"] = output
        made["hidden_size"] = draw(st.integers(1, 4))
    made |= {
        "input_size": draw(st.integers(1, 3)),
        "num_layers": draw(st.integers(1, 3)),
        "bias": draw(st.booleans()),
        "bidirectional": draw(st.booleans()),
        "batch_first": draw(st.booleans()),
        "dtype": torch.float64,
    }
    if name != "LinearMemory":
        made["nonlinearity"] = o["nonlinearity"]
    return made, o


MODELS = {
    "LMN": lmn,
    "MultiScaleLMN": multiscale,
    "ClockworkRNN": clockwork,
    "UnrolledRNN": unrolled,
    "LinearMemory": linear,
}


@pytest.mark.parametrize("name", MODELS)
@given(data=st.data())
def test_layer_equals_the_transcription(agree: Callable[..., None], name: str, data: st.DataObject) -> None:
    made, o = options(data.draw, name)
    torch.manual_seed(data.draw(st.integers(0, 100)))
    layer = getattr(linmem, name)(**made)
    for parameter in layer.parameters():
        torch.nn.init.uniform_(parameter, -0.6, 0.6)  # the memory's bias starts at zero: give it a value
    lengths = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    length, batch, batch_first = max(lengths), len(lengths), layer.batch_first
    clocks = data.draw(st.lists(st.integers(0, 7), min_size=batch, max_size=batch))
    x = torch.randn(length, batch, layer.input_size, dtype=torch.float64)
    state = torch.randn(layer.num_layers * layer.num_directions, batch, layer.state_size, dtype=torch.float64)
    hx = (state, torch.tensor(clocks)) if layer.equations.clocked else state
    packed = pack_padded_sequence(
        x.transpose(0, 1) if batch_first else x, torch.tensor(lengths), batch_first, enforce_sorted=False
    )
    with torch.no_grad():
        y, final = layer(packed, hx)
        hidden, _ = pad_packed_sequence(layer.activations(packed, hx))
    if layer.equations.clocked:
        final, clock = final
        assert clock.tolist() == [c + n for c, n in zip(clocks, lengths, strict=True)]
    y, _ = pad_packed_sequence(y)
    for row, n in enumerate(lengths):
        expected, expected_hidden, expected_state = run_stack(
            MODELS[name], layer, x[:n, row].numpy(), state[:, row].numpy(), clocks[row], o
        )
        what = f"{name} against the paper's equations in NumPy"
        agree(what, y[:n, row], expected)
        agree(what, hidden[:n, row], expected_hidden)
        agree(what, final[:, row], expected_state)


@pytest.mark.parametrize("name", MODELS)
@given(data=st.data())
def test_cell_equals_the_transcription(agree: Callable[..., None], name: str, data: st.DataObject) -> None:
    made, o = options(data.draw, name)
    for argument in ("num_layers", "bidirectional", "batch_first", "output"):
        made.pop(argument, None)
    torch.manual_seed(data.draw(st.integers(0, 100)))
    cell = getattr(linmem, name + "Cell")(**made)
    weights = {n: p.detach().numpy() for n, p in cell.named_parameters()}
    clock = data.draw(st.integers(0, 7))
    x, state = torch.randn(cell.input_size).double(), torch.randn(cell.state_size).double()
    with torch.no_grad():
        new = cell(x, (state, torch.tensor(clock)) if cell.equations.clocked else state)
    if cell.equations.clocked:
        new, after = new
        assert int(after) == clock + 1
    _, _, expected = MODELS[name](x.numpy()[None], state.numpy(), clock, weights, o)
    agree(f"{name}Cell against the paper's equations in NumPy", new, expected)


def test_without_a_state_the_clock_starts_at_zero() -> None:
    """Every module fires at the first step: with no state, none keeps its zeros."""
    layer = linmem.MultiScaleLMN(1, 4, num_modules=5, memory_size=10)
    y, (_, clock) = layer(torch.ones(2, 1, 1))
    assert (y[0] != 0).all()
    assert torch.equal(y[1, 0, 2:], y[0, 0, 2:])
    assert clock.tolist() == [2]
