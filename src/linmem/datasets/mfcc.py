"""Mel-frequency cepstral coefficients, as the paper's experiments on words use them.

They are those of python_speech_features, which most work on this task was done with.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.fft import dct

EPSILON = np.finfo(float).eps


def mfcc(
    signal: NDArray[np.floating],
    sample_rate: float = 16_000,
    *,
    window: float = 0.025,
    step: float = 0.010,
    coefficients: int = 13,
    filters: int = 26,
    transform: int = 512,
    emphasis: float = 0.97,
    lifter: int = 22,
) -> NDArray[np.float64]:
    """Return cepstral coefficients of a signal, with the log energy of the frame in place of the zeroth.

    Parameters
    ----------
    signal
        Samples.
    sample_rate
        Samples in a second.
    window, step
        Seconds in a frame, and from one frame to the next. The last frame is filled up with zeros.
    coefficients
        How many are kept.
    filters
        Triangular filters on the mel scale, from 0 to half the sample rate.
    transform
        Points of the Fourier transform; at least the samples in a window.
    emphasis
        How much of the sample before is taken from each.
    lifter
        Higher coefficients are raised by 1 + lifter/2 · sin(π n / lifter).

    Returns
    -------
    features : (frames, coefficients) array

    Examples
    --------
    >>> mfcc(np.sin(np.arange(16_000) / 10)).shape
    (99, 13)
    """
    signal = np.asarray(signal, dtype=np.float64)
    if signal.ndim != 1 or len(signal) == 0 or not np.isfinite(signal).all():
        raise ValueError(f"signal has shape {signal.shape}: expected a vector of finite samples")
    width, hop = round_half_up(window * sample_rate), round_half_up(step * sample_rate)
    if not 0 < width <= transform or hop < 1:
        raise ValueError(
            f"window={window} and step={step} are {width} and {hop} samples at {sample_rate} in a second: expected "
            f"at least one each, and at most transform={transform} in a window"
        )
    if not 1 <= coefficients <= filters:
        raise ValueError(f"coefficients={coefficients}: expected 1 to filters={filters}")
    frames = frames_of(np.append(signal[0], signal[1:] - emphasis * signal[:-1]), width, hop)
    power = np.abs(np.fft.rfft(frames, transform)) ** 2 / transform  # (frames, transform/2 + 1)
    energy = power.sum(1)
    heard = power @ mel_filters(filters, transform, sample_rate).T
    cepstrum = dct(np.log(np.where(heard == 0, EPSILON, heard)), type=2, axis=1, norm="ortho")[:, :coefficients]
    if lifter > 0:
        cepstrum *= 1 + lifter / 2 * np.sin(np.pi * np.arange(coefficients) / lifter)
    cepstrum[:, 0] = np.log(np.where(energy == 0, EPSILON, energy))
    features: NDArray[np.float64] = cepstrum
    return features


def frames_of(signal: NDArray[np.float64], width: int, hop: int) -> NDArray[np.float64]:
    """Cut a signal into frames, (frames, width), the last filled up with zeros."""
    count = 1 + max(0, -(-(len(signal) - width) // hop))
    padded = np.pad(signal, (0, max(0, (count - 1) * hop + width - len(signal))))
    return np.lib.stride_tricks.sliding_window_view(padded, width)[::hop][:count]


def mel_filters(filters: int, transform: int, sample_rate: float) -> NDArray[np.float64]:
    """Return triangles over the bins of a spectrum whose corners are equally far apart in mel."""
    top = 2595 * np.log10(1 + sample_rate / 2 / 700)
    corners = 700 * (10 ** (np.linspace(0, top, filters + 2) / 2595) - 1)  # in Hz
    bins = np.floor((transform + 1) * corners / sample_rate)
    low, middle, high = bins[:-2, None], bins[1:-1, None], bins[2:, None]
    k = np.arange(transform // 2 + 1)
    with np.errstate(divide="ignore", invalid="ignore"):  # of a triangle narrower than a bin, one side is missing
        rising = np.where((k >= low) & (k < middle), (k - low) / (middle - low), 0)
        falling = np.where((k >= middle) & (k < high), (high - k) / (high - middle), 0)
    triangles: NDArray[np.float64] = rising + falling
    return triangles


def round_half_up(x: float) -> int:
    """Round as one does on paper; Python rounds halves to even numbers."""
    return int(np.floor(x + 0.5))
