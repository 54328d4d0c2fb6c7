"""A folder that a training run is kept in, so that it survives its end at any moment.

All of a run is one file, `checkpoint.safetensors`, which is replaced as a whole: there are no two files that could
disagree, and whoever is killed while writing leaves the file before. Nothing in it is ever executed.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import linmem
from linmem.files import Saved, read_saved, write_atomically, write_saved

KIND = "Checkpoint"


class Folder:
    """Where the checkpoint and the log of one run are; it belongs to one process at a time.

    Parameters
    ----------
    path
        Made if it is not there.
    identity
        What the run depends on, by name. A checkpoint of a run that depended on something else is refused.
    """

    def __init__(self, path: Path, identity: Mapping[str, str]) -> None:
        self.path = path
        self.identity = {"version of linmem": linmem.__version__, **identity}

    @property
    def checkpoint(self) -> Path:
        """The file that has everything."""
        return self.path / "checkpoint.safetensors"

    @property
    def log(self) -> Path:
        """A table of the epochs, made of the checkpoint: nothing is read from it."""
        return self.path / "epochs.csv"

    def read(self) -> Saved | None:
        """Return what `write` was given last, if there is anything.

        Raises
        ------
        ValueError
            If the checkpoint is damaged, or that of another run.
        """
        if not self.checkpoint.exists():
            return None
        name, saved = read_saved(self.checkpoint)
        if name != KIND:
            raise ValueError(f"{self.checkpoint} holds a {reprlib.repr(name)}: expected the checkpoint of a run")
        others = [key for key, value in self.identity.items() if saved.arguments.get(key) != value]
        if others:
            raise ValueError(
                f"{self.checkpoint} is of another run, which differs in {', '.join(others)}: "
                "expected an empty folder, or that of the same run"
            )
        return saved

    def write(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Replace the checkpoint.

        Raises
        ------
        OSError
            If that cannot be done. The one before is then still there.
        """
        with self._writing():
            write_saved(self.checkpoint, KIND, Saved(dict(tensors), self.identity, dict(facts)))

    def write_log(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Make the log a table of these rows, if it is not."""
        text = io.StringIO()
        table = csv.DictWriter(text, rows[0].keys(), lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
        data = text.getvalue().encode()
        if not self.log.exists() or self.log.read_bytes() != data:
            with self._writing():
                write_atomically(self.log.resolve(), data)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            for path in (self.checkpoint, self.log):
                for left in self.path.glob(f".{path.name}.*.tmp"):  # by a writer that was killed
                    left.unlink()
            yield
        except OSError as error:
            kept = "the last checkpoint is intact" if self.checkpoint.exists() else "there is no checkpoint yet"
            why = f"nothing can be written into this folder ({error.strerror}), {kept}"
            raise OSError(error.errno, why, str(self.path)) from error


def digest_of_data(rolls: Iterable[Any]) -> str:
    """Return what tells a set from all others, however it is kept."""
    digest = hashlib.sha256()
    for roll in rolls:
        frames = np.ascontiguousarray(roll, dtype=np.float32)
        digest.update(repr(frames.shape).encode())
        digest.update(frames.data)
    return digest.hexdigest()


def digest_of_model(model: nn.Module) -> str:
    """Return what tells a model from all others: what it prints as, what of it is trained, and where it starts."""
    digest = hashlib.sha256(repr(model).encode())
    digest.update(repr([(name, p.requires_grad) for name, p in model.named_parameters()]).encode())
    for name, value in model.state_dict().items():
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy())
    return digest.hexdigest()
