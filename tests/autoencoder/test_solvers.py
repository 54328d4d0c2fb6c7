"""Every solver against the singular value decomposition of Xi itself."""

import warnings

import by_hand
import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from linmem import LinearAutoencoder
from linmem.autoencoder import solvers
from linmem.autoencoder.stack import Stack

SOLVERS = ["exact", "doubling", "slices"]
seeds = st.integers(0, 10_000)
forgettings = st.sampled_from([1.0, 0.97, 0.8, 0.5])


@pytest.mark.parametrize("solver", SOLVERS)
@given(seed=seeds, forgetting=forgettings)
def test_memory_of_full_rank_gives_every_sequence_back_and_zeros_before_it(solver, seed, forgetting):
    sequences = by_hand.ragged(seed)
    p = by_hand.rank(by_hand.xi(sequences, forgetting))
    laes = fit_quietly(LinearAutoencoder(p, solver=solver, forgetting=forgetting), sequences)
    for x in sequences:
        past = laes.decode(laes.encode(x), steps=len(x) + 3)
        np.testing.assert_allclose(past[3:], x, atol=1e-8, rtol=0)
        np.testing.assert_allclose(past[:3], 0, atol=1e-8)
    assert laes.energy_ == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("solver", SOLVERS)
def test_memory_above_the_rank_warns_stays_lossless_and_leaves_units_at_zero(solver):
    sequences = by_hand.ragged(3, features=2)
    p = by_hand.rank(by_hand.xi(sequences))
    with pytest.warns(UserWarning, match=rf"n_components={p + 4} is above the numerical rank of the data \({p}\)"):
        laes = LinearAutoencoder(p + 4, solver=solver).fit(sequences)
    codes = laes.transform(sequences)
    assert all(code.shape == (len(x), p + 4) for code, x in zip(codes, sequences, strict=True))
    assert all(not code[:, p:].any() for code in codes)
    for x, code in zip(sequences, codes, strict=True):
        np.testing.assert_allclose(laes.decode(code[-1], len(x)), x, atol=1e-8)


@pytest.mark.parametrize("shape", ["long", "many"], ids=["K recursion", "G recursion"])
@pytest.mark.parametrize("forgetting", [1.0, 0.9])
@pytest.mark.parametrize("p", [1, 7, 20])
def test_exact_equals_the_dense_singular_value_decomposition(shape, forgetting, p):
    sequences = by_hand.ragged(5, 3, 2, 40) if shape == "long" else by_hand.ragged(6, 3, 60, 12)
    A, B, s = by_hand.encoder(sequences, p, forgetting)
    laes = LinearAutoencoder(p, solver="exact", forgetting=forgetting).fit(sequences)
    np.testing.assert_allclose(laes.singular_values_, s, rtol=1e-8)
    assert laes.reconstruction_error(sequences) == pytest.approx(by_hand.error(A, B, sequences, forgetting), rel=1e-8)
    signs = np.sign((laes.A_ * A).sum(1))  # singular vectors are defined up to their sign
    np.testing.assert_allclose(laes.A_, signs[:, None] * A, atol=1e-8)
    np.testing.assert_allclose(laes.B_, signs[:, None] * B * signs, atol=1e-8)


@pytest.mark.parametrize(("solver", "share"), [("doubling", 0.95), ("slices", 0.9)])
@pytest.mark.parametrize("forgetting", [1.0, 0.9])
def test_solvers_that_truncate_on_the_way_come_close_to_the_exact_memory(solver, share, forgetting):
    sequences = by_hand.ragged(11, 4, 6, 60)
    exact = LinearAutoencoder(20, solver="exact", forgetting=forgetting).fit(sequences)
    close = LinearAutoencoder(20, solver=solver, forgetting=forgetting).fit(sequences)
    assert share * exact.energy_ < close.energy_ <= exact.energy_ + 1e-12
    assert close.reconstruction_error(sequences) < 1.05 * exact.reconstruction_error(sequences)


@pytest.mark.parametrize("forgetting", [1.0, 0.9])
def test_doubling_converges_to_exact_with_its_width(forgetting):
    sequences = by_hand.ragged(11, 4, 6, 60)
    exact = LinearAutoencoder(20, solver="exact", forgetting=forgetting).fit(sequences)
    lost = []
    for width in (20, 40, 80, 200):
        laes = LinearAutoencoder(20, solver="doubling", width=width, forgetting=forgetting).fit(sequences)
        lost.append(exact.energy_ - laes.energy_)
    assert lost == sorted(lost, reverse=True), f"energy lost at widths 20, 40, 80, 200: {lost}"
    assert lost[-1] < 1e-10


@pytest.mark.parametrize("lag_by_lag", [False, True])
def test_polishing_converges_to_exact(lag_by_lag, monkeypatch):
    if lag_by_lag:
        monkeypatch.setattr(solvers, "POLISH_LIMIT", 0)
    walks = [np.cumsum(x, 0) for x in by_hand.ragged(11, 4, 6, 60)]  # a spectrum that decays
    exact = LinearAutoencoder(20, solver="exact").fit(walks).singular_values_
    distance = []
    for polish in (0, 1, 2, 4, 40):
        laes = LinearAutoencoder(20, solver="doubling", width=24, polish=polish).fit(walks)
        distance.append(np.abs(laes.singular_values_ - exact).max())
    assert distance == sorted(distance, reverse=True), distance
    assert distance[-1] < 1e-9, distance


@pytest.mark.parametrize("slice_width", [1, 2, 5, 100])
def test_slices_of_any_width_hold_nearly_the_same(slice_width):
    sequences = by_hand.ragged(11, 4, 6, 60)
    exact = LinearAutoencoder(20, solver="exact").fit(sequences)
    laes = LinearAutoencoder(20, solver="slices", slice_width=slice_width).fit(sequences)
    assert 0.85 * exact.energy_ < laes.energy_ <= exact.energy_ + 1e-12
    if slice_width == 100:  # a single slice is all of Xi
        np.testing.assert_allclose(laes.singular_values_, exact.singular_values_, rtol=1e-8)


@given(seed=seeds, forgetting=forgettings)
def test_gram_matrices_from_the_recursions_are_those_of_xi(seed, forgetting):
    sequences = by_hand.ragged(seed)
    stack = Stack(sequences, dtype=torch.float64, device=torch.device("cpu"))
    Xi = by_hand.xi(sequences, forgetting)
    np.testing.assert_allclose(solvers.left_gram(stack, forgetting, iter).numpy(), Xi @ Xi.T, atol=1e-12)
    np.testing.assert_allclose(solvers.right_gram(stack, forgetting, iter).numpy(), Xi.T @ Xi, atol=1e-12)
    assert stack.energy(forgetting) == pytest.approx(np.square(Xi).sum(), rel=1e-12)


@given(seed=seeds, forgetting=forgettings)
def test_lag_by_lag_product_is_the_product_with_k(seed, forgetting):
    sequences = by_hand.ragged(seed)
    stack = Stack(sequences, dtype=torch.float64, device=torch.device("cpu"))
    V = torch.randn(stack.n_frames, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    K = solvers.left_gram(stack, forgetting, iter)
    limit, solvers.POLISH_LIMIT = solvers.POLISH_LIMIT, 0
    try:
        product = solvers.gram_operator(stack, forgetting, iter)(V)
    finally:
        solvers.POLISH_LIMIT = limit
    torch.testing.assert_close(product, K @ V, atol=1e-11, rtol=0)


def test_lanczos_and_dense_eigenvectors_agree(monkeypatch):
    sequences = by_hand.ragged(8, 4, 3, 300)
    lanczos = LinearAutoencoder(12, solver="exact").fit(sequences)
    monkeypatch.setattr(solvers, "DENSE_LIMIT", 10_000)
    every = LinearAutoencoder(12, solver="exact").fit(sequences)
    np.testing.assert_allclose(lanczos.singular_values_, every.singular_values_, rtol=1e-12)
    np.testing.assert_allclose(lanczos.A_, every.A_, atol=1e-8)
    np.testing.assert_allclose(lanczos.B_, every.B_, atol=1e-8)


def test_blocks_of_rows_are_an_implementation_detail(monkeypatch):
    sequences = by_hand.ragged(9, 3, 5, 40)
    whole = {name: LinearAutoencoder(9, solver=name, forgetting=0.95).fit(sequences) for name in SOLVERS}
    monkeypatch.setattr("linmem.autoencoder.stack.BLOCK_ROWS", 7)
    monkeypatch.setattr("linmem.autoencoder.solvers.BLOCK_ROWS", 7)
    for name, expected in whole.items():
        laes = LinearAutoencoder(9, solver=name, forgetting=0.95).fit(sequences)
        np.testing.assert_allclose(laes.A_, expected.A_, atol=1e-8, err_msg=name)
        np.testing.assert_allclose(laes.B_, expected.B_, atol=1e-8, err_msg=name)


@pytest.mark.parametrize("solver", SOLVERS)
@given(seed=seeds)
def test_order_of_the_list_changes_the_memory_by_rounding_only(solver, seed):
    sequences = by_hand.ragged(seed, features=3, sequences=6)
    p = max(1, by_hand.rank(by_hand.xi(sequences)) // 3)
    order = np.random.default_rng(seed).permutation(len(sequences))
    laes = LinearAutoencoder(p, solver=solver).fit(sequences)
    other = LinearAutoencoder(p, solver=solver).fit([sequences[i] for i in order])
    s = laes.singular_values_
    np.testing.assert_allclose(s, other.singular_values_, rtol=1e-9)
    gap = np.abs(np.subtract.outer(s, s) + np.eye(p) * s[0]).min() / s[0]
    assume(gap > 1e-3)  # of equal singular values the vectors are any basis
    np.testing.assert_allclose(other.A_, laes.A_, atol=1e-8 / gap)
    np.testing.assert_allclose(other.B_, laes.B_, atol=1e-8 / gap)


@pytest.mark.parametrize("solver", SOLVERS)
def test_same_data_gives_the_same_bits(solver):
    sequences = by_hand.ragged(9, 3, 5, 300)
    one, two = (LinearAutoencoder(9, solver=solver).fit(sequences) for _ in range(2))
    assert one.A_.tobytes() == two.A_.tobytes()
    assert one.B_.tobytes() == two.B_.tobytes()


def test_largest_entry_of_every_row_of_a_is_positive():
    laes = LinearAutoencoder(9).fit(by_hand.ragged(9, 3, 5, 40))
    assert (laes.A_[np.arange(9), np.abs(laes.A_).argmax(1)] > 0).all()


def test_memory_never_grows_what_it_holds():
    laes = LinearAutoencoder(20, solver="exact", forgetting=0.9).fit(by_hand.ragged(11, 4, 6, 60))
    assert np.linalg.norm(laes.B_, 2) <= 0.9 + 1e-12
    laes = LinearAutoencoder(20, solver="exact").fit(by_hand.ragged(11, 4, 6, 60))
    assert np.linalg.norm(laes.B_, 2) <= 1 + 1e-12


def test_noise_far_below_the_signal_does_not_make_exact_slow_or_wrong():
    """Two strong features, forty at a hundred thousandth: nearly everything is held long before the rank."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((400, 2)) @ rng.standard_normal((2, 40)) + 1e-5 * rng.standard_normal((400, 40))
    errors = {}
    for p in (20, 45, 70):
        exact = LinearAutoencoder(p, solver="exact", forgetting=0.8).fit(x)
        _, s, _ = np.linalg.svd(by_hand.xi([x], 0.8), full_matrices=False)
        np.testing.assert_allclose(exact.singular_values_, s[:p], rtol=1e-6)
        errors[p] = np.abs(exact.decode(exact.encode(x), 4) - x[-4:]).max()
    assert errors[70] < errors[45] < errors[20]


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("exponent", [-150, -30, -20, 0, 18, 30, 150])
def test_scale_of_the_data_does_not_matter(solver, dtype, exponent):
    if dtype == "float32" and abs(exponent) > 30:
        pytest.skip("beyond float32")
    sequences = [x.astype(dtype) for x in by_hand.ragged(11, 4, 4, 30)]
    scale = 2.0 ** round(exponent * np.log2(10))
    laes = LinearAutoencoder(9, solver=solver).fit(sequences)
    other = LinearAutoencoder(9, solver=solver).fit([(x.astype(float) * scale).astype(dtype) for x in sequences])
    tolerance = 1e-9 if dtype == "float64" else 1e-3
    np.testing.assert_allclose(other.singular_values_ / scale, laes.singular_values_, rtol=tolerance)
    np.testing.assert_allclose(other.B_, laes.B_, atol=tolerance)
    scaled = [(x.astype(float) * scale).astype(dtype) for x in sequences]
    assert other.reconstruction_error(scaled) == pytest.approx(laes.reconstruction_error(sequences), rel=tolerance)


@pytest.mark.parametrize("solver", SOLVERS)
def test_single_precision_is_left_where_it_cannot_tell(solver):
    """One strong feature and many weak ones, which float32's Gram matrix takes for rounding."""
    strengths = np.r_[6.0, np.full(299, 2.05e-3)].astype(np.float32)
    sequences = [strength * np.eye(300, dtype=np.float32)[i : i + 1] for i, strength in enumerate(strengths)]
    laes = LinearAutoencoder(20, solver=solver).fit(sequences)
    np.testing.assert_allclose(laes.singular_values_, strengths[:20], rtol=1e-5)


@pytest.mark.parametrize("solver", SOLVERS)
def test_more_features_than_frames(solver):
    sequences = [np.random.default_rng(i).standard_normal((7, 500)) for i in range(3)]
    A, B, s = by_hand.encoder(sequences, 5)
    laes = LinearAutoencoder(5, solver=solver).fit(sequences)
    if solver == "exact":
        np.testing.assert_allclose(laes.singular_values_, s, rtol=1e-8)
    assert laes.reconstruction_error(sequences) < 1.02 * by_hand.error(A, B, sequences)


def test_exact_names_the_size_it_cannot_form(monkeypatch):
    monkeypatch.setattr(solvers, "GRAM_LIMIT", 20)
    with pytest.raises(ValueError, match=r"a matrix of 40 x 40 .* its limit is 20: expected solver='doubling'"):
        LinearAutoencoder(2, solver="exact").fit(np.ones((40, 3)))


def fit_quietly(laes, sequences):
    """Fit where the numerical rank may be one less than the reference's: a singular value is at rounding."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "n_components=.* is above the numerical rank")
        return laes.fit(sequences)
