"""Bach's chorales out of music21's corpus."""

import numpy as np

from linmem.datasets import chorales
from linmem.datasets.piano_rolls import LOWEST


def test_chorales_have_up_to_four_voices_and_end_on_c(nothing_there):
    parts = chorales.load(most=4)
    assert [len(part) for part in parts] == [2, 1, 1]
    for roll in (roll for part in parts for roll in part):
        assert 20 < len(roll) < 200
        assert 1 <= roll.sum(1).max() <= 4
        assert (np.flatnonzero(roll[-1])[0] + LOWEST) % 12 == 0, "the last bass note"
    assert not nothing_there.exists(), "an excerpt is not kept"
