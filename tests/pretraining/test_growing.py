"""A MultiScale LMN grows by modules that encode, and nothing changes before its readout is fitted."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

import linmem
from linmem import LinearAutoencoder
from linmem.datasets import piano_rolls, waveforms
from linmem.pretraining.activations import hidden_sequences


def ragged(features=3, lengths=(30, 17, 25), seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(length, features, dtype=torch.float64, generator=generator) for length in lengths]


def outputs(layer, readout, sequences):
    return torch.cat([readout(layer(x[:, None])[0])[:, 0] for x in sequences])


def grown(layer, readout, sequences, **options):
    return linmem.add_memory_module(layer, readout, sequences, readout_fit=None, **options)


@pytest.mark.parametrize("kind", ["LMN", "MultiScaleLMN"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("layers", "bidirectional"), [(1, False), (2, False), (2, True)])
def test_nothing_changes_before_the_readout_is_fitted(kind, bias, layers, bidirectional):
    """Growing three times, a stack in both directions included."""
    torch.manual_seed(0)
    options = {"memory_size": 5, "bias": bias, "bidirectional": bidirectional, "dtype": torch.float64}
    layer = getattr(linmem, kind)(3, 4, layers, **options)
    readout = nn.Linear(layer.output_size, 2, bias=bias, dtype=torch.float64)
    sequences = ragged()
    expected = outputs(layer, readout, sequences)
    for modules in (2, 3, 4):
        layer, readout = grown(layer, readout, sequences, memory_size=3)
        assert layer.layout.periods == tuple(2**k for k in range(modules))
        assert layer.layout.sizes == (5, *[3] * (modules - 1))
        torch.testing.assert_close(outputs(layer, readout, sequences), expected, rtol=0, atol=1e-12)


def test_the_new_module_encodes_what_it_hears_with_the_phase_it_has():
    """Its memory is the code of the hidden states at steps 0, p, 2p, …; from it they can be decoded."""
    torch.manual_seed(0)
    layer = linmem.LMN(3, 4, memory_size=5, dtype=torch.float64)
    sequences = ragged()
    (hidden,) = hidden_sequences(layer, sequences, 0)
    larger, _ = grown(layer, nn.Linear(5, 1, dtype=torch.float64), sequences, memory_size=25, period=3)
    laes = LinearAutoencoder(25).fit([h[::3] for h in hidden])
    for x, h in zip(sequences, hidden, strict=True):
        memory = larger(x[:, None])[0][:, 0, 5:]  # (T, 25)
        codes = laes.transform(h[::3])
        torch.testing.assert_close(memory, codes.repeat_interleave(3, 0)[: len(x)], rtol=0, atol=1e-9)
        heard = h[::3]
        torch.testing.assert_close(laes.decode(memory[-1], len(heard)), heard, rtol=0, atol=1e-6)


def test_a_state_can_be_carried_from_the_start_of_a_grown_layer():
    torch.manual_seed(0)
    layer, _ = grown(linmem.LMN(3, 4, dtype=torch.float64), nn.Linear(4, 1, dtype=torch.float64), ragged())
    (x,) = ragged(lengths=(20,))
    whole, _ = layer(x[:, None])
    first, state = layer(x[:7, None])
    second, _ = layer(x[7:, None], state)
    torch.testing.assert_close(torch.cat([first, second]), whole, rtol=0, atol=1e-12)


def music():
    rolls = piano_rolls.synthetic(pieces=12)
    inputs = [torch.from_numpy(roll[:-1]).float() for roll in rolls]
    targets = [torch.from_numpy(roll[1:]).float() for roll in rolls]

    def loss(layer, readout):
        return binary_cross_entropy_with_logits(outputs(layer, readout, inputs), torch.cat(targets))

    return linmem.LMN(88, 20, memory_size=30), 88, inputs, targets, loss, "logistic"


def generation():
    signal = torch.from_numpy(waveforms.embedded()[1])[:, None]
    inputs = [torch.zeros(300, 1)]

    def loss(layer, readout):
        return mse_loss(outputs(layer, readout, inputs), signal)

    layer = linmem.LMN(1, 4, memory_size=12, init="orthogonal", learn_initial_state=True)
    with torch.no_grad():
        layer.initial_state_l0.normal_()
    return layer, 1, inputs, [signal], loss, "least_squares"


def words():
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(60) % 5
    inputs = [torch.randn(20, 13, generator=generator) + label for label in labels]

    def loss(layer, readout):
        return cross_entropy(torch.stack([readout(layer(x[:, None])[0][-1, 0]) for x in inputs]), labels)

    return linmem.LMN(13, 10, memory_size=10), 5, inputs, labels, loss, "logistic"


@pytest.mark.parametrize("task", [music, generation, words], ids=["music", "generation", "words"])
def test_the_fitted_readout_lowers_the_training_loss(task):
    torch.manual_seed(0)
    layer, width, inputs, targets, loss, fit = task()
    readout = nn.Linear(layer.output_size, width)
    losses = [float(loss(layer, readout).detach())]
    for _ in range(2):
        layer, readout = linmem.add_memory_module(layer, readout, inputs, targets, readout_fit=fit)
        losses.append(float(loss(layer, readout).detach()))
    assert losses[2] < losses[1] < losses[0], f"loss before, and behind each of two modules: {losses}"


def test_a_readout_may_be_fitted_by_a_function():
    seen = []

    def fit(memory, targets, readout):
        seen.append((memory.shape, targets.shape, readout.in_features))
        return nn.Linear(readout.in_features, 2)

    sequences = [x.float() for x in ragged()]
    _, readout = linmem.add_memory_module(
        linmem.LMN(3, 4), nn.Linear(4, 2), sequences, [x[:, :2] for x in sequences], readout_fit=fit
    )
    assert seen == [((72, 8), (72, 2), 8)]
    assert readout.in_features == 8


def test_a_function_may_train_the_readout_and_must_return_one():
    sequences = [x.float() for x in ragged()]
    targets = [x[:, :2] for x in sequences]

    def by_gradient(memory, target, readout):
        optimizer = torch.optim.Adam(readout.parameters(), 0.05)
        for _ in range(50):
            optimizer.zero_grad()
            mse_loss(readout(memory), target.float()).backward()
            optimizer.step()
        return readout

    arguments = linmem.LMN(3, 4), nn.Linear(4, 2), sequences, targets
    layer, readout = linmem.add_memory_module(*arguments, readout_fit=by_gradient)
    unfitted = linmem.add_memory_module(*arguments, readout_fit=None)[1]
    target = torch.cat(targets)
    assert mse_loss(outputs(layer, readout, sequences), target) < mse_loss(outputs(layer, unfitted, sequences), target)
    with pytest.raises(TypeError, match=r"readout should be of type torch\.nn\.Linear, got: NoneType"):
        linmem.add_memory_module(*arguments, readout_fit=lambda *_: None)
    with pytest.raises(ValueError, match="returned a readout of 9 outputs: expected 2"):
        linmem.add_memory_module(*arguments, readout_fit=lambda *_: nn.Linear(8, 9))


def test_a_readout_fitted_to_a_smooth_memory_has_weights_that_can_be_trained_on():
    """Of slow sines a memory has a few directions, and rounding in the others."""
    torch.manual_seed(0)
    t = torch.arange(100.0)
    waves = [torch.stack([torch.sin(t / (9 + i)), torch.cos(t / (9 + i))], 1) for i in range(5)]
    sequences, targets = [wave[:-3] for wave in waves], [wave[3:] for wave in waves]
    layer, readout = linmem.add_memory_module(linmem.LMN(2, 6, memory_size=60), nn.Linear(60, 2), sequences, targets)
    assert mse_loss(outputs(layer, readout, sequences), torch.cat(targets)) < 0.01
    assert readout.weight.abs().max() < 100


def test_a_fit_without_a_bias_has_none():
    sequences = ragged()
    _, readout = linmem.add_memory_module(
        linmem.LMN(3, 4, dtype=torch.float64),
        nn.Linear(4, 1, bias=False, dtype=torch.float64),
        sequences,
        [x[:, :1] for x in sequences],
    )
    assert readout.bias is None


def test_streams_of_batches_give_what_lists_give():
    torch.manual_seed(0)
    layer, readout = linmem.LMN(3, 4, dtype=torch.float64), nn.Linear(4, 2, dtype=torch.float64)
    sequences = ragged()
    targets = [x[:, :2] for x in sequences]

    def stream(items):
        return type("Stream", (), {"__iter__": lambda self: iter([items[:2], items[2:]])})()

    one = linmem.add_memory_module(layer, readout, sequences, targets)
    other = linmem.add_memory_module(layer, readout, stream(sequences), stream(targets))
    (layer_a, readout_a), (layer_b, readout_b) = one, other
    for a, b in [*zip(layer_a.parameters(), layer_b.parameters(), strict=True), (readout_a.weight, readout_b.weight)]:
        torch.testing.assert_close(a, b, rtol=0, atol=1e-8)


def test_the_given_layers_stay_as_they_are():
    layer, readout = linmem.LMN(3, 4).eval(), nn.Linear(4, 1)
    before = [p.clone() for p in (*layer.parameters(), *readout.parameters())]
    sequences = [x.float() for x in ragged()]
    larger, wider = linmem.add_memory_module(layer, readout, sequences, [x[:, :1] for x in sequences])
    assert all(torch.equal(a, b) for a, b in zip(before, (*layer.parameters(), *readout.parameters()), strict=True))
    assert not larger.training
    assert all(p.dtype == torch.float32 and p.requires_grad for p in (*larger.parameters(), *wider.parameters()))


def test_wrong_calls_are_refused_before_work_starts():
    layer, readout, sequences = linmem.LMN(3, 4), nn.Linear(4, 2), [x.float() for x in ragged()]
    targets = [x[:, :2] for x in sequences]
    call = linmem.add_memory_module
    with pytest.raises(ValueError, match="targets is missing"):
        call(layer, readout, sequences)
    with pytest.raises(ValueError, match="targets has 2 items: expected one for each of 3 sequences"):
        call(layer, readout, sequences, targets[:2])
    with pytest.raises(ValueError, match=r"targets\[1\] has shape \(16, 2\): expected \(17, 2\)"):
        call(layer, readout, sequences, [targets[0], targets[1][1:], targets[2]])
    with pytest.raises(ValueError, match=r"targets are 2 of torch\.int64: expected a class for each of 3 sequences"):
        call(layer, readout, sequences, torch.tensor([0, 1]), readout_fit="logistic")
    with pytest.raises(ValueError, match="targets have classes from 0 to 2: expected 0 to 1"):
        call(layer, readout, sequences, np.array([0, 1, 2]), readout_fit="logistic")
    for labels in ([0, 1, 1], np.array([0, 1, 1], np.uint16)):
        call(layer, readout, sequences, labels, readout_fit="logistic")
    with pytest.raises(ValueError, match="sequences are no stream, targets a stream of batches: expected both"):
        call(layer, readout, sequences, (t for t in targets))
    stream = type("Stream", (), {"__iter__": lambda self: iter([sequences])})()
    with pytest.raises(ValueError, match="sequences are a stream of batches, targets no stream: expected both"):
        call(layer, readout, stream, targets)
    two = type("Stream", (), {"__iter__": lambda self: iter([targets, targets])})()
    with pytest.raises(ValueError, match="targets has another number of batches than sequences"):
        call(layer, readout, stream, two)
    with pytest.raises(ValueError, match=r"readout is of torch\.float64 on cpu: expected torch\.float32 on cpu"):
        call(layer, nn.Linear(4, 2, dtype=torch.float64), sequences, targets)
    with pytest.raises(ValueError, match="forgetting=0: expected a number above 0"):
        call(layer, readout, sequences, targets, forgetting=0)
    one = call(layer, readout, sequences[0], targets[0])
    assert one[0].num_modules == 2
    with pytest.raises(ValueError, match="targets are classes: expected readout_fit='logistic'"):
        call(layer, readout, sequences, np.array([0, 1, 1]))
    with pytest.raises(ValueError, match=r"targets go from .* expected 0 to 1 for a logistic fit"):
        call(layer, readout, sequences, targets, readout_fit="logistic")
    with pytest.raises(ValueError, match="period=30: expected less than 30, the length of the longest sequence"):
        call(layer, readout, sequences, targets, period=30)
    with pytest.raises(ValueError, match="period=1: expected more than 1, the period of the slowest module"):
        call(layer, readout, sequences, targets, period=1)
    with pytest.raises(ValueError, match="readout reads 5 features: expected 4"):
        call(layer, nn.Linear(5, 2), sequences, targets)
    with pytest.raises(ValueError, match="layer has output='hidden': expected 'memory'"):
        call(linmem.LMN(3, 4, output="hidden"), readout, sequences, targets)
    with pytest.raises(TypeError, match=r"layer should be of type linmem.LMN or linmem.MultiScaleLMN, got: GRU"):
        call(nn.GRU(3, 4), readout, sequences, targets)
    with pytest.raises(ValueError, match="readout_fit='guess'"):
        call(layer, readout, sequences, targets, readout_fit="guess")
    with pytest.raises(ValueError, match="sequences have 2 features: expected 3"):
        call(layer, readout, [x[:, :2] for x in sequences], targets)
