"""The reference kernels on their own: what every other kernel has to match."""

from functools import partial

import pytest
import torch

from linmem import kernels
from linmem.kernels import Modules

MODULES = Modules((2, 3), (1, 2))


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


KERNELS = {
    "lmn": lambda x, m, **o: kernels.lmn(
        x, m, rand(4, 3), rand(4, 5), rand(5, 4), rand(5, 5) / 5, rand(4), rand(5), **o
    ),
    "multiscale_lmn": lambda x, m, **o: kernels.multiscale_lmn(
        x,
        m,
        torch.zeros(1, dtype=torch.int64),
        rand(4, 3),
        rand(4, 5),
        rand(5, 4),
        rand(MODULES.packed_size) / 5,
        rand(4),
        rand(5),
        modules=MODULES,
        **o,
    ),
    "clockwork_rnn": lambda x, m, **o: kernels.clockwork_rnn(
        x,
        m,
        torch.zeros(1, dtype=torch.int64),
        rand(5, 3),
        rand(MODULES.packed_size),
        None,
        modules=MODULES,
        **o,
    ),
    "unrolled_rnn": lambda x, m, **o: kernels.unrolled_rnn(x, m, rand(5, 3), rand(5, 5), rand(5), **o),
}
each_kernel = pytest.mark.parametrize("name", KERNELS)


@pytest.mark.parametrize("name", ["multiscale_lmn", "clockwork_rnn"])
def test_one_clock_for_all_equals_a_clock_each(name: str) -> None:
    kernel = getattr(kernels, name)
    weights = (
        (rand(4, 3), rand(4, 5), rand(5, 4), rand(MODULES.packed_size), None, None)
        if name == "multiscale_lmn"
        else (rand(5, 3), rand(MODULES.packed_size), None)
    )
    run = partial(kernel, rand(6, 2, 3), rand(2, 5))
    one = run(torch.tensor([3]), *weights, modules=MODULES)
    each = run(torch.tensor([3, 3]), *weights, modules=MODULES)
    torch.testing.assert_close(one, each, rtol=0, atol=0)


@each_kernel
def test_state_is_the_end_of_the_sequence(name: str) -> None:
    """And a row of length 0 returns the state it came with."""
    x, state = rand(6, 3, 3), rand(3, 5)
    y, final = KERNELS[name](x, state, lengths=torch.tensor([6, 2, 0]))
    ends = torch.stack([y[5, 0], y[1, 1]])[:, :5]
    assert torch.equal(final[:2], ends)
    assert torch.equal(final[2], state[2])
    assert not y[:, 2].any()


@each_kernel
def test_inputs_are_left_alone(name: str) -> None:
    x, state = rand(4, 2, 3), rand(2, 5)
    x_before, state_before = x.clone(), state.clone()
    KERNELS[name](x, state, lengths=torch.tensor([4, 1]))
    assert torch.equal(x, x_before)
    assert torch.equal(state, state_before)
