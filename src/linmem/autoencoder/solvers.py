"""Ways to the singular value decomposition Xi = V diag(s) Uᵀ that never hold Xi.

`exact`     the eigenvectors of K = Xi Xiᵀ or of G = Xiᵀ Xi, whichever is smaller. Both are built by a recursion
            along their diagonals, because every row of Xi is the row above it, shifted.
`doubling`  [X, λSX] holds two lags; that and its shift by two steps hold four; log2(l_max) rounds hold them
            all. After every round the columns are compressed to a few more than are wanted.
`slices`    the scheme of the paper: one slice of lags after the other, oldest first, compressed each time.

The encoder m^t = A x^t + B m^{t-1} then follows from V and s alone,

    A = diag(1/s) Vᵀ X        B = λ² diag(1/s) Vᵀ S V diag(s),

or from U alone, with R the shift by one lag,

    A = the first block of Uᵀ      B = λ Uᵀ R U.

With exact singular vectors the two agree. After a truncation on the way the first decodes better, and it is cheap.
The second keeps its digits where the memory holds everything, down to singular values that vanish; `Basis` follows
the little of U that it needs through the rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from scipy.linalg.blas import dsymv
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor

from linmem._ranks import agreed, rows_of_all, total
from linmem._shapes import Float
from linmem.autoencoder.stack import BLOCK_ROWS, Stack

#: Size of the largest Gram matrix that is formed: 8 GB in float64.
GRAM_LIMIT = 32_768

#: Up to this size all eigenvectors at once are found faster than the wanted ones by Lanczos iteration.
DENSE_LIMIT = 512

#: An exact pass forms K for up to this many frames, and works lag by lag for more.
POLISH_LIMIT = 8_192

#: Shows how far a loop has come: takes a range and gives its numbers.
Progress = Callable[[range], Iterable[int]]


@dataclass
class Encoder:
    """What a solver gives: m^t = A x^t + B m^{t-1}, and the singular values of the part of Xi it holds."""

    A: Float[Tensor, "p a"]
    B: Float[Tensor, "p p"]
    singular_values: Float[Tensor, " p"]

    @classmethod
    def empty(cls, features: int) -> Encoder:
        """The memory of nothing."""
        return cls(torch.zeros(0, features), torch.zeros(0, 0), torch.zeros(0))


# ---------------------------------------------------------------------------------------------- the solvers


def exact(stack: Stack, p: int, forgetting: float, *, seed: int, progress: Progress) -> Encoder:
    """Leading eigenvectors of the smaller of K and G."""
    lags = stack.longest * stack.n_features
    size = min(stack.n_frames, lags)
    if size > GRAM_LIMIT:
        raise ValueError(
            f"solver='exact' would form a matrix of {size} x {size} ({stack.n_frames} frames, the longest "
            f"sequence has {stack.longest}), its limit is {GRAM_LIMIT}: expected solver='doubling', which "
            f"comes close with a larger width or polish"
        )
    stack = stack.to(torch.float64)
    if p < size and stack.n_frames <= lags:
        s, V = leading_roots(left_gram(stack, forgetting, progress), p, seed)
        if not near_full_rank(stack, s, forgetting):
            return encoder_from_left(stack, V, s, forgetting)
    elif p < size:
        s, U = leading_roots(right_gram(stack, forgetting, progress), p, seed)
        if not near_full_rank(stack, s, forgetting):
            return encoder_from_right(stack, U, s, forgetting)
    return lossless(stack, p, forgetting, progress)


def doubling(stack: Stack, p: int, forgetting: float, *, width: int, polish: int, progress: Progress) -> Encoder:
    """Rounds of doubling, compressed to `width` columns each, then `polish` exact passes."""
    Z, rounds = double(stack, width, forgetting, compress_by_gram, progress)
    s, V = rounds[-1].s[:p], Z[:, :p] / rounds[-1].s[:p].to(Z.dtype)
    if near_full_rank(stack, s, forgetting):
        if stack.dtype == torch.float64:
            return lossless(stack, p, forgetting, progress)
        precise = stack.to(torch.float64)
        return doubling(precise, p, forgetting, width=width, polish=polish, progress=progress)
    if polish:
        stack, V = stack.to(torch.float64), Z.double()
        times_gram = gram_operator(stack, forgetting, progress)
        for _ in range(polish):
            s, V = exact_pass(times_gram, V)
    return encoder_from_left(stack, V[:, :p], s[:p], forgetting)


def slices(stack: Stack, p: int, forgetting: float, *, slice_width: int, progress: Progress) -> Encoder:
    """Slices of `slice_width` lags, from the oldest to the newest, compressed to `p` columns each time.

    Early slices are short: a row takes part once its sequence is old enough to have the lag.
    """
    Z = torch.zeros(stack.n_frames, 0, dtype=stack.dtype, device=stack.device)
    s = torch.zeros(0, dtype=torch.float64, device=stack.device)
    n_slices = -(-stack.longest // slice_width)
    for j in progress(range(n_slices)):
        newest = (n_slices - 1 - j) * slice_width
        lags = range(newest, min(newest + slice_width, stack.longest))

        def slice_of(start: int, stop: int, lags: range = lags) -> Tensor:
            columns = [forgetting**lag * stack.lagged(lag, start, stop) for lag in lags]
            return columns[0] if len(columns) == 1 else torch.cat(columns, 1)

        bounds = list(stack.bounds_after(newest))
        n, kept = len(lags) * stack.n_features, len(s)
        gram = torch.zeros(n + kept, n + kept, dtype=torch.float64, device=stack.device)
        gram[n:, n:] = s.square().diag()
        for start, stop in bounds:
            block = slice_of(start, stop)
            gram[:n, :n] += block.T @ block
            gram[:n, n:] += block.T @ Z[start:stop]
        gram[n:, :n] = gram[:n, n:].T
        s, W = leading_roots_dense(gram, p)
        P, Q = W[:n].to(stack.dtype), W[n:].to(stack.dtype)
        wider = Z if len(s) == kept else Z.new_zeros(len(Z), len(s))
        for start, stop in bounds:
            wider[start:stop] = slice_of(start, stop) @ P + Z[start:stop] @ Q
        Z = wider
    if near_full_rank(stack, s, forgetting):
        if stack.dtype == torch.float64:
            return lossless(stack, p, forgetting, progress)
        return slices(stack.to(torch.float64), p, forgetting, slice_width=slice_width, progress=progress)
    return encoder_from_left(stack, Z / s.to(Z.dtype), s, forgetting)


# --------------------------------------------------------------------------- from singular vectors to A and B


def encoder_from_left(stack: Stack, V: Float[Tensor, "l p"], s: Float[Tensor, " p"], forgetting: float) -> Encoder:
    """A and B from the left singular vectors and the singular values of Xi."""
    s = s[:, None]
    shifted = torch.zeros(len(s), len(s), dtype=torch.float64, device=V.device)  # Vᵀ S V
    for start, stop in stack.blocks():
        later, earlier = stack.pairs(1, start, stop)
        shifted += V[later].T @ V[earlier]
    shifted = total(shifted, stack.distributed)
    A = total(stack.project_transposed(V).double(), stack.distributed).T / s
    return Encoder(A, forgetting**2 * shifted * (s.T / s), s[:, 0])


def encoder_from_right(stack: Stack, U: Float[Tensor, "n p"], s: Float[Tensor, " p"], forgetting: float) -> Encoder:
    """A and B from the right singular vectors of Xi, one block of rows per lag."""
    a = stack.n_features
    return Encoder(U[:a].T, forgetting * (U[a:].T @ U[:-a]), s)


def lossless(stack: Stack, p: int, forgetting: float, progress: Progress) -> Encoder:
    """A and B where `p` units hold all that is in Xi, or nearly: no Gram matrix, no division by s."""
    _, rounds = double(stack, p + p // 2 + 10, forgetting, compress_by_qr, progress)
    basis = Basis.of_one_lag(rounds[0].W)
    for compressed in rounds[1:]:
        basis = basis.doubled(compressed.W)
    return Encoder(basis.first[:, :p].T, forgetting * basis.shift[:p, :p], rounds[-1].s[:p])


def near_full_rank(stack: Stack, s: Float[Tensor, " p"], forgetting: float) -> bool:
    """Whether `encoder_from_left` would lose more of Xi to rounding than is lost to truncation.

    The square of the condition number multiplies the precision there; truncation costs the root of the energy
    that `s` leaves out, which cannot be told from zero below some hundred roundings.
    """
    energy, eps = stack.energy(forgetting), torch.finfo(stack.dtype).eps
    left_out = max(0.0, 1 - float(s.square().sum()) / energy)
    rounding = eps * float(s[0] / s[-1]) ** 2
    return left_out < 500 * eps or rounding > left_out**0.5


# ------------------------------------------------------------------------------------------------- doubling


@dataclass
class Basis:
    """Orthonormal columns U over some lags, reduced to the three small matrices that doubling them takes.

    U has one block of `a` rows per lag: `first` and `last` are its outer blocks, `shift` is Uᵀ R U.
    """

    first: Float[Tensor, "a r"]
    last: Float[Tensor, "a r"]
    shift: Float[Tensor, "r r"]

    @classmethod
    def of_one_lag(cls, W: Float[Tensor, "a r"]) -> Basis:
        """U = W, which R shifts out altogether."""
        return cls(W, W, W.new_zeros(W.shape[1], W.shape[1]))

    def doubled(self, W: Float[Tensor, "rr q"]) -> Basis:
        """diag(U, U) W, over twice as many lags: R shifts the last block of one half into the other."""
        r = self.shift.shape[0]
        P, Q = W[:r], W[r:]
        carried = (self.first @ Q).T @ (self.last @ P)
        shift = P.T @ self.shift @ P + Q.T @ self.shift @ Q + carried
        return Basis(self.first @ P, self.last @ Q, shift)


class Compressed(NamedTuple):
    """Leading singular values and right singular vectors of some columns."""

    s: Float[Tensor, " r"]
    W: Float[Tensor, "n r"]


#: From Z, with orthogonal columns of norm s, to the compressed columns of [Z, factor · S^steps Z].
Compress = Callable[[Stack, Tensor, Tensor, int, float, int], Compressed]


def double(
    stack: Stack, width: int, forgetting: float, compress: Compress, progress: Progress
) -> tuple[Float[Tensor, "l r"], list[Compressed]]:
    """Z = V diag(s) with Z Zᵀ ≈ Xi Xiᵀ, exact while `width` is not below the rank, and what every round gave."""
    rounds = [compress_frames(stack, width, through_gram=compress is compress_by_gram)]
    Z = stack.project(rounds[0].W.to(stack.dtype))
    for j in progress(range((stack.longest - 1).bit_length())):
        steps, factor = 2**j, forgetting**2**j
        if factor < torch.finfo(torch.float32).tiny:
            break  # beyond these lags the past is forgotten
        rounds.append(compress(stack, Z, rounds[-1].s, steps, factor, width))
        Z = combine(stack, Z, steps, factor, rounds[-1].W.to(Z.dtype))
    return Z, rounds


def combine(
    stack: Stack, Z: Float[Tensor, "l r"], steps: int, factor: float, W: Float[Tensor, "rr q"]
) -> Float[Tensor, "l q"]:
    """[Z, factor · S^steps Z] W, in the place of Z if the width stays."""
    r, q = Z.shape[1], W.shape[1]
    P, Q = W[:r], factor * W[r:]
    out = Z if q == r else Z.new_empty(len(Z), q)
    scratch = Z.new_empty(BLOCK_ROWS, q)  # one for all blocks: a fresh one costs more than the product
    for start, stop in stack.blocks():  # from the last rows to the first, so that Z may be overwritten
        block = torch.mm(Z[start:stop], P, out=scratch[: stop - start])
        later, earlier = stack.pairs(steps, start, stop)
        if isinstance(later, slice):
            block[later.start - start : later.stop - start].addmm_(Z[earlier], Q)
        else:
            block.index_add_(0, later - start, Z[earlier] @ Q)
        out[start:stop] = block
    return out


def compress_frames(stack: Stack, width: int, through_gram: bool) -> Compressed:
    """X itself: the first round, with one lag."""
    if not through_gram:
        return singular_by_qr(stack, (stack.block(start, stop) for start, stop in stack.blocks()), width)
    few_features = stack.distributed or stack.n_features <= stack.n_frames
    if (stack.n_features if few_features else stack.n_frames) > GRAM_LIMIT:
        raise ValueError(
            f"X has {stack.n_features} features in {stack.n_frames} frames: expected at most {GRAM_LIMIT} features, "
            f"as from sklearn.decomposition.TruncatedSVD"
        )
    if few_features:
        gram = torch.zeros(stack.n_features, stack.n_features, dtype=torch.float64, device=stack.device)
        for start, stop in stack.blocks():
            block = stack.block(start, stop)
            gram += block.T @ block
        return agreement(stack, leading_roots(total(gram, stack.distributed), width))
    s, V = leading_roots(stack.inner_products(), width)
    known = s > s[0] * torch.finfo(stack.dtype).eps ** 0.5  # the rest is rounding, and no basis
    s, V = s[known], V[:, known]
    return Compressed(s, stack.project_transposed(V.to(stack.dtype)).double() / s)


def compress_by_gram(stack: Stack, Z: Tensor, s: Tensor, steps: int, factor: float, width: int) -> Compressed:
    """Through the Gram matrix [[D, f C], [f Cᵀ, f² H]], of which D = diag(s²) is known."""
    r = Z.shape[1]
    D = s.square().diag()
    C = torch.zeros_like(D)  # Zᵀ S^steps Z
    L = torch.zeros_like(D)  # what S^steps shifts out of D with the last rows
    for start, stop in stack.blocks():
        later, earlier = stack.pairs(steps, start, stop)
        C += Z[later].T @ Z[earlier]
        lost = Z[stack.rows_before_end(steps, start, stop)]
        L += lost.T @ lost
    C, H = total(C, stack.distributed), D - total(L, stack.distributed)
    gram = torch.empty(2 * r, 2 * r, dtype=torch.float64, device=Z.device)
    gram[:r, :r], gram[:r, r:] = D, factor * C
    gram[r:, :r], gram[r:, r:] = factor * C.T, factor**2 * H
    return agreement(stack, leading_roots_dense(gram, width))


def compress_by_qr(stack: Stack, Z: Tensor, s: Tensor, steps: int, factor: float, width: int) -> Compressed:
    """Through orthogonal factorisations of blocks of rows, which keep all digits."""
    del s  # only the Gram matrix has a use for it
    pairs = (
        torch.cat([Z[start:stop], factor * stack.shift(Z, steps, start, stop)], 1) for start, stop in stack.blocks()
    )
    return singular_by_qr(stack, pairs, width)


# ------------------------------------------------------------------------------------- Gram matrices of Xi


def left_gram(stack: Stack, forgetting: float, progress: Progress) -> Float[Tensor, "l l"]:
    """K = Xi Xiᵀ: two rows of Xi overlap in their newest frames, and discounted, as the rows above them did.

    So K solves K = X Xᵀ + λ² S K Sᵀ, and one pass over the rows of X Xᵀ gives it.
    """
    K = stack.inner_products()
    has_previous = stack.time > 0
    weight = forgetting**2 * has_previous[1:].to(K.dtype)
    rows = torch.nonzero(has_previous).squeeze(1).tolist()
    for j in progress(range(len(rows))):
        i = rows[j]
        K[i, 1:].addcmul_(K[i - 1, :-1], weight)
    return K


def right_gram(stack: Stack, forgetting: float, progress: Progress) -> Float[Tensor, "n n"]:
    """G = Xiᵀ Xi, with a block of rows and columns per lag.

    The blocks (i, j) and (i + 1, j + 1) sum the same products of frames, except that the latter misses those of
    the last frames, which E holds: newest first, one row per sequence.
    """
    a = stack.n_features
    E = torch.zeros(len(stack.lengths), stack.longest * a, dtype=stack.dtype, device=stack.device)
    for q, (start, end) in enumerate(zip(stack.starts.tolist(), stack.ends.tolist(), strict=True)):
        E[q, : (end - start) * a] = stack.block(start, end).flip(0).flatten()
    G = E.T @ E
    for i in progress(range(stack.longest - 2, -1, -1)):
        G[i * a : (i + 1) * a, :-a] += G[(i + 1) * a : (i + 2) * a, a:]
    lag = torch.arange(stack.longest, dtype=stack.dtype, device=stack.device).repeat_interleave(a)
    discount = forgetting**lag
    return G.mul_(discount).mul_(discount[:, None])


def gram_operator(stack: Stack, forgetting: float, progress: Progress) -> Callable[[Tensor], Tensor]:
    """The product with K = Xi Xiᵀ: through K itself if it is small, else lag by lag."""
    if stack.n_frames <= POLISH_LIMIT:
        K = left_gram(stack, forgetting, progress)
        return lambda V: K @ V

    def times_gram(V: Tensor) -> Tensor:
        out = torch.zeros_like(V)
        for lag in progress(range(stack.longest)):
            bounds = list(stack.bounds_after(lag))
            W = V.new_zeros(stack.n_features, V.shape[1])
            for start, stop in bounds:
                W += stack.lagged(lag, start, stop).T @ V[start:stop]
            W *= forgetting ** (2 * lag)
            for start, stop in bounds:
                out[start:stop] += stack.lagged(lag, start, stop) @ W
        return out

    return times_gram


def exact_pass(times_gram: Callable[[Tensor], Tensor], V: Tensor) -> tuple[Tensor, Tensor]:
    """One step of subspace iteration, with the Nyström estimate K ≈ K Q (QᵀK Q)⁻¹ Qᵀ K on the way."""
    Q = torch.linalg.qr(V).Q
    KQ = times_gram(Q)
    w, W = torch.linalg.eigh((Q.T @ KQ + KQ.T @ Q) / 2)
    kept = w > w[-1] * torch.finfo(w.dtype).eps * len(w)
    V, s, _ = torch.linalg.svd(KQ @ (W[:, kept] / w[kept].sqrt()), full_matrices=False)
    return s, V


# ------------------------------------------------------------------------------- singular values and vectors


def leading_roots(gram: Float[Tensor, "n n"], p: int, seed: int = 0) -> Compressed:
    """The `p` largest eigenvalues of a Gram matrix, as singular values, and their eigenvectors."""
    n = len(gram)
    if n <= DENSE_LIMIT or p > n // 8 or gram.device.type != "cpu":
        return leading_roots_dense(gram, p)
    # A symmetric product reads half of the matrix.
    columns = gram.numpy().T
    product = LinearOperator((n, n), matvec=lambda v: dsymv(1.0, columns, v), dtype=np.float64)
    start = np.random.default_rng(seed).standard_normal(n)
    w, V = eigsh(product, k=p, which="LA", v0=start)
    order = np.argsort(-w)
    return without_rounding(torch.from_numpy(w[order]), torch.from_numpy(V[:, order]))


def leading_roots_dense(gram: Float[Tensor, "n n"], p: int) -> Compressed:
    """The same from all eigenvectors."""
    w, V = torch.linalg.eigh(gram)
    return without_rounding(w.flip(0)[:p], V.flip(1)[:, :p])


def without_rounding(w: Float[Tensor, " p"], V: Float[Tensor, "n p"]) -> Compressed:
    """Roots of eigenvalues, leaving out (but for one) those that rounding made negative or zero."""
    p = max(1, int((w > 0).sum()))
    return Compressed(w[:p].clamp(min=0).sqrt(), V[:, :p])


def agreement(stack: Stack, compressed: Compressed) -> Compressed:
    """Take the word of the first process."""
    return Compressed(agreed(compressed.s, stack.distributed), agreed(compressed.W, stack.distributed))


def singular_by_qr(stack: Stack, blocks: Iterator[Tensor], p: int) -> Compressed:
    """Singular values and right singular vectors of a tall matrix that comes in blocks of rows."""
    R = None
    for block in blocks:
        R = torch.linalg.qr(block if R is None else torch.cat([R, block]), mode="r").R
    assert R is not None  # a stack has at least one row
    if stack.distributed:
        R = torch.linalg.qr(rows_of_all(R, stack.distributed), mode="r").R
    _, s, Wt = torch.linalg.svd(R, full_matrices=False)
    rank = int((s > s[0] * torch.finfo(s.dtype).eps * max(R.shape)).sum())
    p = max(1, min(p, rank))
    return agreement(stack, Compressed(s[:p], Wt[:p].T))


def with_fixed_signs(encoder: Encoder) -> Encoder:
    """Singular vectors are defined up to their sign: the largest entry of every row of A becomes positive."""
    A, B = encoder.A, encoder.B
    largest = A.abs().argmax(1, keepdim=True)
    sign = torch.where(A.gather(1, largest) < 0, -1.0, 1.0).to(A.dtype)
    return Encoder(sign * A, sign * B * sign.T, encoder.singular_values)
