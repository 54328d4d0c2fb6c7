"""Controls: simple models that a memory has to beat to have shown anything. They belong into every table.

Models of rolls have ``fit(rolls)`` and ``logits(roll)``, which predicts frame t + 1 from the frames up to t.
Memories have ``fit`` and ``transform``, as :class:`linmem.LinearAutoencoder` has. Models of words are scikit-learn
classifiers of lists of sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import logit
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from linmem import LinearAutoencoder
from linmem.experiments.metrics import RollMetrics

Rolls = Sequence[NDArray[Any]]


class RollModel(Protocol):
    """What predicts the next frame of a roll."""

    def fit(self, rolls: Rolls) -> Self:
        """Learn from rolls."""
        ...

    def logits(self, roll: NDArray[Any]) -> NDArray[Any]:
        """Return (T - 1, keys): what follows each frame but the last, whose successor is not known."""
        ...


class Memory(Protocol):
    """What turns sequences into sequences of codes."""

    def fit(self, sequences: list[NDArray[Any]]) -> Any:
        """Learn from sequences."""
        ...

    def transform(self, sequences: list[NDArray[Any]]) -> list[NDArray[Any]]:
        """Return the memory after every frame."""
        ...


def evaluate(model: RollModel, rolls: Rolls, cuts: Sequence[float] = (0.5,)) -> RollMetrics:
    """Score a model on rolls.

    Examples
    --------
    >>> from linmem.datasets import piano_rolls
    >>> rolls = piano_rolls.synthetic()
    >>> round(evaluate(RepeatFrame().fit(rolls[:40]), rolls[40:]).pooled(), 2)
    0.61
    """
    metrics = RollMetrics(cuts)
    for roll in rolls:
        metrics.update(torch.as_tensor(model.logits(roll)), torch.as_tensor(roll[1:]))
    return metrics


# ------------------------------------------------------------------------------------------------- rolls


class RepeatFrame:
    """Says that every frame comes again, and is certain of it: its likelihood is zero."""

    def fit(self, rolls: Rolls) -> Self:
        """There is nothing to learn."""
        return self

    def logits(self, roll: NDArray[Any]) -> NDArray[Any]:
        """Return the frame before."""
        return certain(roll[:-1])


class FrequentChord:
    """Always says the chord that was most frequent in training; silence is none."""

    chord_: NDArray[np.bool_]

    def fit(self, rolls: Rolls) -> Self:
        """Count frames."""
        bits = np.concatenate([np.packbits(np.asarray(roll, dtype=bool), axis=1) for roll in rolls])
        sounding = bits[bits.any(1)]
        chords, counts = np.unique(sounding if len(sounding) else bits, axis=0, return_counts=True)
        keys = rolls[0].shape[1]
        self.chord_ = np.unpackbits(chords[counts.argmax()], count=keys).astype(bool)
        return self

    def logits(self, roll: NDArray[Any]) -> NDArray[Any]:
        """Return the same frame each time."""
        return np.repeat(certain(self.chord_)[None], len(roll) - 1, axis=0)


class KeyMarkov:
    """Knows of each key how often it sounds after it did, and after it did not."""

    logits_: NDArray[np.float64]
    """(2, keys): of a key that was silent, and of one that sounded."""

    def fit(self, rolls: Rolls) -> Self:
        """Count, from half a case of each kind on, so that nothing is impossible."""
        before = np.concatenate([roll[:-1] for roll in rolls]).astype(bool)
        after = np.concatenate([roll[1:] for roll in rolls]).astype(bool)
        rates = [((after & was).sum(0) + 0.5) / (was.sum(0) + 1) for was in (~before, before)]
        self.logits_ = logit(np.stack(rates))
        return self

    def logits(self, roll: NDArray[Any]) -> NDArray[Any]:
        """Look up every key."""
        silent, sounding = self.logits_
        known: NDArray[np.float64] = np.where(roll[:-1].astype(bool), sounding, silent)
        return known


class MemoryReadout:
    """A logistic regression of every key on a memory that is not trained for the task.

    Parameters
    ----------
    memory
        :class:`EchoState` or :class:`linmem.LinearAutoencoder`, for instance.
    l2
        Weight of the squared weights, beside the mean over frames of the summed cross-entropies.
    steps
        Steps of L-BFGS at most.
    """

    def __init__(self, memory: Memory, *, l2: float = 1e-4, steps: int = 100) -> None:
        self.memory, self.l2, self.steps = memory, l2, steps

    def fit(self, rolls: Rolls) -> Self:
        """Fit the memory, then the readout on its codes, which are scaled to unit deviation."""
        frames = [np.asarray(roll, dtype=np.float32) for roll in rolls]
        self.memory.fit(frames)
        codes = np.concatenate([code[:-1] for code in self.memory.transform(frames)]).astype(np.float32)
        target = torch.from_numpy(np.concatenate([frame[1:] for frame in frames]))
        deviation = codes.std(0)
        self._scale = np.where(deviation > 0, 1 / np.maximum(deviation, 1e-12), 0).astype(np.float32)
        self._readout = logistic(torch.from_numpy(codes * self._scale), target, self.l2, self.steps)
        return self

    @torch.no_grad()
    def logits(self, roll: NDArray[Any]) -> NDArray[Any]:
        """Read the memory after every frame."""
        (codes,) = self.memory.transform([np.asarray(roll, dtype=np.float32)])
        result: Tensor = self._readout(torch.from_numpy(codes[:-1].astype(np.float32) * self._scale))
        return result.numpy()


def certain(frames: NDArray[Any]) -> NDArray[np.float64]:
    """Return the logits of somebody without doubt."""
    return np.where(np.asarray(frames, dtype=bool), np.inf, -np.inf)


def logistic(x: Tensor, y: Tensor, l2: float, steps: int) -> nn.Linear:
    """Fit one logistic regression for each column of `y`, starting at the log-odds of its mean."""
    readout = nn.Linear(x.shape[1], y.shape[1])
    mean = y.mean(0).clamp(1e-4, 1 - 1e-4)
    with torch.no_grad():
        readout.weight.zero_()
        readout.bias.copy_(mean.logit())
    optimizer = torch.optim.LBFGS(readout.parameters(), max_iter=steps, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        fit = binary_cross_entropy_with_logits(readout(x), y, reduction="sum") / len(x)
        value = fit + l2 * readout.weight.square().sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    return readout.requires_grad_(False)


# ---------------------------------------------------------------------------------------------- memories


class EchoState:
    """A random recurrent network that is never trained: the memory that a designed one must beat.

    Parameters
    ----------
    n_components
        Units.
    radius
        Spectral radius of the recurrent weights.
    input_scale
        Input weights are uniform between plus and minus this, over the root mean square of the data.
    random_state
        Seed of the weights.

    Examples
    --------
    >>> codes = EchoState(20).fit([np.ones((5, 3))]).transform([np.ones((5, 3))])
    >>> codes[0].shape
    (5, 20)
    """

    def __init__(
        self, n_components: int, *, radius: float = 0.9, input_scale: float = 0.5, random_state: int = 0
    ) -> None:
        if n_components < 1 or not 0 < radius < 1:
            raise ValueError(f"n_components={n_components}, radius={radius}: expected at least 1, and 0 to 1")
        self.n_components, self.radius, self.input_scale = n_components, radius, input_scale
        self.random_state = random_state

    @torch.no_grad()
    def fit(self, sequences: list[NDArray[Any]]) -> Self:
        """Draw the weights; only their scale depends on the data."""
        frames = np.concatenate(sequences).astype(np.float64)
        size = float(np.sqrt(np.square(frames).sum(1).mean())) or 1.0
        rng, n = np.random.default_rng(self.random_state), self.n_components
        w = rng.standard_normal((n, n))
        w *= self.radius / np.abs(np.linalg.eigvals(w)).max()
        rnn = nn.RNN(frames.shape[1], n, bias=False, batch_first=True)
        bound = self.input_scale / size
        w_in = rng.uniform(-bound, bound, (n, frames.shape[1]))
        rnn.load_state_dict({"weight_ih_l0": torch.from_numpy(w_in), "weight_hh_l0": torch.from_numpy(w)})
        self._rnn = rnn.requires_grad_(False)
        return self

    @torch.no_grad()
    def transform(self, sequences: list[NDArray[Any]]) -> list[NDArray[Any]]:
        """Return the state after every frame."""
        return [self._rnn(torch.as_tensor(np.asarray(x, dtype=np.float32)))[0].numpy() for x in sequences]


# ------------------------------------------------------------------------------------------------- words

View = Literal["mean", "last", "resampled"]


def view_words(sequences: Sequence[NDArray[Any]], view: View, frames: int = 20) -> NDArray[np.float64]:
    """Return one vector for each sequence: its mean, its last frames, or frames at even distances.

    Examples
    --------
    >>> view_words([np.arange(5.0)[:, None]], "resampled", frames=3)
    array([[0., 2., 4.]])
    >>> view_words([np.arange(5.0)[:, None]], "last", frames=7)
    array([[0., 0., 0., 1., 2., 3., 4.]])
    """
    if view == "mean":
        return np.stack([x.mean(0) for x in sequences]).astype(np.float64)
    if view == "last":
        parts = [np.pad(x[-frames:], ((max(0, frames - len(x)), 0), (0, 0))) for x in sequences]
    elif view == "resampled":
        parts = [x[np.linspace(0, len(x) - 1, frames).round().astype(int)] for x in sequences]
    else:
        raise ValueError(f"view={view!r}: expected 'mean', 'last' or 'resampled'")
    return np.stack([part.ravel() for part in parts]).astype(np.float64)


def word_classifier(view: View, frames: int = 20) -> Pipeline:
    """Return a logistic regression that sees words without their order, or without their length."""
    see = FunctionTransformer(partial(view_words, view=view, frames=frames))
    return make_pipeline(see, StandardScaler(), LogisticRegression(max_iter=5000))


def last_codes(sequences: list[NDArray[Any]], memory: Memory) -> NDArray[np.float64]:
    """Return what a fitted memory holds after the last frame of each sequence."""
    return np.stack([code[-1] for code in memory.transform(sequences)]).astype(np.float64)


def memory_classifier(memory: EchoState | LinearAutoencoder, sequences: list[NDArray[Any]]) -> Pipeline:
    """Fit a memory to sequences, without their labels, and return a classifier of what it holds at their end."""
    memory.fit(sequences)
    see = FunctionTransformer(partial(last_codes, memory=memory))
    return make_pipeline(see, StandardScaler(), LogisticRegression(max_iter=5000))


def main() -> None:
    """Print what the controls without a memory reach on the published sets."""
    from linmem.datasets import piano_rolls

    print("pooled accuracy at .5, at the cut chosen on validation data, and nats, on the test sets")
    for name in piano_rolls.PUBLISHED:
        parts = piano_rolls.load(name)
        for model in (RepeatFrame(), FrequentChord(), KeyMarkov()):
            cut = evaluate(model.fit(parts.train), parts.valid).best_cut()
            scores = evaluate(model, parts.test)
            figures = f"{100 * scores.pooled():6.2f} {100 * scores.pooled(cut):6.2f} ({cut:.2f}) {scores.nats:7.3f}"
            print(f"{name:13} {type(model).__name__:14} {figures}")


if __name__ == "__main__":
    main()
