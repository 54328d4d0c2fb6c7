"""An LMN made of an unrolled RNN computes what that computed, as far as its memory reaches."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

import linmem
from linmem import LinearAutoencoder
from linmem.pretraining.activations import hidden_sequences
from linmem.pretraining.decoders import decode, fitted, powers

DECODERS = ["fitted", "powers"]


def ragged(features: int, lengths=(9, 3, 7, 1, 6), seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(length, features, dtype=torch.float64, generator=generator) for length in lengths]


def rank_of(hidden: list[torch.Tensor]) -> int:
    """The rank of all reversed pasts, by forming them."""
    longest, width = max(map(len, hidden)), hidden[0].shape[1]
    rows = []
    for h in hidden:
        for t in range(len(h)):
            past = h[: t + 1].flip(0).flatten()
            rows.append(np.pad(past.numpy(), (0, longest * width - len(past))))
    return int(np.linalg.matrix_rank(np.stack(rows)))


def outputs(layer, readout, sequences):
    return [readout(layer(x[:, None] if not layer.batch_first else x[None])[0]).squeeze() for x in sequences]


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("order", [1, 2, 5, 12])
@pytest.mark.parametrize("bias", [True, False])
def test_with_a_lossless_memory_the_logits_are_the_same(decoder, order, bias):
    """Biases and sequences shorter than the tape included."""
    torch.manual_seed(0)
    unrolled = linmem.UnrolledRNN(3, 4, order=order, bias=bias, dtype=torch.float64)
    readout = nn.Linear(unrolled.output_size, 5, bias=bias, dtype=torch.float64)
    sequences = ragged(3)
    (hidden,) = hidden_sequences(unrolled, sequences, 0)
    p = rank_of(hidden)
    lmn, new = linmem.lmn_from_unrolled(unrolled, readout, sequences, p, decoder=decoder)
    for ours, theirs in zip(outputs(lmn, new, sequences), outputs(unrolled, readout, sequences), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


@pytest.mark.parametrize("output", ["tape", "hidden"])
def test_stacks_directions_and_choices_are_carried_over(output):
    torch.manual_seed(1)
    unrolled = linmem.UnrolledRNN(
        3,
        4,
        2,
        order=3,
        bidirectional=True,
        batch_first=True,
        output=output,
        nonlinearity="sigmoid",
        dtype=torch.float64,
    )
    readout = nn.Linear(unrolled.output_size, 5, dtype=torch.float64)
    sequences = ragged(3, lengths=(6, 3, 5))
    p = max(rank_of(h) for layer in range(2) for h in hidden_sequences(unrolled, sequences, layer))
    with pytest.warns(UserWarning, match="units stay zero"):  # where the rank of a direction is below the largest
        lmn, new = linmem.lmn_from_unrolled(unrolled, readout, sequences, p + 1)
    assert lmn.output == ("memory" if output == "tape" else "hidden")
    for ours, theirs in zip(outputs(lmn, new, sequences), outputs(unrolled, readout, sequences), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


def test_a_learned_initial_tape_becomes_an_initial_memory():
    torch.manual_seed(2)
    unrolled = linmem.UnrolledRNN(2, 3, order=2, learn_initial_state=True, dtype=torch.float64)
    readout = nn.Linear(unrolled.output_size, 2, dtype=torch.float64)
    sequences = ragged(2, lengths=(12, 12, 11, 9))
    with torch.no_grad():
        unrolled.initial_state_l0.copy_(torch.randn(6, dtype=torch.float64))
    (hidden,) = hidden_sequences(unrolled, sequences, 0)
    lmn, new = linmem.lmn_from_unrolled(unrolled, readout, sequences, rank_of(hidden))
    ours, theirs = outputs(lmn, new, sequences), outputs(unrolled, readout, sequences)
    torch.testing.assert_close(ours[0][:8], theirs[0][:8], rtol=0, atol=1e-6)


def test_the_gap_closes_as_the_memory_grows():
    torch.manual_seed(0)
    unrolled = linmem.UnrolledRNN(3, 6, order=4)
    readout = nn.Linear(unrolled.output_size, 5)
    sequences = [x.float() for x in ragged(3, lengths=(40,) * 12)]
    gaps = []
    for memory_size in (4, 8, 16, 32, 64, 128):
        lmn, new = linmem.lmn_from_unrolled(unrolled, readout, sequences, memory_size)
        pairs = zip(outputs(lmn, new, sequences), outputs(unrolled, readout, sequences), strict=True)
        gaps.append(float(sum((a - b).square().mean() for a, b in pairs).detach()))
    assert all(later < earlier for earlier, later in pairwise(gaps)), gaps


def test_the_given_layers_stay_as_they_are_and_the_new_ones_are_alike():
    unrolled = linmem.UnrolledRNN(3, 4, order=2).eval()
    readout = nn.Linear(unrolled.output_size, 5)
    before = [p.clone() for p in (*unrolled.parameters(), *readout.parameters())]
    lmn, new = linmem.lmn_from_unrolled(unrolled, readout, [torch.randn(20, 3)], 6)
    assert all(torch.equal(a, b) for a, b in zip(before, (*unrolled.parameters(), *readout.parameters()), strict=True))
    assert not lmn.training
    assert all(p.dtype == torch.float32 and p.requires_grad for p in (*lmn.parameters(), *new.parameters()))


class Stream:
    """Batches of sequences that start anew each time."""

    def __init__(self, sequences, size):
        self.sequences, self.size = sequences, size

    def __iter__(self):
        for i in range(0, len(self.sequences), self.size):
            yield self.sequences[i : i + self.size]


def test_a_stream_of_batches_gives_what_a_list_gives():
    torch.manual_seed(0)
    unrolled = linmem.UnrolledRNN(3, 4, order=2, dtype=torch.float64)
    readout = nn.Linear(unrolled.output_size, 5, dtype=torch.float64)
    sequences = ragged(3)
    one = linmem.lmn_from_unrolled(unrolled, readout, sequences, 6)
    other = linmem.lmn_from_unrolled(unrolled, readout, Stream(sequences, 2), 6)
    for a, b in zip(one[0].parameters(), other[0].parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-9)


@pytest.mark.parametrize("container", ["list", "batch", "array", "boolean"])
def test_any_container_of_sequences_will_do(container):
    x = np.random.default_rng(0).random((4, 9, 3)) < 0.5
    data = {"list": list(x.astype(float)), "batch": x.astype(float), "array": x[0].astype(float), "boolean": list(x)}
    unrolled = linmem.UnrolledRNN(3, 4, order=2)
    lmn, _ = linmem.lmn_from_unrolled(unrolled, nn.Linear(12, 1), data[container], 5)
    assert lmn.memory_size == 5


# ------------------------------------------------------------------------------------------------ decoders


def test_the_fitted_decoder_is_the_best_linear_one_and_never_worse_than_powers():
    sequences = ragged(2, lengths=(30, 20, 25))
    laes = LinearAutoencoder(6).fit(sequences)
    codes = torch.cat([laes.transform(x) for x in sequences])
    for lag, (best, power) in enumerate(zip(fitted(laes, sequences, 5), powers(laes, 5), strict=True)):
        past = torch.cat([torch.cat([torch.zeros(min(lag, len(x)), 2, dtype=x.dtype), x])[: len(x)] for x in sequences])
        expected = torch.linalg.lstsq(codes, past).solution.T
        torch.testing.assert_close(best, expected, rtol=1e-6, atol=1e-8)
        assert (codes @ best.T - past).norm() <= (codes @ power.T - past).norm() * (1 + 1e-12)


def test_powers_are_those_of_the_papers_matrices():
    sequences = ragged(2, lengths=(30, 20))
    laes = LinearAutoencoder(6).fit(sequences)
    A, B = torch.from_numpy(laes.A_), torch.from_numpy(laes.B_)
    for j, block in enumerate(decode(laes, sequences, 4, "powers")):
        torch.testing.assert_close(block, A.T @ torch.linalg.matrix_power(B.T, j))


def test_with_exact_codes_the_fitted_decoder_has_the_blocks_of_u():
    """Where the codes are V Σ, the blocks of U in Ξ = V Σ Uᵀ."""
    (x,) = sequences = ragged(2, lengths=(8,))
    xi = np.zeros((8, 16))
    for lag in range(8):
        xi[lag:, 2 * lag : 2 * lag + 2] = x[: 8 - lag]
    _, _, u = np.linalg.svd(xi)
    laes = LinearAutoencoder(8).fit(sequences)
    blocks = fitted(laes, sequences, 8).flatten(0, 1).numpy()
    signs = np.sign((blocks * u[:8].T).sum(0))
    np.testing.assert_allclose(blocks * signs, u[:8].T, atol=1e-6)


# -------------------------------------------------------------------------------------------- wrong pairs


def test_wrong_pairs_are_refused_before_work_starts():
    unrolled, readout = linmem.UnrolledRNN(3, 4, order=2), nn.Linear(12, 5)
    good = [torch.randn(9, 3)]
    call = linmem.lmn_from_unrolled
    with pytest.raises(ValueError, match="readout reads 8 features: expected 12, the output_size of the layer"):
        call(unrolled, nn.Linear(8, 5), good, 5)
    with pytest.raises(TypeError, match=r"readout should be of type torch.nn.Linear, got: Identity"):
        call(unrolled, nn.Identity(), good, 5)
    with pytest.raises(TypeError, match=r"unrolled should be of type linmem.UnrolledRNN, got: LMN"):
        call(linmem.LMN(3, 4), readout, good, 5)
    with pytest.raises(ValueError, match="sequences have 4 features: expected 3, the input_size of the layer"):
        call(unrolled, readout, [torch.randn(9, 4)], 5)
    with pytest.raises(ValueError, match="sequences is empty"):
        call(unrolled, readout, [], 5)
    with pytest.raises(ValueError, match="sequences is empty"):
        call(unrolled, readout, Stream([], 2), 5)
    with pytest.raises(ValueError, match="can be read only once: expected a list, or an iterable that starts anew"):
        call(unrolled, readout, (x for x in [good]), 5)
    with pytest.raises(ValueError, match="contains NaN"):
        call(unrolled, readout, [torch.full((9, 3), torch.nan)], 5)
    with pytest.raises(ValueError, match="memory_size must be"):
        call(unrolled, readout, good, 0)
    with pytest.raises(ValueError, match="decoder"):
        call(unrolled, readout, good, 5, decoder="guess")
    with pytest.raises(ValueError, match="order must be"):
        linmem.UnrolledRNN(3, 4, order=0)
