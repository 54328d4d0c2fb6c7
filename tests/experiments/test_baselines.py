"""Controls are what they say, and reach what they are known to reach."""

import numpy as np
import pytest
import torch

from linmem import LinearAutoencoder
from linmem.datasets import piano_rolls, words
from linmem.experiments import baselines
from linmem.experiments.baselines import EchoState, FrequentChord, KeyMarkov, MemoryReadout, RepeatFrame


@pytest.fixture(scope="module")
def rolls():
    return piano_rolls.synthetic()


@pytest.mark.parametrize(
    ("name", "pooled"), [("JSB_Chorales", 22.20), ("MuseData", 38.21), ("Nottingham", 64.89), ("Piano_midi", 35.21)]
)
def test_repeating_the_frame_before_scores_what_it_is_known_to_score(name, pooled, data_folder):
    parts = piano_rolls.load(name, data_folder)
    scores = baselines.evaluate(RepeatFrame().fit(parts.train), parts.test)
    assert round(100 * scores.pooled(), 2) == pooled


def test_the_frequent_chord_is_the_most_frequent_frame():
    common, rare = np.eye(88, dtype=bool)[[3, 5]]
    silence = np.zeros((9, 88), bool)
    model = FrequentChord().fit([np.stack([rare, common, rare]), np.stack([common, common]), silence])
    logits = model.logits(np.zeros((4, 88), bool))
    assert logits.shape == (3, 88)
    assert ((logits > 0) == common).all()


def test_key_markov_knows_how_often_a_key_goes_on_and_begins():
    roll = np.zeros((9, 88), bool)
    roll[[0, 1, 2, 5], 7] = True  # goes on 2 of 4 times; begins 1 of 4 times
    model = KeyMarkov().fit([roll])
    p = 1 / (1 + np.exp(-model.logits(roll)))
    assert p[0, 7] == pytest.approx(2.5 / 5)
    assert p[3, 7] == pytest.approx(1.5 / 5)
    assert p[0, 8] == pytest.approx(0.5 / 9)


@pytest.mark.parametrize(
    "memory", [EchoState(50), LinearAutoencoder(50, forgetting=0.5)], ids=["random", "autoencoder"]
)
def test_a_readout_of_an_untrained_memory_knows_more_than_how_often_keys_sound(memory, rolls):
    train, test = rolls[:40], rolls[40:]
    rates = np.concatenate(train).mean(0).clip(1e-4, 1 - 1e-4)
    frames = np.concatenate([roll[1:] for roll in test])
    without_memory = -np.where(frames, np.log(rates), np.log(1 - rates)).sum(1).mean()
    readout = baselines.evaluate(MemoryReadout(memory, l2=1e-3).fit(train), test)
    assert readout.nats < 0.6 * without_memory


def test_a_readout_starts_no_worse_than_the_mean_and_ends_at_the_optimum():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 3, generator=generator)
    y = (torch.rand(400, 2, generator=generator) < (x[:, :2] + 1).sigmoid()).float()
    readout = baselines.logistic(x, y, l2=1e-3, steps=100)
    residual = readout(x).sigmoid() - y
    gradient = residual.T @ x / len(x) + 2e-3 * readout.weight
    assert gradient.abs().max() < 1e-4
    assert residual.mean(0).abs().max() < 1e-4


def test_an_echo_state_fades_and_follows_its_seed():
    rng = np.random.default_rng(0)
    x = [rng.normal(size=(200, 4))]
    memory = EchoState(30).fit(x)
    (codes,) = memory.transform(x)
    again, other = (EchoState(30, random_state=seed).fit(x).transform(x)[0] for seed in (0, 1))
    np.testing.assert_array_equal(codes, again)
    assert not np.array_equal(codes, other)
    changed = x[0].copy()
    changed[0] += 1
    (late,) = memory.transform([changed])
    assert np.abs(codes - late)[0].max() > 1e-2
    assert np.abs(codes - late)[-1].max() < 1e-4
    with pytest.raises(ValueError, match=r"n_components=0, radius=0\.9"):
        EchoState(0)


def test_words_are_seen_in_three_ways():
    x = np.arange(12.0).reshape(6, 2)
    np.testing.assert_array_equal(baselines.view_words([x], "mean"), [[5, 6]])
    np.testing.assert_array_equal(baselines.view_words([x], "last", 2), [[8, 9, 10, 11]])
    np.testing.assert_array_equal(baselines.view_words([x], "resampled", 3), [[0, 1, 4, 5, 10, 11]])
    with pytest.raises(ValueError, match="view='first': expected 'mean', 'last' or 'resampled'"):
        baselines.view_words([x], "first")


def test_controls_of_words_order_as_they_are_known_to(data_folder):
    """On the stand-in, the whole word resampled tells much more than its mean or its end."""
    task = words.task(words.stand_in("many", data_folder))

    def score(view):
        model = baselines.word_classifier(view).fit(task.train.features, task.train.labels)
        return model.score(task.test.features, task.test.labels)

    assert score("resampled") > 0.9
    assert 0.2 < score("mean") < 0.6
    assert 0.2 < score("last") < 0.6


@pytest.mark.parametrize("memory", [EchoState(40), LinearAutoencoder(20)], ids=["random", "autoencoder"])
def test_a_classifier_of_an_untrained_memory_learns_what_is_far_back(memory):
    """Which of two signals began a sequence of noise, ten steps ago."""
    rng = np.random.default_rng(0)
    labels = np.arange(120) % 2
    x = [0.1 * rng.normal(size=(10, 2)) for _ in labels]
    for sequence, label in zip(x, labels, strict=True):
        sequence[0, label] += 2
    model = baselines.memory_classifier(memory, x[:80]).fit(x[:80], labels[:80])
    assert model.score(x[80:], labels[80:]) > 0.9
