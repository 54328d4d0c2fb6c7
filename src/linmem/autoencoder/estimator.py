"""The linear autoencoder for sequences as a scikit-learn estimator."""

from __future__ import annotations

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

from linmem.autoencoder import solvers
from linmem.autoencoder.sequences import Array, Sequences, as_sequences, check_finite, working_dtype
from linmem.autoencoder.stack import Stack, dense, scan, unscan
from linmem.files import Saved

#: `auto` takes the exact solver where the smaller Gram matrix of Xi is at most this large: see
#: benchmarks/autoencoder.py for the sizes at which the solvers cross.
AUTO_EXACT = 2_048

#: Frames encoded or decoded at a time.
CHUNK_FRAMES = 65_536

DTYPES = {"float32": torch.float32, "float64": torch.float64}


class LinearAutoencoder(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    r"""Closed-form linear autoencoder for sequences.

    A memory :math:`m^t = A x^t + B m^{t-1}` of `n_components` units that, among all such memories, keeps the most
    of everything its sequences showed so far. A and B are computed, not trained: they follow from the singular
    value decomposition of the matrix of all reversed pasts,
    :math:`\Xi = [X, \lambda S X, \lambda^2 S^2 X, \dots]`, which is never formed.

    One 2-D array ``(frames, features)`` is one sequence, a 3-D array ``(sequences, frames, features)`` a batch,
    and a list of 2-D arrays a ragged set. NumPy arrays, torch tensors on any device and scipy.sparse matrices
    are accepted, of booleans, integers or real numbers, and results come back in the same container (dense).

    Parameters
    ----------
    n_components : int, default=50
        Units of the memory. With as many as the rank of Xi the memory is lossless; above the rank a warning is
        given, the memory is still lossless and the units beyond stay zero.
    solver : {"auto", "exact", "doubling", "slices"}, default="auto"
        `exact` takes the eigenvectors of a Gram matrix of Xi, up to about ten thousand frames (or fewer, longer
        lags); `doubling` scales to millions of frames with a slightly different subspace; `slices` is the
        published iterative scheme. `auto` is `exact` for small data and `doubling` otherwise.
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
    solver_ : str
        The solver that was used.
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
        self.verbose = verbose

    # ------------------------------------------------------------------------------------------------ fitting

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
        sequences = self._check_sequences(X, reset=True)
        stack = self._stack(sequences)
        mean = stack.mean_frame() if self.center else None
        stack = stack.restricted(stack.features_in_use(), mean)
        energy = stack.energy(self.forgetting)

        self.solver_ = self._choose_solver(stack)
        if energy == 0:  # nothing but zeros: nothing to hold
            encoder = solvers.Encoder.empty(stack.n_features)
        else:
            encoder = solvers.with_fixed_signs(self._solve(stack))
        rank = len(encoder.singular_values)
        if rank < self.n_components:
            warnings.warn(
                f"n_components={self.n_components} is above the rank of the data ({rank}): the memory is lossless "
                f"and {self.n_components - rank} of its units stay zero",
                stacklevel=2,
            )
        columns = slice(None) if stack.features is None else stack.features.numpy(force=True)
        self.A_ = np.zeros((self.n_components, self.n_features_in_))
        self.A_[:rank, columns] = encoder.A.numpy(force=True)
        self.B_ = np.zeros((self.n_components, self.n_components))
        self.B_[:rank, :rank] = encoder.B.numpy(force=True)
        self.singular_values_ = np.zeros(self.n_components)
        self.singular_values_[:rank] = encoder.singular_values.numpy(force=True)
        self.energy_ = min(1.0, float((self.singular_values_**2).sum() / energy)) if energy else 1.0
        self.mean_ = None if mean is None else mean.double().numpy(force=True)
        return self

    def _choose_solver(self, stack: Stack) -> str:
        if self.solver != "auto":
            return self.solver
        size = min(stack.n_frames, stack.longest * stack.n_features)
        return "exact" if size <= AUTO_EXACT else "doubling"

    def _solve(self, stack: Stack) -> solvers.Encoder:
        p, forgetting, progress = self.n_components, float(self.forgetting), self._progress
        if self.solver_ == "exact":
            seed = int(check_random_state(self.random_state).randint(2**31))
            return solvers.exact(stack, p, forgetting, seed=seed, progress=progress)
        if self.solver_ == "slices":
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
        shown: Iterable[int] = tqdm(rounds, desc=f"autoencoder ({self.solver_})", delay=2, leave=False)
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
        m = self._check_vectors(code, "code", self.n_components)
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
        if width != self.n_components:
            raise ValueError(f"X has {width} columns: expected codes of n_components={self.n_components}")
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
            m = self._check_vectors(memory, "memory", self.n_components)
            if m.shape[:-1] != x.shape[:-1]:
                raise ValueError(
                    f"memory has shape {tuple(m.shape)} and frame {tuple(x.shape)}: expected the same shape but "
                    f"for the last dimension"
                )
            new = new + m.to(x) @ self._tensor(self.B_, x).T
        return new if isinstance(frame, Tensor) else new.numpy(force=True)

    # ------------------------------------------------------------------------------------------------ scoring

    def reconstruction_error(self, X: Any) -> float:
        """Relative error when the final memory of every sequence decodes the whole sequence.

        The square root of the sum of squared errors over the sum of squares of the (centred) frames: 0 is
        lossless, 1 is as good as remembering nothing.
        """
        sequences, stack = self._to_encode(X)
        A, back = self._as(stack, self.A_), self._as(stack, self._back())
        finals = torch.stack([codes[-1] for codes in self._codes(sequences, stack, None)])
        error = total = 0.0
        for first, last in _groups(stack.lengths):
            part = self._part(stack, sequences.arrays[first:last])
            M = unscan(part, finals[first:last], back)
            for start, stop in part.blocks():
                frames = part.block(start, stop)
                error += float((M[start:stop] @ A - frames).double().square().sum())
                total += float(frames.double().square().sum())
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
            codes = A.new_empty(int(stack.lengths[first]), self.n_components)
            for start in range(0, len(codes), CHUNK_FRAMES):
                piece = slice(start, start + CHUNK_FRAMES)
                codes[piece] = encoded([arrays[0][piece]], before)
                before = codes[piece][-1:]
            yield codes

    def _initial(self, memory: Any, sequences: Sequences, stack: Stack) -> Tensor | None:
        if memory is None:
            return None
        m = self._check_vectors(memory, "memory", self.n_components)
        expected = (self.n_components,) if sequences.container == "array" else (len(stack.lengths), self.n_components)
        if tuple(m.shape) != expected:
            raise ValueError(f"memory has shape {tuple(m.shape)}: expected {expected}")
        return m.to(device=stack.device, dtype=stack.dtype).reshape(-1, self.n_components)

    def _to_encode(self, X: Any) -> tuple[Sequences, Stack]:
        check_is_fitted(self)
        sequences = self._check_sequences(X, reset=False)
        return sequences, self._stack(sequences)

    def _check_sequences(self, X: Any, reset: bool) -> Sequences:
        sequences = as_sequences(X)
        # scikit-learn's own check of the number and the names of features
        sample = X if sequences.container == "array" and hasattr(X, "shape") else sequences.arrays[0]
        validate_data(self, sample, reset=reset, skip_check_array=True)
        check_finite(sequences)
        return sequences

    def _stack(self, sequences: Sequences) -> Stack:
        dtype = _torch_dtype(self.dtype) or working_dtype(sequences)
        first = sequences.arrays[0]
        device = self.device or (first.device if isinstance(first, Tensor) else "cpu")
        return Stack(sequences.arrays, dtype=dtype, device=torch.device(device))

    def _part(self, stack: Stack, arrays: list[Array]) -> Stack:
        mean = None if self.mean_ is None else self._as(stack, self.mean_)
        return Stack(arrays, dtype=stack.dtype, device=stack.device, mean=mean)

    def _as(self, stack: Stack, array: NDArray[Any]) -> Tensor:
        return torch.as_tensor(array, dtype=stack.dtype, device=stack.device)

    def _back(self) -> NDArray[Any]:
        """From a memory to the one before: the transpose of B, without the discount on either way."""
        return self.B_.T / self.forgetting**2

    def _tensor(self, array: NDArray[Any], like: Tensor) -> Tensor:
        return torch.as_tensor(array, dtype=like.dtype, device=like.device)

    def _mean(self, like: Tensor) -> Tensor | float:
        return 0.0 if self.mean_ is None else self._tensor(self.mean_, like)

    def _check_vectors(self, vectors: Any, name: str, width: int) -> Tensor:
        """One or more vectors as a tensor in the working precision."""
        given = vectors if isinstance(vectors, Tensor) else torch.from_numpy(np.array(vectors, dtype=None))
        if given.ndim == 0 or given.shape[-1] != width:
            raise ValueError(f"{name} has shape {tuple(given.shape)}: expected {width} in the last dimension")
        if given.is_complex():
            raise ValueError(f"{name} has dtype {given.dtype}: expected real numbers")
        if not bool(torch.isfinite(given).all()):
            raise ValueError(f"{name} contains NaN or inf: expected finite numbers")
        narrow = given.is_floating_point() and given.dtype.itemsize <= 4
        default = torch.float32 if narrow else torch.float64
        return given.to(_torch_dtype(self.dtype) or default)

    def _check_parameters(self) -> None:
        _check_integer("n_components", self.n_components, 1)
        _check_integer("polish", self.polish, 0)
        _check_integer("slice_width", self.slice_width, 1)
        if self.width is not None:
            _check_integer("width", self.width, self.n_components)
        names = ["auto", "exact", "doubling", "slices"]
        if self.solver not in names:
            raise ValueError(f"solver={self.solver!r}: expected one of {names}")
        if not isinstance(self.forgetting, Real) or not 0 < self.forgetting <= 1:
            raise ValueError(f"forgetting={self.forgetting!r}: expected a number above 0 and at most 1")
        for name in ("center", "verbose"):
            if not isinstance(getattr(self, name), (bool, np.bool_)):
                raise ValueError(f"{name}={getattr(self, name)!r}: expected True or False")
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
        names = getattr(self, "feature_names_in_", None)
        facts = {
            "energy_": self.energy_,
            "solver_": self.solver_,
            "feature_names_in_": None if names is None else list(names),
        }
        return Saved(tensors, self.get_params(), facts)

    @classmethod
    def _from_saved(cls, saved: Saved) -> LinearAutoencoder:
        unknown = set(saved.arguments) - set(cls._get_param_names())
        if unknown:
            raise ValueError(f"unknown arguments {sorted(unknown)}")
        laes = cls(**saved.arguments)
        laes._check_parameters()
        shape = saved.tensors["A_"].shape
        p, features = laes.n_components, shape[-1] if len(shape) else 0
        expected = {"A_": (p, features), "B_": (p, p), "singular_values_": (p,)}
        if laes.center:
            expected["mean_"] = (features,)
        for name in sorted(saved.tensors.keys() | expected.keys()):
            found = saved.tensors.get(name)
            if name not in expected or found is None or tuple(found.shape) != expected[name]:
                raise ValueError(f"{name} is {_described(found)}, expected shape {expected.get(name)}")
            if found.dtype != torch.float64 or not bool(torch.isfinite(found).all()):
                raise ValueError(f"{name} is {_described(found)}, expected finite float64 numbers")
            setattr(laes, name, found.numpy())
        laes.mean_ = saved.tensors["mean_"].numpy() if laes.center else None
        laes.n_features_in_ = features
        laes.energy_ = float(saved.facts["energy_"])
        laes.solver_ = str(saved.facts["solver_"])
        names = saved.facts["feature_names_in_"]
        if names is not None:
            if not isinstance(names, list) or len(names) != features:
                raise ValueError(f"feature_names_in_ is {names!r}, expected {features} names")
            laes.feature_names_in_ = np.array([str(name) for name in names], dtype=object)
        return laes

    # -------------------------------------------------------------------------------------------- scikit-learn

    @property
    def _n_features_out(self) -> int:
        return int(self.A_.shape[0])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.three_d_array = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def _described(tensor: Tensor | None) -> str:
    return "missing" if tensor is None else f"a tensor of shape {tuple(tensor.shape)}, {tensor.dtype}"


def _check_integer(name: str, value: Any, least: int) -> None:
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name}={value!r}: expected an integer of at least {least}")


def _torch_dtype(dtype: Any) -> torch.dtype | None:
    if dtype is None:
        return None
    name = str(dtype).removeprefix("torch.") if isinstance(dtype, (str, torch.dtype)) else np.dtype(dtype).name
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
