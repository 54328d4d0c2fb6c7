"""MIDI files as piano rolls, and back.

A roll says nothing of loudness, instruments and tempo, and two notes of one key that touch are one note. Everything
else survives: a roll that is written and read again is the same roll.
"""

from __future__ import annotations

import io
import os
import re
from collections import defaultdict
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from linmem.datasets import piano_rolls
from linmem.datasets.piano_rolls import KEYS, LOWEST, Roll, Rolls, Split, check_roll, split
from linmem.datasets.store import folder_at, in_short

#: Files that last for more frames are refused: a few bytes of MIDI can claim to last for years. Larger files, too.
MOST_FRAMES = 200_000
MOST_BYTES = 2**24

#: A number in a MIDI file has four bytes; mido would read one of a million, which takes for ever.
LONG_NUMBER = re.compile(rb"[\x80-\xff]{1000}")

TICKS_PER_BEAT = 480
DRUMS = 9  #: the channel whose numbers are not pitches


def _mido() -> Any:
    try:
        import mido
    except ImportError:
        raise ImportError("MIDI files need mido: pip install 'linmem[experiments]'") from None
    return mido


def read(path: str | os.PathLike[str], step: float | Fraction = Fraction(1, 2)) -> Roll:
    """Return a MIDI file as a piano roll.

    Parameters
    ----------
    path
        A MIDI file whose time is counted in beats. Drums and notes outside the piano's 88 keys are left out.
    step
        Beats in a frame; a beat is a quarter note. Starts and ends are moved to the nearest frame, and no note
        gets shorter than one.

    Returns
    -------
    roll : (frames, 88) boolean array
        Up to the end of the longest track.

    Examples
    --------
    >>> import tempfile
    >>> roll = np.zeros((6, KEYS), bool)
    >>> roll[1:4, 60 - LOWEST] = True  # a middle C
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(f"{folder}/c.mid", roll)
    ...     again = read(f"{folder}/c.mid")
    >>> bool((again == roll).all())
    True
    """
    mido, step = _mido(), _check_step(step)
    if (size := os.stat(path).st_size) > MOST_BYTES:
        raise ValueError(f"{path} has {size} bytes: expected at most {MOST_BYTES}")
    data = Path(path).read_bytes()
    try:
        if LONG_NUMBER.search(data):
            raise ValueError("a number of a thousand bytes")
        file = mido.MidiFile(file=io.BytesIO(data))
    except Exception as error:  # mido lets out whatever a damaged file makes of its parser
        raise ValueError(f"{path}: expected an intact MIDI file ({in_short(error)})") from None
    if file.ticks_per_beat <= 0 or file.type == 2:
        raise ValueError(f"{path}: expected a MIDI file whose tracks sound together and whose time is in beats")
    frame = step * file.ticks_per_beat  # ticks in a frame
    notes, end = [], 0
    for track in file.tracks:
        found, ticks = _notes(track)
        notes += found
        end = max(end, ticks)
    frames = _nearest(end / frame)
    if frames > MOST_FRAMES:
        raise ValueError(f"{path} lasts for {frames} frames: expected at most {MOST_FRAMES}, or a longer step")
    notes = [note for note in notes if LOWEST <= note[2] < LOWEST + KEYS]
    if not notes:
        raise ValueError(f"{path} has no note between A0 and C8: expected at least one")
    on, off = (np.array([_nearest(note[i] / frame) for note in notes]) for i in (0, 1))
    key, off = np.array([note[2] - LOWEST for note in notes]), np.maximum(off, on + 1)
    sounding = np.zeros((max(frames, int(on.max()) + 1) + 1, KEYS), np.int32)  # notes that start, less those that end
    np.add.at(sounding, (on, key), 1)
    np.add.at(sounding, (np.minimum(off, len(sounding) - 1), key), -1)
    roll: Roll = sounding.cumsum(0)[:-1] > 0
    return roll


def _notes(track: Any) -> tuple[list[tuple[int, int, int]], int]:
    """Return (first tick, last tick, MIDI number) of all notes of a track, and when it ends."""
    now, notes = 0, []
    # Of each channel and key: the strokes not yet released, as when and as which event, and when each event was.
    struck: defaultdict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    events: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for message in track:
        now += message.time
        if message.type not in ("note_on", "note_off") or message.channel == DRUMS:
            continue
        key = (message.channel, message.note)
        events[key].append(now)
        if message.type == "note_on" and message.velocity > 0:
            struck[key].append((now, len(events[key])))
        elif struck[key]:  # a key may be struck again before it is released: this ends the last stroke
            notes.append((struck[key].pop()[0], now, message.note))
    for key, strokes in struck.items():  # what is never released ends when something else happens to the key
        notes += [(on, events[key][i] if i < len(events[key]) else now, key[1]) for on, i in strokes]
    return notes, now


def write(
    path: str | os.PathLike[str], roll: Roll, step: float | Fraction = Fraction(1, 2), *, tempo: float = 120
) -> None:
    """Write a piano roll as a MIDI file of one track.

    Parameters
    ----------
    roll
        (frames, 88), of booleans or of zeros and ones.
    step
        Beats in a frame.
    tempo
        Beats in a minute, for who listens to it.
    """
    mido, step, roll = _mido(), _check_step(step), check_roll(roll, "roll")
    if not 4 <= tempo <= 60_000_000:
        raise ValueError(f"tempo={tempo}: expected beats in a minute, at least 4")
    ticks = step * TICKS_PER_BEAT
    resolution = TICKS_PER_BEAT * ticks.denominator  # fine enough for whole ticks in a frame
    if resolution > 0x7FFF:
        raise ValueError(f"step={step}: expected a fraction of a beat that MIDI can count, such as 1/2 or 1/3")
    length = int(ticks * ticks.denominator)
    change = np.diff(roll.astype(np.int8), axis=0, prepend=0, append=0)  # +1 where a note starts, -1 behind its end
    file = mido.MidiFile(type=0, ticks_per_beat=resolution)
    track = file.add_track()
    track.append(mido.MetaMessage("set_tempo", tempo=round(60_000_000 / tempo)))
    last = 0
    # At one time, notes end before others start.
    for frame, _, key in sorted((int(t), int(change[t, k]), int(k)) for t, k in zip(*np.nonzero(change), strict=True)):
        kind = "note_on" if change[frame, key] > 0 else "note_off"
        track.append(mido.Message(kind, note=LOWEST + key, velocity=64, time=(frame - last) * length))
        last = frame
    track.append(mido.MetaMessage("end_of_track", time=(len(roll) - last) * length))
    file.save(path)


def read_folder(folder: str | os.PathLike[str], step: float | Fraction = Fraction(1, 2), seed: int = 0) -> Split:
    """Return all MIDI files of a folder and the folders below it, divided at random.

    Parameters
    ----------
    folder
        Or an archive of one.
    step
        As in `read`.
    seed
        Of the division into training, validation and test sets.
    """
    found = folder_at(folder)
    endings = (".mid", ".midi")
    paths = sorted(p for p in found.rglob("[!.]*") if p.suffix.lower() in endings and p.is_file())
    if len(paths) < 3:
        raise ValueError(f"{folder} has {len(paths)} MIDI files: expected at least 3, one for each part")
    bits, lengths = [], []
    for path in paths:
        roll = read(path, step)
        bits.append(np.packbits(roll, axis=1))
        lengths.append(len(roll))
        if sum(lengths) > piano_rolls.MOST_FRAMES:
            raise ValueError(
                f"{folder} has more than {piano_rolls.MOST_FRAMES} frames: expected no more, or a longer step"
            )
    return split(Rolls(np.concatenate(bits), lengths), seed)


def _check_step(step: float | Fraction) -> Fraction:
    if not 0 < step <= 64:
        raise ValueError(f"step={step}: expected beats in a frame, more than 0 and at most 64")
    fraction = Fraction(step).limit_denominator(1000)
    if abs(fraction - Fraction(step)) > Fraction(step) / 10_000:
        raise ValueError(f"step={step}: expected a fraction of a beat that MIDI can count, such as 1/2 or 1/3")
    return fraction


def _nearest(x: Fraction) -> int:
    return int(x + Fraction(1, 2))  # halves go up; frames are never negative
