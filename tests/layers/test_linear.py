"""The linear memory: the autoencoder as a layer, and steps that do not wait for each other."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import linmem
from linmem import LinearAutoencoder
from linmem.kernels import native, reference

INITS = ["uniform", "orthogonal", "legendre", "autoencoder"]


@given(
    T=st.integers(1, 100),
    B=st.integers(1, 4),
    N=st.integers(1, 9),
    ragged=st.booleans(),
    bias=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_side_by_side_equals_one_after_the_other(T, B, N, ragged, bias, seed):
    """Values and gradients of the blocks of the reference, against the native loop and a loop in Python."""
    g = torch.Generator().manual_seed(seed)

    def rand(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=g).requires_grad_()

    lengths = torch.randint(0, T + 1, (B,), generator=g) if ragged else None
    orthogonal = torch.linalg.qr(rand(N, N).detach()).Q.requires_grad_()
    inputs = [rand(T, B, 3), rand(B, N), rand(N, 3), orthogonal, rand(N) if bias else None]

    def loop(x, m, w_xm, w_mm, b_m, lengths):
        sequence = []
        for t in range(len(x)):
            new = x[t] @ w_xm.T + m @ w_mm.T + (0 if b_m is None else b_m)
            alive = torch.ones(B, 1, dtype=torch.bool) if lengths is None else (t < lengths)[:, None]
            m = torch.where(alive, new, m)
            sequence.append(torch.where(alive, new, 0))
        return torch.stack(sequence), m

    results = []
    for run in (reference.linear_memory, native.linear_memory, loop):
        values = run(*inputs, lengths=lengths)
        some = [i for i in inputs if i is not None]
        gradients = torch.autograd.grad([v.square().sum() for v in values], some)
        results.append([*(v.detach() for v in values), *gradients])
    for other in results[1:]:
        for ours, theirs in zip(results[0], other, strict=True):
            scale = max(1.0, float(theirs.abs().max()))
            assert float((ours - theirs).abs().max()) <= 1e-12 * scale


@pytest.mark.parametrize("init", INITS)
@pytest.mark.parametrize("options", [{}, {"num_modules": 3}, {"num_layers": 2, "bidirectional": True}], ids=str)
def test_whole_chunks_and_steps_agree(init, options):
    torch.manual_seed(0)
    layer = linmem.LinearMemory(3, 12, init=init, window=5, dtype=torch.float64, **options)
    x = torch.randn(70, 2, 3, dtype=torch.float64)
    whole, end = layer(x)
    if not layer.bidirectional:
        for size in (1, 7, 33):
            state, parts = None, []
            for piece in x.split(size):
                y, state = layer(piece, state)
                parts.append(y)
            torch.testing.assert_close(torch.cat(parts), whole, rtol=0, atol=1e-12)
            torch.testing.assert_close(state, end, rtol=0, atol=1e-12)
    alone, _ = layer(x[:40, 1:])
    both, _ = layer(x, lengths=torch.tensor([70, 40]))
    torch.testing.assert_close(both[:40, 1:], alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("forgetting", [1.0, 0.8])
def test_it_computes_what_the_autoencoder_does_and_can_be_decoded(center, forgetting):
    rng = np.random.default_rng(0)
    sequences = [np.cumsum(rng.normal(size=(length, 3)), 0) for length in (40, 25, 33)]
    laes = LinearAutoencoder(10, center=center, forgetting=forgetting).fit(sequences)
    layer = linmem.LinearMemory.from_autoencoder(laes, batch_first=True, dtype=torch.float64)
    for x, codes in zip(sequences, laes.transform(sequences), strict=True):
        memory, state = layer(torch.from_numpy(x)[None])
        np.testing.assert_allclose(memory[0].numpy(), codes, atol=1e-12)
        np.testing.assert_allclose(laes.decode(state[0, 0].numpy(), 5), laes.decode(codes[-1], 5), atol=1e-10)
    assert not any(p.requires_grad for p in layer.parameters())
    assert layer.bias == center


def test_a_frozen_memory_stays_and_leaves_the_rest_to_be_trained():
    torch.manual_seed(0)
    memory = linmem.LinearMemory(3, 6, init="legendre", trainable=False)
    model = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 1))
    before = [p.clone() for p in memory.parameters()]
    codes, _ = memory(torch.randn(20, 5, 3))
    assert not codes.requires_grad
    model(codes).square().mean().backward()
    assert all(p.grad is not None for p in model.parameters())
    assert all(torch.equal(a, b) for a, b in zip(before, memory.parameters(), strict=True))
    x = torch.randn(20, 5, 3, requires_grad=True)
    memory(x)[0].sum().backward()
    assert x.grad is not None


def test_modules_hear_at_their_own_clocks():
    """Of frames that are each the number of their step, delay lines with periods 1, 2 and 4 keep what they should."""
    layer = linmem.LinearMemory(1, [3, 3, 3], init="autoencoder", bias=False, dtype=torch.float64)
    y, (_, clock) = layer(torch.arange(1.0, 12.0, dtype=torch.float64)[:, None, None])
    assert clock.tolist() == [11]
    assert y[-1, 0].abs().tolist() == [11, 10, 9, 11, 9, 7, 9, 5, 1]


def test_a_stream_of_many_steps_takes_no_more_memory_than_a_piece():
    layer = linmem.LinearMemory(2, 3, init="orthogonal", bias=False)
    state = None
    with torch.inference_mode():
        for _ in range(50):
            _, state = layer(torch.zeros(1000, 1, 2), state)
    assert state.shape == (1, 1, 3)


def test_wrong_autoencoders_are_refused():
    with pytest.raises(TypeError, match=r"autoencoder should be of type linmem\.LinearAutoencoder, got: int"):
        linmem.LinearMemory.from_autoencoder(3)
    with pytest.raises(ValueError, match="autoencoder is not fitted"):
        linmem.LinearMemory.from_autoencoder(LinearAutoencoder(3))
    with pytest.raises(TypeError, match="trainable should be of type bool"):
        linmem.LinearMemory(3, 4, trainable=1)


# ------------------------------------------------------------------------------- several memories side by side


def some_sequences(lengths=(40, 25, 31), features=3):
    rng = np.random.default_rng(0)
    return [rng.standard_normal((n, features)) for n in lengths]


def test_memories_side_by_side_are_the_autoencoders_each_by_itself():
    """Also those that share a clock, and those of slower clocks, whose codes are held in between."""
    x = some_sequences((40,))[0]
    discounts, periods = [0.7, 0.9, 0.8], [4, 1, 1]
    several = [
        LinearAutoencoder(5 + k, forgetting=d).fit(x[::p])
        for k, (d, p) in enumerate(zip(discounts, periods, strict=True))
    ]
    memory = linmem.LinearMemory.from_autoencoder(several, periods=periods, dtype=torch.float64)
    assert memory.layout.sizes == (6 + 7, 5)
    assert memory.layout.periods == (1, 4)
    codes, _ = memory(torch.from_numpy(x)[:, None])
    held = np.repeat(several[0].transform(x[::4]), 4, axis=0)[: len(x)]
    expected = np.concatenate([several[1].transform(x), several[2].transform(x), held], axis=1)
    np.testing.assert_allclose(codes[:, 0], expected, atol=1e-12)


def test_centred_memories_side_by_side_know_their_own_means():
    x = some_sequences((40,))[0] + 5
    several = [LinearAutoencoder(4, center=center).fit(x) for center in (True, False)]
    memory = linmem.LinearMemory.from_autoencoder(several, dtype=torch.float64)
    codes, _ = memory(torch.from_numpy(x)[:, None])
    expected = np.concatenate([laes.transform(x) for laes in several], axis=1)
    np.testing.assert_allclose(codes[:, 0], expected, atol=1e-10)


def test_fit_gives_one_memory_for_each_pair_and_all_units():
    sequences = some_sequences()
    memory = linmem.LinearMemory.fit(sequences, 30, forgetting=[0.5, 0.9], periods=[1, 3])
    assert sum(memory.layout.sizes) == 30
    assert memory.layout.periods == (1, 3)
    assert not any(p.requires_grad for p in memory.parameters())
    one = linmem.LinearMemory.fit(sequences, 7, forgetting=0.9, dtype=torch.float64)
    laes = LinearAutoencoder(7, forgetting=0.9).fit(sequences)
    np.testing.assert_allclose(one(torch.from_numpy(sequences[0]))[0], laes.transform(sequences[0]), atol=1e-12)
    white = linmem.LinearMemory.fit(sequences, 7, forgetting=0.9, whiten=True, dtype=torch.float64)
    expected = laes.transform(sequences[0]) / laes.singular_values_ * sum(len(x) for x in sequences) ** 0.5
    np.testing.assert_allclose(white(torch.from_numpy(sequences[0]))[0], expected, atol=1e-11)


@pytest.mark.parametrize("periods", [[1, 1], [1, 3]])
def test_units_of_a_whitened_memory_have_unit_size(periods):
    """Exactly so for a lossless memory, over the sequences it was fitted to and where its clock fires."""
    sequences = some_sequences((7, 4, 6))
    with pytest.warns(UserWarning, match="more than the data needs"):
        memory = linmem.LinearMemory.fit(
            sequences, 99, forgetting=[1.0, 0.9], periods=periods, whiten=True, dtype=torch.float64
        )
    codes = [memory(torch.from_numpy(x))[0] for x in sequences]
    for period, part in zip(memory.layout.periods, memory.layout.sizes, strict=True):
        fired = torch.cat([c[::period, :part] for c in codes]).square().mean(0)
        codes = [c[:, part:] for c in codes]
        used = fired > 1e-12
        assert used.sum() > 5
        torch.testing.assert_close(fired[used], torch.ones_like(fired[used]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"forgetting": [0.5, 0.9], "periods": [1, 2, 3]}, "forgetting has 2 items and periods 3"),
        ({"forgetting": [0.5, 1.5]}, "forgetting=1.5: expected"),
        ({"periods": [1, 0]}, r"periods=\(1, 0\): expected integers of at least 1"),
        ({"forgetting": [0.5] * 31}, "n_components=30: expected at least 31, one for each memory"),
    ],
)
def test_memories_that_cannot_be_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        linmem.LinearMemory.fit(some_sequences(), 30, **arguments)


def test_more_units_than_the_data_needs_are_said_to_stay_zero():
    with pytest.warns(UserWarning, match="n_components=40 is more than the data needs: 35 units stay zero"):
        linmem.LinearMemory.fit([np.eye(5) * 3 + np.arange(5)], 40, forgetting=[1.0], periods=[1])
