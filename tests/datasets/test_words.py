"""The Common Suffix task: words out of a corpus in TIMIT's layout, split, normalised and in batches."""

import contextlib
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from linmem.datasets import speech, words
from linmem.datasets.mfcc import mfcc
from linmem.datasets.words import WORDS

LENGTH = 4000  # samples of a recording: a quarter of a second


def corpus(root: Path, lower: bool = False, speakers: int = 7) -> Path:
    """A corpus of noise in which every word of the task is in its sentence."""
    rng = np.random.default_rng(0)
    for code in sorted(set(WORDS.values())):
        found = [word for word, c in WORDS.items() if c == code]
        for i in range(speakers):
            names = ["TIMIT", "TEST" if i in (2, 5) else "TRAIN", f"DR{i + 1}", f"MSP{i}0", code]
            place = root.joinpath(*(name.lower() if lower else name for name in names))
            place.parent.mkdir(parents=True, exist_ok=True)
            soundfile.write(
                place.with_suffix(".wav" if lower else ".WAV"), rng.normal(0, 0.1, LENGTH), 16_000, format="WAV"
            )
            lines = [f"{500 + 1000 * j} {1500 + 1000 * j} {word}" for j, word in enumerate(found)]
            place.with_suffix(".wrd" if lower else ".WRD").write_text("\n".join(["0 500 the", *lines, "3000 4000 end"]))
    return root


@pytest.fixture(scope="module")
def noise(tmp_path_factory):
    return corpus(tmp_path_factory.mktemp("corpus"))


def test_the_task_has_the_papers_words_in_five_groups_that_end_alike():
    names = list(WORDS)
    suffixes = [("ing",), ("ical",), ("ition",), ("ions", "ians"), ("way",)]
    assert len(names) == 25
    for group, ends in enumerate(suffixes):
        assert all(word.endswith(ends) for word in names[5 * group : 5 * group + 5])


@pytest.mark.parametrize("lower", [False, True])
def test_words_are_cut_out_of_their_sentences(lower, tmp_path):
    data = words.timit(corpus(tmp_path, lower))
    assert len(data) == 175
    np.testing.assert_array_equal(np.bincount(data.labels), np.full(25, 7))
    assert not data.synthetic
    i = data.words.index("critical")  # the second word of its sentence
    path = next(
        p for p in tmp_path.rglob("*") if p.name.upper() == "SX52.WAV" and p.parent.name.upper() == data.speakers[i]
    )
    sound, _ = soundfile.read(path)
    np.testing.assert_allclose(data.features[i], mfcc(32768 * sound[1500:2500]), rtol=1e-5)


def test_the_step_between_frames_is_a_parameter(noise):
    slow, fast = words.timit(noise), words.timit(noise, step=0.001)
    assert {len(x) for x in slow.features} == {5}
    assert {len(x) for x in fast.features} == {39}


def test_any_folder_around_or_inside_will_do(noise):
    expected = words.timit(noise)
    again = words.timit(noise / "TIMIT")
    assert again.speakers == expected.speakers
    np.testing.assert_array_equal(np.concatenate(again.features), np.concatenate(expected.features))


def test_the_stand_in_comes_out_of_its_recordings_as_it_was_published(data_folder, nothing_there):
    """The frames of the compact file are those computed here from sound and word boundaries, in an archive."""
    archive = data_folder / "words" / "common_suffix_espeak_seven_timit_layout.tar.xz"
    sound = words.timit(archive)
    ready = words.stand_in("seven", data_folder)
    assert sound.synthetic
    assert ready.synthetic
    known = {(w, s): x for w, s, x in zip(ready.words, ready.speakers, ready.features, strict=True)}
    for word, speaker, x in zip(sound.words, sound.speakers, sound.features, strict=True):
        np.testing.assert_allclose(x, known[word, speaker], atol=1e-6)
    assert max(map(len, sound.features)) == 87
    assert sum(map(len, sound.features)) == 8805


def test_the_stand_in_of_many_voices_is_there(data_folder):
    data = words.stand_in("many", data_folder)
    assert (len(data), len(set(data.speakers))) == (175, 161)
    assert max(map(len, data.features)) == 89


# ---------------------------------------------------------------------------------------------- the task


def made_up(usage_of=lambda i: "TEST" if i % 7 in (2, 5) else "TRAIN"):
    rng = np.random.default_rng(0)
    features = [rng.normal(3, 2, (int(rng.integers(4, 12)), 13)) for _ in range(175)]
    labels = np.repeat(np.arange(25), 7)
    speakers = tuple(f"S{i % 7}" for i in range(175))
    return words.Utterances(features, labels, speakers, tuple(map(usage_of, range(175))), synthetic=True)


@pytest.mark.parametrize("how", [{}, {"seed": 3}, {"test": [(w, s) for w in WORDS for s in ("S0", "S6")]}])
def test_five_of_each_word_are_for_training_and_two_for_testing(how):
    data = made_up()
    task = words.task(data, **how)
    np.testing.assert_array_equal(np.bincount(task.train.labels), np.full(25, 5))
    np.testing.assert_array_equal(np.bincount(task.test.labels), np.full(25, 2))
    assert {*zip(task.train.words, task.train.speakers, strict=True)}.isdisjoint(
        zip(task.test.words, task.test.speakers, strict=True)
    )


def test_normalisation_knows_the_training_set_only():
    data = made_up()
    task = words.task(data)
    frames = np.concatenate(task.train.features)
    np.testing.assert_allclose(frames.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(frames.std(0), 1, atol=1e-5)
    test = np.concatenate([x for x, usage in zip(data.features, data.usage, strict=True) if usage == "TEST"])
    np.testing.assert_allclose(np.concatenate(task.test.features) * task.deviation + task.mean, test, atol=1e-4)


def test_a_seed_decides_the_split():
    data = made_up()
    speakers = [words.task(data, seed=seed).test.speakers for seed in (0, 0, 1)]
    assert speakers[0] == speakers[1] != speakers[2]


def test_splits_that_are_none_are_refused():
    with pytest.raises(ValueError, match="'making' would be tested 7 times: expected 2; give a seed"):
        words.task(made_up(lambda i: "TEST"))
    with pytest.raises(ValueError, match=r"test has \('making', 'nobody'\): expected pairs of a word and a speaker"):
        words.task(made_up(), test=[("making", "nobody")])
    with pytest.raises(ValueError, match="seed and test are both given"):
        words.task(made_up(), seed=1, test=[])


def test_an_epoch_of_batches_has_every_utterance_once_and_every_word_in_each_batch():
    train = words.task(made_up()).train
    batches = list(words.balanced_batches(train, seed=0, noise=0))
    assert [len(batch) for batch in batches] == [25] * 5
    assert all(sorted(batch.labels) == list(range(25)) for batch in batches)
    seen = sorted((w, s) for batch in batches for w, s in zip(batch.words, batch.speakers, strict=True))
    assert seen == sorted(zip(train.words, train.speakers, strict=True))


def test_noise_has_the_wanted_deviation_and_follows_its_seed():
    train = words.task(made_up()).train
    noisy, again, clean = (list(words.balanced_batches(train, 0, noise)) for noise in (0.6, 0.6, 0))
    added = np.concatenate(
        [a - b for x, y in zip(noisy, clean, strict=True) for a, b in zip(x.features, y.features, strict=True)]
    )
    assert added.std() == pytest.approx(0.6, rel=0.05)
    assert np.abs(added.mean(0)).max() < 0.1
    np.testing.assert_array_equal(noisy[2].features[3], again[2].features[3])
    with pytest.raises(ValueError, match="expected as many of each"):
        list(words.balanced_batches(train.take(range(1, 125)), 0))


# ------------------------------------------------------------------------------------------------ bad files


def test_a_missing_utterance_is_named(tmp_path):
    corpus(tmp_path)
    next(tmp_path.rglob("SX4.WRD")).unlink()
    with pytest.raises(ValueError, match="has 6 recordings of SX4 with their words: expected 7, for 'working'"):
        words.timit(tmp_path)


def test_a_folder_without_the_corpus_is_refused(tmp_path):
    with pytest.raises(ValueError, match="expected TIMIT's folders TRAIN and TEST"):
        words.timit(tmp_path)
    with pytest.raises(FileNotFoundError):
        words.timit(tmp_path / "nowhere")


def test_another_sample_rate_is_refused(tmp_path):
    corpus(tmp_path)
    path = sorted(tmp_path.rglob("SX430.WAV"))[0]
    soundfile.write(path, np.zeros(LENGTH), 8000)
    with pytest.raises(ValueError, match="has 8000 samples a second: expected 16000"):
        words.timit(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0 500 the\n", "has no 'making': expected it among its words"),
        ("", "has no 'making': expected it among its words"),
        ("0 3000 other\n1500 3000 making\n", "overlaps another word"),
        ("0 1600 making\n0 1600 tea\n", "overlaps another word"),
        ("0 3900 other\n2300 3900 making\n", "overlaps another word"),
        ("0 1 a\n" * 5000, "expected the words of one sentence"),
        ("0 9000 making\n", "'making' is at 0 to 9000 of 4000 samples"),
        ("900 900 making\n", "'making' is at 900 to 900"),
        ("0 3000 the\n500 2000 making\n", "overlaps another word"),
        ("0 3900 making\n500 3950 tea\n", "overlaps another word"),
        ("zero 500 making\n", "line 1: expected the first sample, the last and a word"),
        ("-5 500 making\n", "line 1: expected the first sample, the last and a word"),
        ("0 500\n", "line 1: expected"),
        ("\x00\xff\n", "line 1: expected"),
    ],
)
def test_a_file_of_words_that_cannot_be_right_is_refused(text, message, tmp_path):
    (tmp_path / "x.WRD").write_text(text, encoding="latin-1")
    with pytest.raises(ValueError, match=message):
        words.find_word(tmp_path / "x.WRD", "making", 4000)


def test_words_that_share_a_sound_are_accepted(tmp_path):
    (tmp_path / "x.WRD").write_text("0 1000 Keep\n\n600 3000 making,\n2500 4000 tea")
    assert words.find_word(tmp_path / "x.WRD", "making", 4000) == (600, 3000)


@given(st.binary(max_size=60))
def test_noise_in_a_file_of_words_gives_a_place_or_one_error(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("words") / "x.WRD"
    path.write_bytes(data)
    with contextlib.suppress(ValueError):
        start, end = words.find_word(path, "a", 100)
        assert 0 <= start < end <= 100


def ready(tmp_path, **changes):
    n = 50
    arrays = {
        "x": np.zeros((n * 3, 13), np.float32),
        "lengths": np.full(n, 3),
        "y": np.arange(n) % 25,
        "speaker": np.array(["A"] * n),
        "usage": np.array(["TRAIN"] * n),
    } | changes
    np.savez(tmp_path / "x.npz", **{name: array for name, array in arrays.items() if array is not None})
    return tmp_path / "x.npz"


@pytest.mark.parametrize(
    "changes",
    [
        {"y": None},
        {"x": np.zeros((10, 13))},
        {"x": np.full((150, 13), np.nan)},
        {"lengths": np.full(50, -3)},
        {"y": np.arange(50)},
        {"speaker": np.array(["A"])},
        {"x": np.array([{}], object)},
        {"x": np.zeros((150, 13), complex)},
        {"lengths": np.full(50, 3.0)},
        {"y": np.zeros((50, 2), int)},
    ],
)
def test_features_that_contradict_themselves_are_refused(changes, tmp_path):
    assert len(words.read(ready(tmp_path))) == 50
    with pytest.raises(ValueError, match=r"x\.npz: expected the features of spoken words"):
        words.read(ready(tmp_path, **changes))
    data = ready(tmp_path).read_bytes()
    (tmp_path / "x.npz").write_bytes(data[:500])
    with pytest.raises(ValueError, match=r"x\.npz: expected the features of spoken words"):
        words.read(tmp_path / "x.npz")


@given(data=st.data())
def test_damaged_features_are_read_or_refused(tmp_path_factory, data):
    path = ready(tmp_path_factory.mktemp("words"))
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    with contextlib.suppress(ValueError):
        words.read(path)


def test_a_folder_named_like_a_part_of_the_corpus_changes_nothing(tmp_path):
    data = words.timit(corpus(tmp_path / "test"))
    assert set(data.usage) == {"TRAIN", "TEST"}


def test_a_stand_in_says_so_whatever_became_of_its_recordings(tmp_path):
    corpus(tmp_path)
    (tmp_path / words.MARKER).write_text("")
    assert words.timit(tmp_path).synthetic


# ------------------------------------------------------------------------------------------------- synthesis


def test_every_sentence_has_its_words_and_every_word_a_sentence():
    assert set(speech.SENTENCES) == set(WORDS.values())
    for word, code in WORDS.items():
        assert word in speech.SENTENCES[code].lower().split()


def test_the_stand_in_can_be_spoken_here(nothing_there):
    """Seven voices; the boundaries of words lie where there is sound."""
    data = words.stand_in("seven")
    assert data.synthetic
    assert len(data) == 175
    assert len(set(data.speakers)) == 7
    lengths = [len(x) for x in data.features]
    assert min(lengths) > 15
    assert max(lengths) < 110
    assert min(x[:, 0].max() for x in data.features) > 10, "the energy of a word that is only silence"
    np.testing.assert_array_equal(np.bincount(words.task(data).test.labels), np.full(25, 2))
    kept = nothing_there / "words" / "espeak_seven"
    again = nothing_there / "again"
    speech.write_corpus(again, "seven")
    files = [path.relative_to(kept) for path in sorted(kept.rglob("*.*"))]
    assert len(files) == 2 * 7 * 23 + 1
    different = [str(path) for path in files if (kept / path).read_bytes() != (again / path).read_bytes()]
    assert not different, "the same voices and the same seed say the same"
    with pytest.raises(FileExistsError, match="expected a new one"):
        speech.write_corpus(again, "seven")


def test_a_stand_in_of_other_voices_is_refused():
    with pytest.raises(ValueError, match="voices='eight': expected 'many' or 'seven'"):
        words.stand_in("eight")
