"""What a user of LinearAutoencoder can rely on."""

import pickle

import by_hand
import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from linmem import LinearAutoencoder

seeds = st.integers(0, 10_000)


# A row of a 2-D array is a frame, and the frames before it belong to its past. Two of scikit-learn's checks
# take rows for samples that know nothing of each other.
CONTRADICTIONS = {
    "check_methods_sample_order_invariance": "the memory depends on the order of the frames",
    "check_methods_subset_invariance": "the memory depends on the frames before",
}


@parametrize_with_checks(
    [LinearAutoencoder(), LinearAutoencoder(3, solver="doubling", forgetting=0.9, center=True)],
    expected_failed_checks=lambda estimator: CONTRADICTIONS,
)
@pytest.mark.filterwarnings("ignore:n_components=:UserWarning")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
def test_scikit_learn_contract(estimator, check):
    check(estimator)


# ------------------------------------------------------------------------------------------------- containers


@pytest.fixture(scope="module")
def sequences():
    return by_hand.ragged(4, 3, 5, 20)


@pytest.fixture(scope="module")
def laes(sequences):
    return LinearAutoencoder(8).fit(sequences)


def test_one_array_is_one_sequence(laes, sequences):
    codes = laes.transform(sequences[0])
    assert codes.shape == (len(sequences[0]), 8)
    np.testing.assert_allclose(codes, by_hand.encode(laes.A_, laes.B_, sequences[0]), atol=1e-12)
    np.testing.assert_array_equal(laes.encode(sequences[0]), codes[-1])


def test_a_batch_comes_back_as_a_batch(laes):
    batch = np.random.default_rng(0).standard_normal((4, 7, 3))
    codes = laes.transform(batch)
    assert codes.shape == (4, 7, 8)
    assert laes.encode(batch).shape == (4, 8)
    np.testing.assert_allclose(codes[2], laes.transform(batch[2]), atol=1e-12)


def test_a_list_comes_back_as_a_list(laes, sequences):
    codes = laes.transform(sequences)
    assert [code.shape for code in codes] == [(len(x), 8) for x in sequences]
    np.testing.assert_allclose(laes.encode(sequences), [code[-1] for code in codes], atol=1e-15)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_torch_tensors_in_torch_tensors_out(laes, dtype):
    x = torch.randn(9, 3, generator=torch.Generator().manual_seed(0)).to(dtype)
    codes = laes.transform(x)
    assert isinstance(codes, torch.Tensor)
    assert codes.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    expected = by_hand.encode(laes.A_, laes.B_, x.double().numpy())
    np.testing.assert_allclose(codes.numpy(), expected, atol=1e-5 if codes.dtype == torch.float32 else 1e-12)
    assert isinstance(laes.decode(codes[-1], 4), torch.Tensor)
    assert isinstance(laes.step(None, x[0]), torch.Tensor)
    assert isinstance(laes.inverse_transform(codes), torch.Tensor)


def test_fitting_on_tensors_equals_fitting_on_arrays(sequences, laes):
    other = LinearAutoencoder(8).fit([torch.from_numpy(x) for x in sequences])
    np.testing.assert_allclose(other.B_, laes.B_, atol=1e-12)


ODD_ARRAYS = {
    "reversed view": lambda x: x[::-1].copy()[::-1],
    "Fortran order": np.asfortranarray,
    "read only": lambda x: _read_only(x.copy()),
    "big endian": lambda x: x.astype(">f8"),
    "long double": lambda x: x.astype(np.longdouble),
    "every second column": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "nested lists": lambda x: x.tolist(),
    "sparse": scipy.sparse.coo_array,
}


@pytest.mark.parametrize("odd", ODD_ARRAYS.values(), ids=ODD_ARRAYS.keys())
def test_layout_and_kind_of_array_do_not_matter(odd, sequences, laes):
    other = LinearAutoencoder(8).fit([odd(x) for x in sequences])
    np.testing.assert_allclose(other.B_, laes.B_, atol=1e-12)
    np.testing.assert_allclose(laes.transform([odd(sequences[1])])[0], laes.transform(sequences[1]), atol=1e-12)


@given(seed=seeds)
@pytest.mark.parametrize("solver", ["exact", "doubling", "slices"])
def test_sparse_and_boolean_rolls_equal_dense_ones(solver, seed):
    rng = np.random.default_rng(seed)
    rolls = [rng.random((int(rng.integers(1, 30)), 6)) < 0.3 for _ in range(4)]
    if not np.concatenate(rolls).any():
        return
    p = max(1, by_hand.rank(by_hand.xi([x.astype(float) for x in rolls])) // 3)

    def encoder(convert):
        laes = LinearAutoencoder(p, solver=solver, dtype="float64").fit([convert(x) for x in rolls])
        return laes, laes.transform([convert(x) for x in rolls])

    laes, expected = encoder(lambda x: x.astype(float))
    for convert in (scipy.sparse.csr_matrix, scipy.sparse.csc_array, np.asarray, lambda x: x.astype(np.int8)):
        other, codes = encoder(convert)
        np.testing.assert_allclose(other.singular_values_, laes.singular_values_, rtol=1e-9)
        for code, wanted in zip(codes, expected, strict=True):
            np.testing.assert_allclose(code, wanted, atol=1e-9)


def test_working_precision_is_the_least_that_holds_the_data_exactly(sequences):
    rolls = [x > 0 for x in sequences]
    assert LinearAutoencoder(4).fit(rolls).transform(rolls)[0].dtype == np.float32
    assert LinearAutoencoder(4).fit(sequences).transform(sequences)[0].dtype == np.float64
    whole = [x.astype(np.int64) for x in sequences]
    assert LinearAutoencoder(4).fit(whole).transform(whole)[0].dtype == np.float64
    assert LinearAutoencoder(4, dtype="float64").fit(rolls).transform(rolls)[0].dtype == np.float64
    assert LinearAutoencoder(4, dtype=torch.float32).fit(sequences).transform(sequences)[0].dtype == np.float32


def test_a_sparse_roll_is_never_copied_to_float64(monkeypatch):
    """Blocks of rows become dense, the roll does not."""
    from linmem.autoencoder import stack

    largest = 0
    original = stack.dense

    def measured(rows, dtype, device):
        nonlocal largest
        tensor = original(rows, dtype, device)
        largest = max(largest, tensor.numel())
        return tensor

    monkeypatch.setattr(stack, "dense", measured)
    rng = np.random.default_rng(0)
    roll = scipy.sparse.random_array((20_000, 300), density=0.01, rng=rng, format="csr", dtype=np.float64)
    for x in (roll, roll.toarray() > 0):
        laes = LinearAutoencoder(5, solver="doubling").fit(x)
        laes.encode(x), laes.reconstruction_error(x)
        assert 0 < largest <= stack.BLOCK_ROWS * 300


# ------------------------------------------------------------------------------------------- encode and decode


@given(seed=seeds, forgetting=st.sampled_from([1.0, 0.9]), center=st.booleans())
def test_transform_equals_chunks_equals_steps(seed, forgetting, center):
    sequences = by_hand.ragged(seed)
    rng = np.random.default_rng(seed)
    p = max(1, by_hand.rank(by_hand.xi(sequences)) // 2)
    assume(not center or len(np.concatenate(sequences)) > p)  # a mean takes one dimension away
    laes = LinearAutoencoder(p, forgetting=forgetting, center=center).fit(sequences)
    x = sequences[0]
    whole = laes.transform(x)
    memory, chunks = None, []
    for piece in np.split(x, np.sort(rng.integers(1, len(x) + 1, 2))):
        if len(piece):
            chunks.append(laes.transform(piece, memory=memory))
            memory = chunks[-1][-1]
    np.testing.assert_allclose(np.concatenate(chunks), whole, atol=1e-11)
    memory, steps = None, []
    for frame in x:
        memory = laes.step(memory, frame)
        steps.append(memory)
    np.testing.assert_allclose(np.array(steps), whole, atol=1e-11)


def test_a_batch_of_streams_steps_together(laes):
    batch = np.random.default_rng(0).standard_normal((4, 7, 3))
    memory = None
    for t in range(7):
        memory = laes.step(memory, batch[:, t])
    np.testing.assert_allclose(memory, laes.encode(batch), atol=1e-12)


def test_every_sequence_of_a_list_may_go_on_from_its_own_memory(laes, sequences):
    halves = [(x[: len(x) // 2 + 1], x[len(x) // 2 + 1 :]) for x in sequences if len(x) > 2]
    memory = laes.encode([first for first, _ in halves])
    rest = laes.encode([second for _, second in halves], memory=memory)
    np.testing.assert_allclose(rest, laes.encode([np.concatenate(x) for x in halves]), atol=1e-11)


def test_a_long_sequence_is_encoded_piece_by_piece(laes, monkeypatch):
    x = np.random.default_rng(0).standard_normal((103, 3))
    whole, error = laes.transform(x), laes.reconstruction_error([x, x[:9]])
    monkeypatch.setattr("linmem.autoencoder.estimator.CHUNK_FRAMES", 10)
    np.testing.assert_allclose(laes.transform(x), whole, atol=1e-11)
    np.testing.assert_allclose(laes.transform([x[:4], x, x[:3]])[1], whole, atol=1e-11)
    assert laes.reconstruction_error([x, x[:9]]) == pytest.approx(error, rel=1e-9)


def test_decode_gives_frames_oldest_first(laes, sequences):
    x = sequences[1]
    np.testing.assert_allclose(
        laes.decode(laes.encode(x), 5), by_hand.decode(laes.A_, laes.B_, laes.encode(x), 5), atol=1e-12
    )
    newest = laes.decode(laes.encode(x), 1)[0]
    np.testing.assert_allclose(laes.decode(laes.encode(x), 5)[-1], newest, atol=1e-12)


def test_decode_takes_many_memories(laes, sequences):
    codes = laes.encode(sequences)
    assert laes.decode(codes, 4).shape == (len(sequences), 4, 3)
    np.testing.assert_allclose(laes.decode(codes, 4)[2], laes.decode(codes[2], 4), atol=1e-12)


def test_inverse_transform_gives_the_newest_frame_of_every_memory(laes, sequences):
    codes = laes.transform(sequences)
    frames = laes.inverse_transform(codes)
    assert [frame.shape for frame in frames] == [x.shape for x in sequences]
    np.testing.assert_allclose(frames[1][3], laes.decode(codes[1][3], 1)[0], atol=1e-12)
    assert laes.inverse_transform(codes[0]).shape == sequences[0].shape


@pytest.mark.parametrize("forgetting", [1.0, 0.9])
def test_reconstruction_error_and_score_are_what_they_say(sequences, forgetting):
    laes = LinearAutoencoder(8, forgetting=forgetting).fit(sequences)
    error = by_hand.error(laes.A_, laes.B_, sequences, forgetting)
    assert laes.reconstruction_error(sequences) == pytest.approx(error, rel=1e-10)
    assert laes.score(sequences) == pytest.approx(1 - error**2, rel=1e-10)


def test_energy_is_the_share_of_xi_that_the_singular_values_hold(sequences):
    s = np.linalg.svd(by_hand.xi(sequences), compute_uv=False)
    laes = LinearAutoencoder(8, solver="exact").fit(sequences)
    assert laes.energy_ == pytest.approx((s[:8] ** 2).sum() / (s**2).sum(), rel=1e-12)


def test_centering_encodes_deviations_and_decodes_around_the_mean(sequences):
    shifted = [x + 5 for x in sequences]
    p = by_hand.rank(by_hand.xi([x - np.concatenate(sequences).mean(0) for x in sequences]))
    laes = LinearAutoencoder(p, center=True).fit(shifted)
    np.testing.assert_allclose(laes.mean_, np.concatenate(shifted).mean(0))
    past = laes.decode(laes.encode(shifted[0]), len(shifted[0]) + 2)
    np.testing.assert_allclose(past[2:], shifted[0], atol=1e-8)
    np.testing.assert_allclose(past[:2], np.tile(laes.mean_, (2, 1)), atol=1e-8)


def test_forgetting_keeps_the_recent_past_better():
    sequences = by_hand.ragged(11, 4, 6, 60)
    recent = {}
    for forgetting in (1.0, 0.8):
        laes = LinearAutoencoder(20, solver="exact", forgetting=forgetting).fit(sequences)
        long = [x for x in sequences if len(x) >= 5]
        recent[forgetting] = sum(np.square(laes.decode(laes.encode(x), 5) - x[-5:]).sum() for x in long)
    assert recent[0.8] < 0.5 * recent[1.0]


def test_silent_features_and_silent_data_are_no_trouble():
    roll = np.zeros((30, 5))
    roll[:, 1] = np.arange(30) % 3
    laes = LinearAutoencoder(4).fit(roll)
    assert not laes.A_[:, [0, 2, 3, 4]].any()
    assert laes.transform(roll).shape == (30, 4)
    with pytest.warns(UserWarning, match="above the numerical rank of the data \\(0\\)"):
        laes = LinearAutoencoder(4).fit(np.zeros((30, 5)))
    assert not laes.transform(np.ones((3, 5))).any()
    assert laes.reconstruction_error(np.zeros((3, 5))) == 0


@pytest.mark.parametrize("solver", ["exact", "doubling", "slices"])
@pytest.mark.filterwarnings("ignore:n_components=:UserWarning")
def test_extreme_shapes(solver):
    rng = np.random.default_rng(0)
    for sequences in (
        [np.ones((1, 1))],
        [rng.standard_normal((1, 4)) for _ in range(7)],
        [rng.standard_normal((3, 50))],
        [rng.standard_normal((40, 1))],
        [np.ones((20, 2))],
        [rng.standard_normal((4, 2))] * 5,
        [1e-100 * rng.standard_normal((4, 2))],
        [1e100 * rng.standard_normal((4, 2))],
    ):
        laes = LinearAutoencoder(60, solver=solver).fit(sequences)
        for x in sequences:
            past = laes.decode(laes.encode(x), len(x))
            np.testing.assert_allclose(past, x, rtol=0, atol=1e-8 * np.abs(x).max())


# ---------------------------------------------------------------------------------------- living with sklearn


def test_pipeline_from_frames_to_targets():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((400, 2))
    y = np.concatenate([np.zeros(3), x[:-3, 0]])  # what was seen three frames ago
    model = make_pipeline(LinearAutoencoder(12, forgetting=0.7), Ridge(1e-6)).fit(x, y)
    assert model.score(x, y) > 0.99, "five frames of two features fit into twelve units"
    assert Ridge().fit(x, y).score(x, y) < 0.05, "the frame alone does not know"


def test_grid_search_over_ragged_sequences():
    sequences = by_hand.ragged(2, 3, 12, 30)
    search = GridSearchCV(LinearAutoencoder(), {"n_components": [2, 10]}, cv=KFold(3)).fit(sequences)
    assert search.best_params_ == {"n_components": 10}
    assert len(search.best_estimator_.transform(sequences)) == 12


def test_clone_and_pickle(laes, sequences):
    assert clone(LinearAutoencoder(3, dtype=torch.float32, device="cpu")).dtype == torch.float32
    other = pickle.loads(pickle.dumps(laes))
    np.testing.assert_array_equal(other.encode(sequences), laes.encode(sequences))


@pytest.mark.parametrize("solver", ["exact", "doubling", "slices"])
def test_tensors_that_require_gradients_are_fitted_without_them(solver):
    x = torch.randn(700, 2, requires_grad=True, generator=torch.Generator().manual_seed(0))
    laes = LinearAutoencoder(6, solver=solver).fit(x)
    expected = LinearAutoencoder(6, solver=solver).fit(x.detach())
    np.testing.assert_array_equal(laes.B_, expected.B_)
    laes.transform(x).sum().backward()
    assert x.grad is not None, "encoding can be differentiated"


def test_parameters_changed_after_fitting_wait_for_the_next_fit(sequences):
    laes = LinearAutoencoder(8, forgetting=0.9).fit(sequences)
    error, codes = laes.reconstruction_error(sequences), laes.encode(sequences)
    laes.set_params(forgetting=0.5, n_components=3)
    assert laes.reconstruction_error(sequences) == error
    np.testing.assert_array_equal(laes.encode(sequences), codes)
    assert laes.decode(codes, 2).shape == (len(sequences), 2, 3)


def test_a_failed_refit_leaves_the_fit_that_was_there(sequences):
    laes = LinearAutoencoder(8).fit(sequences)
    codes = laes.encode(sequences)
    with pytest.raises(ValueError, match="contains NaN"):
        laes.fit(np.full((4, 2), np.nan))
    np.testing.assert_array_equal(laes.encode(sequences), codes)


@pytest.mark.parametrize("value", [7.1, 0.1])
def test_centering_constant_data_leaves_nothing(value):
    with pytest.warns(UserWarning, match=r"numerical rank of the data \(0\)"):
        laes = LinearAutoencoder(3, center=True).fit(np.full((9, 2), value))
    assert not laes.A_.any()
    np.testing.assert_allclose(laes.decode(np.zeros(3), 2), value)


def test_steps_take_any_kind_of_array_that_sequences_may_be(laes, sequences):
    x = sequences[0]
    expected = laes.step(laes.step(None, x[0]), x[1])
    for kind in (lambda v: v.astype(">f8"), lambda v: v.astype(np.longdouble), lambda v: v.tolist()):
        np.testing.assert_allclose(laes.step(laes.step(None, kind(x[0])), kind(x[1])), expected, atol=1e-12)
    single = laes.step(expected, x[2].astype(np.float32))
    assert single.dtype == np.float64, "the memory keeps its precision"
    assert laes.step(None, np.ones((0, 3))).shape == (0, 8)


def test_very_strong_forgetting_is_no_trouble(sequences):
    for forgetting in (1e-10, 1e-200):
        laes = LinearAutoencoder(3, forgetting=forgetting).fit(sequences)
        past = laes.decode(laes.encode(sequences[0]), 3)
        np.testing.assert_allclose(past[-1], sequences[0][-1], atol=1e-8)
        assert np.isfinite(past).all()


def test_names_of_features_are_checked_in_every_frame_of_a_list():
    pandas = pytest.importorskip("pandas")
    frames = [pandas.DataFrame(x, columns=["a", "b", "c"]) for x in by_hand.ragged(4, 3, 3, 20)]
    laes = LinearAutoencoder(4).fit(frames)
    assert list(laes.feature_names_in_) == ["a", "b", "c"]
    assert len(laes.transform(frames)) == 3
    with pytest.raises(ValueError, match="feature names should match"):
        laes.transform([frames[0], frames[1][["c", "b", "a"]]])


def test_names_of_codes(laes):
    assert list(laes.get_feature_names_out()[:2]) == ["linearautoencoder0", "linearautoencoder1"]


def test_progress_is_silent_unless_asked_for(capsys, monkeypatch):
    import tqdm

    x = np.random.default_rng(0).standard_normal((3000, 2))
    LinearAutoencoder(4).fit(x)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(tqdm, "tqdm", lambda rounds, **how: _Loud(rounds, how))
    LinearAutoencoder(4, verbose=True).fit(x)
    assert "autoencoder delay 2" in capsys.readouterr().out


class _Loud:
    def __init__(self, rounds, how):
        print(how["desc"], "delay", how["delay"])
        self.rounds = rounds

    def __iter__(self):
        return iter(self.rounds)


def test_progress_without_tqdm_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tqdm", None)
    with pytest.raises(ImportError, match="verbose=True shows progress with tqdm: pip install tqdm"):
        LinearAutoencoder(4, verbose=True).fit(np.random.default_rng(0).standard_normal((50, 2)))


# -------------------------------------------------------------------------------------------------- bad input


def with_value(value, dtype=np.float64):
    x = np.zeros((6, 3), dtype)
    x[4, 2] = value
    return x


ones = np.ones((6, 3))
BAD_DATA = {
    "NaN": ([ones, with_value(np.nan)], r"X\[1\] contains NaN at frame 4, feature 2: expected finite numbers"),
    "inf": (with_value(np.inf), r"X contains inf at frame 4, feature 2"),
    "NaN in a tensor": ([torch.from_numpy(with_value(np.nan))], r"X\[0\] contains NaN at frame 4, feature 2"),
    "NaN in a sparse matrix": (scipy.sparse.csr_array(with_value(np.nan)), "X contains NaN at frame 4, feature 2"),
    "no sequence": ([], "X is empty: expected at least one sequence"),
    "empty batch": (np.ones((0, 4, 3)), r"X has shape \(0, 4, 3\): expected at least one sequence"),
    "empty sequence": ([ones, np.ones((0, 3))], r"X\[1\] has 0 frames: expected at least one"),
    "no features": (np.ones((4, 0)), r"0 feature\(s\)"),
    "mixed features": ([ones, np.ones((4, 2))], r"X\[1\] has 2 features and X\[0\] has 3: expected the same"),
    "one dimension": (np.ones(4), r"X has 1 dimensions: expected 2D array of frames and features. Reshape"),
    "four dimensions": (np.ones((1, 2, 3, 4)), "X has 4 dimensions: expected 2D array"),
    "a list with a vector": ([ones, np.ones(3)], r"X\[1\] has 1 dimensions"),
    "complex": (ones + 1j, "Complex data not supported: X has dtype complex128, expected real numbers"),
    "complex tensor": ([torch.ones(2, 3) * 1j], r"Complex data not supported: X\[0\] has dtype torch.complex64"),
    "sparse tensor": (torch.eye(3).to_sparse(), "X has layout torch.sparse_coo: expected a dense tensor"),
    "strings": (np.array([["a", "b"]]), "X has dtype <U1: expected real numbers"),
}


@pytest.mark.parametrize(("data", "message"), BAD_DATA.values(), ids=BAD_DATA.keys())
def test_bad_data_is_refused_in_one_sentence(data, message):
    with pytest.raises(ValueError, match=message) as caught:
        LinearAutoencoder(2).fit(data)
    assert "\n" not in str(caught.value)


BAD_PARAMETERS = [
    ({"n_components": 0}, "n_components=0: expected an integer of at least 1"),
    ({"n_components": 2.5}, r"n_components=2\.5: expected an integer"),
    ({"n_components": True}, "n_components=True: expected an integer"),
    ({"solver": "svd"}, r"solver='svd': expected one of \['auto', 'exact', 'doubling', 'slices'\]"),
    ({"forgetting": 0}, "forgetting=0: expected a number above 0 and at most 1"),
    ({"forgetting": 1.1}, r"forgetting=1\.1: expected"),
    ({"forgetting": "half"}, "forgetting='half': expected"),
    ({"forgetting": float("nan")}, "forgetting=nan: expected"),
    ({"width": 10}, "width=10: expected an integer of at least 50"),
    ({"polish": -1}, "polish=-1: expected an integer of at least 0"),
    ({"slice_width": 0}, "slice_width=0: expected an integer of at least 1"),
    ({"dtype": "float16"}, "dtype='float16': expected 'float32' or 'float64'"),
    ({"dtype": torch.int64}, "dtype=torch.int64: expected 'float32' or 'float64'"),
    ({"dtype": "flaot32"}, "dtype='flaot32': expected 'float32' or 'float64'"),
    ({"dtype": 5}, "dtype=5: expected 'float32' or 'float64'"),
    ({"center": "yes"}, "center='yes': expected True or False"),
    ({"verbose": 2}, "verbose=2: expected True or False"),
    ({"device": "gpu"}, "device='gpu': expected a torch device"),
]


@pytest.mark.parametrize(("parameters", "message"), BAD_PARAMETERS, ids=[m for _, m in BAD_PARAMETERS])
def test_bad_parameters_are_refused_in_one_sentence(parameters, message):
    with pytest.raises(ValueError, match=message):
        LinearAutoencoder(**parameters).fit(ones)


def test_bad_arguments_after_fitting_are_refused_in_one_sentence(laes, sequences):
    code = laes.encode(sequences[0])
    calls = {
        "X has 2 features, but LinearAutoencoder is expecting 3": lambda: laes.transform(np.ones((4, 2))),
        r"code has shape \(7,\): expected 8 in the last dimension": lambda: laes.decode(np.ones(7), 3),
        "steps=0: expected an integer of at least 1": lambda: laes.decode(code, 0),
        r"frame has shape \(2,\): expected 3 in the last": lambda: laes.step(None, np.ones(2)),
        r"memory has shape \(9,\): expected 8 in the last": lambda: laes.step(np.ones(9), np.ones(3)),
        r"memory has shape \(2, 8\) and frame \(3,\)": lambda: laes.step(np.ones((2, 8)), np.ones(3)),
        "frame contains NaN": lambda: laes.step(None, np.array([0, np.nan, 0])),
        r"memory has shape \(8,\): expected \(5, 8\)": lambda: laes.encode(sequences, memory=code),
        "X has 7 columns: expected codes of n_components=8": lambda: laes.inverse_transform(np.ones((4, 7))),
        "code has dtype complex128, expected real numbers": lambda: laes.decode(code * 1j, 3),
    }
    for message, call in calls.items():
        with pytest.raises(ValueError, match=message):
            call()


def test_an_unfitted_autoencoder_says_so():
    for call in ("transform", "encode", "inverse_transform", "reconstruction_error"):
        with pytest.raises(NotFittedError):
            getattr(LinearAutoencoder(2), call)(ones)


def _read_only(x):
    x.setflags(write=False)
    return x
