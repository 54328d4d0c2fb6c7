"""Piano rolls: which of the 88 keys sound in which frame."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

KEYS = 88  #: A0 to C8
LOWEST = 21  #: MIDI number of the first key
MAJOR_SCALE = np.array([0, 2, 4, 5, 7, 9, 11])


def synthetic(pieces: int = 60, seed: int = 0) -> list[NDArray[Any]]:
    """Made-up chorales: four voices that walk on the scale of C major and hold their notes for a while.

    Parameters
    ----------
    pieces : int
    seed : int

    Returns
    -------
    rolls : list of (frames, 88) boolean arrays
        40 to 80 frames each.

    Examples
    --------
    >>> rolls = synthetic(pieces=2)
    >>> rolls[0].dtype, rolls[0].shape[1], int(rolls[0].sum(1).max())
    (dtype('bool'), 88, 4)
    """
    rng = np.random.default_rng(seed)
    keys = np.array([12 * octave + step - LOWEST for octave in range(2, 9) for step in MAJOR_SCALE])
    keys = keys[(keys >= 0) & (keys < KEYS)]
    rolls = []
    for _ in range(pieces):
        roll = np.zeros((int(rng.integers(40, 81)), KEYS), dtype=bool)
        for start in (12, 16, 20, 24):  # bass, tenor, alto, soprano: places on the scale
            moves = rng.choice([-2, -1, 0, 1, 2], size=len(roll)) * (rng.random(len(roll)) < 0.4)
            place = np.clip(start + np.cumsum(moves), start - 6, start + 6)
            roll[np.arange(len(roll)), keys[place]] = True
        rolls.append(roll)
    return rolls
