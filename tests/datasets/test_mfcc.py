"""Cepstral coefficients are those of python_speech_features."""

import numpy as np
import pytest
import python_speech_features
from hypothesis import given
from hypothesis import strategies as st

from linmem.datasets.mfcc import mfcc


@given(
    samples=st.integers(1, 3000),
    rate=st.sampled_from([8000, 11025, 16_000]),
    step=st.sampled_from([0.001, 0.005, 0.010, 0.0133]),
    coefficients=st.integers(1, 20),
    lifter=st.sampled_from([0, 22, 30]),
    loudness=st.sampled_from([0.0, 1e-3, 1.0, 1e4]),
    seed=st.integers(0, 2**31),
)
def test_they_equal_an_independent_implementation(samples, rate, step, coefficients, lifter, loudness, seed):
    signal = loudness * np.random.default_rng(seed).standard_normal(samples)
    ours = mfcc(signal, rate, step=step, coefficients=coefficients, lifter=lifter)
    theirs = python_speech_features.mfcc(signal, rate, winstep=step, numcep=coefficients, ceplifter=lifter)
    assert ours.shape == theirs.shape
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"signal": np.zeros((3, 2))}, r"signal has shape \(3, 2\): expected a vector of finite samples"),
        ({"signal": np.zeros(0)}, "expected a vector of finite samples"),
        ({"signal": np.full(3, np.nan)}, "expected a vector of finite samples"),
        ({"window": 0.1}, "are 1600 and 160 samples at 16000 in a second: expected at least one each, and at most"),
        ({"step": 0}, "expected at least one each"),
        ({"coefficients": 30}, "coefficients=30: expected 1 to filters=26"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        mfcc(**({"signal": np.zeros(100)} | arguments))
