"""All frames of all sequences one below the other, and the shift by one step inside each sequence.

The linear autoencoder is the singular value decomposition of a matrix that is far too large to hold,

    Xi = [X, λ S X, λ² S² X, ...]    (l, l_max · a)

where X stacks the frames (l, a) and S moves every frame one step down inside its own sequence, so that row t
of Xi is everything its sequence showed up to then, newest first, discounted by λ per step. Everything the
solvers need of Xi they get from X and S, and this file is the only one that knows how the frames are kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from linmem._ranks import largest, total
from linmem._shapes import Float, Int

#: Some rows of a stack.
Rows = slice | Tensor

#: Rows handled at a time: enough for fast products, few enough to stay in the processor's cache.
BLOCK_ROWS = 2_048

#: And at most so many numbers, for frames with very many features.
BLOCK_NUMBERS = 2**22


class Stack:
    """Ragged sequences as one tall matrix of frames that is only ever seen in blocks of rows.

    The frames stay as they were given (boolean, sparse, any precision); a block is converted when it is used.

    Parameters
    ----------
    sequences : list of (length, features) arrays, torch tensors or scipy.sparse matrices
    dtype : torch.dtype
        Precision of the blocks.
    device : torch.device
        Where the blocks are.
    mean : (features,) tensor, optional
        Taken from every frame.
    features : int tensor, optional
        The features that the rows of X have; all by default.
    scale : float
        Multiplies X.
    distributed : bool
        Whether other processes hold more sequences; then `longest`, `energy`, `mean_frame` and what `prepared` does
        are those of all of them.

    Attributes
    ----------
    lengths, starts : (S,) int64 arrays
        Length of every sequence and its first row.
    time : (l,) int64 tensor
        Position of every row in its own sequence.
    until_end : (l,) int64 tensor
        Steps from every row to the last of its own sequence.

    Examples
    --------
    >>> import numpy as np, torch
    >>> stack = Stack([np.ones((2, 1)), np.ones((3, 1))], dtype=torch.float64, device=torch.device("cpu"))
    >>> stack.time.tolist()
    [0, 1, 0, 1, 2]
    >>> stack.rows_after(1).tolist()
    [1, 3, 4]
    """

    def __init__(
        self,
        sequences: list[Any],
        *,
        dtype: torch.dtype,
        device: torch.device,
        mean: Float[Tensor, " a"] | None = None,
        features: Int[Tensor, " a"] | None = None,
        scale: float = 1.0,
        distributed: bool = False,
    ) -> None:
        self.distributed = distributed
        self.sequences = sequences
        self.scale = scale
        self.features = features
        self.dtype = dtype
        self.device = device
        self.mean = mean
        self.lengths = np.array([sequence.shape[0] for sequence in sequences], dtype=np.int64)
        self.ends = np.cumsum(self.lengths)
        self.starts = self.ends - self.lengths
        self.n_frames = int(self.ends[-1])
        self.n_features = int(sequences[0].shape[1]) if features is None else len(features)
        self.longest = int(largest(int(self.lengths.max()), distributed, device))
        first_row = torch.from_numpy(np.repeat(self.starts, self.lengths))
        last_row = torch.from_numpy(np.repeat(self.ends - 1, self.lengths))
        row = torch.arange(self.n_frames)
        self.time: Int[Tensor, " l"] = (row - first_row).to(device)
        self.until_end: Int[Tensor, " l"] = (last_row - row).to(device)

    def to(self, dtype: torch.dtype) -> Stack:
        """The same frames in another working precision."""
        mean = None if self.mean is None else self.mean.to(dtype)
        return self._copy(dtype, mean, self.features, self.scale)

    def _copy(self, dtype: torch.dtype, mean: Tensor | None, features: Tensor | None, scale: float) -> Stack:
        return Stack(
            self.sequences,
            dtype=dtype,
            device=self.device,
            mean=mean,
            features=features,
            scale=scale,
            distributed=self.distributed,
        )

    def prepared(self, center: bool) -> Stack:
        """The same frames as the solvers like them.

        Without the features that are zero throughout, less their mean if wanted, and multiplied by a power of two
        where their squares could overflow or vanish.
        """
        mean = self.mean_frame() if center else None
        top, used = 0.0, torch.zeros(self.n_features, dtype=torch.bool, device=self.device)
        for start, stop in self.blocks():
            block = self.block(start, stop).abs()
            used |= (block > 0).any(0)
            top = max(top, float(block.max()))
        top = largest(top, self.distributed, self.device)
        used = total(used.double(), self.distributed) > 0
        scale = 1.0 if top == 0 or 1e-4 < top < 1e4 else 2.0 ** -round(math.log2(top))
        features = None if bool(used.all()) or not bool(used.any()) else torch.nonzero(used).squeeze(1)
        if mean is not None and features is not None:
            mean = mean[features]
        return self._copy(self.dtype, mean, features, scale)

    def block(self, start: int, stop: int) -> Float[Tensor, "rows a"]:
        """Rows `start` to `stop` of X, dense, in the working precision."""
        first, last = np.searchsorted(self.ends, [start, stop - 1], side="right").tolist()
        pieces = self.sequences[first : last + 1]
        pieces[-1] = pieces[-1][: stop - int(self.starts[last])]
        pieces[0] = pieces[0][start - int(self.starts[first]) :]
        rows = dense(_below_each_other(pieces), self.dtype, self.device)
        if self.features is not None:
            rows = rows[:, self.features]
        if self.mean is not None:
            rows = rows - self.mean
        return rows if self.scale == 1 else rows * self.scale

    def blocks(self) -> Iterator[tuple[int, int]]:
        """Bounds of the blocks, from the last to the first.

        In that order a result may overwrite its operand: S reaches back only to rows that come later.
        """
        rows = max(1, min(BLOCK_ROWS, BLOCK_NUMBERS // self.n_features))
        for stop in range(self.n_frames, 0, -rows):
            yield max(0, stop - rows), stop

    def rows_after(self, steps: int, start: int = 0, stop: int | None = None) -> Int[Tensor, " n"]:
        """Rows of [start, stop) that have a row `steps` earlier in their own sequence."""
        return torch.nonzero(self.time[start:stop] >= steps).squeeze(1) + start

    def pairs(self, steps: int, start: int, stop: int) -> tuple[Rows, Rows]:
        """Rows of [start, stop) that have a row `steps` earlier, and those earlier rows.

        As slices where they are contiguous, so that indexing with them makes no copy.
        """
        rows = self.rows_after(steps, start, stop)
        if len(rows) == 0:
            return slice(start, start), slice(start, start)
        first, last = int(rows[0]), int(rows[-1])
        if last - first + 1 == len(rows):
            return slice(first, last + 1), slice(first - steps, last + 1 - steps)
        return rows, rows - steps

    def rows_before_end(self, steps: int, start: int, stop: int) -> Int[Tensor, " n"]:
        """Rows of [start, stop) that have no row `steps` later in their own sequence."""
        return torch.nonzero(self.until_end[start:stop] < steps).squeeze(1) + start

    def bounds_after(self, steps: int) -> Iterator[tuple[int, int]]:
        """Blocks of rows that leave out most rows with no row `steps` earlier."""
        for start, stop in self.blocks():
            rows = self.rows_after(steps, start, stop)
            if len(rows):
                yield int(rows[0]), int(rows[-1]) + 1

    def lagged(self, steps: int, start: int, stop: int) -> Float[Tensor, "rows a"]:
        """Rows `start` to `stop` of S^steps X."""
        if steps == 0:
            return self.block(start, stop)
        first = max(start, steps)
        if first >= stop:
            return torch.zeros(stop - start, self.n_features, dtype=self.dtype, device=self.device)
        has_past = self.time[first:stop, None] >= steps
        rows = torch.where(has_past, self.block(first - steps, stop - steps), 0)
        return rows if first == start else torch.cat([rows.new_zeros(first - start, rows.shape[1]), rows])

    def shift(self, Z: Float[Tensor, "l r"], steps: int, start: int, stop: int) -> Float[Tensor, "rows r"]:
        """Rows `start` to `stop` of S^steps Z: what was there `steps` frames earlier, zero before that."""
        shifted = Z.new_zeros(stop - start, Z.shape[1])
        rows = self.rows_after(steps, start, stop)
        shifted[rows - start] = Z[rows - steps]
        return shifted

    def project(self, W: Float[Tensor, "a r"]) -> Float[Tensor, "l r"]:
        """X W."""
        out = W.new_empty(self.n_frames, W.shape[1])
        for start, stop in self.blocks():
            out[start:stop] = self.block(start, stop) @ W
        return out

    def project_transposed(self, V: Float[Tensor, "l r"]) -> Float[Tensor, "a r"]:
        """Xᵀ V."""
        out = V.new_zeros(self.n_features, V.shape[1])
        for start, stop in self.blocks():
            out += self.block(start, stop).T @ V[start:stop]
        return out

    def inner_products(self) -> Float[Tensor, "l l"]:
        """X Xᵀ."""
        out = torch.empty(self.n_frames, self.n_frames, dtype=torch.float64, device=self.device)
        for start, stop in self.blocks():
            block = self.block(start, stop)
            for first, last in self.blocks():
                if first == start:
                    out[start:stop, first:last] = block @ block.T
                elif first < start:
                    out[start:stop, first:last] = block @ self.block(first, last).T
                    out[first:last, start:stop] = out[start:stop, first:last].T
        return out

    def mean_frame(self) -> Float[Tensor, " a"]:
        """Mean over all frames of all sequences."""
        sums = torch.zeros(self.n_features + 1, dtype=torch.float64, device=self.device)  # the last counts frames
        for start, stop in self.blocks():
            sums[:-1] += self.block(start, stop).double().sum(0)
            sums[-1] += stop - start
        sums = total(sums, self.distributed)
        return (sums[:-1] / sums[-1]).to(self.dtype)

    def energy(self, forgetting: float) -> float:
        """Squared Frobenius norm of Xi: frame t is seen, discounted, from its own row and all later ones."""
        energy = torch.zeros((), dtype=torch.float64, device=self.device)
        discount = forgetting**2
        for start, stop in self.blocks():
            remaining = self.until_end[start:stop].double() + 1
            seen = remaining if forgetting == 1 else (1 - discount**remaining) / (1 - discount)
            energy += seen @ self.block(start, stop).double().square().sum(1)
        return float(total(energy, self.distributed))


def _below_each_other(pieces: list[Any]) -> Any:
    """Concatenate as they are, so that what is boolean or sparse is converted once."""
    if len(pieces) == 1:
        return pieces[0]
    if all(isinstance(piece, np.ndarray) for piece in pieces):
        return np.concatenate(pieces)
    if all(isinstance(piece, Tensor) for piece in pieces):
        return torch.cat(pieces)
    return scipy.sparse.vstack(pieces, format="csr")


def dense(rows: Any, dtype: torch.dtype, device: torch.device) -> Float[Tensor, "rows a"]:
    """Some rows of a sequence, however it is kept, as a dense tensor."""
    if scipy.sparse.issparse(rows):
        rows = rows.toarray()
    if not isinstance(rows, Tensor):
        # torch takes neither read-only memory nor negative strides, foreign byte order and long doubles.
        plain = rows.flags.writeable and min(rows.strides) >= 0 and rows.dtype.isnative
        if not plain or rows.dtype.itemsize > 8:
            rows = np.array(rows, dtype=np.float64)
        rows = torch.from_numpy(rows)
    tensor: Tensor = rows.to(device=device, dtype=dtype)
    return tensor


def scan(stack: Stack, M: Float[Tensor, "l p"], B: Float[Tensor, "p p"]) -> Float[Tensor, "l p"]:
    """Run m^t = u^t + B m^{t-1} along every sequence, in place: U comes in, M goes out.

    Doubling turns the recursion into log2(l_max) matrix products: after the round with step k every row holds
    the sum over its last 2k inputs.
    """
    steps, power = 1, B.T.contiguous()
    tiny = torch.finfo(B.dtype).tiny
    while steps < stack.longest and float(power.abs().max()) > tiny:
        for start, stop in stack.blocks():
            later, earlier = stack.pairs(steps, start, stop)
            M[later] += M[earlier] @ power
        steps, power = 2 * steps, power @ power
    return M


def unscan(stack: Stack, final: Float[Tensor, "S p"], back: Float[Tensor, "p p"]) -> Float[Tensor, "l p"]:
    """From the memory after the last frame of every sequence back to the memory after every frame.

    One step back is m^{t-1} = back · m^t. Every round doubles how much of the end of the sequences is filled.
    """
    M = final.new_zeros(stack.n_frames, final.shape[1])
    M[torch.from_numpy(stack.ends - 1).to(stack.device)] = final
    steps, power = 1, back.T.contiguous()
    while steps < stack.longest:
        rows = torch.nonzero((stack.until_end >= steps) & (stack.until_end < 2 * steps)).squeeze(1)
        M[rows] = M[rows + steps] @ power
        steps, power = 2 * steps, power @ power
    return M
