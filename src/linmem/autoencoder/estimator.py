"""The linear autoencoder for sequences as a scikit-learn estimator."""

from __future__ import annotations

import copy
import math
import reprlib
import warnings
from collections.abc import Iterable, Iterator
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from linmem._ranks import check_ranks, check_same, together
from linmem.autoencoder import solvers
from linmem.autoencoder.sequences import Array, Sequences, as_sequences, check_finite, working_dtype
from linmem.autoencoder.stack import Stack, dense, scan, unscan
from linmem.files import Saved

#: `auto` takes the exact solver where the smaller Gram matrix of Xi is at most this large, which costs it about a
#: second: the part "crossing" of benchmarks/autoencoder.py measures both solvers around this size.
AUTO_EXACT = 2_048

#: Frames encoded or decoded at a time.
CHUNK_FRAMES = 65_536

SOLVERS = ("exact", "doubling", "slices")
DTYPES = {"float32": torch.float32, "float64": torch.float64}


class LinearAutoencoder(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    r"""Closed-form linear autoencoder for sequences.

    A memory :math:`m^t = A x^t + B m^{t-1}` of `n_components` units that keeps as much as it can of everything its
    sequences showed so far. A and B are computed, not trained: they follow from the leading terms of the singular
    value decomposition of the matrix of all reversed pasts,
    :math:`\Xi = [X, \lambda S X, \lambda^2 S^2 X, \dots]`, which is never formed.

    One 2-D array ``(frames, features)`` is one sequence, a 3-D array ``(sequences, frames, features)`` a batch,
    and a list of 2-D arrays a ragged set. NumPy arrays, torch tensors on any device and scipy.sparse matrices
    are accepted, of booleans, integers or real numbers, and results come back in the same container (dense).

    Parameters
    ----------
    n_components : int, default=50
        Units of the memory. With as many as the rank of Xi the memory is lossless (if it does not forget: a
        discounted past is gone when the discount reaches rounding); above the rank a warning is given and the units
        beyond stay zero.
    solver : {"auto", "exact", "doubling", "slices"}, default="auto"
        `exact` takes the eigenvectors of a Gram matrix of Xi, comfortable up to about ten thousand frames, or any
        number in short sequences; `doubling` scales to millions of frames with a slightly different subspace;
        `slices` is the published iterative scheme. `auto` is `exact` for small data and `doubling` otherwise.
    forgetting : float in (0, 1], default=1.0
        Discount λ of the past per frame. At 1, the published autoencoder, every past frame matters alike; below,
        the memory spends its units on the recent past.
    center : bool, default=False
        Subtract the mean frame of the training data before encoding and add it after decoding.
    width : int, optional
        Columns that `doubling` keeps between its rounds, ``1.5 n_components + 10`` if not
        given. More come closer to the exact solution.
    polish : int, default=0
        Exact passes after `doubling`.
    slice_width : int, default=1
        Lags per slice in `slices`.
    dtype : {"float32", "float64"} or torch.dtype, optional
        Working precision; if not given, float32 for data that it holds exactly (booleans, 8 and 16 bit integers,
        float32), else float64. `exact` always solves in float64, and so do all solvers close to full rank.
    device : str or torch.device, optional
        Where to compute; by default where the data is.
    random_state : int, RandomState or None, default=0
        Starts the Lanczos iteration of `exact`. The result depends on it by rounding only.
    distributed : bool, default=False
        Fit to the sequences of all processes of a torch.distributed job, each of which calls `fit` with its own and
        gets the same result. Only matrices of `width` squared are sent. Needs the solver `doubling`.
    verbose : bool, default=False
        Show progress (with tqdm) if fitting takes more than two seconds.

    Attributes
    ----------
    A_ : (n_components, n_features_in_) array
        What a new frame writes into the memory.
    B_ : (n_components, n_components) array
        What becomes of the memory from one frame to the next.
    singular_values_ : (n_components,) array
        Singular values of Xi that the memory holds, largest first; for `doubling` and `slices`, lower bounds.
    energy_ : float
        Share of the squared norm of Xi that these singular values hold.
    forgetting_ : float
    solver_ : str
        The discount and the solver that were used.
    mean_ : (n_features_in_,) array or None
        The mean frame, if `center`.
    n_features_in_ : int
    feature_names_in_ : array of str, if the data had names

    Examples
    --------
    >>> import numpy as np
    >>> from linmem import LinearAutoencoder
    >>> sequences = [np.random.default_rng(seed).standard_normal((6 + seed, 3)) for seed in range(4)]
    >>> laes = LinearAutoencoder(n_components=24).fit(sequences)
    >>> codes = laes.transform(sequences)  # the memory after every frame
    >>> [code.shape for code in codes]
    [(6, 24), (7, 24), (8, 24), (9, 24)]
    >>> past = laes.decode(codes[2][-1], steps=8)  # from the last memory, the whole sequence
    >>> bool(np.abs(past - sequences[2]).max() < 1e-12)
    True
    """

    A_: NDArray[Any]
    B_: NDArray[Any]
    singular_values_: NDArray[Any]
    energy_: float
    forgetting_: float
    solver_: str
    mean_: NDArray[Any] | None
    n_features_in_: int

    def __init__(
        self,
        n_components: int = 50,
        *,
        solver: str = "auto",
        forgetting: float = 1.0,
        center: bool = False,
        width: int | None = None,
        polish: int = 0,
        slice_width: int = 1,
        dtype: Any = None,
        device: Any = None,
        random_state: Any = 0,
        distributed: bool = False,
        verbose: bool = False,
    ) -> None:
        self.n_components = n_components
        self.solver = solver
        self.forgetting = forgetting
        self.center = center
        self.width = width
        self.polish = polish
        self.slice_width = slice_width
        self.dtype = dtype
        self.device = device
        self.random_state = random_state
        self.distributed = distributed
        self.verbose = verbose

    # ------------------------------------------------------------------------------------------------ fitting

    @torch.no_grad()
    def fit(self, X: Any, y: Any = None) -> LinearAutoencoder:
        """Compute A and B from sequences.

        Parameters
        ----------
        X : array, batch or list of sequences
            See the class description.
        y : ignored
            For scikit-learn's pipelines.
        """
        self._check_parameters()
        check_ranks(bool(self.distributed))
        with together(bool(self.distributed), torch.device(self.device or "cpu")):
            sequences = as_sequences(X)
            check_finite(sequences)
        stack = self._stack(sequences, bool(self.distributed)).prepared(bool(self.center))
        energy = stack.energy(float(self.forgetting))
        solver = self._choose_solver(stack)
        if self._is_nothing(sequences, energy):
            encoder, energy = solvers.Encoder.empty(stack.n_features), 0.0
        else:
            encoder = solvers.with_fixed_signs(self._solve(stack, solver))
        p, rank = int(self.n_components), len(encoder.singular_values)
        if rank < p:
            warnings.warn(
                f"n_components={p} is above the numerical rank of the data ({rank}): {p - rank} units stay zero",
                stacklevel=2,
            )
        self._check_features(X, sequences, reset=True)
        columns = slice(None) if stack.features is None else stack.features.numpy(force=True)
        self.A_ = np.zeros((p, self.n_features_in_))
        self.A_[:rank, columns] = encoder.A.numpy(force=True)
        self.B_ = np.zeros((p, p))
        self.B_[:rank, :rank] = encoder.B.numpy(force=True)
        self.singular_values_ = np.zeros(p)
        self.singular_values_[:rank] = encoder.singular_values.numpy(force=True) / stack.scale
        held = float(encoder.singular_values.square().sum())
        self.energy_ = min(1.0, held / energy) if energy else 1.0
        self.forgetting_ = float(self.forgetting)
        self.solver_ = solver
        self.mean_ = None
        if stack.mean is not None:
            self.mean_ = np.zeros(self.n_features_in_)
            self.mean_[columns] = stack.mean.double().numpy(force=True)
        return self

    def _is_nothing(self, sequences: Sequences, energy: float) -> bool:
        """Whether there is nothing but zeros, or nothing but the rounding of a mean that was taken away."""
        if energy == 0 or not self.center:
            return energy == 0
        before = self._stack(sequences, bool(self.distributed)).prepared(center=False)
        return energy < (10 * torch.finfo(before.dtype).eps) ** 2 * before.energy(float(self.forgetting))

    def _choose_solver(self, stack: Stack) -> str:
        if self.distributed:
            return "doubling"
        if self.solver != "auto":
            return self.solver
        size = min(stack.n_frames, stack.longest * stack.n_features)
        return "exact" if size <= AUTO_EXACT else "doubling"

    def _solve(self, stack: Stack, solver: str) -> solvers.Encoder:
        p, forgetting, progress = int(self.n_components), float(self.forgetting), self._progress
        if solver == "exact":
            seed = int(check_random_state(self.random_state).randint(2**31))
            return solvers.exact(stack, p, forgetting, seed=seed, progress=progress)
        if solver == "slices":
            return solvers.slices(stack, p, forgetting, slice_width=self.slice_width, progress=progress)
        width = self.width or p + p // 2 + 10
        return solvers.doubling(stack, p, forgetting, width=width, polish=self.polish, progress=progress)

    def _progress(self, rounds: range) -> Iterable[int]:
        if not self.verbose:
            return rounds
        try:
            from tqdm import tqdm
        except ImportError:
            raise ImportError("verbose=True shows progress with tqdm: pip install tqdm") from None
        shown: Iterable[int] = tqdm(rounds, desc="autoencoder", delay=2, leave=False)
        return shown

    # --------------------------------------------------------------------------------- encoding and decoding

    def transform(self, X: Any, memory: Any = None) -> Any:
        """Memory after every frame.

        Parameters
        ----------
        X : array, batch or list of sequences
        memory : (n_components,) or (sequences, n_components) array, optional
            The memory before the first frame of every sequence, to go on where an earlier call ended.

        Returns
        -------
        codes : as `X`, with `n_components` columns
        """
        sequences, stack = self._to_encode(X)
        return sequences.restore(list(self._codes(sequences, stack, memory)))

    def encode(self, X: Any, memory: Any = None) -> Any:
        """Memory after the last frame of every sequence.

        Returns
        -------
        codes : (n_components,) array for a single sequence, else (sequences, n_components)
        """
        sequences, stack = self._to_encode(X)
        final = torch.stack([codes[-1] for codes in self._codes(sequences, stack, memory)])
        return sequences.own(final[0] if sequences.container == "array" else final)

    def decode(self, code: Any, steps: int) -> Any:
        """The last `steps` frames that a memory holds, oldest first.

        So ``decode(encode(x), len(x))`` is an approximation of ``x``, and of zeros (of the mean frame, if
        `center`) before its start.

        Parameters
        ----------
        code : (..., n_components) array or tensor
        steps : int

        Returns
        -------
        frames : (..., steps, n_features_in_), as `code`
        """
        check_is_fitted(self)
        _check_integer("steps", steps, 1)
        m = self._check_vectors(code, "code", self._p)
        A, back, mean = self._tensor(self.A_, m), self._tensor(self._back(), m), self._mean(m)
        frames = m.new_empty(*m.shape[:-1], steps, self.n_features_in_)
        for t in range(steps - 1, -1, -1):
            frames[..., t, :] = m @ A + mean
            m = m @ back.T
        return frames if isinstance(code, Tensor) else frames.numpy(force=True)

    def inverse_transform(self, X: Any) -> Any:
        """The newest frame that every memory holds: what `transform` was given, approximately.

        Parameters
        ----------
        X : codes, in the same containers as sequences
        """
        check_is_fitted(self)
        codes = as_sequences(X)
        width = codes.arrays[0].shape[1]
        if width != self._p:
            raise ValueError(f"X has {width} columns: expected codes of n_components={self._p}")
        check_finite(codes)
        stack = self._stack(codes)
        A = torch.as_tensor(self.A_, dtype=stack.dtype, device=stack.device)
        frames = [dense(code, stack.dtype, stack.device) @ A + self._mean(A) for code in codes.arrays]
        return codes.restore(frames)

    def step(self, memory: Any, frame: Any) -> Any:
        """One step of a stream: the memory after one more frame.

        Parameters
        ----------
        memory : (..., n_components) array or tensor, or None at the start
        frame : (..., n_features_in_) array or tensor

        Returns
        -------
        memory : (..., n_components), as `frame`
        """
        check_is_fitted(self)
        x = self._check_vectors(frame, "frame", self.n_features_in_)
        new = (x - self._mean(x)) @ self._tensor(self.A_, x).T
        if memory is not None:
            m = self._check_vectors(memory, "memory", self._p)
            if m.shape[:-1] != x.shape[:-1]:
                raise ValueError(
                    f"memory has shape {tuple(m.shape)} and frame {tuple(x.shape)}: expected the same shape but "
                    f"for the last dimension"
                )
            new = new + m.to(x.device) @ self._tensor(self.B_, m).T
        return new if isinstance(frame, Tensor) else new.numpy(force=True)

    # ------------------------------------------------------------------------------------------------- smaller

    def truncated(self, n_components: int) -> LinearAutoencoder:
        """Return the fitted autoencoder with its first units only, which hold the most.

        They do not depend on the others, so with the solver `exact` this is what a smaller fit would give.

        Parameters
        ----------
        n_components : int

        Examples
        --------
        >>> x = np.random.default_rng(0).standard_normal((30, 3))
        >>> large, small = (LinearAutoencoder(p, solver="exact").fit(x) for p in (20, 5))
        >>> bool(np.abs(large.truncated(5).transform(x) - small.transform(x)).max() < 1e-10)
        True
        """
        check_is_fitted(self)
        _check_integer("n_components", n_components, 1)
        if n_components > self._p:
            raise ValueError(f"n_components={n_components}: expected at most {self._p}, which were fitted")
        small: LinearAutoencoder = copy.copy(self).set_params(n_components=int(n_components))
        small.A_ = self.A_[:n_components].copy()
        small.B_ = self.B_[:n_components, :n_components].copy()
        small.singular_values_ = self.singular_values_[:n_components].copy()
        held, all_held = (float(np.square(s).sum()) for s in (small.singular_values_, self.singular_values_))
        small.energy_ = self.energy_ * held / all_held if all_held else 1.0
        return small

    # ------------------------------------------------------------------------------------------------ scoring

    @torch.no_grad()
    def reconstruction_error(self, X: Any) -> float:
        """Relative error when the final memory of every sequence decodes the whole sequence.

        The square root of the sum of squared errors over the sum of squares of the (centred) frames: 0 is
        lossless, 1 is as good as remembering nothing.
        """
        sequences, stack = self._to_encode(X)
        A, back = self._as(stack, self.A_), self._as(stack, self._back())
        finals = torch.stack([codes[-1] for codes in self._codes(sequences, stack, None)])
        scale = stack.prepared(center=False).scale  # so that squares neither overflow nor vanish
        error = total = 0.0
        for first, last in _groups(stack.lengths):
            part = self._part(stack, sequences.arrays[first:last])
            M = unscan(part, finals[first:last], back)
            for start, stop in part.blocks():
                frames = part.block(start, stop)
                error += float(((M[start:stop] @ A - frames) * scale).double().square().sum())
                total += float((frames * scale).double().square().sum())
        return (error / total) ** 0.5 if total else 0.0

    def score(self, X: Any, y: Any = None) -> float:
        """Share of the squared norm of the frames that final memories reconstruct: 1 - error²."""
        return 1 - self.reconstruction_error(X) ** 2

    # ------------------------------------------------------------------------------------------------ helpers

    def _codes(self, sequences: Sequences, stack: Stack, memory: Any) -> Iterator[Tensor]:
        """Memories of every sequence; short ones are encoded together, long ones piece by piece."""
        initial = self._initial(memory, sequences, stack)
        A, B = self._as(stack, self.A_), self._as(stack, self.B_)

        def encoded(arrays: list[Array], before: Tensor | None) -> Tensor:
            part = self._part(stack, arrays)
            M = part.project(A.T.contiguous())
            if before is not None:
                M[torch.from_numpy(part.starts).to(M.device)] += before @ B.T
            return scan(part, M, B)

        for first, last in _groups(stack.lengths):
            arrays = sequences.arrays[first:last]
            before = None if initial is None else initial[first:last]
            if len(arrays) > 1 or stack.lengths[first] <= CHUNK_FRAMES:
                yield from torch.split(encoded(arrays, before), stack.lengths[first:last].tolist())
                continue
            codes = A.new_empty(int(stack.lengths[first]), self._p)
            for start in range(0, len(codes), CHUNK_FRAMES):
                piece = slice(start, start + CHUNK_FRAMES)
                codes[piece] = encoded([arrays[0][piece]], before)
                before = codes[piece][-1:]
            yield codes

    def _initial(self, memory: Any, sequences: Sequences, stack: Stack) -> Tensor | None:
        if memory is None:
            return None
        m = self._check_vectors(memory, "memory", self._p)
        expected = (self.n_components,) if sequences.container == "array" else (len(stack.lengths), self.n_components)
        if tuple(m.shape) != expected:
            raise ValueError(f"memory has shape {tuple(m.shape)}: expected {expected}")
        return m.to(device=stack.device, dtype=stack.dtype).reshape(-1, self._p)

    def _to_encode(self, X: Any) -> tuple[Sequences, Stack]:
        check_is_fitted(self)
        sequences = as_sequences(X)
        self._check_features(X, sequences, reset=False)
        check_finite(sequences)
        return sequences, self._stack(sequences)

    def _check_features(self, X: Any, sequences: Sequences, reset: bool) -> None:
        """Scikit-learn's own check of the number and the names of features, for every data frame in a list."""
        items = X if isinstance(X, (list, tuple)) else [X]
        named = [item for item in items if hasattr(item, "columns")] or sequences.arrays[:1]
        for i, item in enumerate(named):
            validate_data(self, item, reset=reset and i == 0, skip_check_array=True)

    def _stack(self, sequences: Sequences, distributed: bool = False) -> Stack:
        dtype = _torch_dtype(self.dtype) or working_dtype(sequences)
        first = sequences.arrays[0]
        device = self.device or (first.device if isinstance(first, Tensor) else "cpu")
        width = sequences.arrays[0].shape[1]
        check_same("the number of features", width, distributed, torch.device(device))
        return Stack(sequences.arrays, dtype=dtype, device=torch.device(device), distributed=distributed)

    def _part(self, stack: Stack, arrays: list[Array]) -> Stack:
        mean = None if self.mean_ is None else self._as(stack, self.mean_)
        return Stack(arrays, dtype=stack.dtype, device=stack.device, mean=mean)

    def _as(self, stack: Stack, array: NDArray[Any]) -> Tensor:
        return torch.as_tensor(array, dtype=stack.dtype, device=stack.device)

    def _back(self) -> NDArray[Any]:
        """From a memory to the one before: the transpose of B, without the discount on either way."""
        return self.B_.T / self.forgetting_ / self.forgetting_

    @property
    def _p(self) -> int:
        """Units of the fitted memory, whatever became of the parameters since."""
        return int(self.A_.shape[0])

    def _tensor(self, array: NDArray[Any], like: Tensor) -> Tensor:
        return torch.as_tensor(array, dtype=like.dtype, device=like.device)

    def _mean(self, like: Tensor) -> Tensor | float:
        return 0.0 if self.mean_ is None else self._tensor(self.mean_, like)

    def _check_vectors(self, vectors: Any, name: str, width: int) -> Tensor:
        """One or more vectors as a tensor in the working precision, by the rules for frames."""
        array = vectors if isinstance(vectors, Tensor) else np.asarray(vectors)
        if array.ndim == 0 or array.shape[-1] != width:
            raise ValueError(f"{name} has shape {tuple(array.shape)}: expected {width} in the last dimension")
        rows = as_sequences(array.reshape(max(1, math.prod(array.shape[:-1])), width), name) if array.size else None
        if rows is None:  # no streams at all
            return torch.empty(array.shape, dtype=_torch_dtype(self.dtype) or torch.float64)
        check_finite(rows, name)
        device = array.device if isinstance(array, Tensor) else torch.device("cpu")
        flat = dense(rows.arrays[0], _torch_dtype(self.dtype) or working_dtype(rows), device)
        return flat.reshape(*array.shape)

    def _check_parameters(self) -> None:
        _check_integer("n_components", self.n_components, 1)
        _check_integer("polish", self.polish, 0)
        _check_integer("slice_width", self.slice_width, 1)
        if self.width is not None:
            _check_integer("width", self.width, self.n_components)
        if self.solver not in ("auto", *SOLVERS):
            raise ValueError(f"solver={self.solver!r}: expected one of {['auto', *SOLVERS]}")
        if not isinstance(self.forgetting, Real) or not 0 < self.forgetting <= 1:
            raise ValueError(f"forgetting={self.forgetting!r}: expected a number above 0 and at most 1")
        for name in ("center", "distributed", "verbose"):
            if not isinstance(getattr(self, name), (bool, np.bool_)):
                raise ValueError(f"{name}={getattr(self, name)!r}: expected True or False")
        if self.distributed and (self.solver not in ("auto", "doubling") or self.polish):
            raise ValueError(
                f"distributed=True with solver={self.solver!r} and polish={self.polish}: expected 'doubling' and 0"
            )
        _torch_dtype(self.dtype)
        try:
            torch.device(self.device or "cpu")
        except (RuntimeError, TypeError):
            raise ValueError(f"device={self.device!r}: expected a torch device, as 'cpu' or 'cuda:0'") from None

    # ---------------------------------------------------------------------------------------------------- files

    def _to_saved(self) -> Saved:
        check_is_fitted(self)
        tensors = {name: torch.from_numpy(getattr(self, name)) for name in ("A_", "B_", "singular_values_")}
        if self.mean_ is not None:
            tensors["mean_"] = torch.from_numpy(self.mean_)
        arguments = self.get_params()
        dtype = _torch_dtype(self.dtype)
        arguments["dtype"] = None if dtype is None else str(dtype).removeprefix("torch.")
        names = getattr(self, "feature_names_in_", None)
        facts = {
            "energy_": self.energy_,
            "forgetting_": self.forgetting_,
            "solver_": self.solver_,
            "feature_names_in_": None if names is None else list(names),
        }
        return Saved(tensors, arguments, facts)

    @classmethod
    def _from_saved(cls, saved: Saved) -> LinearAutoencoder:
        unknown = set(saved.arguments) - set(cls._get_param_names())
        if unknown:
            raise ValueError(f"unknown arguments {sorted(unknown)}")
        laes = cls(**saved.arguments)
        laes._check_parameters()
        p, features = _sizes(saved.tensors.get("A_"))
        expected = {"A_": (p, features), "B_": (p, p), "singular_values_": (p,)}
        if "mean_" in saved.tensors:
            expected["mean_"] = (features,)
        for name in sorted(saved.tensors.keys() | expected.keys()):
            found = saved.tensors.get(name)
            if name not in expected or found is None or tuple(found.shape) != expected[name]:
                raise ValueError(f"{name} is {_described(found)}, expected shape {expected.get(name)}")
            if found.dtype != torch.float64 or not bool(torch.isfinite(found).all()):
                raise ValueError(f"{name} is {_described(found)}, expected finite float64 numbers")
            setattr(laes, name, found.numpy())
        laes.mean_ = saved.tensors["mean_"].numpy() if "mean_" in saved.tensors else None
        laes.n_features_in_ = features
        laes.energy_ = _fraction(saved.facts, "energy_")
        laes.forgetting_ = _fraction(saved.facts, "forgetting_")
        laes.solver_ = saved.facts.get("solver_", "")
        if laes.solver_ not in SOLVERS or laes.forgetting_ == 0:
            raise ValueError(
                f"solver_ is {laes.solver_!r} and forgetting_ {laes.forgetting_}, expected a fitted solver"
            )
        names = saved.facts.get("feature_names_in_")
        if names is not None:
            if not isinstance(names, list) or len(names) != features or not all(isinstance(n, str) for n in names):
                raise ValueError(f"feature_names_in_ is not a list of {features} names")
            laes.feature_names_in_ = np.array(names, dtype=object)
        return laes

    # -------------------------------------------------------------------------------------------- scikit-learn

    @property
    def _n_features_out(self) -> int:
        return self._p

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.three_d_array = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def _sizes(A: Tensor | None) -> tuple[int, int]:
    if A is None or A.ndim != 2 or 0 in A.shape:
        raise ValueError(f"A_ is {_described(A)}, expected two dimensions")
    return int(A.shape[0]), int(A.shape[1])


def _fraction(facts: dict[str, Any], name: str) -> float:
    value = facts.get(name)
    if not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise ValueError(f"{name} is {reprlib.repr(value)}, expected a number from 0 to 1")
    return float(value)


def _described(tensor: Tensor | None) -> str:
    return "missing" if tensor is None else f"a tensor of shape {tuple(tensor.shape)}, {tensor.dtype}"


def _check_integer(name: str, value: Any, least: int) -> None:
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name}={value!r}: expected an integer of at least {least}")


def _torch_dtype(dtype: Any) -> torch.dtype | None:
    if dtype is None:
        return None
    try:
        name = str(dtype).removeprefix("torch.") if isinstance(dtype, (str, torch.dtype)) else np.dtype(dtype).name
    except TypeError:
        name = ""
    if name not in DTYPES:
        raise ValueError(f"dtype={dtype!r}: expected 'float32' or 'float64'")
    return DTYPES[name]


def _groups(lengths: NDArray[Any]) -> Iterator[tuple[int, int]]:
    """Consecutive sequences that together have about CHUNK_FRAMES frames, or one longer sequence."""
    first = frames = 0
    for i, length in enumerate(lengths.tolist()):
        if frames and frames + length > CHUNK_FRAMES:
            yield first, i
            first, frames = i, 0
        frames += length
    yield first, len(lengths)
