"""Several memories of the same sequences, with different discounts and clocks, that share a number of units."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linmem.autoencoder.estimator import LinearAutoencoder
from linmem.autoencoder.sequences import as_sequences


def side_by_side(
    sequences: Any, n_components: int, forgetting: Sequence[float], periods: Sequence[int], **options: Any
) -> list[LinearAutoencoder]:
    """Fit one autoencoder for each discount and period, and divide the units among them by energy.

    An autoencoder of period k sees every k-th frame of each sequence, from the first on. Of all units that each could
    have, the ones with the largest share of the energy of their own autoencoder are kept, and one of each at least.

    Parameters
    ----------
    sequences
        As in :class:`LinearAutoencoder`.
    n_components
        Units of all together.
    forgetting, periods
        As many of each.
    **options
        Further arguments of :class:`LinearAutoencoder`.

    Examples
    --------
    The longer memory has more to tell apart.

    >>> x = np.random.default_rng(0).standard_normal((200, 2))
    >>> [len(laes.A_) for laes in side_by_side(x, 30, forgetting=[0.5, 0.9], periods=[1, 1])]
    [6, 24]
    """
    if len(forgetting) != len(periods) or not forgetting:
        raise ValueError(
            f"forgetting has {len(forgetting)} items and periods {len(periods)}: expected as many, and at least one"
        )
    for period in periods:
        if not isinstance(period, Integral) or isinstance(period, bool) or period < 1:
            raise ValueError(f"periods={tuple(periods)}: expected integers of at least 1")
    if n_components < len(forgetting):
        raise ValueError(f"n_components={n_components}: expected at least {len(forgetting)}, one for each memory")
    arrays = as_sequences(sequences, "sequences").arrays
    most = n_components - len(forgetting) + 1
    fitted = []
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="n_components=.* is above the numerical rank")
        for discount, period in zip(forgetting, periods, strict=True):
            every = [array[::period] for array in arrays]
            fitted.append(LinearAutoencoder(most, forgetting=discount, **options).fit(every))
    sizes = divide([shares(laes) for laes in fitted], n_components)
    small = [laes.truncated(size) for laes, size in zip(fitted, sizes, strict=True)]
    zero = sum(int((laes.singular_values_ == 0).sum()) for laes in small)
    if zero:
        warnings.warn(f"n_components={n_components} is more than the data needs: {zero} units stay zero", stacklevel=3)
    return small


def shares(laes: LinearAutoencoder) -> NDArray[np.float64]:
    """Return what part of the energy each unit holds, largest first."""
    energy = np.square(laes.singular_values_)
    total = energy.sum()
    result: NDArray[np.float64] = energy / total * laes.energy_ if total else energy
    return result


def divide(shares: Sequence[NDArray[np.float64]], units: int) -> list[int]:
    """Return how many units each memory gets: the largest shares of all, and one for each at least.

    Examples
    --------
    >>> divide([np.array([0.5, 0.1, 0.05]), np.array([0.3, 0.2, 0.01])], 4)
    [2, 2]
    >>> divide([np.array([0.5, 0.3]), np.array([0.1, 0.0])], 2)
    [1, 1]
    """
    owner = np.concatenate([np.full(len(s) - 1, k) for k, s in enumerate(shares)])
    rest = np.concatenate([s[1:] for s in shares])
    kept = owner[np.argsort(-rest, kind="stable")[: units - len(shares)]]
    return [1 + int((kept == k).sum()) for k in range(len(shares))]
