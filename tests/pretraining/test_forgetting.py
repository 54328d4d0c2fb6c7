"""The discount chosen on validation data."""

import numpy as np
import pytest

from linmem import choose_forgetting


def noise(pieces=10, frames=60, features=3, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((frames, features)) for _ in range(pieces)]


def delayed(sequences, lag):
    return [np.concatenate([np.zeros((lag, x.shape[1])), x[:-lag]]) for x in sequences]


def test_a_task_of_the_recent_past_wants_to_forget_and_one_of_all_of_it_does_not():
    data = noise()
    recent = delayed(data, 1)
    sums = [np.cumsum(x, axis=0) for x in data]
    choices = {}
    for name, target in {"recent": recent, "sums": sums}.items():
        choices[name] = choose_forgetting(
            data[:7], data[7:], 6, targets=(target[:7], target[7:]), candidates=[0.3, 0.99]
        )
    assert choices["recent"].best == 0.3, choices
    assert choices["sums"].best == 0.99, choices


def test_the_best_has_the_least_error_on_validation_data():
    rng = np.random.default_rng(1)
    rolls = [rng.random((40, 5)) < 0.3 for _ in range(9)]
    choice = choose_forgetting(rolls[:6], rolls[6:], 8, candidates=(0.5, 0.9, 1.0))
    assert set(choice.errors) == {0.5, 0.9, 1.0}
    assert choice.errors[choice.best] == min(choice.errors.values())
    assert choose_forgetting(rolls[:6], rolls[6:], 8, candidates=(0.5, 0.9, 1.0)) == choice, "not reproducible"


def test_an_error_of_one_is_that_of_the_mean():
    """White noise has no next frame to predict."""
    data = noise(frames=400)
    (error,) = choose_forgetting(data[:7], data[7:], 4, candidates=[0.5]).errors.values()
    assert error == pytest.approx(1, abs=0.03)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"candidates": []}, "candidates is empty"),
        ({"candidates": [1.5]}, r"forgetting=1\.5: expected"),
        ({"targets": (noise(7), noise(2))}, "targets of valid do not fit"),
        ({"targets": (noise(7),)}, "targets has 1 items"),
        ({"targets": (noise(7), [np.zeros((60, 3))] * 3)}, "constant: expected some variance"),
    ],
)
def test_bad_input_is_refused(arguments, message):
    data = noise()
    with pytest.raises(ValueError, match=message):
        choose_forgetting(data[:7], data[7:], 4, **arguments)


def test_sequences_of_one_frame_have_nothing_to_predict():
    with pytest.raises(ValueError, match="train has no sequence of two frames"):
        choose_forgetting([np.ones((1, 3))], noise(), 1)
