"""Excerpts of recordings."""

import numpy as np
import pytest
import soundfile

from linmem.datasets import waveforms


@pytest.fixture
def song(tmp_path):
    """A second of silence, one of sound and one of silence, in stereo."""
    t = np.arange(8000) / 8000
    sound = np.sin(2 * np.pi * 100 * t) * np.hanning(8000)
    mono = np.concatenate([np.zeros(8000), sound, np.zeros(8000)])
    soundfile.write(tmp_path / "song.wav", np.stack([mono, 0.5 * mono], 1), 8000)
    return tmp_path / "song.wav"


def test_excerpts_are_scaled_pieces_of_the_recording(song):
    sound = waveforms.recording(song)
    pieces = waveforms.excerpts(song, count=5, length=300, seed=1)
    assert pieces.shape == (5, 300)
    assert pieces.dtype == np.float32
    np.testing.assert_array_equal(pieces.min(1), -1)
    np.testing.assert_array_equal(pieces.max(1), 1)
    windows = np.lib.stride_tricks.sliding_window_view(sound, 300)[8000:16_000]
    spans = np.ptp(windows, axis=1)
    scaled = 2 * (windows - windows.min(1, keepdims=True)) / np.where(spans > 0, spans, 1)[:, None] - 1
    for piece in pieces:
        assert np.abs(scaled - piece).max(1).min() < 1e-6, "no window of the recording looks like this"


def test_silence_is_never_chosen(song):
    sound = waveforms.recording(song)
    for length in (2, 31, 300, 3000):
        for seed in range(20):
            rng_piece = waveforms.excerpts(song, count=3, length=length, seed=seed)
            assert (np.ptp(rng_piece, axis=1) == 2).all()
    assert np.ptp(sound[:8000]) == 0


def test_another_seed_gives_other_places_and_the_same_one_the_same(song):
    one, two, other = (waveforms.excerpts(song, 4, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, two)
    assert not np.array_equal(one, other)


def test_a_recording_as_long_as_the_excerpt_is_the_excerpt(tmp_path):
    soundfile.write(tmp_path / "x.flac", np.linspace(-0.5, 0.5, 300), 44_100)
    np.testing.assert_allclose(
        waveforms.excerpts(tmp_path / "x.flac", length=300)[0], np.linspace(-1, 1, 300), atol=1e-3
    )


def test_channels_are_averaged(song):
    stereo, _ = soundfile.read(song)
    np.testing.assert_allclose(waveforms.recording(song), stereo.mean(1))


def test_silent_short_and_foreign_recordings_are_refused(tmp_path, song):
    soundfile.write(tmp_path / "silent.wav", np.zeros(1000), 8000)
    soundfile.write(tmp_path / "empty.wav", np.zeros(0), 8000)
    (tmp_path / "text.wav").write_text("not sound")
    (tmp_path / "short.wav").write_bytes(song.read_bytes()[:30])
    for name, message in {
        "silent.wav": "is silent: expected sound",
        "empty.wav": "has 0 samples in 1 channels: expected 1 to",
        "text.wav": "expected an audio file",
        "short.wav": "has 30 bytes and says 96044: expected an intact audio file",
    }.items():
        with pytest.raises(ValueError, match=rf"{name}.*{message}"):
            waveforms.excerpts(tmp_path / name)
    with pytest.raises(ValueError, match="has 24000 samples: expected at least length=24001"):
        waveforms.excerpts(song, length=24_001)
    with pytest.raises(ValueError, match="has 8000 samples a second: expected 44100"):
        waveforms.excerpts(song, sample_rate=44_100)
    with pytest.raises(ValueError, match="count=0: expected an integer of at least 1"):
        waveforms.excerpts(song, count=0)
    for length in (1, 2.5):
        with pytest.raises(ValueError, match=f"length={length}: expected an integer of at least 2"):
            waveforms.excerpts(song, length=length)
    (tmp_path / "x.raw").write_bytes(bytes(1000))
    with pytest.raises(ValueError, match=r"x\.raw: expected an audio file"):
        waveforms.excerpts(tmp_path / "x.raw")
    with pytest.raises(FileNotFoundError):
        waveforms.excerpts(tmp_path / "nowhere.wav")


@pytest.mark.parametrize("kind", ["WAV", "AIFF", "NIST", "FLAC", "OGG"])
def test_half_a_recording_is_refused(kind, tmp_path):
    path = tmp_path / f"x.{kind.lower()}"
    soundfile.write(path, np.random.default_rng(0).normal(0, 0.1, 20_000), 16_000, format=kind)
    assert len(waveforms.recording(path)) == 20_000
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(ValueError, match=r"x\.\w+( has 0 samples.*|.*: expected an (intact )?audio file)"):
        waveforms.recording(path)


def test_a_recording_that_would_fill_the_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(waveforms, "MOST_SAMPLES", 10_000)
    soundfile.write(tmp_path / "x.flac", np.zeros((6000, 2)), 16_000)
    with pytest.raises(ValueError, match="has 6000 samples in 2 channels: expected 1 to 10000"):
        waveforms.recording(tmp_path / "x.flac")
