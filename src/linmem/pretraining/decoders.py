"""From the memory of an autoencoder back to the frames it holds, as one matrix for each lag."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from linmem._ranks import total
from linmem._shapes import Float
from linmem.autoencoder import LinearAutoencoder

Decoder = Literal["fitted", "powers"]

#: Directions of the memory with less than this share of the energy of the strongest are left to the powers.
CUTOFF = 1e-12


def powers(laes: LinearAutoencoder, lags: int) -> Float[Tensor, "lags a p"]:
    """Return A^T, A^T B^T, A^T (B^T)^2, …: the paper's decoder, which is exact at full rank."""
    identity = torch.eye(len(laes.A_), dtype=torch.float64)
    frames: Tensor = laes.decode(identity, lags)  # (p, lags, a), oldest first
    return frames.flip(1).permute(1, 2, 0)


def fitted(
    laes: LinearAutoencoder, sequences: list[Tensor], lags: int, distributed: bool = False
) -> Float[Tensor, "lags a p"]:
    r"""Return the matrices D_j that decode best: :math:`\min \sum_t |x^{t-j} - D_j m^t|^2` over the sequences.

    Before the start of a sequence there are zeros. While the codes m are exactly V Σ, the D_j are the blocks of U in
    Ξ = V Σ Uᵀ; of a truncated memory they decode better than powers of B, whose errors add up. What the powers leave
    over is fitted rather than the frames themselves, so that nothing is lost where the powers are exact.
    """
    start = powers(laes, lags).to(sequences[0].device)
    p = start.shape[2]
    gram = start.new_zeros(p, p)  # Σ m mᵀ
    cross = torch.zeros_like(start)  # Σ x^{t-j} mᵀ
    for x in sequences:
        frames = x.detach().double()
        codes = laes.transform(frames)
        gram += codes.T @ codes
        for j in range(min(lags, len(frames))):
            cross[j] += frames[: len(frames) - j].T @ codes[j:]
    gram, cross = total(gram, distributed), total(cross, distributed)
    energies, directions = torch.linalg.eigh(gram)
    kept = energies > CUTOFF * energies[-1].clamp_min(torch.finfo(torch.float64).tiny)
    inverse = (directions[:, kept] / energies[kept]) @ directions[:, kept].T
    better: Tensor = start + (cross - start @ gram) @ inverse
    return better


def decode(
    laes: LinearAutoencoder, sequences: list[Tensor], lags: int, kind: Decoder, distributed: bool = False
) -> Float[Tensor, "lags a p"]:
    """Return the decoder of this kind for the newest `lags` frames, newest first."""
    return powers(laes, lags) if kind == "powers" else fitted(laes, sequences, lags, distributed)
