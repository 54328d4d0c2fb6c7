"""The memory after every frame of a data set, computed once.

A memory that is not trained gives the same codes in every epoch. With `compute_codes` what is left to train is a
feed-forward network on frames in any order; with a file, the codes of a data set larger than memory are made once.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from itertools import chain, groupby
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from linmem.autoencoder import LinearAutoencoder
from linmem.autoencoder.sequences import as_sequences, check_finite
from linmem.autoencoder.stack import dense
from linmem.files import write_atomically
from linmem.layers.parameters import any_parameter
from linmem.layers.recurrent import RecurrentLayer
from linmem.pretraining.activations import evaluating, output_sequences

#: Longer sequences are encoded in pieces of so many frames.
CHUNK_FRAMES = 65_536

#: In the header of a file of codes.
KIND = "linmem.codes"


class Codes(Sequence[Tensor]):
    """Codes of ragged sequences, one behind the other.

    Parameters
    ----------
    frames : (all frames, width) tensor
        May lie in a file.
    lengths : (sequences,) integers

    Examples
    --------
    >>> codes = Codes(torch.arange(10.0).view(5, 2), [3, 2])
    >>> codes[1]
    tensor([[6., 7.],
            [8., 9.]])
    """

    def __init__(self, frames: Tensor, lengths: Any) -> None:
        self.frames = frames
        self.lengths = [int(n) for n in lengths]
        if frames.ndim != 2 or sum(self.lengths) != len(frames) or min(self.lengths, default=1) < 1:
            raise ValueError(f"frames are {tuple(frames.shape)}: expected two dimensions, and as many as lengths say")
        self._parts = torch.split(frames, self.lengths) if self.lengths else ()

    def __len__(self) -> int:
        return len(self.lengths)

    @overload
    def __getitem__(self, i: int) -> Tensor: ...
    @overload
    def __getitem__(self, i: slice) -> list[Tensor]: ...
    def __getitem__(self, i: int | slice) -> Tensor | list[Tensor]:
        return list(self._parts[i]) if isinstance(i, slice) else self._parts[i]

    def __repr__(self) -> str:
        return f"Codes({len(self)} sequences, {len(self.frames)} frames, {self.frames.shape[1]} units)"


def compute_codes(
    memory: RecurrentLayer | LinearAutoencoder, sequences: Any, path: str | os.PathLike[str] | None = None
) -> Codes:
    """Return the memory after every frame of every sequence, from a zero state.

    Parameters
    ----------
    memory
        A layer, usually a frozen :class:`linmem.LinearMemory`, or a fitted autoencoder. Its output is computed
        without dropout and without gradients.
    sequences
        In any container of :class:`linmem.LinearAutoencoder`.
    path
        A file (safetensors) to keep the codes in. They are written piece by piece and then read through a memory map,
        so that they need not fit into memory. If the file has the codes of this memory and these sequences already,
        nothing is computed; if it has others, it is written anew.

    Examples
    --------
    >>> import linmem
    >>> sequences = [torch.randn(30, 3) for _ in range(5)]
    >>> codes = compute_codes(linmem.LinearMemory.fit(sequences, 8), sequences)
    >>> codes
    Codes(5 sequences, 150 frames, 8 units)
    >>> some = torch.randperm(len(codes.frames))[:32]  # a batch of shuffled frames
    >>> codes.frames[some].shape
    torch.Size([32, 8])
    """
    if not isinstance(memory, (RecurrentLayer, LinearAutoencoder)):
        raise TypeError(f"memory is a {type(memory).__name__}: expected a layer of linmem or a LinearAutoencoder")
    known = as_sequences(sequences, "sequences")
    check_finite(known, "sequences")
    expected = memory.input_size if isinstance(memory, RecurrentLayer) else memory.n_features_in_
    width = int(known.arrays[0].shape[1])
    if width != expected:
        raise ValueError(f"sequences have {width} features: expected {expected}, as the memory has")
    lengths = [int(array.shape[0]) for array in known.arrays]
    if path is None:
        return Codes(torch.cat(list(_encoded(memory, known.arrays))), lengths)
    path = Path(path).resolve()
    key = _digest(memory, known.arrays)
    if not _holds(path, key):
        _write(path, _encoded(memory, known.arrays), lengths, key)
    with safe_open(path, "pt") as file:
        return Codes(file.get_tensor("frames"), file.get_tensor("lengths").tolist())


def _encoded(memory: RecurrentLayer | LinearAutoencoder, arrays: list[Any]) -> Iterator[Tensor]:
    """Yield the codes of all sequences in order, one sequence or a piece of it at a time."""
    if isinstance(memory, LinearAutoencoder):
        for array in arrays:
            before = None
            for piece in _pieces(array):
                codes = memory.transform(piece, before)
                before = codes[-1]
                yield torch.as_tensor(codes)
        return
    for long, group in groupby(arrays, key=lambda array: array.shape[0] > CHUNK_FRAMES and not memory.bidirectional):
        if long:
            for array in group:
                yield from _streamed(memory, array)
        else:
            for batch in output_sequences(memory, list(group)):
                yield from batch


def _streamed(layer: RecurrentLayer, array: Any) -> Iterator[Tensor]:
    """Yield what a layer makes of a long sequence, with its state carried from piece to piece."""
    state, weight = None, any_parameter(layer)
    with evaluating(layer):
        for piece in _pieces(array):
            x = dense(piece, weight.dtype, weight.device)
            y, state = layer(x, state)
            yield y


def _pieces(array: Any) -> Iterator[Any]:
    for start in range(0, array.shape[0], CHUNK_FRAMES):
        yield array[start : start + CHUNK_FRAMES]


def _digest(memory: RecurrentLayer | LinearAutoencoder, arrays: list[Any]) -> str:
    """Tell one memory with its data from another."""
    saved = memory._to_saved()
    digest = hashlib.sha256(repr((type(memory).__name__, saved.arguments)).encode())
    for name, tensor in sorted(saved.tensors.items()):
        digest.update(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
    for array in arrays:
        if hasattr(array, "indptr"):  # scipy.sparse, in rows
            parts = [array.indptr, array.indices, array.data]
        else:
            parts = [array.detach().cpu().numpy() if isinstance(array, Tensor) else array]
        for part in parts:
            digest.update(f"{part.dtype.str}{part.shape}".encode())
            digest.update(np.ascontiguousarray(part).data)
    return digest.hexdigest()


def _holds(path: Path, key: str) -> bool:
    """Whether a file has the codes wanted. What is there and holds no codes at all is nobody's to write over."""
    if not path.exists():
        return False
    try:
        with safe_open(path, "pt") as file:
            found = file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise ValueError(f"path={str(path)!r} is there and no file of codes ({error}): expected one, or none") from None
    if found.get("kind") != KIND:
        raise ValueError(f"path={str(path)!r} is there and no file of codes: expected one, or none")
    return found.get("key") == key


def _write(path: Path, pieces: Iterator[Tensor], lengths: list[int], key: str) -> None:
    """Write a safetensors file as its codes come: header first, because all sizes are known beforehand."""
    first = next(pieces)
    shape, before = [sum(lengths), first.shape[1]], 8 * len(lengths)
    end = before + shape[0] * shape[1] * first.element_size()
    dtype = {torch.float32: "F32", torch.float64: "F64"}[first.dtype]
    header = {
        "__metadata__": {"kind": KIND, "key": key},
        "lengths": {"dtype": "I64", "shape": [len(lengths)], "data_offsets": [0, before]},
        "frames": {"dtype": dtype, "shape": shape, "data_offsets": [before, end]},
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # so that the numbers are aligned
    start = [len(text).to_bytes(8, "little"), text, np.array(lengths, dtype="<i8").tobytes()]
    codes = (np.ascontiguousarray(piece.numpy(force=True)) for piece in chain([first], pieces))
    write_atomically(path, chain(start, codes))
