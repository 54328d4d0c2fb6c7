"""Piano rolls: packing, splits, and the published sets in three formats."""

import pickle
import struct
import zipfile
import zlib

import numpy as np
import pytest
import scipy.io
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from linmem import LinearAutoencoder
from linmem.datasets import piano_rolls
from linmem.datasets.piano_rolls import KEYS, LOWEST, PUBLISHED, Rolls, Split

a_roll = st.integers(1, 12).flatmap(lambda frames: hnp.arrays(bool, (frames, KEYS)))


def equal(a: Split, b: Split) -> bool:
    return all(
        np.array_equal(x.bits, y.bits) and np.array_equal(x.lengths, y.lengths) for x, y in zip(a, b, strict=True)
    )


@given(st.lists(a_roll, min_size=1, max_size=5))
def test_packed_rolls_are_the_rolls(rolls):
    packed = Rolls.pack(rolls)
    assert len(packed) == len(rolls)
    assert packed.n_frames == sum(map(len, rolls))
    assert all(np.array_equal(a, b) and a.dtype == bool for a, b in zip(packed, rolls, strict=True))
    assert np.array_equal(packed[-1], rolls[-1])
    assert all(np.array_equal(a, b) for a, b in zip(packed[1:][::-1], rolls[1:][::-1], strict=True))
    with pytest.raises(IndexError):
        packed[len(rolls)]


def test_packed_rolls_take_an_eighth_of_the_memory():
    rolls = piano_rolls.synthetic()
    assert Rolls.pack(rolls).bits.nbytes * 8 == sum(roll.nbytes for roll in rolls)


def test_an_autoencoder_fits_packed_rolls_as_it_fits_a_list():
    rolls = piano_rolls.synthetic(pieces=5)
    packed, plain = (LinearAutoencoder(10).fit(x).singular_values_ for x in (Rolls.pack(rolls), rolls))
    np.testing.assert_array_equal(packed, plain)


@pytest.mark.parametrize(
    ("bits", "lengths", "message"),
    [
        (np.zeros((4, 11)), [4], "expected uint8"),
        (np.zeros((4, 10), np.uint8), [4], r"shape \(4, 10\): expected uint8, \(frames, 11\)"),
        (np.zeros((4, 11), np.uint8), [3], "lengths add up to 3, and there are 4"),
        (np.zeros((4, 11), np.uint8), [5, -1], "expected a vector of positive integers"),
        (np.zeros((4, 11), np.uint8), np.array([2**63, 2**63 + 4], np.uint64), "lengths add up to"),
        (np.zeros((4, 11), np.uint8), [4.0], "expected a vector of positive integers"),
    ],
)
def test_bits_and_lengths_that_contradict_each_other_are_refused(bits, lengths, message):
    with pytest.raises(ValueError, match=message):
        Rolls(bits, lengths)


@pytest.mark.parametrize("roll", [np.zeros((3, 87)), np.full((3, KEYS), 2), np.full((3, KEYS), np.nan), np.zeros(KEYS)])
def test_what_is_no_roll_is_not_packed(roll):
    with pytest.raises(ValueError, match=r"rolls\[1\] has shape .*: expected \(frames, 88\) of zeros and ones"):
        Rolls.pack([np.zeros((3, KEYS)), roll])


def test_a_split_is_a_division_that_follows_its_seed():
    rolls = piano_rolls.synthetic(pieces=20)
    parts = piano_rolls.split(rolls, seed=1)
    assert [len(part) for part in parts] == [12, 4, 4]
    assert sorted(roll.tobytes() for part in parts for roll in part) == sorted(roll.tobytes() for roll in rolls)
    assert equal(parts, piano_rolls.split(rolls, seed=1))
    assert not equal(parts, piano_rolls.split(rolls, seed=2))
    assert [len(part) for part in piano_rolls.split(rolls[:3])] == [1, 1, 1]
    with pytest.raises(ValueError, match="rolls has 2 pieces: expected at least 3"):
        piano_rolls.split(rolls[:2])
    with pytest.raises(ValueError, match=r"shares=\(0.9, 0.1\)"):
        piano_rolls.split(rolls, shares=(0.9, 0.1))


# --------------------------------------------------------------------------------------------- three formats


def as_notes(rolls: Rolls) -> list[list[tuple[int, ...]]]:
    return [[tuple(int(k) + LOWEST for k in np.flatnonzero(frame)) for frame in roll] for roll in rolls]


def write_pickle(path, parts, protocol=2):
    content = {name: as_notes(getattr(parts, name)) for name in piano_rolls.SPLITS}
    path.write_bytes(pickle.dumps(content, protocol))


def write_mat(path, parts, compress=True):
    cells = {}
    for ours, theirs in zip(piano_rolls.SPLITS, ("traindata", "validdata", "testdata"), strict=True):
        rolls = getattr(parts, ours)
        cells[theirs] = np.empty((1, len(rolls)), object)
        for i, roll in enumerate(rolls):
            cells[theirs][0, i] = roll.astype(np.uint8)
    scipy.io.savemat(path, cells, do_compression=compress)


WRITERS = {"npz": piano_rolls.save, "mat": write_mat, "pickle": write_pickle}


@pytest.mark.parametrize("kind", WRITERS)
def test_every_format_holds_the_same(kind, tmp_path):
    parts = piano_rolls.split(piano_rolls.synthetic(pieces=9))
    path = tmp_path / f"set.{kind}"
    WRITERS[kind](path, parts)
    assert equal(piano_rolls.read(path), parts)


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_sets_are_those_of_the_papers_table(name, data_folder):
    parts = piano_rolls.load(name, data_folder)
    samples = {"JSB_Chorales": 382, "MuseData": 783, "Nottingham": 1037, "Piano_midi": 124}
    longest = {"JSB_Chorales": 160, "MuseData": 4273, "Nottingham": 1793, "Piano_midi": 3857}
    assert (sum(map(len, parts)), parts.longest) == (samples[name], longest[name])


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_sets_come_out_of_mat_files_too(name, data_folder, tmp_path):
    parts = piano_rolls.load(name, data_folder)
    write_mat(tmp_path / f"{name}.mat", parts)
    assert equal(piano_rolls.load(name, tmp_path), parts)


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_sets_come_out_of_pickles_too(name, data_folder, tmp_path):
    parts = piano_rolls.load(name, data_folder)
    write_pickle(tmp_path / PUBLISHED[name].names[2], parts, protocol=0)
    assert equal(piano_rolls.load(name, tmp_path), parts)


def test_another_set_under_a_published_name_is_refused(tmp_path):
    piano_rolls.save(tmp_path / "MuseData.npz", piano_rolls.split(piano_rolls.synthetic(pieces=9)))
    with pytest.raises(ValueError, match=r"has \(5, 2, 2\) pieces.*expected \(524, 135, 124\) and 4273, as MuseData"):
        piano_rolls.load("MuseData", tmp_path)
    with pytest.raises(ValueError, match="name='Bach': expected one of JSB_Chorales"):
        piano_rolls.load("Bach")


# ------------------------------------------------------------------------------------------- hostile files


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
def test_a_truncated_file_is_refused(kind, share, tmp_path):
    path = tmp_path / f"set.{kind}"
    WRITERS[kind](path, piano_rolls.split(piano_rolls.synthetic(pieces=9)))
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    with pytest.raises(ValueError, match=rf"{path.name}: expected piano rolls in three parts"):
        piano_rolls.read(path)


@pytest.mark.parametrize("kind", WRITERS)
@given(data=st.data())
def test_a_damaged_file_gives_rolls_or_one_error(kind, tmp_path_factory, outcome, data):
    path = tmp_path_factory.mktemp("damaged") / f"set.{kind}"
    WRITERS[kind](path, Split(*(Rolls.pack([np.eye(3, KEYS)]) for _ in range(3))))
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    assert path.name in outcome(piano_rolls.read, path)


def test_a_pickle_that_repeats_a_long_piece_is_refused_before_it_is_built(tmp_path):
    piece = [(60,)] * 30_000
    (tmp_path / "x.pickle").write_bytes(pickle.dumps({"train": [piece] * 1000, "valid": [piece], "test": [piece]}))
    with pytest.raises(ValueError, match="30000000 frames: expected at most 20000000"):
        piano_rolls.read(tmp_path / "x.pickle")


@pytest.mark.parametrize("notes", [[[(20,)]], [[(109,)]], [[("a",)]], [[60]], [60], [[(1, [])]], [[]]])
def test_a_pickle_of_something_else_is_refused(notes, tmp_path):
    (tmp_path / "x.pickle").write_bytes(pickle.dumps(dict.fromkeys(piano_rolls.SPLITS, notes)))
    with pytest.raises(ValueError, match=r"x\.pickle: expected piano rolls in three parts"):
        piano_rolls.read(tmp_path / "x.pickle")


def test_a_hostile_pickle_runs_nothing(tmp_path):
    class Evil:
        def __reduce__(self):
            return (tmp_path / "evil").touch, ()

    (tmp_path / "x.pickle").write_bytes(pickle.dumps({"train": Evil()}))
    with pytest.raises(ValueError, match="expected a complete pickle of numbers only"):
        piano_rolls.read(tmp_path / "x.pickle")
    assert not (tmp_path / "evil").exists()


def test_arrays_of_objects_in_an_npz_are_refused(tmp_path):
    with open(tmp_path / "x.npz", "wb") as file:
        np.savez(file, train_bits=np.array([{}], object))
    with pytest.raises(ValueError, match="allow_pickle=False"):
        piano_rolls.read(tmp_path / "x.npz")


def test_files_that_unpack_to_gigabytes_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(piano_rolls, "MOST_BYTES", 10_000)
    parts = Split(*(Rolls.pack([np.zeros((3000, KEYS))]) for _ in range(3)))
    for kind, writer in WRITERS.items():
        if kind != "pickle":
            writer(tmp_path / f"x.{kind}", parts)
            with pytest.raises(ValueError, match="bytes when unpacked: expected at most 10000"):
                piano_rolls.read(tmp_path / f"x.{kind}")


def test_a_compressed_matlab_variable_is_not_unpacked_beyond_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(piano_rolls, "MOST_BYTES", 10_000)
    bomb = zlib.compress(bytes(10_000_000))
    (tmp_path / "x.mat").write_bytes(
        b"MATLAB".ljust(124) + struct.pack("<HH", 0x100, 0x4D49) + struct.pack("<II", 15, len(bomb)) + bomb
    )
    with pytest.raises(ValueError, match=r"\d+ bytes when unpacked: expected at most 10000"):
        piano_rolls.read(tmp_path / "x.mat")


def test_a_pickle_of_one_long_frame_mentioned_many_times_is_refused_at_once(tmp_path):
    frame = (60,) * 100_000
    pieces = [[frame] * 100_000]
    (tmp_path / "x.pickle").write_bytes(pickle.dumps(dict.fromkeys(piano_rolls.SPLITS, pieces)))
    with pytest.raises(ValueError, match="100000 notes in a frame: expected at most 176"):
        piano_rolls.read(tmp_path / "x.pickle")


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_compression_that_knows_no_bounds_is_refused(method, tmp_path):
    piano_rolls.save(tmp_path / "good.npz", piano_rolls.split(piano_rolls.synthetic(pieces=3)))
    with zipfile.ZipFile(tmp_path / "good.npz") as good, zipfile.ZipFile(tmp_path / "x.npz", "w", method) as bad:
        for name in good.namelist():
            bad.writestr(name, good.read(name))
    with pytest.raises(ValueError, match="is not compressed with deflate, as expected"):
        piano_rolls.read(tmp_path / "x.npz")


def test_a_matlab_file_of_countless_empty_pieces_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(piano_rolls, "MOST_PIECES", 100)
    cells = np.empty((1, 1000), object)
    cells[:] = [[np.zeros((0, 0))] * 1000]
    scipy.io.savemat(tmp_path / "x.mat", {"traindata": cells, "validdata": cells, "testdata": cells})
    with pytest.raises(ValueError, match="1000 pieces, more than 100"):
        piano_rolls.read(tmp_path / "x.mat")


def test_an_unknown_kind_of_file_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"expected a file that ends in \.npz, \.mat, \.pickle, \.pkl"):
        piano_rolls.read(tmp_path / "x.csv")
