"""Bach's chorales from the corpus that comes with music21, for people without the published files.

The pieces are many of those of the published set, on the same grid and in the same key, but not in the same split:
no figure on them is a figure on JSB Chorales.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from linmem.datasets import piano_rolls, store
from linmem.datasets.piano_rolls import KEYS, LOWEST, Roll, Split


def load(step: float = 1.0, seed: int = 0, most: int | None = None) -> Split:
    """Return the chorales of four parts, transposed to end on C and divided at random.

    Reading all of them takes minutes, so the whole set is kept in this user's cache.

    Parameters
    ----------
    step
        Quarter notes in a frame.
    seed
        Of the division into training, validation and test sets.
    most
        Read only so many, and keep nothing.
    """
    try:
        from music21 import corpus
    except ImportError:
        raise ImportError("the chorales come with music21: pip install 'linmem[chorales]'") from None
    if not step > 0:
        raise ValueError(f"step={step}: expected quarter notes in a frame, more than 0")
    kept = store.cache_folder() / "pianoroll" / f"bach_chorales_step{step:g}_seed{seed}.npz"
    if most is None and kept.is_file():
        return piano_rolls.read(kept)
    paths = sorted(Path(path) for path in corpus.getComposer("bach"))
    rolls: list[Roll] = []
    for path in paths:
        if path.suffix in (".mxl", ".xml"):
            score = corpus.parse(path)
            if len(score.parts) == 4:
                rolls.append(_roll(score, step))
        if len(rolls) == most:
            break
    result = piano_rolls.split(rolls, seed)
    if most is None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        piano_rolls.save(kept, result)
    return result


def _roll(score: Any, step: float) -> Roll:
    """Return what sounds on the grid."""
    notes = [
        (float(note.offset), float(note.offset + note.duration.quarterLength), pitch.midi)
        for note in score.flatten().notes
        for pitch in note.pitches
    ]
    end = max(off for _, off, _ in notes)
    bass = min(pitch for _, off, pitch in notes if math.isclose(off, end))
    # A chorale ends on its tonic. As in the published set, that becomes C, and all sounds an octave above notation.
    shift = 12 - (bass + 6) % 12 + 6
    roll = np.zeros((math.ceil(end / step - 1e-9), KEYS), bool)
    for on, off, pitch in notes:
        key = pitch + shift - LOWEST
        if 0 <= key < KEYS:
            roll[math.ceil(on / step - 1e-9) : math.ceil(off / step - 1e-9), key] = True
    return roll
