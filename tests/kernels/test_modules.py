"""Packed blocks."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from linmem.kernels import Connections, Modules

sizes = st.lists(st.integers(1, 4), min_size=1, max_size=5)
connections = st.sampled_from(["slow_to_fast", "fast_to_slow", "full"])


def build(sizes: list[int], connections: Connections) -> Modules:
    return Modules(tuple(sizes), tuple(2**k for k in range(len(sizes))), connections)


@given(sizes, connections)
def test_dense_undoes_pack(sizes: list[int], connections: Connections) -> None:
    modules = build(sizes, connections)
    packed = torch.arange(1.0, 1 + modules.packed_size)
    dense = modules.dense(packed)
    assert torch.equal(modules.pack(dense), packed)
    assert int((dense != 0).sum()) == modules.packed_size


@given(sizes, connections)
def test_slabs_and_blocks_are_views(sizes: list[int], connections: Connections) -> None:
    """Writing into them writes into the packed vector, where the dense matrix shows it."""
    modules = build(sizes, connections)
    packed = torch.zeros(modules.packed_size)
    for k, block in enumerate(modules.diagonal(packed)):
        block.fill_(k + 1)
    expected = torch.block_diag(*(torch.full((n, n), k + 1.0) for k, n in enumerate(modules.sizes)))
    assert torch.equal(modules.dense(packed), expected)
    for slab in modules.slabs(packed):
        slab.fill_(1)
    assert (packed == 1).all()


@pytest.mark.parametrize("clock", [[0], [3], [0, 1, 5]])
def test_fires(clock: list[int]) -> None:
    modules = Modules((1, 2), (2, 3))
    fires = modules.fires(torch.tensor(clock), 7)
    assert fires.shape == (7, len(clock), 3)
    for t in range(7):
        for row, start in enumerate(clock):
            first, second = (start + t) % 2 == 0, (start + t) % 3 == 0
            assert fires[t, row].tolist() == [first, second, second]
