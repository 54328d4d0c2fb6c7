"""Readers trained on shuffled frames."""

import numpy as np
import pytest
import torch

from linmem import LinearMemory, MemoryNetwork, MemoryReader
from linmem.datasets import piano_rolls
from linmem.experiments.frames import FrameSettings, evaluate_frames, frames_of, train_reader, transposed, window
from linmem.experiments.training import DivergedError, evaluate


def network(rolls, memory_size=30):
    torch.manual_seed(0)
    memory = LinearMemory.fit(rolls, memory_size, forgetting=0.8)
    return MemoryNetwork([memory], [MemoryReader(memory_size, 88, 40, 88, dropout=0.2)])


def test_a_window_holds_the_last_frames_newest_first():
    rolls = piano_rolls.synthetic(pieces=1)
    codes, _ = window(88, 3)(torch.from_numpy(rolls[0]).float()[:, None])
    past = np.concatenate([np.zeros((2, 88)), rolls[0]])
    expected = np.concatenate([past[2:], past[1:-1], past[:-2]], axis=1)
    np.testing.assert_array_equal(codes[:, 0], expected)


def test_every_frame_with_a_successor_is_there_once_and_no_piece_runs_into_the_next():
    rolls = piano_rolls.synthetic(pieces=3)
    frames = frames_of(MemoryNetwork([window(88, 1)], [MemoryReader(88, 88, 4, 88)]), rolls)
    np.testing.assert_array_equal(frames.x, np.concatenate([r[:-1] for r in rolls]))
    np.testing.assert_array_equal(frames.y, np.concatenate([r[1:] for r in rolls]))
    np.testing.assert_array_equal(frames.m, frames.x)


def test_scores_of_frames_are_those_of_whole_pieces():
    rolls = piano_rolls.synthetic(pieces=5)
    net = network(rolls)
    by_frames, by_pieces = evaluate_frames(net.readers[0], frames_of(net, rolls)), evaluate(net, rolls)
    assert by_frames.frames == by_pieces.frames
    assert by_frames.nats == pytest.approx(by_pieces.nats, abs=1e-4)


def test_training_lowers_the_loss_and_ends_in_the_best_state():
    rolls = piano_rolls.synthetic(pieces=30)
    net = network(rolls[:20])
    memory = {name: p.clone() for name, p in net.memories.named_parameters()}
    run = train_reader(net, rolls[:20], rolls[20:], FrameSettings(epochs=4, batch_size=32, learning_rate=1e-2))
    assert run.trained == 4
    assert run.best["nats"].valid_nats < 0.8 * run.epochs[0].valid_nats
    assert evaluate(net, rolls[20:]).nats == pytest.approx(run.best["nats"].valid_nats, abs=1e-4)
    assert all(torch.equal(p, memory[name]) for name, p in net.memories.named_parameters()), "the memory changed"


def test_the_same_seed_gives_the_same_bits_and_another_one_others():
    rolls = piano_rolls.synthetic(pieces=8)
    runs = []
    for seed in (0, 0, 1):
        net = network(rolls)
        train_reader(net, rolls[:6], rolls[6:], FrameSettings(epochs=2, noise=0.1, shift=3, seed=seed))
        runs.append(net.readers[0].readout.weight)
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


def test_the_start_is_the_frequency_of_each_key():
    rolls = piano_rolls.synthetic(pieces=8)
    net = network(rolls)
    for p in net.readers[0].parameters():
        torch.nn.init.zeros_(p)
    train_reader(net, rolls[:6], rolls[6:], FrameSettings(epochs=0))
    frequency = np.concatenate([r[1:] for r in rolls[:6]]).mean(0).clip(1e-4, 1 - 1e-4)
    np.testing.assert_allclose(net.readers[0].readout.bias.sigmoid().detach(), frequency, atol=1e-5)


def test_transposed_pieces_keep_their_shape_and_stay_on_the_keyboard():
    rolls = [*piano_rolls.synthetic(pieces=20), np.zeros((5, 88), bool), np.eye(88, dtype=bool)]
    rng = np.random.default_rng(0)
    moved = transposed(rolls, 6, rng)
    shifts = set()
    for before, after in zip(rolls, moved, strict=True):
        assert [np.diff(np.flatnonzero(f)).tolist() for f in before] == [
            np.diff(np.flatnonzero(f)).tolist() for f in after
        ], "intervals changed"
        if before.any():
            shifts.add(int(np.flatnonzero(after.any(0))[0] - np.flatnonzero(before.any(0))[0]))
    assert min(shifts) >= -6
    assert max(shifts) <= 6
    assert len(shifts) > 4
    np.testing.assert_array_equal(moved[-1], rolls[-1], "a piece over all keys cannot move")


def test_a_report_may_end_the_training():
    rolls = piano_rolls.synthetic(pieces=8)
    run = train_reader(network(rolls), rolls[:6], rolls[6:], FrameSettings(epochs=9), report=lambda e: e.number == 2)
    assert run.trained == 2


def test_a_loss_that_is_no_number_is_reported():
    rolls = piano_rolls.synthetic(pieces=8)
    net = network(rolls)
    with torch.no_grad():
        net.readers[0].from_input.weight.fill_(float("inf"))
    with pytest.raises((DivergedError, ValueError), match=r"number|NaN"):
        train_reader(net, rolls[:6], rolls[6:], FrameSettings(epochs=1))
