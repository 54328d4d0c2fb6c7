"""Why a reader of a memory that never forgets overfits: what its codes tell of the piece rather than of the music.

    python -m linmem.experiments.overfitting [--set MuseData] [--units 200] [--data FOLDER] [--out results]

Nothing is trained. For several discounts, codes of the training and validation pieces are compared; all figures are of
codes of unit root mean square on training data.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.neighbors import NearestNeighbors

from linmem import LinearMemory, compute_codes
from linmem.datasets import piano_rolls
from linmem.experiments.frames import window
from linmem.files import write_atomically

DISCOUNTS = (0.7, 0.9, 0.95, 0.99, 1.0)

#: Frames that are compared with each other.
SAMPLE = 4000


def between_pieces(codes: NDArray[Any], piece: NDArray[Any]) -> float:
    """Return the share of the variance of codes that is the variance of the means of pieces.

    Examples
    --------
    >>> between_pieces(np.array([[1.0], [1.0], [3.0], [3.0]]), np.array([0, 0, 1, 1]))
    1.0
    """
    means = np.stack([codes[piece == k].mean(0) for k in np.unique(piece)])
    sizes = np.unique(piece, return_counts=True)[1][:, None]
    mean = codes.mean(0)
    return float((sizes * (means - mean) ** 2).sum() / ((codes - mean) ** 2).sum())


def correlation_steps(parts: Sequence[NDArray[Any]], most: int = 200) -> int:
    """Return after how many steps the correlation of a code with itself is below 1/e: sooner means more news."""
    mean = np.concatenate(parts).mean(0)
    centred = [part - mean for part in parts]
    power = np.mean([np.mean(c**2) for c in centred])
    for step in range(1, most + 1):
        products = [np.mean(c[step:] * c[:-step]) for c in centred if len(c) > step]
        if not products or np.mean(products) < power / np.e:
            return step
    return most


def neighbours_of_the_same_piece(
    codes: NDArray[Any], piece: NDArray[Any], apart: int, rng: np.random.Generator
) -> float:
    """Return how often the code nearest to one, of all at least `apart` frames away, is of the same piece."""
    some = np.sort(rng.choice(len(codes), min(SAMPLE, len(codes)), replace=False))
    near = NearestNeighbors(n_neighbors=min(len(some), 200)).fit(codes[some])
    found = near.kneighbors(return_distance=False)
    same = []
    for i, row in enumerate(found):
        far = row[(np.abs(some[row] - some[i]) >= apart) | (piece[some[row]] != piece[some[i]])]
        if len(far):
            same.append(piece[some[far[0]]] == piece[some[i]])
    return float(np.mean(same))


def figures(memory: LinearMemory, train: Any, valid: Any) -> dict[str, float]:
    """Return what can be said of the codes of a memory."""
    codes = compute_codes(memory, train)
    frames, valid_frames = codes.frames.double().numpy(), compute_codes(memory, valid).frames.double().numpy()
    size = np.sqrt(np.square(frames).mean(0))
    used = size > 1e-6 * size.max()
    frames, valid_frames = frames[:, used] / size[used], valid_frames[:, used] / size[used]
    piece = np.repeat(np.arange(len(codes)), codes.lengths)
    rng = np.random.default_rng(0)
    return {
        "between pieces": between_pieces(frames, piece),
        "steps of correlation": correlation_steps(np.split(frames, np.cumsum(codes.lengths)[:-1])),
        "nearest is of the same piece": neighbours_of_the_same_piece(frames, piece, 50, rng),
        "size on validation": float(np.square(valid_frames).mean()),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Print and write the figures."""
    parser = argparse.ArgumentParser(prog="python -m linmem.experiments.overfitting", description=main.__doc__)
    parser.add_argument("--set", choices=piano_rolls.PUBLISHED, default="MuseData")
    parser.add_argument("--units", type=int, default=200)
    parser.add_argument("--data", help="folder with the piano rolls")
    parser.add_argument("--out", type=Path, default=Path("results"))
    a = parser.parse_args(arguments)
    torch.set_num_threads(1)
    parts = piano_rolls.load(a.set, a.data)
    train, valid = list(parts.train), list(parts.valid)
    memories = {f"forgetting {f:g}": LinearMemory.fit(train, a.units, forgetting=f) for f in DISCOUNTS}
    record: dict[str, Any] = {"set": a.set, "units": a.units}
    for name, memory in {"window of 4": window(train[0].shape[1], 4), **memories}.items():
        record[name] = figures(memory, train, valid)
        print(f"{name:16} " + ", ".join(f"{key} {value:.3g}" for key, value in record[name].items()), flush=True)
    a.out.mkdir(parents=True, exist_ok=True)
    write_atomically((a.out / f"overfitting_{a.set}.json").resolve(), json.dumps(record, indent=1).encode())


if __name__ == "__main__":
    main()
