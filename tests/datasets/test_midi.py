"""MIDI files and piano rolls are two forms of the same thing."""

from fractions import Fraction

import mido
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from linmem.datasets import midi, piano_rolls
from linmem.datasets.piano_rolls import KEYS, LOWEST

STEPS = [Fraction(1, 2), Fraction(1, 4), Fraction(1, 3), 1, 2, 0.25]


def there_and_back(path, roll, step=Fraction(1, 2)):
    midi.write(path, roll, step)
    return midi.read(path, step)


@given(
    st.integers(1, 30).flatmap(lambda frames: hnp.arrays(bool, (frames, KEYS), elements=st.booleans())),
    st.sampled_from(STEPS),
)
def test_a_roll_survives_a_midi_file(tmp_path_factory, roll, step):
    roll[0, 40] = True  # a file without notes is refused
    path = tmp_path_factory.mktemp("midi") / "x.mid"
    np.testing.assert_array_equal(there_and_back(path, roll, step), roll)


def test_the_published_chorales_survive_midi_files(tmp_path, data_folder):
    parts = piano_rolls.load("JSB_Chorales", data_folder)
    rolls = [roll for part in parts for roll in part][:300]
    assert len(rolls) == 300
    for roll in rolls:
        again = there_and_back(tmp_path / "x.mid", roll, 1)
        np.testing.assert_array_equal(again, roll)
        np.testing.assert_array_equal(there_and_back(tmp_path / "y.mid", again, 1), roll)


def file_of(path, *messages, ticks=480, kind=1):
    file = mido.MidiFile(type=kind, ticks_per_beat=ticks)
    file.add_track().extend(messages)
    file.save(path)
    return path


def note(kind, time, number=60, velocity=64, channel=0):
    return mido.Message(kind, note=number, velocity=velocity, time=time, channel=channel)


def keys(roll, number=60):
    return np.flatnonzero(roll[:, number - LOWEST]).tolist()


def test_notes_go_to_the_nearest_frame_and_last_for_one_at_least(tmp_path):
    on, off = note("note_on", 250), note("note_off", 10)
    roll = midi.read(file_of(tmp_path / "x.mid", on, off, note("note_on", 700), note("note_off", 470)), step=1)
    assert keys(roll) == [1, 2]


def test_a_note_on_without_force_is_a_note_off(tmp_path):
    roll = midi.read(file_of(tmp_path / "x.mid", note("note_on", 0), note("note_on", 960, velocity=0)), step=1)
    assert keys(roll) == [0, 1]


def test_a_key_struck_twice_sounds_until_it_is_released_twice(tmp_path):
    messages = [note("note_on", 0), note("note_on", 480), note("note_off", 480), note("note_off", 480)]
    assert keys(midi.read(file_of(tmp_path / "x.mid", *messages), step=1)) == [0, 1, 2]


def test_a_stroke_that_was_never_released_ends_with_the_next(tmp_path):
    """Two strokes, one release, and a stroke and release much later: silence lies between."""
    times = [("note_on", 0), ("note_on", 480), ("note_off", 480), ("note_on", 4800), ("note_off", 480)]
    roll = midi.read(file_of(tmp_path / "x.mid", *(note(kind, time) for kind, time in times)), step=1)
    assert keys(roll) == [0, 1, 12]


def test_what_is_never_released_sounds_to_the_end(tmp_path):
    messages = [note("note_on", 480), mido.MetaMessage("end_of_track", time=960)]
    assert keys(midi.read(file_of(tmp_path / "x.mid", *messages), step=1)) == [1, 2]


def test_drums_and_keys_no_piano_has_are_left_out(tmp_path):
    messages = [note("note_on", 0, channel=9), note("note_on", 0, number=15), note("note_on", 0, number=61)]
    roll = midi.read(file_of(tmp_path / "x.mid", *messages, mido.MetaMessage("end_of_track", time=480)), step=1)
    assert np.flatnonzero(roll.any(0)).tolist() == [61 - LOWEST]


def test_a_folder_of_midi_files_becomes_a_set(tmp_path):
    rolls = piano_rolls.synthetic(pieces=7)
    (tmp_path / "below").mkdir()
    for i, roll in enumerate(rolls):
        midi.write(tmp_path / ("below" if i % 2 else "") / f"{i}.{'MID' if i % 3 else 'midi'}", roll)
    (tmp_path / "notes.txt").write_text("not music")
    parts = midi.read_folder(tmp_path, seed=3)
    assert [len(part) for part in parts] == [4, 1, 2]
    assert sorted(r.tobytes() for part in parts for r in part) == sorted(roll.tobytes() for roll in rolls)


# ------------------------------------------------------------------------------------------------ bad files


def test_a_file_without_notes_is_refused(tmp_path):
    with pytest.raises(ValueError, match="has no note between A0 and C8"):
        midi.read(file_of(tmp_path / "x.mid", mido.MetaMessage("end_of_track", time=480)))


@pytest.mark.parametrize("data", [b"", b"MThd", b"not music at all", b"MThd\x00\x00\x00\x06\x00\x01\x00\x01\x01\xe0"])
def test_what_is_no_midi_file_is_refused(data, tmp_path):
    (tmp_path / "x.mid").write_bytes(data)
    with pytest.raises(ValueError, match=r"x\.mid(: expected an intact MIDI file| has no note)"):
        midi.read(tmp_path / "x.mid")


def test_a_truncated_file_is_refused(tmp_path):
    midi.write(tmp_path / "x.mid", piano_rolls.synthetic(pieces=1)[0])
    data = (tmp_path / "x.mid").read_bytes()
    (tmp_path / "x.mid").write_bytes(data[: len(data) // 2])
    with pytest.raises(ValueError, match="expected an intact MIDI file"):
        midi.read(tmp_path / "x.mid")


@given(st.data())
def test_a_damaged_file_gives_a_roll_or_one_error(tmp_path_factory, outcome, data):
    path = tmp_path_factory.mktemp("midi") / "x.mid"
    midi.write(path, np.eye(4, KEYS, 30))
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    assert path.name in outcome(midi.read, path)


def test_a_file_that_claims_to_last_for_years_is_refused(tmp_path):
    messages = [note("note_on", 0), *(note("note_off", 2**27) for _ in range(20))]
    with pytest.raises(ValueError, match=r"lasts for \d+ frames: expected at most 200000"):
        midi.read(file_of(tmp_path / "x.mid", *messages, ticks=1))


def test_time_that_is_not_counted_in_beats_is_refused(tmp_path):
    path = file_of(tmp_path / "x.mid", note("note_on", 0), note("note_off", 480))
    data = bytearray(path.read_bytes())
    data[12:14] = b"\xe7\x28"  # 25 pictures a second, 40 ticks each
    path.write_bytes(data)
    with pytest.raises(ValueError, match="whose time is in beats"):
        midi.read(path)


@pytest.mark.parametrize("step", [0, -1, 100, float("nan"), 0.0004, 0.00071])
def test_a_step_that_is_none_is_refused(step, tmp_path):
    with pytest.raises(ValueError, match=r"step=.*: expected (beats in a frame|a fraction of a beat)"):
        midi.read(tmp_path / "x.mid", step)
    with pytest.raises(ValueError, match=r"step=.*: expected (beats in a frame|a fraction of a beat)"):
        midi.write(tmp_path / "x.mid", np.eye(3, KEYS), step)


def test_a_number_of_many_bytes_is_refused_at_once(tmp_path):
    midi.write(tmp_path / "x.mid", np.eye(3, KEYS))
    data = (tmp_path / "x.mid").read_bytes()
    (tmp_path / "x.mid").write_bytes(data[:22] + b"\xff" * 5_000_000 + data[22:])
    with pytest.raises(ValueError, match="a number of a thousand bytes"):
        midi.read(tmp_path / "x.mid")


def test_what_a_mac_hides_in_a_folder_is_passed_over(tmp_path):
    for i, roll in enumerate(piano_rolls.synthetic(pieces=3)):
        midi.write(tmp_path / f"{i}.mid", roll)
    (tmp_path / "._0.mid").write_bytes(b"resource")
    assert sum(map(len, midi.read_folder(tmp_path))) == 3


def test_what_is_no_roll_is_not_written(tmp_path):
    for roll in (np.zeros((3, 12)), np.full((3, KEYS), 0.5)):
        with pytest.raises(ValueError, match=r"expected \(frames, 88\) of zeros and ones"):
            midi.write(tmp_path / "x.mid", roll)
    with pytest.raises(ValueError, match="expected a fraction of a beat that MIDI can count"):
        midi.write(tmp_path / "x.mid", np.eye(3, KEYS), step=Fraction(1, 997))
    assert not (tmp_path / "x.mid").exists()


def test_a_folder_with_too_little_is_refused(tmp_path):
    with pytest.raises(ValueError, match="has 0 MIDI files: expected at least 3"):
        midi.read_folder(tmp_path)
