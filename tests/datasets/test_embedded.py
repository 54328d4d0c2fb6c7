"""Data inside the package is there, and is what it says."""

import numpy as np
import pytest

from linmem.datasets import piano_rolls, waveforms


@pytest.mark.parametrize(("kind", "excerpts"), [("recorded", 4), ("synthetic", 5)])
def test_excerpts_are_scaled_to_full_range(kind, excerpts):
    waves = waveforms.embedded(kind)
    assert waves.shape == (excerpts, 300)
    np.testing.assert_array_equal(waves.min(1), -1)
    np.testing.assert_array_equal(waves.max(1), 1)


def test_unknown_kind_of_excerpt_is_refused():
    with pytest.raises(ValueError, match=r"kind='loud': expected one of \['recorded', 'synthetic'\]"):
        waveforms.embedded("loud")


def test_synthetic_rolls_have_four_voices_in_c_major_and_follow_their_seed():
    rolls = piano_rolls.synthetic(pieces=5, seed=3)
    assert all(roll.dtype == bool and roll.shape[1] == 88 and 40 <= len(roll) <= 80 for roll in rolls)
    sounding = np.flatnonzero(np.concatenate(rolls).any(0)) + piano_rolls.LOWEST
    assert set(sounding % 12) <= set(piano_rolls.MAJOR_SCALE)
    assert np.concatenate(rolls).sum(1).max() == 4
    again, other = piano_rolls.synthetic(pieces=5, seed=3), piano_rolls.synthetic(pieces=5, seed=4)
    assert all(np.array_equal(one, two) for one, two in zip(rolls, again, strict=True))
    assert not np.array_equal(rolls[0], other[0])
