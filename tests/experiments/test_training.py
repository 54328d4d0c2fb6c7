"""The training loop learns, stops, keeps the best, and does the same again from the same seed."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import linmem
from linmem.datasets import piano_rolls
from linmem.experiments import training
from linmem.experiments.training import DivergedError, NextFrame, Settings, evaluate, train

QUICK = Settings(epochs=4, batch_size=8, learning_rate=1e-2)


@pytest.fixture(scope="module")
def parts():
    return piano_rolls.split(piano_rolls.synthetic(pieces=40))


def model(parts, layer=None):
    torch.manual_seed(0)
    layer = linmem.LMN(88, 10, memory_size=12) if layer is None else layer
    return NextFrame(layer).start_at_frequencies(parts.train)


LAYERS = {
    "LMN": lambda: linmem.LMN(88, 10),
    "MultiScaleLMN": lambda: linmem.MultiScaleLMN(88, 10, num_modules=2),
    "UnrolledRNN": lambda: linmem.UnrolledRNN(88, 10, order=3),
    "nn.LSTM": lambda: nn.LSTM(88, 10),
    "nn.RNN": lambda: nn.RNN(88, 10),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("chunk", [None, 15])
def test_every_kind_of_layer_learns(name, chunk, parts):
    torch.manual_seed(0)
    m = model(parts, LAYERS[name]())
    run = train(m, parts.train, parts.valid, Settings(epochs=10, batch_size=2, learning_rate=1e-2, chunk=chunk))
    assert [epoch.number for epoch in run.epochs] == list(range(11))
    assert run.best["nats"].valid_nats < run.epochs[0].valid_nats - 1
    assert evaluate(m, parts.valid).nats == pytest.approx(run.best["nats"].valid_nats, rel=1e-5)


def test_the_same_seed_gives_the_same_bits_and_another_does_not(parts):
    def weights(seed):
        m = model(parts)
        train(m, parts.train, parts.valid, Settings(epochs=2, batch_size=2, learning_rate=1e-2, seed=seed))
        return torch.cat([p.detach().flatten() for p in m.parameters()])

    one, two, other = weights(0), weights(0), weights(1)
    assert torch.equal(one, two)
    assert not torch.equal(one, other)


def test_it_stops_when_neither_quantity_improves_any_more(parts, monkeypatch):
    """Likelihood is best at epoch 1, accuracy at epoch 3; with a patience of 2 that makes 5."""
    scripted = iter([(9, 0.1), (5, 0.2), (6, 0.2), (7, 0.3), (8, 0.3), (9, 0.3), (1, 0.9)])

    class Scores:
        def __init__(self):
            self.nats, self.accuracy = next(scripted)

        def pooled(self):
            return self.accuracy

    monkeypatch.setattr(training, "evaluate", lambda *_: Scores())
    m = model(parts)
    run = train(m, parts.train, parts.valid, Settings(epochs=50, patience=2), select="accuracy")
    assert run.trained == 5
    assert (run.best["nats"].number, run.best["accuracy"].number) == (1, 3)
    assert all(torch.equal(value, run.states["accuracy"][name]) for name, value in m.state_dict().items())
    assert not torch.equal(run.states["nats"]["readout.bias"], run.states["accuracy"]["readout.bias"])


def test_a_start_that_is_the_best_is_kept(parts):
    m = model(parts)
    train(m, parts.train, parts.valid, Settings(epochs=10, batch_size=8, learning_rate=1e-2))
    before = {name: value.clone() for name, value in m.state_dict().items()}
    run = train(m, parts.train, parts.valid, Settings(epochs=2, learning_rate=0.2))
    assert run.best["nats"].number == 0
    assert all(torch.equal(value, before[name]) for name, value in m.state_dict().items())


def test_padding_counts_nowhere(parts):
    """The loss of a batch is that of its pieces one by one."""
    m = model(parts)
    together = evaluate(m, parts.valid)
    alone = [evaluate(m, parts.valid[i : i + 1]) for i in range(len(parts.valid))]
    frames = [scores.frames for scores in alone]
    assert together.frames == sum(frames)
    assert together.nats == pytest.approx(np.average([s.nats for s in alone], weights=frames), rel=1e-6)
    run = train(model(parts), parts.train, parts.valid, Settings(epochs=1, learning_rate=0.0, batch_size=3))
    assert run.epochs[1].train_nats == pytest.approx(evaluate(model(parts), parts.train).nats, rel=1e-5)


def test_a_loss_that_is_no_number_says_so(parts):
    m = model(parts)
    with torch.no_grad():
        m.readout.weight[0, 0] = math.nan
    with pytest.raises(ValueError, match="logits contain NaN"):
        train(m, parts.train, parts.valid, QUICK)
    batch = next(iter(training.next_frame_batches(parts.train, 4)))
    with pytest.raises(DivergedError, match="the loss became nan: expected a number"):
        training.train_batch(m, batch, torch.optim.SGD(m.parameters(), lr=0.1), QUICK)


def test_gradients_are_clipped(parts):
    m = model(parts)
    batch = next(iter(training.next_frame_batches(parts.train, 4)))
    before = torch.cat([p.detach().flatten() for p in m.parameters()])
    training.train_batch(m, batch, torch.optim.SGD(m.parameters(), lr=1.0), Settings(clip=1e-3))
    after = torch.cat([p.detach().flatten() for p in m.parameters()])
    assert float((after - before).norm()) == pytest.approx(1e-3, rel=1e-3)


def test_a_layer_that_is_none_is_refused():
    with pytest.raises(TypeError, match="layer should be a recurrent layer of linmem or torch, got: Linear"):
        NextFrame(nn.Linear(88, 10))
