"""Metrics against their definitions, written out a second time with loops."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from linmem.experiments import metrics
from linmem.experiments.metrics import CUTS, RollMetrics


def drawn(seed: int, frames: int, keys: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(frames, keys, generator=generator)
    return logits, torch.rand(frames, keys, generator=generator) < logits.sigmoid()


def by_hand(logits: torch.Tensor, target: torch.Tensor, cut: float) -> dict[str, float]:
    tp = fp = fn = 0
    ratios, nats, hits, union = [], [], 0.0, 0.0
    for frame, sounds in zip(logits.tolist(), target.tolist(), strict=True):
        a = b = c = 0
        total = 0.0
        for x, y in zip(frame, sounds, strict=True):
            p = 1 / (1 + math.exp(-x))
            a, b, c = a + (p > cut and y), b + (p > cut and not y), c + (p <= cut and y)
            total -= math.log(p if y else 1 - p)
            hits, union = hits + p * y, union + p + y - p * y
        tp, fp, fn = tp + a, fp + b, fn + c
        ratios.append(a / (a + b + c) if a + b + c else 1.0)
        nats.append(total)
    return {
        "pooled": tp / max(1, tp + fp + fn),
        "per_frame": float(np.mean(ratios)),
        "precision": tp / max(1, tp + fp),
        "recall": tp / max(1, tp + fn),
        "f1": 2 * tp / max(1, 2 * tp + fp + fn),
        "nats": float(np.mean(nats)),
        "expected": hits / union,
    }


@given(seed=st.integers(0, 2**31), frames=st.integers(1, 30), cut=st.sampled_from(CUTS))
def test_scores_of_rolls_follow_their_definitions(seed, frames, cut):
    logits, target = drawn(seed, frames)
    scores = RollMetrics(cuts=(cut,))
    scores.update(logits, target)
    actual = {name: getattr(scores, name)(cut) for name in ("pooled", "per_frame", "precision", "recall", "f1")}
    actual |= {"nats": scores.nats, "expected": scores.expected}
    expected = by_hand(logits, target, cut)
    assert actual == pytest.approx(expected, rel=1e-5)


@given(seed=st.integers(0, 2**31), at=st.integers(0, 20))
def test_batches_add_up_to_the_whole_and_masked_frames_do_not_exist(seed, at):
    logits, target = drawn(seed, 20)
    whole, parts, masked = RollMetrics((0.3, 0.5)), RollMetrics((0.3, 0.5)), RollMetrics((0.3, 0.5))
    whole.update(logits[:at], target[:at])
    whole.update(logits[at:], target[at:])
    parts.update(logits, target)
    keep = torch.arange(40).reshape(20, 2) % 2 == 0
    noise = torch.full_like(logits, torch.nan)
    masked.update(torch.stack([logits, noise], 1), torch.stack([target, ~target], 1), keep)
    for other in (parts, masked):
        assert other.frames == whole.frames == 20
        assert other.counts(0.3) == whole.counts(0.3)
        for cut in (0.3, 0.5):
            assert other.per_frame(cut) == pytest.approx(whole.per_frame(cut), rel=1e-12)
        assert other.nats == pytest.approx(whole.nats, rel=1e-6)
        assert other.expected == pytest.approx(whole.expected, rel=1e-9)


def test_the_best_cut_is_the_best_of_all():
    logits, target = drawn(0, 500)
    scores = RollMetrics()
    scores.update(logits, target)
    accuracy = [by_hand(logits, target, cut)["pooled"] for cut in CUTS]
    assert scores.best_cut() == CUTS[int(np.argmax(accuracy))]


def test_a_cut_given_twice_counts_once():
    logits, target = drawn(1, 50)
    once, twice = RollMetrics((0.5,)), RollMetrics((0.5, 0.5))
    for scores in (once, twice):
        scores.update(logits, target)
    assert once.per_frame(0.5) == twice.per_frame(0.5)


def test_a_certain_model_has_no_loss_where_it_is_right_and_any_loss_where_it_is_wrong():
    target = torch.tensor([[True, False]])
    right, wrong = RollMetrics(), RollMetrics()
    right.update(torch.tensor([[torch.inf, -torch.inf]]), target)
    wrong.update(torch.tensor([[torch.inf, torch.inf]]), target)
    assert (right.nats, right.pooled(), right.expected) == (0.0, 1.0, 1.0)
    assert (wrong.nats, wrong.pooled(), wrong.expected) == (math.inf, 0.5, 0.5)


def test_silence_predicted_as_silence_is_right_and_counts_in_no_sum():
    scores = RollMetrics()
    scores.update(torch.full((3, 4), -5.0), torch.zeros(3, 4, dtype=torch.bool))
    assert (scores.per_frame(), scores.pooled(), scores.f1()) == (1.0, 0.0, 0.0)


def test_bad_calls_are_refused():
    scores = RollMetrics()
    with pytest.raises(ValueError, match="no frames were counted yet"):
        _ = scores.nats
    with pytest.raises(ValueError, match=r"logits are \(3, 4\), target \(3, 5\): expected the same shape"):
        scores.update(torch.zeros(3, 4), torch.zeros(3, 5))
    with pytest.raises(ValueError, match=r"mask is \(4,\): expected \(3,\), as the frames"):
        scores.update(torch.zeros(3, 4), torch.zeros(3, 4), torch.ones(4))
    with pytest.raises(ValueError, match="logits contain NaN"):
        scores.update(torch.full((3, 4), torch.nan), torch.zeros(3, 4))
    with pytest.raises(ValueError, match=r"cut=0.333: expected one of 0.01, 0.02, …, 0.99"):
        scores.pooled(0.333)
    with pytest.raises(ValueError, match=r"cut=0.3: expected one of cuts=\(0.5,\)"):
        scores.per_frame(0.3)


def test_nmse_is_the_error_over_the_variance():
    generator = np.random.default_rng(0)
    y, p = generator.normal(size=(7, 3)), generator.normal(size=(7, 3))
    expected = ((y - p) ** 2).mean() / y.var()
    assert metrics.nmse(torch.tensor(p), torch.tensor(y)) == pytest.approx(expected, rel=1e-12)
    mask = torch.arange(7) < 5
    expected = ((y[:5] - p[:5]) ** 2).mean() / y[:5].var()
    assert metrics.nmse(torch.tensor(p), torch.tensor(y), mask) == pytest.approx(expected, rel=1e-12)
    with pytest.raises(ValueError, match="mask leaves nothing"):
        metrics.nmse(torch.zeros(3), torch.arange(3.0), torch.zeros(3))
    with pytest.raises(ValueError, match=r"mask is \(4,\): expected the first dimensions of \(3,\)"):
        metrics.nmse(torch.zeros(3), torch.arange(3.0), torch.ones(4))
    with pytest.raises(ValueError, match="target is constant"):
        metrics.nmse(torch.zeros(3), torch.ones(3))
    with pytest.raises(ValueError, match=r"prediction is \(3,\), target \(4,\)"):
        metrics.nmse(torch.zeros(3), torch.ones(4))


def test_accuracy_is_the_share_of_largest_scores():
    scores = torch.tensor([[3.0, 1, 2], [0, 1, 2], [0, 5, 2], [1, 0, 0]])
    assert metrics.accuracy(scores, torch.tensor([0, 2, 2, 1])) == 0.5
    with pytest.raises(ValueError, match="scores contain NaN"):
        metrics.accuracy(torch.tensor([[torch.nan, 1.0]]), torch.tensor([0]))
    with pytest.raises(ValueError, match=r"expected \(N, C\) and \(N,\)"):
        metrics.accuracy(scores, torch.tensor([0]))


def test_spread_is_that_of_a_sample():
    assert metrics.spread([2.0, 4.0, 4.0, 6.0]) == (4.0, pytest.approx(np.sqrt(8 / 3)), 4)
    assert np.isnan(metrics.spread([2.0]).deviation)
    assert str(metrics.spread([2.0])) == "2 (1 seed)"
    with pytest.raises(ValueError, match="expected a figure for each seed"):
        metrics.spread([])


def test_the_interval_of_a_difference_covers_it_about_as_often_as_it_says():
    rng, hits = np.random.default_rng(0), 0
    for trial in range(200):
        common = rng.normal(0, 10, 20)  # what both have of a seed, and pairing removes
        difference = metrics.paired_difference(common + rng.normal(1, 1, 20), common, seed=trial)
        assert difference.low <= difference.mean <= difference.high
        assert difference.high - difference.low < 3
        hits += difference.low <= 1 <= difference.high
    assert 175 <= hits <= 199, f"an interval of 95 % held the truth in {hits} of 200 cases"


def test_the_bootstrap_follows_its_seed_and_needs_pairs():
    a, b = np.arange(5.0), np.array([0.0, 2, 1, 5, 3])
    assert metrics.paired_difference(a, b, seed=1) == metrics.paired_difference(a, b, seed=1)
    with pytest.raises(ValueError, match="confidence=95: expected a share"):
        metrics.paired_difference(a, b, confidence=95)
    with pytest.raises(ValueError, match="differ by NaN or inf"):
        metrics.paired_difference(a, b * np.nan)
    with pytest.raises(ValueError, match="expected the same two or more seeds"):
        metrics.paired_difference([1.0], [2.0])
    with pytest.raises(ValueError, match="expected the same two or more seeds"):
        metrics.paired_difference([1.0, 2.0], [2.0])
