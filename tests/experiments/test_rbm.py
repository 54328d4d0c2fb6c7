"""The RNN-RBM: its gradient, its samples and its likelihood against what can be counted out."""

import json
import math
from itertools import product

import pytest
import torch

from linmem.datasets import piano_rolls
from linmem.experiments import rbm
from linmem.experiments.batches import next_frames
from linmem.experiments.rbm import Rbm, RnnRbm, estimated_nats
from linmem.experiments.training import Settings, evaluate, train

KEYS, HIDDEN = 5, 4


@pytest.fixture(scope="module")
def parts():
    return piano_rolls.split(piano_rolls.synthetic(pieces=30))


def machine(rows=1, seed=0, scale=1.0):
    """Machines with strong connections, so that keys depend on each other."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((HIDDEN, KEYS), (rows, KEYS), (rows, HIDDEN))
    weight, b_v, b_h = (torch.randn(shape, generator=generator) for shape in shapes)
    return Rbm(scale * weight, b_v, b_h)


def every(units):
    return torch.tensor(list(product([0.0, 1.0], repeat=units)))


def exact_log_partition(machines):
    """Sum over all hidden units, the keys being summed in closed form."""
    h = every(machines.weight.shape[0])  # (2^hidden, hidden)
    given = torch.nn.functional.softplus(machines.b_v[:, None] + h @ machines.weight).sum(-1)
    return (machines.b_h @ h.T + given).double().logsumexp(-1)


def exact_probabilities(machines):
    """Return those of all frames, one machine, in the order of `every`."""
    v, h = every(KEYS), every(HIDDEN)
    energy = (v @ machines.b_v[0])[:, None] + (h @ machines.b_h[0])[None] + v @ machines.weight.T @ h.T
    return energy.double().flatten().softmax(0).view(len(v), len(h)).sum(1)


def test_free_energies_are_the_logarithms_of_probabilities():
    machines = machine()
    log_p = -machines.free_energy(every(KEYS)).double() - exact_log_partition(machines)
    torch.testing.assert_close(log_p.exp(), exact_probabilities(machines), rtol=1e-5, atol=1e-8)


def test_samples_are_distributed_as_the_machine_says():
    n = 40_000
    machines = machine()
    many = Rbm(machines.weight, machines.b_v.expand(n, -1), machines.b_h.expand(n, -1))
    p, v = many.gibbs(torch.zeros(n, KEYS), 60, torch.Generator().manual_seed(0))
    assert p.shape == v.shape == (n, KEYS)
    exact = exact_probabilities(machines)
    place = (v * 2 ** torch.arange(KEYS - 1, -1, -1.0)).sum(-1).long()
    share = torch.bincount(place, minlength=2**KEYS).double() / n
    assert ((share - exact).abs() < 5 * (exact * (1 - exact) / n).sqrt() + 1e-9).all()
    marginals = exact @ every(KEYS).double()
    torch.testing.assert_close(p.double().mean(0), marginals, rtol=0, atol=5 * 0.5 / math.sqrt(n))


def test_the_gradient_of_the_free_energy_is_the_known_one():
    model = RnnRbm(KEYS, HIDDEN, 3)
    u, v = torch.randn(7, 3), torch.randint(2, (7, KEYS)).float()
    model.machines(u).free_energy(v).sum().backward()
    on = (model.to_hidden(u) + v @ model.weight.T).sigmoid().detach()
    torch.testing.assert_close(model.weight.grad, -on.T @ v)
    torch.testing.assert_close(model.readout.bias.grad, -v.sum(0))
    torch.testing.assert_close(model.readout.weight.grad, -v.T @ u)
    torch.testing.assert_close(model.to_hidden.bias.grad, -on.sum(0))
    torch.testing.assert_close(model.to_hidden.weight.grad, -on.T @ u)


def test_long_chains_give_the_gradient_of_the_likelihood_through_time():
    """One piece, many times over: the mean gradient of CD-40 is that of the exact likelihood, for every parameter."""

    def gradients(steps):
        model.steps = steps
        loss, _ = model.loss(next_frames([piece] * 20_000))
        assert loss.shape == (len(piece) - 1, 20_000)
        return torch.autograd.grad(loss.mean(1).sum(), list(model.parameters()))

    torch.manual_seed(0)
    model = RnnRbm(KEYS, HIDDEN, 3)
    with torch.no_grad():
        model.weight.copy_(machine().weight)
    piece = torch.randint(2, (4, KEYS)).float()
    machines = model.machines(model.layer(piece[:-1])[0])
    likelihood = (machines.free_energy(piece[1:]) + exact_log_partition(machines)).sum()
    exact = torch.autograd.grad(likelihood, list(model.parameters()))
    long = gradients(40)
    for (name, _), ours, theirs in zip(model.named_parameters(), long, exact, strict=True):
        assert (ours - theirs).norm() < 0.04 * theirs.norm(), name

    def distance(ours):
        return math.sqrt(sum(float((a - b).square().sum()) for a, b in zip(ours, exact, strict=True)))

    assert distance(gradients(1)) > 5 * distance(long), "short chains have another gradient"


@pytest.mark.parametrize("scale", [0.0, 0.5, 1.0])
def test_annealing_finds_the_partition_function(scale):
    machines = machine(rows=6, scale=scale)
    estimate = machines.log_partition(50, 100, torch.Generator().manual_seed(0))
    tolerance = 1e-5 if scale == 0 else 0.1
    torch.testing.assert_close(estimate, exact_log_partition(machines), rtol=0, atol=tolerance)


def test_annealing_in_few_steps_is_too_low_rather_than_too_high():
    machines = machine(rows=200, scale=2.0)
    one = machines.log_partition(1, 3, torch.Generator().manual_seed(0))
    assert float((one - exact_log_partition(machines)).mean()) < -0.05


def test_without_weights_it_predicts_as_its_readout_does(parts):
    model = RnnRbm(88, 20, 10, steps=1, chains=1).start_at_frequencies(parts.train)
    with torch.no_grad():
        model.weight.zero_()
        x = next_frames(list(parts.valid)).x
        logits, _ = model(x)
        expected = model.readout(model.layer(x)[0])
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)


def test_predictions_are_the_probabilities_of_single_keys():
    torch.manual_seed(0)
    rows, model = 3000, RnnRbm(KEYS, HIDDEN, 3, steps=40, chains=4)
    with torch.no_grad():
        model.weight.copy_(machine().weight)
        x = torch.randint(2, (1, 1, KEYS)).float()
        logits, _ = model(x.expand(1, rows, KEYS))
        expected = exact_probabilities(model.machines(model.layer(x)[0][0])) @ every(KEYS).double()
    mean = logits.sigmoid().double().mean((0, 1))
    torch.testing.assert_close(mean, expected, rtol=0, atol=5 * 0.5 / math.sqrt(4 * rows))
    spread = float(logits.sigmoid().std(1).max())
    assert 0.05 < spread < 0.5 / math.sqrt(4) + 0.02, "a row is the mean of four chains of its own"


def test_the_estimated_likelihood_is_that_which_can_be_counted_out():
    torch.manual_seed(0)
    model = RnnRbm(KEYS, HIDDEN, 3)
    with torch.no_grad():
        model.weight.copy_(machine().weight)
        rolls = [torch.randint(2, (length, KEYS)).numpy() for length in (2, 9)]
        total = 0.0
        for roll in rolls:
            frames = torch.as_tensor(roll).float()
            machines = model.machines(model.layer(frames[:-1])[0])
            total += float((machines.free_energy(frames[1:]) + exact_log_partition(machines)).sum())
    assert estimated_nats(model, rolls, chains=50, temperatures=100) == pytest.approx(total / 9, abs=0.1)


def test_contrastive_divergence_learns_chords(parts):
    """Likelihood and single keys both improve, and what a step of the chain gives back comes nearer to the frame."""

    def errors(model):
        u, _ = model.layer(batch.x)
        v = batch.y[batch.mask]
        p, _ = model.machines(u[batch.mask]).gibbs(v, 1, torch.Generator().manual_seed(0))
        return float((p - v).abs().sum(-1).mean())

    torch.manual_seed(0)
    model = RnnRbm(88, 10, 20, steps=3, chains=3).start_at_frequencies(parts.train)
    batch = next_frames(list(parts.valid))
    with torch.no_grad():
        before = estimated_nats(model, parts.valid, chains=3, temperatures=20), errors(model)
    run = train(model, parts.train, parts.valid, Settings(epochs=15, batch_size=2, learning_rate=1e-2))
    assert run.best["nats"].valid_nats < run.epochs[0].valid_nats - 1
    with torch.no_grad():
        after = estimated_nats(model, parts.valid, chains=3, temperatures=20), errors(model)
    assert after[0] < before[0] - 1
    assert after[1] < before[1] - 0.5


def test_padding_and_what_is_in_it_count_nowhere():
    torch.manual_seed(0)
    model = RnnRbm(KEYS, HIDDEN, 3)
    batch = next_frames([torch.randint(2, (length, KEYS)).numpy() for length in (6, 3)])
    more = batch._replace(**{name: torch.cat([getattr(batch, name), torch.ones(4, 2, KEYS)]) for name in ("x", "y")})
    torch.manual_seed(1)
    loss, _ = model.loss(batch)
    torch.manual_seed(1)
    padded, _ = model.loss(more)
    assert torch.equal(padded[: len(loss)], loss)
    assert not padded[~more.mask].any()
    assert (loss[batch.mask] != 0).any()


def test_the_same_seed_gives_the_same_bits_also_in_two_parts(parts, tmp_path):
    def weights(epochs=4, seed=0, folder=None):
        torch.manual_seed(seed)
        model = RnnRbm(88, 10, 5, steps=2, chains=2)

        def report(epoch):
            if epoch.number == epochs:
                raise InterruptedError

        settings = Settings(epochs=4, batch_size=8, learning_rate=1e-2)
        run = train(model, parts.train, parts.valid, settings, report=report, folder=folder)
        return torch.cat([value.flatten() for value in run.states["nats"].values()])

    def finished(**options):
        return weights(epochs=-1, **options)

    with pytest.raises(InterruptedError):
        weights(2, folder=tmp_path)
    assert torch.equal(finished(folder=tmp_path), finished())
    assert not torch.equal(finished(), finished(seed=1))


def test_predictions_are_the_same_each_time_and_leave_the_generator_alone(parts):
    model = RnnRbm(88, 10, 5, steps=2, chains=2)
    state = torch.get_rng_state()
    assert evaluate(model, parts.valid).nats == evaluate(model, parts.valid).nats
    assert torch.equal(torch.get_rng_state(), state)


def test_sizes_that_are_none_are_refused():
    with pytest.raises(ValueError, match="steps=0: expected at least 1"):
        RnnRbm(88, 10, 5, steps=0)


def test_the_program_writes_what_it_prints(parts, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(piano_rolls, "load", lambda name, data: parts)
    sizes = "--hidden 5 --recurrent 4 --steps 1 --chains 2 --epochs 1 --likelihood 1"
    rbm.main([*sizes.split(), "--out", str(tmp_path)])
    printed = capsys.readouterr().out
    record = json.loads((tmp_path / "rbm.json").read_text())
    assert list(record["results"]) == [line.split(":")[0] for line in printed.splitlines()]
    repeated = record["results"]["repeat the frame"]
    assert repeated["at .5"] == repeated["at cut"] > 0.5
    assert (tmp_path / "checkpoint.safetensors").exists()
