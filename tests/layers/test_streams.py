"""However a sequence is cut, packed or padded, the numbers are those of the whole sequence by itself."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, unpack_sequence
from torch.utils._pytree import tree_leaves, tree_map

import linmem

LAYERS = {
    "LMN": partial(linmem.LMN, 3, 4, memory_size=5),
    "LinearMemory": partial(linmem.LinearMemory, 3, 5),
    "LinearMemory, 3 modules": partial(linmem.LinearMemory, 3, 6, num_modules=3),
    "LMN-h": partial(linmem.LMN, 3, 4, memory_size=5, output="hidden"),
    "MultiScaleLMN": partial(linmem.MultiScaleLMN, 3, 4, num_modules=4, memory_size=8),
    "MultiScaleLMN, other periods": partial(
        linmem.MultiScaleLMN, 3, 4, memory_size=(1, 3), periods=(2, 5), connections="full"
    ),
    "ClockworkRNN": partial(linmem.ClockworkRNN, 3, 6, num_modules=3, connections="fast_to_slow"),
    "UnrolledRNN": partial(linmem.UnrolledRNN, 3, 4, order=3),
}
each_layer = pytest.mark.parametrize("name", LAYERS)


def build(name: str, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    layer = LAYERS[name](dtype=torch.float64, **options)
    for parameter in layer.parameters():
        nn.init.uniform_(parameter, -0.6, 0.6)
    return layer


def agree_all(agree: Callable[..., None], what: str, actual: Any, expected: Any) -> None:
    for a, b in zip(tree_leaves(actual), tree_leaves(expected), strict=True):
        if a.is_floating_point():
            agree(what, a, b)
        else:
            assert torch.equal(a, b)


@pytest.mark.usefixtures("unchecked")
@each_layer
@given(cuts=st.lists(st.integers(1, 12), max_size=4, unique=True), learned=st.booleans())
def test_chunks_equal_the_whole(agree: Callable[..., None], name: str, cuts: list[int], learned: bool) -> None:
    layer = build(name, num_layers=2, learn_initial_state=learned)
    x = torch.randn(13, 2, 3, dtype=torch.float64)
    whole, final = layer(x)
    state, parts = None, []
    for chunk in torch.tensor_split(x, sorted(cuts)):
        y, state = layer(chunk, state)
        parts.append(y)
    agree_all(agree, f"{name}: chunks against the whole", (torch.cat(parts), state), (whole, final))


@pytest.mark.usefixtures("unchecked")
@each_layer
def test_chunks_of_a_ragged_batch_equal_the_whole(agree: Callable[..., None], name: str) -> None:
    """A sequence that has ended takes part in further chunks with length 0 and keeps its state and clock."""
    layer = build(name, num_layers=2)
    lengths = torch.tensor([3, 11, 7])
    x = torch.randn(11, 3, 3, dtype=torch.float64)
    whole, final = layer(x, lengths=lengths)
    state, parts = None, []
    for start, end in [(0, 1), (1, 6), (6, 7), (7, 11)]:
        y, state = layer(x[start:end], state, lengths=(lengths - start).clamp(0, end - start))
        parts.append(y)
    agree_all(agree, f"{name}: ragged chunks against the whole", (torch.cat(parts), state), (whole, final))


@pytest.mark.usefixtures("unchecked")
@each_layer
def test_steps_of_a_cell_equal_the_layer(agree: Callable[..., None], name: str) -> None:
    layer = build(name)
    options = {k: v for k, v in LAYERS[name].keywords.items() if k != "output"}
    cell = getattr(linmem, name.split(",")[0].removesuffix("-h") + "Cell")(
        *LAYERS[name].args, **options, dtype=torch.float64
    )
    cell.load_state_dict({k.removesuffix("_l0"): v for k, v in layer.state_dict().items()})
    x = torch.randn(13, 2, 3, dtype=torch.float64)
    _, final = layer(x)
    state = None
    for x_t in x:
        state = cell(x_t, state)
    final = (final[0][0], final[1]) if layer.equations.clocked else final[0]
    agree_all(agree, f"{name}: steps of a cell against the layer", state, final)


@pytest.mark.usefixtures("unchecked")
@each_layer
@pytest.mark.parametrize("enforce_sorted", [True, False])
@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
def test_a_packed_sequence_equals_itself_alone(
    agree: Callable[..., None],
    name: str,
    enforce_sorted: bool,
    bidirectional: bool,
    bias: bool,
    batch_first: bool,
) -> None:
    """Values, final states and gradients, from a given state."""
    lengths = [7, 5, 5, 2, 1, 1] if enforce_sorted else [5, 1, 7, 1, 2, 5]
    layer = build(name, num_layers=2, bidirectional=bidirectional, bias=bias, batch_first=batch_first)
    x = torch.randn(7, len(lengths), 3, dtype=torch.float64)
    state = torch.randn(2 * layer.num_directions, len(lengths), layer.state_size, dtype=torch.float64)
    clock = torch.arange(len(lengths))

    def start(*rows: int) -> Any:
        chosen = state[:, list(rows)]
        return (chosen, clock[list(rows)]) if layer.equations.clocked else chosen

    def gradients(outputs: Any) -> list[Tensor]:
        layer.zero_grad()
        sum(t.sin().sum() for t in tree_leaves(outputs) if t.is_floating_point()).backward()
        return [p.grad.clone() for p in layer.parameters()]

    packed = pack_padded_sequence(x, torch.tensor(lengths), enforce_sorted=enforce_sorted)
    y, final = layer(packed, start(*range(len(lengths))))
    assert y.batch_sizes is packed.batch_sizes
    assert y.sorted_indices is packed.sorted_indices
    together = gradients((y.data, final))

    alone = [torch.zeros_like(g) for g in together]
    what = f"{name}: packed against each sequence alone"
    for row, n in enumerate(lengths):
        one = x[:n, row : row + 1]
        y1, final1 = layer(one.transpose(0, 1) if batch_first else one, start(row))
        agree(what, unpack_sequence(y)[row], y1.flatten(0, 1))
        agree_all(agree, what, tree_map(lambda t, row=row: _row(t, row), final), final1)
        alone = [a + b for a, b in zip(alone, gradients((y1, final1)), strict=True)]
    for a, b in zip(together, alone, strict=True):
        agree(f"{name}: gradients, packed against alone", a, b)


def _row(t: Tensor, row: int) -> Tensor:
    """One sequence of a batch of states or clocks."""
    return t[row : row + 1] if t.dim() == 1 else t[:, row : row + 1]


@pytest.mark.usefixtures("unchecked")
@each_layer
@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("padding", [torch.nan, torch.inf, 1e300])
def test_padding_has_no_influence(name: str, bidirectional: bool, padding: float) -> None:
    """Not on outputs, states or any gradient, to the last bit; its own output and gradient are zero."""
    layer = build(name, num_layers=2, bidirectional=bidirectional)
    lengths = torch.tensor([4, 9, 0, 1])
    x = torch.randn(9, 4, 3, dtype=torch.float64)
    is_padding = torch.arange(9)[:, None] >= lengths
    results = []
    for value in (0.0, padding):
        filled = x.masked_fill(is_padding[..., None], value).requires_grad_()
        layer.zero_grad()
        y, state = layer(filled, lengths=lengths)
        (y.square().sum() + tree_leaves(state)[0].square().sum()).backward()
        assert not y[is_padding].any()
        assert not filled.grad[is_padding].any()
        results.append([y, *tree_leaves(state), filled.grad, *(p.grad for p in layer.parameters())])
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)
        assert torch.isfinite(a).all()


@pytest.mark.usefixtures("unchecked")
@each_layer
def test_lengths_equal_packing(agree: Callable[..., None], name: str) -> None:
    layer = build(name, bidirectional=True, batch_first=True)
    x, lengths = torch.randn(3, 6, 3, dtype=torch.float64), torch.tensor([2, 6, 4])
    y, state = layer(x, lengths=lengths)
    packed, expected = layer(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
    padded, _ = pad_packed_sequence(packed, batch_first=True)
    agree_all(agree, f"{name}: lengths against packing", (y, state), (padded, expected))


@pytest.mark.usefixtures("unchecked")
@each_layer
def test_activations_are_the_hidden_sequence(agree: Callable[..., None], name: str) -> None:
    """Of every layer of a stack, in any container."""
    layer = build(name, num_layers=3)
    x = torch.randn(6, 2, 3, dtype=torch.float64)
    packed = pack_padded_sequence(x, torch.tensor([6, 3]))
    for number in range(3):
        hidden = layer.activations(x, layer=number)
        assert hidden.shape == (6, 2, layer.hidden_size)
        from_packed, _ = pad_packed_sequence(layer.activations(packed, layer=number))
        agree(f"{name}: activations, packed against padded", from_packed[:, 0], hidden[:, 0])
    if layer.output == "hidden":
        assert torch.equal(layer.activations(x), layer(x)[0])
    with pytest.raises(IndexError, match="layer must be from -3 to 2, got 3"):
        layer.activations(x, layer=3)
