"""What codes tell of the piece and of the last frames."""

import json

import numpy as np

from linmem.datasets import piano_rolls
from linmem.experiments import overfitting
from linmem.experiments.overfitting import Frames, between_pieces, correlation_steps, decoded


def test_codes_of_the_same_distribution_in_all_pieces_do_not_tell_them_apart():
    codes, piece = np.random.default_rng(0).standard_normal((5000, 3)), np.repeat(np.arange(5), 1000)
    assert between_pieces(codes, piece) < 0.01
    assert between_pieces(codes + 10 * piece[:, None], piece) > 0.98


def test_steps_of_correlation_are_those_of_a_walk_that_forgets():
    """x^t = λ x^{t-1} + noise has the correlation λ^k after k steps."""
    rng = np.random.default_rng(0)
    for discount, expected in ((0.0, 1), (0.9, 10)):
        parts = []
        for _ in range(40):
            x, walk = np.zeros(2), []
            for _ in range(500):
                x = discount * x + rng.standard_normal(2)
                walk.append(x)
            parts.append(np.array(walk))
        assert abs(correlation_steps(parts) - expected) <= 1


def test_a_window_tells_its_frames_and_no_others():
    rng = np.random.default_rng(0)
    rolls = [rng.random((100, 4)) < 0.4 for _ in range(12)]
    codes = np.concatenate([np.concatenate([r, np.pad(r, ((1, 0), (0, 0)))[:-1]], axis=1) for r in rolls]).astype(float)
    train, valid = Frames(codes[:800], rolls[:8]), Frames(codes[800:], rolls[8:])
    assert decoded(train, valid, 0) > 0.99
    assert decoded(train, valid, 1) > 0.99
    assert abs(decoded(train, valid, 2)) < 0.1


def test_figures_are_printed_and_written(tmp_path, capsys, monkeypatch):
    parts = piano_rolls.split(piano_rolls.synthetic(pieces=9))
    monkeypatch.setattr(piano_rolls, "load", lambda name, path=None: parts)
    overfitting.main(["--units", "20", "--out", str(tmp_path)])
    record = json.loads((tmp_path / "overfitting_MuseData.json").read_text())
    shown = capsys.readouterr().out
    for discount in overfitting.DISCOUNTS:
        assert f"forgetting {discount:g}" in shown
        assert len(record[f"forgetting {discount:g}"]["decoded by lag"]) == len(overfitting.LAGS)
