"""Batches of ragged sequences, and their pieces."""

import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import linmem
from linmem.datasets import piano_rolls
from linmem.datasets.piano_rolls import Rolls
from linmem.experiments import batches


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=80),
    st.integers(1, 9),
    st.none() | st.integers(0, 100),
)
def test_every_sequence_is_in_one_batch(lengths, size, seed):
    division = batches.in_batches(lengths, size, seed)
    assert sorted(i for batch in division for i in batch) == list(range(len(lengths)))
    assert max(map(len, division)) <= size
    assert division == batches.in_batches(lengths, size, seed)


def test_batches_differ_from_seed_to_seed_and_have_little_padding():
    lengths = np.random.default_rng(0).integers(10, 1000, 640).tolist()
    one, other = (batches.in_batches(lengths, 8, seed) for seed in (0, 1))
    assert {frozenset(batch) for batch in one} != {frozenset(batch) for batch in other}
    assert [lengths[batch[-1]] for batch in one] != sorted(lengths[batch[-1]] for batch in one), (
        "not in order of length"
    )
    padded = sum(len(batch) * max(lengths[i] for i in batch) for batch in one)
    assert padded < 1.1 * sum(lengths)
    with pytest.raises(ValueError, match="size=0: expected at least 1"):
        batches.in_batches(lengths, 0)


def test_targets_are_the_frames_that_follow():
    rolls = piano_rolls.synthetic(pieces=10)
    seen = 0
    for batch in batches.next_frame_batches(Rolls.pack(rolls), 4, seed=0):
        assert batch.x.dtype == batch.y.dtype == torch.float32
        assert batch.mask.sum() == batch.lengths.sum()
        for row, length in enumerate(batch.lengths.tolist()):
            x, y = batch.x[:length, row], batch.y[:length, row]
            (roll,) = (r for r in rolls if len(r) == length + 1 and np.array_equal(r[:-1], x.bool().numpy()))
            np.testing.assert_array_equal(roll[1:], y.bool().numpy())
            assert not batch.y[length:, row].any()
            seen += 1
    assert seen == len(rolls)


def test_a_list_and_packed_rolls_give_the_same_batches_and_single_frames_are_left_out():
    rolls = [*piano_rolls.synthetic(pieces=6), np.ones((1, 88), bool)]
    for ours, theirs in zip(
        batches.next_frame_batches(rolls, 4, seed=3),
        batches.next_frame_batches(Rolls.pack(rolls), 4, seed=3),
        strict=True,
    ):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert sum(len(batch.lengths) for batch in batches.next_frame_batches(rolls, 4)) == 6
    with pytest.raises(ValueError, match=r"sequences\[1\] has 1 frames: expected at least 2"):
        batches.next_frames([np.ones((2, 3)), np.ones((1, 3))])


@given(st.lists(st.integers(2, 30), min_size=1, max_size=6), st.integers(1, 40))
def test_pieces_of_a_batch_with_the_state_carried_on_equal_the_whole(lengths, steps):
    rng = np.random.default_rng(sum(lengths))
    batch = batches.next_frames([rng.normal(size=(length, 3)) for length in lengths])
    layer = linmem.MultiScaleLMN(3, 4, num_modules=2, memory_size=6, dtype=torch.float64)
    with torch.no_grad():
        expected, _ = layer(batch.x.double(), lengths=batch.lengths)
        state, parts = None, []
        for chunk in batch.chunks(steps):
            y, state = layer(chunk.x.double(), state, lengths=chunk.lengths)
            state = batches.detach(state)
            parts.append(y)
    torch.testing.assert_close(torch.cat(parts), expected, rtol=0, atol=1e-12)


def test_gradients_end_where_a_piece_begins():
    layer = linmem.LMN(3, 4)
    x = torch.randn(6, 1, 3, requires_grad=True)
    _, state = layer(x[:3])
    y, _ = layer(x[3:], batches.detach(state))
    y.sum().backward()
    assert not x.grad[:3].any()
    assert x.grad[3:].any()
    with pytest.raises(ValueError, match="steps=0: expected at least 1"):
        list(batches.next_frames([np.ones((3, 1))]).chunks(0))


def test_a_large_set_is_never_expanded_as_a_whole():
    frames = 200_000
    rolls = Rolls(np.zeros((frames, 11), np.uint8), np.full(400, 500))
    tracemalloc.start()
    for batch in batches.next_frame_batches(rolls, 4, seed=0):
        del batch
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    expanded = frames * 88 * 4
    assert peak < expanded / 20, f"{peak / 1e6:.0f} MB at once; all of it would be {expanded / 1e6:.0f} MB"


def test_an_unpacked_set_gives_the_same_batches_and_a_large_one_stays_packed(monkeypatch):
    rolls = Rolls.pack([*piano_rolls.synthetic(pieces=6), np.ones((1, 88), bool)])
    monkeypatch.setattr(batches, "MOST_UNPACKED", rolls.n_frames * 88)
    unpacked = batches.unpacked(rolls)
    assert isinstance(unpacked, list)
    for ours, theirs in zip(
        batches.next_frame_batches(unpacked, 4, seed=3), batches.next_frame_batches(rolls, 4, seed=3), strict=True
    ):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    monkeypatch.setattr(batches, "MOST_UNPACKED", rolls.n_frames * 88 - 1)
    assert batches.unpacked(rolls) is rolls
    assert batches.unpacked(unpacked) is unpacked
    assert len(batches.unpacked(rolls[:0])) == 0
