"""Units divided among several memories."""

import numpy as np
import pytest

from linmem import LinearAutoencoder
from linmem.autoencoder.side_by_side import divide, shares, side_by_side


def sequences():
    rng = np.random.default_rng(1)
    return [rng.standard_normal((n, 4)) for n in (30, 50)]


def test_units_go_where_they_hold_the_largest_share():
    several = side_by_side(sequences(), 40, forgetting=[0.6, 0.9], periods=[1, 2])
    kept = np.concatenate([shares(laes) for laes in several])
    for laes, discount, period in zip(several, (0.6, 0.9), (1, 2), strict=True):
        larger = LinearAutoencoder(39, forgetting=discount).fit([x[::period] for x in sequences()])
        left = shares(larger)[len(laes.A_) :]
        assert left.max() <= kept.min() + 1e-9, "a unit was left out that holds more than one that was kept"
    assert sum(len(laes.A_) for laes in several) == 40


def test_every_memory_has_a_unit():
    assert divide([np.array([0.9, 0.05]), np.array([1e-9, 0.0])], 3) == [2, 1]


def test_shares_add_up_to_the_energy():
    laes = LinearAutoencoder(20).fit(sequences())
    assert shares(laes).sum() == pytest.approx(laes.energy_)


@pytest.mark.parametrize("forgetting", [1.0, 0.8])
def test_the_first_units_are_those_of_a_smaller_fit(forgetting):
    data = sequences()
    large, small = (LinearAutoencoder(p, solver="exact", forgetting=forgetting).fit(data) for p in (60, 11))
    first = large.truncated(11)
    np.testing.assert_allclose(first.encode(data), small.encode(data), atol=1e-9)
    assert first.energy_ == pytest.approx(small.energy_)
    assert first.get_params() == small.get_params()
    assert len(large.A_) == 60, "truncating changed the original"


@pytest.mark.parametrize("size", [0, 61, 2.5])
def test_truncating_to_a_size_that_is_not_there_is_refused(size):
    large = LinearAutoencoder(60, solver="exact").fit(sequences())
    with pytest.raises(ValueError, match=f"n_components={size}: expected"):
        large.truncated(size)
