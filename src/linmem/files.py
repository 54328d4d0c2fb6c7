"""Save and load: one safetensors file, with the class and its arguments as JSON in the header.

Nothing in a file is ever executed: no pickle, and a class is looked up by name among those listed here. A file is
written beside its destination and moved there when it is complete, so that a killed writer leaves the old one.
"""

from __future__ import annotations

import contextlib
import json
import os
import reprlib
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

import linmem

#: Raised by one when files change so that an older linmem could not read them.
FORMAT = 1

#: What the safetensors format allows.
LONGEST_HEADER = 100_000_000


@dataclass
class Saved:
    """What a file holds of an object: tensors, and what JSON can say."""

    tensors: dict[str, Tensor]
    arguments: dict[str, Any]
    facts: dict[str, Any]


class Savable(Protocol):
    """An object that knows what a file must hold of it, and the way back, which checks what it is given."""

    def _to_saved(self) -> Saved: ...

    @classmethod
    def _from_saved(cls, saved: Saved) -> Any: ...


def savable_classes() -> dict[str, type[Savable]]:
    """The classes that files may hold."""
    classes: tuple[type[Savable], ...] = (
        linmem.LinearAutoencoder,
        linmem.LMN,
        linmem.MultiScaleLMN,
        linmem.ClockworkRNN,
        linmem.UnrolledRNN,
        linmem.LinearMemory,
        linmem.MemoryNetwork,
    )
    return {cls.__name__: cls for cls in classes}


def save(path: str | os.PathLike[str], obj: Savable) -> None:
    """Write an object to a file, or leave the file that was there as it was.

    Parameters
    ----------
    path : str or path
        By convention ends in ``.safetensors``.
    obj : LinearAutoencoder, LMN, MultiScaleLMN, ClockworkRNN, UnrolledRNN, LinearMemory or MemoryNetwork

    Examples
    --------
    >>> import tempfile, numpy as np, linmem
    >>> laes = linmem.LinearAutoencoder(2).fit(np.arange(12.0).reshape(6, 2))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     linmem.save(f"{folder}/memory.safetensors", laes)
    ...     linmem.load(f"{folder}/memory.safetensors")
    LinearAutoencoder(n_components=2)
    """
    name = type(obj).__name__
    if savable_classes().get(name) is not type(obj):
        raise TypeError(f"obj is a {name}: expected one of {sorted(savable_classes())}")
    write_saved(path, name, obj._to_saved())


def load(path: str | os.PathLike[str]) -> Any:
    """Read an object that `save` wrote.

    Raises
    ------
    ValueError
        If the file is truncated, was not written by linmem or by a newer one, or contradicts itself.

    Examples
    --------
    See `save`.
    """
    name, saved = read_saved(path)
    cls = savable_classes().get(name)
    if cls is None:
        raise ValueError(f"{path} holds a {reprlib.repr(name)}: expected one of {sorted(savable_classes())}")
    with contradictions(path):
        return cls._from_saved(saved)


def write_saved(path: str | os.PathLike[str], name: str, saved: Saved) -> None:
    """Write what a file is to hold of an object whose class has this name."""
    header = {
        "format": FORMAT,
        "linmem": linmem.__version__,
        "class": name,
        "arguments": saved.arguments,
        "facts": saved.facts,
    }
    text = json.dumps(header, default=_plain)
    tensors = {key: tensor.detach().cpu().contiguous() for key, tensor in saved.tensors.items()}
    write_atomically(Path(path).resolve(), safetensors.torch.save(tensors, {"linmem": text}))


def read_saved(path: str | os.PathLike[str]) -> tuple[str, Saved]:
    """Read what `write_saved` wrote: the name of the class, and what the file holds, which nobody has checked yet."""
    # One handle for all of it: a writer may put another file in its place at any time.
    with open(path, "rb") as file:
        start = file.read(8)
        length = int.from_bytes(start, "little")
        text = file.read(length) if length <= LONGEST_HEADER else b""
        if len(start) < 8 or len(text) < length or length < 2:
            raise ValueError(f"{path} is not a safetensors file or is truncated")
        header = _header(path, text)
        content = start + text + file.read()
    try:
        tensors = safetensors.torch.load(content)
    except (SafetensorError, ValueError) as error:
        raise ValueError(f"{path} is not a safetensors file or is truncated ({error})") from None
    return header["class"], Saved(tensors, header["arguments"], header["facts"])


@contextlib.contextmanager
def contradictions(path: str | os.PathLike[str]) -> Iterator[None]:
    """Say of which file it was, where its content does not fit together."""
    try:
        yield
    except (ValueError, TypeError, KeyError, OverflowError, RuntimeError) as error:
        sentence = " ".join(str(error).split())  # torch lists what does not fit line by line
        raise ValueError(f"{path} contradicts itself: {sentence}") from None


def _header(path: str | os.PathLike[str], text: bytes) -> dict[str, Any]:
    """The JSON that `save` put into the header, checked as far as its kind goes."""
    try:
        metadata = json.loads(text)["__metadata__"]["linmem"]
    except (KeyError, TypeError):
        raise ValueError(f"{path} was not written by linmem.save") from None
    except (ValueError, RecursionError):
        raise ValueError(f"{path} is not a safetensors file or is truncated") from None
    try:
        header = json.loads(metadata)
    except (ValueError, TypeError, RecursionError):
        raise ValueError(f"{path} has a damaged header: expected JSON") from None
    kinds = {"format": int, "linmem": str, "class": str, "arguments": dict, "facts": dict}
    if not isinstance(header, dict):
        raise ValueError(f"{path} has a damaged header: expected a JSON object")
    for key, kind in kinds.items():
        if not isinstance(header.get(key), kind) or isinstance(header[key], bool):
            what = reprlib.repr(header.get(key))
            raise ValueError(f"{path} has a damaged header: {key!r} is {what}, expected {kind.__name__}")
    if header["format"] > FORMAT:
        raise ValueError(
            f"{path} has format {header['format']} (linmem {reprlib.repr(header['linmem'])}) and this is linmem "
            f"{linmem.__version__}, which reads formats up to {FORMAT}: expected an older file or a newer linmem"
        )
    return header


def _plain(value: Any) -> Any:
    """What JSON has no words for, but an argument may be."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (torch.dtype, torch.device)):
        return str(value).removeprefix("torch.")
    if isinstance(value, type) and issubclass(value, np.generic):
        return np.dtype(value).name
    raise TypeError(f"a {type(value).__name__} among the arguments: expected what a file can hold, such as a number")


def write_atomically(path: Path, data: bytes | Iterable[Any]) -> None:
    """Write a file beside its destination and move it there, so that it appears complete or not at all.

    `data` is all of it, or pieces that are written as they come.
    """
    pieces: Iterable[Any] = (data,) if isinstance(data, bytes) else data
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with open(beside, "xb") as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())  # the bytes reach the disk before the name does
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
