"""How good predictions are: of piano rolls, of signals and of classes; and how sure one can be of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.nn.functional import softplus

#: Thresholds among which one is chosen on validation data.
CUTS = tuple(k / 100 for k in range(1, 100))

#: Draws of a bootstrap.
RESAMPLES = 10_000


class RollMetrics:
    r"""Scores of predicted piano rolls, added up batch by batch.

    A key counts as predicted where its probability is above a threshold, the *cut*. With TP keys predicted and
    sounding, FP predicted in vain and FN missed, accuracy is TP / (TP + FP + FN): *pooled* takes the three sums over
    all frames (Bay et al., which the paper cites), *per frame* is the mean of the ratios of all frames, where a silent
    frame predicted as silent counts as 1. The first is several points below the second, and both depend more on the
    cut than on most models: so choose it on validation data with `best_cut`.

    Parameters
    ----------
    cuts
        Where `per_frame` will be asked for; the other scores are there for all `CUTS`.

    Examples
    --------
    >>> metrics = RollMetrics()
    >>> metrics.update(torch.tensor([[2.0, -3.0, 1.0]]), torch.tensor([[True, False, False]]))
    >>> metrics.pooled(0.5), metrics.pooled(0.8)
    (0.5, 1.0)
    """

    def __init__(self, cuts: Sequence[float] = (0.5,)) -> None:
        for cut in cuts:
            _place(cut)
        self.cuts = tuple(dict.fromkeys(cuts))
        self.frames = 0
        self._nats = 0.0
        self._expected_hits = self._expected_union = 0.0
        self._ratios = dict.fromkeys(self.cuts, 0.0)
        # How many notes, and how many silent keys, have a probability between one cut and the next.
        self._notes = torch.zeros(len(CUTS) + 1, dtype=torch.int64)
        self._rests = torch.zeros(len(CUTS) + 1, dtype=torch.int64)

    @torch.no_grad()
    def update(self, logits: Tensor, target: Tensor, mask: Tensor | None = None) -> None:
        """Count some frames.

        Parameters
        ----------
        logits
            (..., keys); infinite where a model is certain.
        target
            (..., keys): which keys sound.
        mask
            (...): which frames count; all by default.
        """
        if logits.shape != target.shape:
            raise ValueError(f"logits are {tuple(logits.shape)}, target {tuple(target.shape)}: expected the same shape")
        if mask is not None and mask.shape != logits.shape[:-1]:
            raise ValueError(f"mask is {tuple(mask.shape)}: expected {tuple(logits.shape[:-1])}, as the frames")
        keys = logits.shape[-1]
        every = slice(None) if mask is None else mask.bool()
        logits, sounds = logits[every].reshape(-1, keys), target[every].reshape(-1, keys) > 0.5
        if logits.isnan().any():
            raise ValueError("logits contain NaN: expected numbers")
        p = logits.double().sigmoid()
        self.frames += len(p)
        # This form of the cross-entropy is finite, and zero, where a certain model is right.
        self._nats += float(softplus(torch.where(sounds, -logits, logits)).double().sum())
        hits = float((p * sounds).sum())
        self._expected_hits += hits
        self._expected_union += float(p.sum() + sounds.sum()) - hits
        above = torch.bucketize(p, torch.tensor(CUTS, dtype=p.dtype, device=p.device))  # how many cuts are below p
        self._notes += torch.bincount(above[sounds], minlength=len(CUTS) + 1).cpu()
        self._rests += torch.bincount(above[~sounds], minlength=len(CUTS) + 1).cpu()
        for cut in self.cuts:
            predicted = p > cut
            both, either = (predicted & sounds).sum(1), (predicted | sounds).sum(1)
            self._ratios[cut] += float(torch.where(either > 0, both.double() / either, 1.0).sum())

    @property
    def nats(self) -> float:
        """Negative log-likelihood of a frame, all keys together."""
        return self._nats / self._counted()

    @property
    def expected(self) -> float:
        """Pooled accuracy of notes drawn from the probabilities: a ratio of expectations, without any cut."""
        return self._expected_hits / self._expected_union if self._expected_union else 0.0

    def _counted(self) -> int:
        if self.frames == 0:
            raise ValueError("no frames were counted yet: expected a call of update before")
        return self.frames

    def counts(self, cut: float) -> tuple[int, int, int]:
        """Return how many notes were hit, predicted in vain and missed (TP, FP, FN)."""
        place = _place(cut) + 1
        hits = int(self._notes[place:].sum())
        return hits, int(self._rests[place:].sum()), int(self._notes.sum()) - hits

    def pooled(self, cut: float = 0.5) -> float:
        """Return TP / (TP + FP + FN) over all frames."""
        hits, false, missed = self.counts(cut)
        return hits / max(1, hits + false + missed)

    def per_frame(self, cut: float = 0.5) -> float:
        """Return the mean over frames of the same ratio."""
        if cut not in self._ratios:
            raise ValueError(f"cut={cut}: expected one of cuts={self.cuts}, which were counted")
        return self._ratios[cut] / self._counted()

    def precision(self, cut: float = 0.5) -> float:
        """Return the share of predicted notes that sound."""
        hits, false, _ = self.counts(cut)
        return hits / max(1, hits + false)

    def recall(self, cut: float = 0.5) -> float:
        """Return the share of sounding notes that were predicted."""
        hits, _, missed = self.counts(cut)
        return hits / max(1, hits + missed)

    def f1(self, cut: float = 0.5) -> float:
        """Return the harmonic mean of precision and recall."""
        hits, false, missed = self.counts(cut)
        return 2 * hits / max(1, 2 * hits + false + missed)

    def best_cut(self) -> float:
        """Return the cut with the best pooled accuracy. On validation data: on test data it would be cheating."""
        return max(CUTS, key=self.pooled)


def _place(cut: float) -> int:
    if cut not in CUTS:
        raise ValueError(f"cut={cut}: expected one of {CUTS[0]}, {CUTS[1]}, …, {CUTS[-1]}")
    return CUTS.index(cut)


def nmse(prediction: Tensor, target: Tensor, mask: Tensor | None = None) -> float:
    """Return the mean squared error over the variance of the target, both over everything that counts.

    Examples
    --------
    >>> nmse(torch.zeros(4), torch.tensor([1.0, -1.0, 1.0, -1.0]))
    1.0
    """
    if prediction.shape != target.shape:
        raise ValueError(f"prediction is {tuple(prediction.shape)}, target {tuple(target.shape)}: expected the same")
    if mask is not None and mask.shape != target.shape[: mask.ndim]:
        raise ValueError(f"mask is {tuple(mask.shape)}: expected the first dimensions of {tuple(target.shape)}")
    every = slice(None) if mask is None else mask.bool()
    p, y = prediction.detach()[every].double(), target[every].double()
    if y.numel() == 0:
        raise ValueError("mask leaves nothing: expected something to compare")
    variance = float(y.var(correction=0))
    if variance == 0:
        raise ValueError("target is constant: expected some variance to relate the error to")
    return float((p - y).square().mean()) / variance


def accuracy(scores: Tensor, labels: Tensor) -> float:
    """Return the share of rows whose largest score is that of their label.

    Examples
    --------
    >>> accuracy(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1]))
    0.5
    """
    if scores.ndim != 2 or labels.shape != scores.shape[:1] or len(scores) == 0:
        raise ValueError(f"scores are {tuple(scores.shape)}, labels {tuple(labels.shape)}: expected (N, C) and (N,)")
    if scores.isnan().any():
        raise ValueError("scores contain NaN: expected numbers")
    return float((scores.argmax(1) == labels).double().mean())


class Spread(NamedTuple):
    """Mean and standard deviation (of the sample) of a figure over seeds; one seed has no deviation, which is NaN."""

    mean: float
    deviation: float
    seeds: int

    def __str__(self) -> str:
        if self.seeds == 1:
            return f"{self.mean:.4g} (1 seed)"
        return f"{self.mean:.4g} ± {self.deviation:.2g} ({self.seeds} seeds)"


def spread(values: ArrayLike) -> Spread:
    """Return mean and deviation.

    Examples
    --------
    >>> print(spread([1.0, 2.0, 3.0]))
    2 ± 1 (3 seeds)
    """
    v = np.asarray(values, dtype=np.float64)
    if v.ndim != 1 or len(v) == 0:
        raise ValueError(f"values have shape {v.shape}: expected a figure for each seed")
    return Spread(float(v.mean()), float(v.std(ddof=1)) if len(v) > 1 else float("nan"), len(v))


class Difference(NamedTuple):
    """How much larger one figure is than another, and an interval that holds the truth with some confidence."""

    mean: float
    low: float
    high: float
    seeds: int

    def __str__(self) -> str:
        return f"{self.mean:+.4g} [{self.low:+.4g}, {self.high:+.4g}] ({self.seeds} seeds)"


def paired_difference(ours: ArrayLike, theirs: ArrayLike, confidence: float = 0.95, seed: int = 0) -> Difference:
    """Return the mean difference of figures that belong together seed by seed, with a bootstrap interval.

    Seeds are drawn with replacement and both figures of a seed stay together (percentile method). With a handful of
    seeds such an interval is too short rather than too long.

    Examples
    --------
    >>> print(paired_difference([3.0, 4.0, 6.0], [1.0, 3.0, 3.0]))
    +2 [+1, +3] (3 seeds)
    """
    a, b = np.asarray(ours, dtype=np.float64), np.asarray(theirs, dtype=np.float64)
    if a.shape != b.shape or a.ndim != 1 or len(a) < 2:
        raise ValueError(f"ours and theirs have shapes {a.shape} and {b.shape}: expected the same two or more seeds")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence}: expected a share, such as .95")
    d = a - b
    if not np.isfinite(d).all():
        raise ValueError("ours and theirs differ by NaN or inf: expected finite figures")
    drawn = np.random.default_rng(seed).integers(len(d), size=(RESAMPLES, len(d)))
    low, high = np.quantile(d[drawn].mean(1), [(1 - confidence) / 2, (1 + confidence) / 2])
    return Difference(float(d.mean()), float(low), float(high), len(d))
