"""The paper's two training algorithms on piano rolls, in phases that can be resumed, and what each phase bought."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch

import linmem
from linmem.datasets.piano_rolls import Split
from linmem.experiments.training import NextFrame, Quantity, Run, Settings, evaluate, train
from linmem.files import write_atomically


@dataclass(frozen=True)
class Phase:
    """What one phase cost, and how good the model was behind it."""

    name: str
    epochs: int
    seconds: float
    train_nats: float
    train_accuracy: float
    valid_nats: float
    valid_accuracy: float
    """Pooled, at .5."""


@dataclass
class Phases:
    """Runs phases one after the other. With a folder, those that have ended before are read and not trained again.

    Every file knows what it is part of: the data, the settings and the phases before it. A folder of another run is
    refused.
    """

    parts: Split
    folder: Path | None = None
    report: Callable[[str], None] = print

    def __post_init__(self) -> None:
        self.done: list[Phase] = []
        self.digest = ""

    def begin(self, **facts: Any) -> None:
        """Say what all phases depend on, beside the data."""
        for rolls in self.parts:
            self._digest(rolls.bits.tobytes(), rolls.lengths.tobytes())
        self._digest(repr(sorted(facts.items())).encode(), linmem.__version__.encode())

    def _digest(self, *data: bytes) -> None:
        self.digest = hashlib.sha256(b"".join([self.digest.encode(), *data])).hexdigest()

    def run(self, name: str, model: NextFrame, work: Callable[[], Run | None], *, seconds: float = 0.0) -> NextFrame:
        """Let `work` change the model in place; it returns its epochs, if there were any.

        `seconds` is what it took to make the model.
        """
        self._digest(name.encode())
        path = None if self.folder is None else self.folder / f"{len(self.done)}_{name.replace(' ', '_')}.safetensors"
        if path is not None and path.exists():
            with safetensors.safe_open(path, framework="pt") as file:
                facts = file.metadata()
                if facts.get("digest") != self.digest:
                    raise ValueError(
                        f"{path} is of another run: expected an empty folder, or the same data and settings"
                    )
                phase = Phase(**json.loads(facts["phase"]))
            model.load_state_dict(safetensors.torch.load_file(path))
        else:
            run = work() or Run()
            on_train, on_valid = evaluate(model, self.parts.train), evaluate(model, self.parts.valid)
            figures = (on_train.nats, on_train.pooled(), on_valid.nats, on_valid.pooled())
            phase = Phase(name, run.trained, seconds + run.seconds, *figures)
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                facts = {"phase": json.dumps(asdict(phase)), "digest": self.digest}
                data = safetensors.torch.save(model.state_dict(), facts)
                write_atomically(path.resolve(), data)
        self._digest(*(value.detach().numpy().tobytes() for value in model.state_dict().values()))
        self.done.append(phase)
        self.report(line_of(phase))
        return model

    @property
    def epochs(self) -> int:
        """Epochs of all phases together."""
        return sum(phase.epochs for phase in self.done)


HEADER = f"{'phase':28}{'epochs':>7}{'seconds':>9}{'nats: train':>13}{'valid':>8}{'accuracy: train':>17}{'valid':>8}"


def line_of(phase: Phase) -> str:
    """Return a phase as a line of a table under `HEADER`."""
    p = phase
    return (
        f"{p.name:28}{p.epochs:7d}{p.seconds:9.1f}{p.train_nats:13.3f}{p.valid_nats:8.3f}"
        f"{100 * p.train_accuracy:17.2f}{100 * p.valid_accuracy:8.2f}"
    )


def unrolled_then_lmn(
    phases: Phases,
    hidden_size: int,
    memory_size: int,
    settings: Settings,
    *,
    order: int = 10,
    select: Quantity = "nats",
    keep: Callable[[NextFrame, Run], Run] = lambda model, run: run,
    **options: Any,
) -> NextFrame:
    """Algorithm 1: train an unrolled RNN, make an LMN of it, train that.

    The unrolled RNN is selected by likelihood: an overfitted one is much harder to encode. `keep` is shown every
    model with its run. `options` go to :func:`linmem.lmn_from_unrolled`.
    """
    parts, keys = phases.parts, phases.parts.train[0].shape[1]
    phases.begin(hidden=hidden_size, memory=memory_size, order=order, settings=settings, select=select, **options)
    torch.manual_seed(settings.seed)
    unrolled = NextFrame(linmem.UnrolledRNN(keys, hidden_size, order=order), keys=keys)
    unrolled.start_at_frequencies(parts.train)
    phases.run("train unrolled", unrolled, lambda: keep(unrolled, train(unrolled, parts.train, parts.valid, settings)))
    start = time.perf_counter()
    layer, readout = linmem.lmn_from_unrolled(
        unrolled.layer,  # type: ignore[arg-type]
        unrolled.readout,
        list(parts.train),
        memory_size,
        **options,
    )
    lmn = NextFrame(layer, readout)
    phases.run("make an LMN of it", lmn, lambda: None, seconds=time.perf_counter() - start)
    return phases.run(
        "train LMN", lmn, lambda: keep(lmn, train(lmn, parts.train, parts.valid, settings, select=select))
    )


def grow(
    phases: Phases,
    hidden_size: int,
    memory_size: int,
    settings: Settings,
    *,
    modules: int = 3,
    epochs: int = 10,
    select: Quantity = "nats",
    **options: Any,
) -> NextFrame:
    """Algorithm 2: train a MultiScale LMN of one module for some epochs, add a module, and so on.

    `memory_size` is that of each module; the last training has all the epochs of `settings`. `options` go to
    :func:`linmem.add_memory_module`.
    """
    parts, keys = phases.parts, phases.parts.train[0].shape[1]
    facts = {"modules": modules, "epochs": epochs, "select": select} | options
    phases.begin(hidden=hidden_size, memory=memory_size, settings=settings, **facts)
    torch.manual_seed(settings.seed)
    layer: Any = linmem.MultiScaleLMN(keys, hidden_size, num_modules=1, memory_size=memory_size)
    model = NextFrame(layer, keys=keys).start_at_frequencies(parts.train)
    rolls = [roll for roll in parts.train if len(roll) > 1]
    inputs, targets = [roll[:-1] for roll in rolls], [roll[1:] for roll in rolls]
    for module in range(1, modules + 1):
        last = module == modules
        some = settings if last else replace(settings, epochs=epochs, patience=epochs)
        work = partial(train, model, parts.train, parts.valid, some, select=select)
        phases.run(f"train {module} module{'s' * (module > 1)}", model, work)
        if not last:
            start = time.perf_counter()
            fit = {"readout_fit": "logistic"} | options
            layer, readout = linmem.add_memory_module(model.layer, model.readout, inputs, targets, **fit)  # type: ignore[arg-type]
            model = NextFrame(layer, readout)
            phases.run(f"add module {module + 1}", model, lambda: None, seconds=time.perf_counter() - start)
    return model


def table(phases: Sequence[Phase]) -> str:
    """Return all phases as text."""
    return "\n".join([HEADER, *map(line_of, phases)])
