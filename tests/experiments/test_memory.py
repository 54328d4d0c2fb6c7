"""The table and the figures of the main job."""

from itertools import pairwise

import numpy as np
import pytest
import torch

import linmem
from linmem import LinearAutoencoder
from linmem.datasets import piano_rolls
from linmem.experiments import memory
from linmem.experiments.training import NextFrame, Settings, evaluate, train


@pytest.fixture
def sequences():
    rng = np.random.default_rng(0)
    return [rng.standard_normal((length, 2)) for length in (12, 9, 4)]


def test_larger_memories_hold_more(sequences):
    rows = memory.by_size(sequences, (2, 6, 21))
    assert [row.energy for row in rows] == sorted(row.energy for row in rows)
    assert rows[-1].energy == pytest.approx(1)
    assert rows[-1].error < 1e-12
    assert len(memory.table(rows).splitlines()) == 4


@pytest.mark.parametrize("forgetting", [1.0, 0.7])
def test_error_by_lag_compares_each_decoded_frame_with_the_one_that_was_seen(sequences, forgetting):
    laes = LinearAutoencoder(6, forgetting=forgetting).fit(sequences)
    wrong, total = np.zeros(5), np.zeros(5)
    for x in sequences:
        codes = laes.transform(x)
        for t in range(4, len(x)):
            past = laes.decode(codes[t], 5)
            for lag in range(5):
                wrong[lag] += np.square(past[4 - lag] - x[t - lag]).sum()
                total[lag] += np.square(x[t - lag]).sum()
    np.testing.assert_allclose(memory.error_by_lag(laes, sequences, 5), np.sqrt(wrong / total), rtol=1e-10)


def test_error_by_lag_wants_a_sequence_that_is_long_enough(sequences):
    laes = LinearAutoencoder(6).fit(sequences)
    with pytest.raises(ValueError, match="lags=13: expected at most the length of the longest sequence"):
        memory.error_by_lag(laes, sequences, 13)


def test_main_prints_both_tables_and_draws_both_figures(tmp_path, capsys, monkeypatch):
    small = memory.piano_rolls.synthetic(pieces=8)
    monkeypatch.setattr(memory.piano_rolls, "synthetic", lambda: small)
    real = memory.by_size
    monkeypatch.setattr(memory, "by_size", lambda data, sizes, **options: real(data, sizes[:2], **options))
    memory.main(["--out", str(tmp_path / "out")])
    printed = capsys.readouterr().out
    assert "A waveform" in printed
    assert "8 pieces" in printed
    for name in ("memory.png", "forgetting.png"):
        assert (tmp_path / "out" / name).read_bytes().startswith(b"\x89PNG")


def test_lmns_made_of_an_unrolled_rnn_come_nearer_with_every_size(tmp_path):
    """The paper's figure 3, on made-up chorales."""
    parts = piano_rolls.split(piano_rolls.synthetic(pieces=12))
    torch.manual_seed(0)
    model = NextFrame(linmem.UnrolledRNN(88, 6, order=3)).start_at_frequencies(parts.train)
    train(model, parts.train, parts.valid, Settings(epochs=3, batch_size=2, learning_rate=1e-2))
    rows = memory.made_of_unrolled(model, parts, (5, 10, 20, 40, 80), lags=20)
    for name in ("svd_error", "error"):
        values = [getattr(row, name) for row in rows]
        assert all(later < earlier for earlier, later in pairwise(values)), f"{name}: {values}"
    assert all(row.svd_error < 1 for row in rows)
    scores = [evaluate(model, rolls) for rolls in (parts.train, parts.valid)]
    gaps = [abs(row.train_nats - scores[0].nats) for row in rows]
    assert gaps[-1] < 0.05 * gaps[0]
    assert all(len(row.error_by_lag) == 20 for row in rows)
    memory.unrolled_figure(rows, *scores, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000
