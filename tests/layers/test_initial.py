"""Where parameters start, and what the designed memories remember."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.signal import cont2discrete
from torch import nn

import linmem
from linmem.layers.initial import autoencoder_memory, legendre_memory, shrink_factor, spectral_radius

SIZES = [(1, 1, 1), (1, 2, 29), (3, 4, 4), (88, 50, 20), (13, 5, 60)]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("kind", ["LMN", "MultiScaleLMN", "ClockworkRNN", "UnrolledRNN", "LinearMemory"])
def test_composite_radius_starts_below_one(kind: str, sizes: tuple[int, int, int]) -> None:
    """For many seeds; measured here on the matrices themselves, not by what shrinks them."""
    n_x, n_h, n_m = sizes
    layers: dict[str, Callable[..., nn.Module]] = {
        "LMN": lambda: linmem.LMN(n_x, n_h, memory_size=n_m, bidirectional=True),
        "LinearMemory": lambda: linmem.LinearMemory(n_x, n_m, bidirectional=True),
        "MultiScaleLMN": lambda: linmem.MultiScaleLMN(n_x, n_h, memory_size=[n_m, 2, 1]),
        "ClockworkRNN": lambda: linmem.ClockworkRNN(n_x, [n_h, 2, 3], connections="full"),
        "UnrolledRNN": lambda: linmem.UnrolledRNN(n_x, n_h, order=4),
    }
    for seed in range(40):
        torch.manual_seed(seed)
        layer = layers[kind]()
        assert layer.composite_radius() < 0.951
        assert all(np.abs(np.linalg.eigvals(m)).max() < 0.951 for m in transitions(layer))


def transitions(layer: Any) -> list[np.ndarray]:
    p = {name: value.detach().double().numpy() for name, value in layer.named_parameters()}
    if isinstance(layer, linmem.LMN):
        return [p["weight_mm" + s] + p["weight_hm" + s] @ p["weight_mh" + s] for s in ("_l0", "_l0_reverse")]
    if isinstance(layer, linmem.MultiScaleLMN):
        dense = layer.memory_matrix().detach().double().numpy()
        return [dense + p["weight_hm_l0"] @ p["weight_mh_l0"]]
    if isinstance(layer, linmem.ClockworkRNN):
        return [layer.hidden_matrix().detach().double().numpy()]
    if isinstance(layer, linmem.LinearMemory):
        return [p["weight_mm" + s] for s in ("_l0", "_l0_reverse")]
    n = layer.hidden_size
    return [np.vstack([p["weight_hh_l0"], np.eye(3 * n, 4 * n)])]


def test_shrink_factor_bound_agrees_with_eigenvalues() -> None:
    """The cheap bound may only save work, never let a large radius through."""
    generator = torch.Generator().manual_seed(0)
    for n in (1, 2, 5, 40):
        for scale in (0.1, 0.9, 0.95, 1.0, 1.5):
            matrix = torch.randn(n, n, generator=generator, dtype=torch.float64)
            matrix *= scale / spectral_radius(matrix)
            assert shrink_factor(matrix) * scale == pytest.approx(min(scale, 0.95), rel=1e-6)


@pytest.mark.parametrize("init", ["orthogonal", "legendre", "autoencoder"])
def test_every_init_designs_the_memory(init: str) -> None:
    """In each module; the functional part stays random, and between modules there is nothing."""
    layer = linmem.MultiScaleLMN(3, 4, memory_size=[5, 3], init=init, window=20, dtype=torch.float64)
    w = layer.memory_matrix()
    for k, rows in enumerate([slice(0, 5), slice(5, 8)]):
        torch.manual_seed(7)
        single = linmem.LMN(3, 4, memory_size=8, dtype=torch.float64)
        assert w[rows, rows].any()
        if init == "orthogonal":
            torch.testing.assert_close(w[rows, rows] @ w[rows, rows].T, torch.eye(5 - 2 * k).double())
        else:
            size = 5 - 2 * k
            torch.manual_seed(7)
            one = linmem.LMN(3, 4, memory_size=size, init=init, window=20, dtype=torch.float64)
            if init == "legendre":
                torch.testing.assert_close(w[rows, rows], one.weight_mm_l0)
            else:
                encode, carry = autoencoder_memory(layer.weight_xh_l0, size, 20)
                torch.testing.assert_close(w[rows, rows], carry)
                torch.testing.assert_close(layer.weight_hm_l0[rows], encode)
        assert single.weight_mh_l0.std() > 0.1
    assert not w[:5, 5:].any()
    y, _ = layer(torch.randn(6, 2, 3, dtype=torch.float64))
    y.sum().backward()
    assert all(p.grad.any() for p in layer.parameters())


def test_legendre_equals_scipys_zero_order_hold() -> None:
    """With the matrices of the Legendre Memory Unit, written out entry by entry."""
    order, window = 7, 30
    a = np.array([[(2 * i + 1) * (-1 if i < j else (-1) ** (i - j + 1)) for j in range(order)] for i in range(order)])
    b = np.array([[(2 * i + 1) * (-1) ** i] for i in range(order)])
    system = (a / window, b / window, np.eye(order), np.zeros((order, 1)))
    expected_a, expected_b, *_ = cont2discrete(system, dt=1.0)
    encode, carry = legendre_memory(1, order, window)
    np.testing.assert_allclose(carry, expected_a, rtol=0, atol=1e-12)
    np.testing.assert_allclose(encode * encode[0, 0].sign(), expected_b, rtol=0, atol=1e-12)


def test_legendre_remembers_a_window() -> None:
    """Decoding the coefficients gives a smooth signal back: m_i is its i-th shifted Legendre coefficient."""
    order, window = 12, 100
    encode, carry = legendre_memory(1, order, window)
    time = np.arange(400)
    signal = np.sin(2 * np.pi * time / 80)
    m = torch.zeros(order, dtype=torch.float64)
    for u in signal:
        m = encode[:, 0] * encode[0, 0].sign() * u + carry @ m
    for lag in (10, 50, 90):
        decoded = np.polynomial.legendre.legval(2 * (lag + 0.5) / window - 1, m.numpy())
        assert decoded == pytest.approx(signal[-1 - lag], abs=0.03)


def test_legendre_channels_share_the_memory() -> None:
    encode, carry = legendre_memory(6, 10, window=8, channels=3)
    assert torch.linalg.matrix_rank(encode) == 3
    assert not carry[:4, 4:].any()
    assert not carry[7:, :7].any()
    with pytest.raises(ValueError, match="channels must be between 1 and 6"):
        legendre_memory(6, 10, channels=7)


def test_autoencoder_is_the_closed_form_solution_for_white_activations() -> None:
    """The memory's encoding has the energy of the best basis, found here by an SVD of Ξ on white noise."""
    torch.manual_seed(0)
    w = torch.randn(4, 2, dtype=torch.float64)
    length, size, window = 4000, 5, 6
    h = torch.randn(length, 2, dtype=torch.float64) @ w.T
    starts = range(0, length, window)  # many sequences of `window` steps
    rows = []
    for start in starts:
        for t in range(min(window, length - start)):
            past = h[start : start + t + 1].flip(0).flatten()
            rows.append(torch.cat([past, past.new_zeros(window * 4 - len(past))]))
    xi = torch.stack(rows)
    _, s, _ = torch.linalg.svd(xi, full_matrices=False)
    best = (s[:size] ** 2).sum()
    encode, carry = autoencoder_memory(w, size, window)
    basis = torch.cat([(torch.linalg.matrix_power(carry, j) @ encode).T for j in range(window)])  # Ω
    torch.testing.assert_close(basis.T @ basis, torch.eye(size).double())
    kept = (xi @ basis).square().sum()
    assert 0.98 * best < kept <= best


def test_autoencoder_decodes_the_past() -> None:
    """With a unit for every feature and lag, A^T (B^T)^j recovers h^{t-j} of the linear features exactly."""
    torch.manual_seed(0)
    w = torch.randn(6, 3, dtype=torch.float64)
    encode, carry = autoencoder_memory(w, 12)
    h = torch.randn(9, 3, dtype=torch.float64) @ w.T
    m = torch.zeros(12, dtype=torch.float64)
    for h_t in h:
        m = encode @ h_t + carry @ m
    kept = int((torch.linalg.matrix_power(carry, 2) @ encode).any())  # the strongest feature has lag 2 at least
    assert kept
    for lag in range(4):
        strongest = encode[0] @ h[-1 - lag]
        decoded = encode[0] @ (encode.T @ torch.linalg.matrix_power(carry.T, lag) @ m)
        assert float(decoded) == pytest.approx(float(strongest), abs=1e-12)


def test_set_memory() -> None:
    layer = linmem.LMN(3, 4, 2, memory_size=5, bidirectional=True)
    nn.init.ones_(layer.bias_m_l1_reverse)
    encode, carry = np.random.default_rng(0).normal(size=(5, 4)), np.eye(5)
    layer.set_memory_(encode, carry, layer=1, reverse=True)
    np.testing.assert_allclose(layer.weight_hm_l1_reverse.detach(), encode, rtol=1e-6)
    np.testing.assert_allclose(layer.weight_mm_l1_reverse.detach(), carry)
    assert not layer.bias_m_l1_reverse.any()
    assert layer.weight_mm_l1.std() > 0.1
    with pytest.raises(RuntimeError, match=r"Expected encode of size \(5, 4\), got \[4, 5\]"):
        layer.set_memory_(encode.T, carry)
    with pytest.raises(IndexError, match="layer must be from 0 to 1, got 2"):
        layer.set_memory_(encode, carry, layer=2)


def test_set_memory_of_a_module() -> None:
    layer = linmem.MultiScaleLMN(3, 4, memory_size=[2, 3, 1])
    before = layer.memory_matrix().detach().clone()
    encode, carry = torch.randn(3, 4), torch.randn(3, 3)
    layer.set_memory_(encode, carry, module=1)
    after = layer.memory_matrix()
    assert torch.equal(after[2:5, 2:5], carry)
    assert torch.equal(layer.weight_hm_l0[2:5], encode)
    assert not after[2:5, 5:].any()
    assert torch.equal(after[:2], before[:2])
    assert torch.equal(after[5:], before[5:])
    with pytest.raises(IndexError, match="module must be from 0 to 2, got 3"):
        layer.set_memory_(encode, carry, module=3)
