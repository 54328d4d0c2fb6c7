"""Memories that are never trained, on the paper's music: a closed-form memory and a small net that reads it.

    python -m linmem.experiments.fixed_memory [--sets JSB_Chorales ...] [--models ...] [--seeds 3] [--data FOLDER]
                                              [--out results]

Beside them, with as many parameters, recurrent networks trained through time, and windows of raw frames read by the
same net. Every run is written to fixed_memory_<set>.json when it ends, and is not repeated. Times are those that the
process computed, on one core, fitting and encoding included. `--table` prints what the files hold.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import linmem
from linmem.datasets import piano_rolls
from linmem.datasets.piano_rolls import KEYS, Split
from linmem.experiments.frames import FrameSettings, train_reader, window
from linmem.experiments.metrics import spread
from linmem.experiments.training import Epoch, NextFrame, Run, Settings, evaluate, train
from linmem.files import write_atomically
from linmem.networks import MemoryNetwork, MemoryReader, lmn_from_network

WINDOWS = (1, 2, 4, 8, 16)
MEMORIES = ("memory", "memory, 2 layers", "memory that never forgets", "memory that never forgets, 2 layers")
FINE_TUNED = ("memory, fine-tuned through time", "memory, fine-tuned as an LMN")
QUICK_MEMORY, QUICK_LSTM = "memory, in a hurry", "LSTM, in a hurry"
RECURRENT = ("LSTM", "GRU", "LMN-m", QUICK_LSTM)
MODELS = (*MEMORIES, QUICK_MEMORY, *FINE_TUNED, *(f"window of {k}" for k in WINDOWS), *RECURRENT)

#: Learning rate of what has been trained before.
FINE_RATE = 1e-4


@dataclass(frozen=True)
class Choice:
    """How a memory and its reader are made and trained."""

    memory_size: int = 200
    forgetting: float | tuple[float, ...] = 0.9
    whiten: bool = False
    hidden_size: int = 300
    depth: int = 2
    dropout: float = 0.5
    memory_dropout: float = 0.0
    memory_scale: float = 1.0
    noise: float = 0.0
    direct: bool = True
    shift: int = 0
    epochs: int = 60
    learning_rate: float = 1e-3
    batch_size: int = 256


@dataclass(frozen=True)
class Budget:
    """How recurrent networks are trained on a set."""

    seconds: float
    """After which no further epoch begins."""
    batch_size: int = 4
    """Pieces."""
    chunk: int | None = None
    """Steps through which gradients go."""
    learning_rate: float = 1e-3


#: What validation data chose for each set, among what `docs/fixed_memory.md` lists.
CHOICES = {
    "JSB_Chorales": Choice(forgetting=0.95, whiten=True, memory_scale=0.03, hidden_size=500, direct=False, epochs=60),
    "Piano_midi": Choice(forgetting=0.95, epochs=18),
    "MuseData": Choice(whiten=True, dropout=0.3, epochs=10, learning_rate=3e-3, batch_size=512),
    "Nottingham": Choice(400, 0.95, dropout=0.3, hidden_size=400, epochs=10, learning_rate=3e-3, batch_size=512),
}
BUDGETS = {
    "JSB_Chorales": Budget(90),
    "Piano_midi": Budget(90),
    "MuseData": Budget(150, batch_size=16, chunk=200),
    "Nottingham": Budget(150, batch_size=16, chunk=200),
}

#: A small memory and reader that learn fast; for whom is in a hurry.
QUICK = Choice(100, 0.9, hidden_size=200, dropout=0.2, epochs=6, learning_rate=3e-3, batch_size=128)

#: What is varied, one thing at a time, to see what helps: `--study`.
VARIATIONS: dict[str, list[dict[str, Any]]] = {
    "as chosen": [{}],
    "units": [{"memory_size": size} for size in (50, 100, 400)],
    "forgetting": [{"forgetting": f} for f in (0.5, 0.7, 0.8, 0.9, 0.95, 1.0, (0.7, 0.95))],
    "whitened, and scaled": [{"whiten": w, "memory_scale": s} for w in (False, True) for s in (1.0, 0.3, 0.1, 0.03)],
    "dropout of units": [{"memory_dropout": 0.2}, {"memory_dropout": 0.5}],
    "noise on units": [{"noise": 0.1}, {"noise": 0.3}],
    "direct path": [{"direct": False}, {"direct": True}],
    "dropout": [{"dropout": d} for d in (0.0, 0.3, 0.5)],
    "width": [{"hidden_size": w} for w in (100, 300, 500)],
    "depth": [{"depth": d} for d in (1, 2, 3)],
    "transposition": [{"shift": 6}],
}


@dataclass
class Trained:
    """A model that has been trained."""

    model: nn.Module
    run: Run
    begun: float
    """Seconds before training: fitting and encoding."""
    seconds: list[float]
    """At the end of each epoch, from the very start."""
    config: dict[str, Any]


class Clock:
    """Seconds that this process computed, noted at the end of every epoch."""

    def __init__(self, budget: float = float("inf")) -> None:
        self.start, self.budget = time.process_time(), budget
        self.seconds: list[float] = []

    def now(self) -> float:
        """Return the seconds since the start."""
        return time.process_time() - self.start

    def note(self, epoch: Epoch) -> bool:
        """Note the end of an epoch, and say whether the budget is used up."""
        self.seconds.append(self.now())
        return self.seconds[-1] > self.budget


def parameters(model: nn.Module) -> int:
    """Count all parameters, also those that are never trained."""
    return sum(p.numel() for p in model.parameters())


# ------------------------------------------------------------------------------------------------- memories


def reader_of(choice: Choice, memory_size: int, input_size: int, hidden_size: int) -> MemoryReader:
    """Return a new reader."""
    return MemoryReader(
        memory_size,
        input_size,
        hidden_size,
        KEYS,
        depth=choice.depth,
        dropout=choice.dropout,
        memory_dropout=choice.memory_dropout,
        memory_scale=choice.memory_scale,
        direct=choice.direct,
    )


def width_of_two(choice: Choice, target: int) -> int:
    """Return the hidden size with which two layers have as many parameters as one has."""

    def count(hidden: int) -> int:
        p = choice.memory_size
        return sum(parameters(reader_of(choice, p, width, hidden)) + p * (width + p) for width in (KEYS, hidden))

    return min(range(8, 1024, 4), key=lambda hidden: abs(count(hidden) - target))


def one_layer(choice: Choice) -> MemoryNetwork:
    """Return a network of this shape, for its number of parameters."""
    memory = linmem.LinearMemory(KEYS, choice.memory_size, bias=False)
    return MemoryNetwork([memory], [reader_of(choice, choice.memory_size, KEYS, choice.hidden_size)])


def train_memory(choice: Choice, parts: Split, seed: int, *, layers: int = 1, frames: int | None = None) -> Trained:
    """Train a network of one or two fixed memories, or one that reads a window of so many frames."""
    clock = Clock()
    torch.manual_seed(seed)
    rolls = list(parts.train)
    settings = FrameSettings(
        learning_rate=choice.learning_rate,
        batch_size=choice.batch_size,
        epochs=choice.epochs,
        noise=choice.noise,
        shift=choice.shift,
        seed=seed,
    )
    hidden = choice.hidden_size if layers == 1 else width_of_two(choice, parameters(one_layer(choice)))
    options: dict[str, Any] = {"forgetting": choice.forgetting, "whiten": choice.whiten}
    memory = window(KEYS, frames) if frames else linmem.LinearMemory.fit(rolls, choice.memory_size, **options)
    network = MemoryNetwork([memory], [reader_of(choice, memory.memory_size, KEYS, hidden)])
    if layers == 2:
        train_reader(network, rolls, parts.valid, settings)
        network = network.grown(rolls, reader_of(choice, choice.memory_size, hidden, hidden), **options)
    begun = clock.now()
    run = train_reader(network, rolls, parts.valid, settings, report=clock.note)
    return Trained(network, run, begun, clock.seconds, asdict(replace(choice, hidden_size=hidden)))


# ------------------------------------------------------------------------------------------------- recurrent


def recurrent(model: str, target: int) -> NextFrame:
    """Return a recurrent network with about so many parameters."""
    makers: dict[str, Callable[[int], nn.Module]] = {
        "LSTM": lambda size: nn.LSTM(KEYS, size),
        "GRU": lambda size: nn.GRU(KEYS, size),
        "LMN-m": lambda size: linmem.LMN(KEYS, size, memory_size=5 * size // 2),  # the paper's 100 and 250
    }
    make = makers[model.split(",")[0]]
    low, high = 4, 1024
    while high - low > 2:  # the count grows with the size
        middle = (low + high) // 4 * 2
        low, high = (middle, high) if parameters(NextFrame(make(middle))) < target else (low, middle)
    size = min((low, high), key=lambda size: abs(parameters(NextFrame(make(size))) - target))
    return NextFrame(make(size))


def train_recurrent(model: str, budget: Budget, parts: Split, seed: int, target: int) -> Trained:
    """Train a recurrent network through time, by Adam at a fixed rate, until it no longer improves or time is up."""
    torch.manual_seed(seed)
    network = recurrent(model, target).start_at_frequencies(parts.train)
    settings = Settings(
        budget.learning_rate, seed=seed, epochs=1000, patience=15, batch_size=budget.batch_size, chunk=budget.chunk
    )
    clock = Clock(budget.seconds)
    run = train(network, parts.train, parts.valid, settings, report=clock.note)
    return Trained(network, run, 0.0, clock.seconds, asdict(settings) | {"budget": budget.seconds})


def fine_tune(model: str, choice: Choice, budget: Budget, parts: Split, seed: int) -> Trained:
    """Train a network of a fixed memory, and then all of it through time: as it is, or as the LMN that it is."""
    found = train_memory(choice, parts, seed)
    network: nn.Module = found.model.requires_grad_()
    if model.endswith("LMN"):
        network = NextFrame(*lmn_from_network(found.model, nonnegative=True))  # type: ignore[arg-type]
    clock = Clock(budget.seconds)
    settings = Settings(FINE_RATE, seed=seed, epochs=1000, patience=5, batch_size=budget.batch_size, chunk=budget.chunk)
    run = train(network, parts.train, parts.valid, settings, report=clock.note)
    before = found.seconds[-1]
    return Trained(network, run, before, [before + s for s in clock.seconds], found.config | asdict(settings))


# ----------------------------------------------------------------------------------------------------- runs


def trained(name: str, model: str, parts: Split, seed: int) -> Trained:
    """Train a model by its name."""
    choice = CHOICES[name]
    if model in RECURRENT:
        budget = replace(BUDGETS[name], learning_rate=QUICK.learning_rate if model == QUICK_LSTM else 1e-3)
        return train_recurrent(model, budget, parts, seed, parameters(one_layer(choice)))
    if model == QUICK_MEMORY:
        return train_memory(QUICK, parts, seed)
    if model in FINE_TUNED:
        return fine_tune(model, choice, BUDGETS[name], parts, seed)
    if model.startswith("window"):
        return train_memory(choice, parts, seed, frames=int(model.split()[-1]))
    if "never forgets" in model:
        choice = replace(choice, forgetting=1.0)
    return train_memory(choice, parts, seed, layers=2 if model.endswith("2 layers") else 1)


def facts(model: str, seed: int, found: Trained, parts: Split) -> dict[str, Any]:
    """Return what is to be known of a run."""
    cut = evaluate(found.model, parts.valid).best_cut()
    test = evaluate(found.model, parts.test, cuts=tuple({0.5, cut}))
    best = found.run.best["nats"]
    return {
        "model": model,
        "seed": seed,
        "parameters": parameters(found.model),
        "config": found.config,
        "begun": found.begun,
        "seconds": [round(s, 3) for s in found.seconds],
        "valid": [[round(epoch.valid_nats, 4), round(epoch.valid_accuracy, 4)] for epoch in found.run.epochs],
        "train": [round(epoch.train_nats, 4) for epoch in found.run.epochs[1:]],
        "best": {"epoch": best.number, "valid_nats": best.valid_nats, "seconds": found.seconds[best.number]},
        "test": {
            "nats": test.nats,
            "at .5": test.pooled(),
            "cut": cut,
            "at cut": test.pooled(cut),
            "per frame at .5": test.per_frame(),
            "per frame at cut": test.per_frame(cut),
            "expected": test.expected,
        },
    }


class Record:
    """The runs of a set, in a file that is written after each."""

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        about = json.loads(json.dumps(about | {"torch": torch.__version__}))
        self.path = path.resolve()
        self.content: dict[str, Any] = about | {"runs": []}
        if path.exists():
            self.content = json.loads(path.read_text())
            found = {key: value for key, value in self.content.items() if key != "runs"}
            if found != about:
                raise SystemExit(f"{path} is of {found}: expected {about}; move it away, or give another --out")

    def has(self, model: str, seed: int) -> bool:
        """Whether a run is done."""
        return any((run["model"], run["seed"]) == (model, seed) for run in self.content["runs"])

    def add(self, run: dict[str, Any]) -> None:
        """Keep a run."""
        self.content["runs"].append(run)
        write_atomically(self.path, json.dumps(self.content).encode())


def compare(name: str, models: Sequence[str], seeds: int, data: str | None, out: Path) -> None:
    """Run what the file of a set does not have yet."""
    parts = piano_rolls.load(name, data)
    record = Record(
        out / f"fixed_memory_{name}.json",
        {"set": name, "choice": asdict(CHOICES[name]), "budget": asdict(BUDGETS[name])},
    )
    for seed in range(seeds):
        for model in models:
            if record.has(model, seed):
                continue
            run = facts(model, seed, trained(name, model, parts, seed), parts)
            record.add(run)
            test, best = run["test"], run["best"]
            print(
                f"{name:13} {model:36} seed {seed}: {test['nats']:.3f} nats, {100 * test['at cut']:.2f} %; valid "
                f"{best['valid_nats']:.3f} in epoch {best['epoch']}, {best['seconds']:.0f} s",
                flush=True,
            )


def study(name: str, seeds: int, data: str | None, out: Path) -> None:
    """Vary one thing at a time, and look at validation data only."""
    parts = piano_rolls.load(name, data)
    choice = CHOICES[name]
    record = Record(out / f"fixed_memory_study_{name}.json", {"set": name, "choice": asdict(choice)})
    for kind, changes in VARIATIONS.items():
        for change in changes:
            label = f"{kind}: {', '.join(map(str, change.values()))}".rstrip(": ")
            for seed in range(seeds):
                if record.has(label, seed):
                    continue
                found = train_memory(replace(choice, **change), parts, seed)
                best = found.run.best["nats"]
                train_nats = found.run.epochs[-1].train_nats
                facts = {"valid_nats": best.valid_nats, "epoch": best.number, "last train_nats": train_nats}
                record.add({"model": label, "seed": seed, "seconds": found.seconds[-1]} | facts)
                print(
                    f"{name:13} {label:30} seed {seed}: valid {best.valid_nats:.3f} in epoch {best.number}", flush=True
                )


# ---------------------------------------------------------------------------------------------------- tables


def seconds_to(run: dict[str, Any], nats: float) -> float:
    """Return when a run first reached a likelihood on validation data, or infinity."""
    reached = (s for s, (valid, _) in zip(run["seconds"], run["valid"], strict=True) if valid <= nats)
    return next(reached, float("inf"))


def table(record: dict[str, Any]) -> str:
    """Return the rows of a set in Markdown: means over seeds and deviations."""
    by_model: dict[str, list[dict[str, Any]]] = {}
    for run in sorted(record["runs"], key=lambda run: (MODELS.index(run["model"]), run["seed"])):
        by_model.setdefault(run["model"], []).append(run)
    lstm = {run["seed"]: min(valid for valid, _ in run["valid"]) for run in by_model.get("LSTM", [])}
    lines = [
        f"| {record['set']} | parameters | nats | % at .5 | % at the cut | expected % | s to best | s to LSTM's best |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for model, runs in by_model.items():

        def cell(values: Sequence[float], digits: int) -> str:
            found = spread(values)
            return f"{found.mean:.{digits}f}" + (f" ± {found.deviation:.{digits}f}" if found.seeds > 1 else "")

        test = [run["test"] for run in runs]
        reached = [seconds_to(run, lstm[run["seed"]]) for run in runs if run["seed"] in lstm]
        cells = [
            f"{runs[0]['parameters']:,}",
            cell([t["nats"] for t in test], 3),
            *(cell([100 * t[key] for t in test], 2) for key in ("at .5", "at cut", "expected")),
            f"{np.mean([run['best']['seconds'] for run in runs]):.0f}",
            f"{np.mean(reached):.1f}" if reached and np.isfinite(reached).all() else "never",
        ]
        lines.append(f"| {model} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def study_table(record: dict[str, Any]) -> str:
    """Return what the variations gave on validation data, in Markdown."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for run in record["runs"]:
        rows.setdefault(run["model"], []).append(run)
    lines = [f"| {record['set']} | validation nats | best epoch | training nats at the end |", "|---|---|---|---|"]
    for label, runs in rows.items():
        nats = spread([run["valid_nats"] for run in runs])
        epoch, train_nats = (np.mean([run[key] for run in runs]) for key in ("epoch", "last train_nats"))
        lines.append(f"| {label} | {nats.mean:.3f} ± {nats.deviation:.3f} | {epoch:.0f} | {train_nats:.2f} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the comparison, or print it."""
    parser = argparse.ArgumentParser(prog="python -m linmem.experiments.fixed_memory", description=main.__doc__)
    parser.add_argument("--sets", nargs="+", choices=CHOICES, default=list(CHOICES))
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--data", help="folder with the piano rolls")
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--study", action="store_true", help="vary one thing at a time instead")
    parser.add_argument("--table", action="store_true", help="run nothing, and print what the files hold")
    a = parser.parse_args(arguments)
    torch.set_num_threads(1)
    a.out.mkdir(parents=True, exist_ok=True)
    for name in a.sets:
        if not a.table:
            study(name, a.seeds, a.data, a.out) if a.study else compare(name, a.models, a.seeds, a.data, a.out)
        path = a.out / f"fixed_memory_{'study_' if a.study else ''}{name}.json"
        if path.exists():
            print("\n" + (study_table if a.study else table)(json.loads(path.read_text())))


if __name__ == "__main__":
    main()
