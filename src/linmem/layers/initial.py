"""Where parameters start: stable random ones, and memories that are designed instead of random."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from linmem._shapes import Float

RADIUS_LIMIT = 0.95


def uniform_(weight: Tensor, fan_in: int | None = None) -> None:
    """Draw from ±1/√fan_in, by default the number of columns."""
    bound = (fan_in or weight.shape[-1]) ** -0.5
    torch.nn.init.uniform_(weight, -bound, bound)


def spectral_radius(matrix: Float[Tensor, "n n"]) -> float:
    """Return the largest modulus of an eigenvalue."""
    return float(torch.linalg.eigvals(matrix.detach().double().cpu()).abs().max())


def shrink_factor(matrix: Float[Tensor, "n n"], limit: float = RADIUS_LIMIT) -> float:
    """Return what to multiply `matrix` by so that its spectral radius is at most `limit`; 1 if it already is.

    The eigenvalues of a wide matrix take seconds, and a wide random matrix hardly ever needs shrinking.
    So first a bound from a few products: the radius is below |matrix^64|^(1/64) for any norm.
    """
    matrix = matrix.detach().double()
    if torch.linalg.matrix_norm(torch.linalg.matrix_power(matrix, 64)) < limit**64:
        return 1.0
    return min(1.0, limit / spectral_radius(matrix))


def growth_rate(w_hh: Float[Tensor, "n tape"]) -> float:
    """Estimate by running it how fast h^t = W_1 h^{t-1} + … + W_k h^{t-k} grows: its spectral radius.

    The eigenvalues of its companion matrix would take minutes at sizes in ordinary use. The first steps are
    not counted, so that what fades faster has faded.
    """
    w = w_hh.detach().double().cpu()
    tape = torch.randn(w.shape[1], 16, dtype=w.dtype, generator=torch.Generator().manual_seed(0))
    steps, growth = 200, torch.ones(1)
    for _ in range(2):
        for _ in range(steps):
            tape = torch.cat([w @ tape, tape[: -len(w)]])
        growth = tape.norm(dim=0)
        tape = tape / growth.clamp_min(torch.finfo(w.dtype).tiny)
    return float(growth.max().pow(1 / steps))


def contract_(matrix: Float[Tensor, "n n"], factors: Iterable[Tensor]) -> None:
    """Multiply `factors`, in which `matrix` is linear, so that its spectral radius is at most the limit."""
    shrink = shrink_factor(matrix)
    if shrink < 1:
        for factor in factors:
            factor.mul_(shrink)


def orthogonal_memory(hidden_size: int, memory_size: int) -> tuple[Tensor, Tensor]:
    """Return a memory that forgets nothing: W^mm orthogonal, W^hm with orthonormal rows or columns."""
    encode = torch.nn.init.orthogonal_(torch.empty(memory_size, hidden_size, dtype=torch.float64))
    carry = torch.nn.init.orthogonal_(torch.empty(memory_size, memory_size, dtype=torch.float64))
    return encode, carry


def legendre_memory(
    hidden_size: int, memory_size: int, window: int | None = None, channels: int = 1
) -> tuple[Tensor, Tensor]:
    r"""Return the fixed memory of the Legendre Memory Unit as the matrices (W^hm, W^mm).

    The memory holds the Legendre coefficients of a signal u over the last `window` steps. It follows
    :math:`\theta \dot m = A m + B u` with :math:`A_{ij} = (2i+1)(-1 \text{ if } i < j \text{ else }
    (-1)^{i-j+1})` and :math:`B_i = (2i+1)(-1)^i`, discretised with u constant during a step.

    The signal is a random projection of the hidden state, u = e·h with |e| = 1, so W^hm = B e has rank one
    per channel; several channels with orthonormal projections share the memory evenly.

    Parameters
    ----------
    hidden_size, memory_size
        Widths of the hidden state and of the memory.
    window
        Steps to remember, by default as many as a channel has coefficients.
    channels
        How many projections of the hidden state are remembered.

    Examples
    --------
    A constant signal is its own first coefficient:

    >>> encode, carry = legendre_memory(1, 6, window=20)
    >>> m = torch.zeros(6, dtype=torch.float64)
    >>> for _ in range(200):
    ...     m = encode[:, 0] + carry @ m
    >>> torch.round(m * encode[0, 0].sign(), decimals=3).abs()
    tensor([1., 0., 0., 0., 0., 0.], dtype=torch.float64)
    """
    if not 1 <= channels <= min(hidden_size, memory_size):
        raise ValueError(
            f"channels must be between 1 and {min(hidden_size, memory_size)}, the smaller of hidden_size and "
            f"memory_size, got {channels}"
        )
    projections = torch.nn.init.orthogonal_(torch.empty(channels, hidden_size, dtype=torch.float64))
    encode, carry = [], []
    for channel in range(channels):
        order = memory_size // channels + (channel < memory_size % channels)
        a, b = _legendre_step(order, window or order)
        encode.append(b[:, None] * projections[channel])
        carry.append(a)
    return torch.cat(encode), torch.block_diag(*carry)  # type: ignore[no-untyped-call]


def _legendre_step(order: int, window: int) -> tuple[Tensor, Tensor]:
    """Discretise one channel: exp([[A, B], [0, 0]] / θ) holds both matrices of the zero-order hold."""
    i = torch.arange(order, dtype=torch.float64)
    sign = torch.where(i[:, None] < i, -1.0, -((-1.0) ** (i[:, None] - i)))
    system = torch.zeros(order + 1, order + 1, dtype=torch.float64)
    system[:order, :order] = (2 * i[:, None] + 1) * sign
    system[:order, order] = (2 * i + 1) * (-1.0) ** i
    step = torch.linalg.matrix_exp(system / window)
    return step[:order, :order], step[:order, order]


def autoencoder_memory(
    w_xh: Float[Tensor, "N_h N_x"], memory_size: int, window: int | None = None
) -> tuple[Tensor, Tensor]:
    r"""Return the closed-form autoencoder of random features as the matrices (W^hm, W^mm).

    The activations of an untrained network fed with white noise are, to first order, white in time with
    covariance C = W^xh W^xhᵀ. The autoencoder of sequences of length l of such activations needs no data:
    the right singular vectors of Ξ are the eigenvectors v_c of C at one lag j each, with energy
    λ_c·(l - j), and the `memory_size` largest are kept. The memory is then a set of delay lines, one for
    each principal component of the activations, the longer the more energy the component has.

    Parameters
    ----------
    w_xh
        The input weights that make the features.
    memory_size
        Units of the memory.
    window
        The length l, by default `memory_size`; raised if so short a past cannot fill the memory.

    Examples
    --------
    Two features and four units: the stronger feature is remembered for three steps, the other for one.

    >>> encode, carry = autoencoder_memory(torch.diag(torch.tensor([3.0, 2.0])), 4)
    >>> encode.abs()
    tensor([[1., 0.],
            [0., 1.],
            [0., 0.],
            [0., 0.]], dtype=torch.float64)
    >>> carry
    tensor([[0., 0., 0., 0.],
            [0., 0., 0., 0.],
            [1., 0., 0., 0.],
            [0., 0., 1., 0.]], dtype=torch.float64)
    """
    features, strengths, _ = torch.linalg.svd(w_xh.detach().double().cpu(), full_matrices=False)
    window = max(window or memory_size, -(-memory_size // len(strengths)))
    energy = strengths**2 * (window - torch.arange(window, dtype=torch.float64)[:, None])  # (lags, features)
    kept = energy.flatten().argsort(descending=True, stable=True)[:memory_size].sort().values
    lag, feature = kept // len(strengths), kept % len(strengths)
    encode = torch.where(lag[:, None] == 0, features.T[feature], 0.0)
    carry = (feature[:, None] == feature) & (lag[:, None] == lag + 1)
    return encode, carry.double()
