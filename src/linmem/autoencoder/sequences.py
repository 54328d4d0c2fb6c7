"""What counts as sequences, and how results go back into the container that the sequences came in.

One 2-D array is one sequence of frames, a 3-D array a batch of sequences of equal length, a list or another kind of
Python sequence of 2-D arrays a ragged set. Arrays are NumPy arrays, torch tensors or scipy.sparse matrices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

Array = Any  # a NumPy array, a torch tensor or a scipy.sparse matrix


@dataclass
class Sequences:
    """Sequences as a flat list of 2-D arrays, and what they came in."""

    arrays: list[Array]
    container: Literal["array", "batch", "list"]

    @property
    def is_torch(self) -> bool:
        """Whether results are due as torch tensors."""
        return isinstance(self.arrays[0], Tensor)

    def restore(self, results: Sequence[Tensor]) -> Any:
        """One result per sequence, in the container of the input: a batch is stacked, a list stays a list."""
        if self.container == "batch":
            return self.own(torch.stack(list(results)))
        own = [self.own(result) for result in results]
        return own[0] if self.container == "array" else own

    def own(self, result: Tensor) -> Any:
        """A result as the kind of array that the sequences are."""
        return result if self.is_torch else result.numpy(force=True)


def as_sequences(X: Any, name: str = "X") -> Sequences:
    """Sort out the container and check the kind of every array, but not its values.

    Examples
    --------
    >>> import numpy as np
    >>> as_sequences(np.zeros((5, 2))).container
    'array'
    >>> [len(a) for a in as_sequences([np.zeros((5, 2)), np.zeros((3, 2))]).arrays]
    [5, 3]
    """
    if isinstance(X, Sequences):
        return X
    if isinstance(X, Sequence) or (isinstance(X, np.ndarray) and X.dtype == object and X.ndim == 1):
        if len(X) == 0:
            raise ValueError(f"{name} is empty: expected at least one sequence")
        if _ndim(X[0]) >= 2:
            arrays = [_frames(item, f"{name}[{i}]") for i, item in enumerate(X)]
            container: Literal["array", "batch", "list"] = "list"
        else:
            arrays, container = [_frames(np.asarray(X), name)], "array"
    elif _ndim(X) == 3:
        batch = X if isinstance(X, Tensor) else np.asarray(X)
        if len(batch) == 0:
            raise ValueError(f"{name} has shape {tuple(batch.shape)}: expected at least one sequence")
        arrays, container = [_frames(item, f"{name}[{i}]") for i, item in enumerate(batch)], "batch"
    else:
        arrays, container = [_frames(X, name)], "array"
    width = arrays[0].shape[1]
    for i, array in enumerate(arrays):
        if array.shape[1] != width:
            raise ValueError(
                f"{name}[{i}] has {array.shape[1]} features and {name}[0] has {width}: "
                f"expected the same number in every sequence"
            )
    return Sequences(arrays, container)


def check_finite(sequences: Sequences, name: str = "X") -> None:
    """Refuse NaN and infinity, and say where they are."""
    for i, array in enumerate(sequences.arrays):
        where = name if sequences.container == "array" else f"{name}[{i}]"
        if isinstance(array, Tensor):
            finite = not array.is_floating_point() or bool(torch.isfinite(array).all())
        else:
            values = array.data if scipy.sparse.issparse(array) else array
            finite = values.dtype.kind != "f" or bool(np.isfinite(values).all())
        if not finite:
            _refuse(array, where)


def working_dtype(sequences: Sequences) -> torch.dtype:
    """float32 if that holds every value of every sequence exactly, else float64."""
    for array in sequences.arrays:
        floating = array.is_floating_point() if isinstance(array, Tensor) else array.dtype.kind == "f"
        if array.dtype.itemsize > (4 if floating else 2):
            return torch.float64
    return torch.float32


def _ndim(X: Any) -> int:
    return int(X.ndim) if isinstance(X, Tensor) or scipy.sparse.issparse(X) else np.asarray(X).ndim


def _frames(array: Any, where: str) -> Array:
    """One sequence: 2-D, numeric, not empty."""
    if scipy.sparse.issparse(array):
        array = array.tocsr()  # rows are taken in slices
    elif not isinstance(array, Tensor):
        array = np.asarray(array)
        if array.dtype == object:  # a list of Python numbers, perhaps
            array = array.astype(np.float64)
    if array.ndim != 2:
        raise ValueError(
            f"{where} has {array.ndim} dimensions: expected 2D array of frames and features. "
            f"Reshape your data: one feature is array.reshape(-1, 1), one frame is array.reshape(1, -1)"
        )
    if isinstance(array, Tensor) and array.layout != torch.strided:
        raise ValueError(f"{where} has layout {array.layout}: expected a dense tensor or a scipy.sparse matrix")
    complex_ = array.is_complex() if isinstance(array, Tensor) else array.dtype.kind == "c"
    if complex_:
        raise ValueError(f"Complex data not supported: {where} has dtype {array.dtype}, expected real numbers")
    if not isinstance(array, Tensor) and array.dtype.kind not in "biuf":
        raise ValueError(f"{where} has dtype {array.dtype}: expected real numbers")
    if array.shape[0] == 0:
        raise ValueError(f"{where} has 0 frames: expected at least one")
    if array.shape[1] == 0:
        raise ValueError(f"{where} has 0 feature(s) (shape={tuple(array.shape)}) while a minimum of 1 is required.")
    return array


def _refuse(array: Array, where: str) -> None:
    for t in range(array.shape[0]):
        frame = array[t : t + 1]
        values = frame.toarray() if scipy.sparse.issparse(frame) else torch.as_tensor(frame).numpy(force=True)
        bad = np.flatnonzero(~np.isfinite(values))
        if len(bad):
            what = "NaN" if np.isnan(values[0, bad[0]]) else "inf"
            raise ValueError(f"{where} contains {what} at frame {t}, feature {bad[0]}: expected finite numbers")
