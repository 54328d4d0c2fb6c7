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
from linmem.networks import MemoryNetwork, MemoryReader

WINDOWS = (1, 2, 4, 8, 16)
MEMORIES = ("memory", "memory, 2 layers", "memory that never forgets", "memory that never forgets, 2 layers")
TRANSPOSED = "memory, pieces transposed"
RECURRENT = ("LSTM", "GRU", "LMN-m")
MODELS = (*MEMORIES, TRANSPOSED, *(f"window of {k}" for k in WINDOWS), *RECURRENT)

#: Most keys by which pieces are transposed.
SHIFT = 6


@dataclass(frozen=True)
class Choice:
    """What validation data chose for a set, among what `docs/fixed_memory.md` lists."""

    memory_size: int
    forgetting: float
    hidden_size: int
    dropout: float
    direct: bool
    epochs: int
    """Of a reader."""
    transposed_epochs: int
    seconds: float
    """After which a recurrent network begins no further epoch."""
    batch_size: int = 4
    """Pieces, for recurrent networks."""
    chunk: int | None = None
    """Steps through which their gradients go."""
    depth: int = 2


CHOICES = {
    "JSB_Chorales": Choice(200, 0.95, 500, 0.5, False, 60, 150, 120),
    "Piano_midi": Choice(200, 0.9, 300, 0.5, True, 25, 40, 120),
    "MuseData": Choice(200, 0.9, 300, 0.3, True, 10, 12, 240, batch_size=16, chunk=200),
    "Nottingham": Choice(200, 0.95, 500, 0.3, True, 12, 12, 240, batch_size=16, chunk=200),
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
    """Return a new reader as chosen for the set."""
    options = {"depth": choice.depth, "dropout": choice.dropout}
    return MemoryReader(memory_size, input_size, hidden_size, KEYS, direct=choice.direct, **options)  # type: ignore[arg-type]


def width_of_two(choice: Choice, target: int) -> int:
    """Return the hidden size with which two layers have as many parameters as one has."""

    def count(hidden: int) -> int:
        p = choice.memory_size
        return sum(parameters(reader_of(choice, p, width, hidden)) + p * (width + p) for width in (KEYS, hidden))

    return min(range(8, 1024, 4), key=lambda hidden: abs(count(hidden) - target))


def train_memory(model: str, choice: Choice, parts: Split, seed: int, target: int) -> Trained:
    """Train a network of one or two fixed memories, or one that reads a window."""
    clock = Clock()
    torch.manual_seed(seed)
    rolls = list(parts.train)
    settings = FrameSettings(epochs=choice.epochs, seed=seed)
    if model == TRANSPOSED:
        settings = replace(settings, shift=SHIFT, epochs=choice.transposed_epochs)
    two = model.endswith("2 layers")
    forgetting = 1.0 if "never forgets" in model else choice.forgetting
    hidden = width_of_two(choice, target) if two else choice.hidden_size
    if model.startswith("window"):
        tape = window(KEYS, int(model.split()[-1]))
        network = MemoryNetwork([tape], [reader_of(choice, tape.memory_size, KEYS, hidden)])
    else:
        memory = linmem.LinearMemory.fit(rolls, choice.memory_size, forgetting=forgetting)
        network = MemoryNetwork([memory], [reader_of(choice, choice.memory_size, KEYS, hidden)])
    if two:  # the second reader starts where the first one ends
        train_reader(network, rolls, parts.valid, settings)
        network = network.grown(rolls, reader_of(choice, choice.memory_size, hidden, hidden), forgetting=forgetting)
    begun = clock.now()
    run = train_reader(network, rolls, parts.valid, settings, report=clock.note)
    config = {"forgetting": forgetting, "hidden_size": hidden} | asdict(settings)
    return Trained(network, run, begun, clock.seconds, config)


# ------------------------------------------------------------------------------------------------- recurrent


def recurrent(model: str, target: int) -> NextFrame:
    """Return a recurrent network with about so many parameters."""
    makers: dict[str, Callable[[int], nn.Module]] = {
        "LSTM": lambda size: nn.LSTM(KEYS, size),
        "GRU": lambda size: nn.GRU(KEYS, size),
        "LMN-m": lambda size: linmem.LMN(KEYS, size, memory_size=5 * size // 2),  # the paper's 100 and 250
    }
    make = makers[model]
    low, high = 4, 1024
    while high - low > 2:  # the count grows with the size
        middle = (low + high) // 4 * 2
        low, high = (middle, high) if parameters(NextFrame(make(middle))) < target else (low, middle)
    size = min((low, high), key=lambda size: abs(parameters(NextFrame(make(size))) - target))
    return NextFrame(make(size))


def train_recurrent(model: str, choice: Choice, parts: Split, seed: int, target: int) -> Trained:
    """Train a recurrent network through time, by Adam at a fixed rate, until it no longer improves or time is up."""
    torch.manual_seed(seed)
    network = recurrent(model, target).start_at_frequencies(parts.train)
    settings = Settings(seed=seed, epochs=1000, patience=15, batch_size=choice.batch_size, chunk=choice.chunk)
    clock = Clock(choice.seconds)
    run = train(network, parts.train, parts.valid, settings, report=clock.note)
    return Trained(network, run, 0.0, clock.seconds, asdict(settings) | {"budget": choice.seconds})


# ----------------------------------------------------------------------------------------------------- runs


def one_run(name: str, model: str, parts: Split, seed: int) -> dict[str, Any]:
    """Train a model, and return all that is to be known of it."""
    choice = CHOICES[name]
    reference = MemoryNetwork(
        [linmem.LinearMemory(KEYS, choice.memory_size, bias=False)],
        [reader_of(choice, choice.memory_size, KEYS, choice.hidden_size)],
    )
    if model in RECURRENT:
        trained = train_recurrent(model, choice, parts, seed, parameters(reference))
    else:
        trained = train_memory(model, choice, parts, seed, parameters(reference))
    result: dict[str, Any] = {"model": model, "seed": seed, "parameters": parameters(trained.model)}
    result |= {"config": trained.config, "begun": trained.begun, "seconds": trained.seconds}
    result["valid"] = [[epoch.valid_nats, epoch.valid_accuracy] for epoch in trained.run.epochs]
    result["train"] = [epoch.train_nats for epoch in trained.run.epochs[1:]]
    cut = evaluate(trained.model, parts.valid).best_cut()
    test = evaluate(trained.model, parts.test, cuts=(0.5, cut))
    best = trained.run.best["nats"]
    result["best"] = {"epoch": best.number, "valid_nats": best.valid_nats, "seconds": trained.seconds[best.number]}
    result["test"] = {
        "nats": test.nats,
        "at .5": test.pooled(),
        "cut": cut,
        "at cut": test.pooled(cut),
        "per frame at .5": test.per_frame(),
        "per frame at cut": test.per_frame(cut),
        "expected": test.expected,
    }
    return result


def run_all(name: str, models: Sequence[str], seeds: int, data: str | None, out: Path) -> None:
    """Run what the file of a set does not have yet."""
    parts = piano_rolls.load(name, data)
    path = out.resolve() / f"fixed_memory_{name}.json"
    record: dict[str, Any] = {"set": name, "torch": torch.__version__, "choice": asdict(CHOICES[name]), "runs": []}
    if path.exists():
        found = json.loads(path.read_text())
        if found["choice"] != record["choice"]:
            raise SystemExit(f"{path} is of other choices: expected {record['choice']}; move it away")
        record = found
    done = {(run["model"], run["seed"]) for run in record["runs"]}
    for seed in range(seeds):
        for model in models:
            if (model, seed) in done:
                continue
            run = one_run(name, model, parts, seed)
            record["runs"].append(run)
            write_atomically(path, json.dumps(record).encode())
            best, test = run["best"], run["test"]
            print(
                f"{name:13} {model:36} seed {seed}: {test['nats']:.3f} nats, {100 * test['at cut']:.2f} %, valid "
                f"{best['valid_nats']:.3f} in epoch {best['epoch']}, {best['seconds']:.0f} s",
                flush=True,
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
    lstm = {run["seed"]: run["best"]["valid_nats"] for run in by_model.get("LSTM", [])}
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


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the comparison, or print it."""
    parser = argparse.ArgumentParser(prog="python -m linmem.experiments.fixed_memory", description=main.__doc__)
    parser.add_argument("--sets", nargs="+", choices=CHOICES, default=list(CHOICES))
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--data", help="folder with the piano rolls")
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--table", action="store_true", help="run nothing, and print what the files hold")
    a = parser.parse_args(arguments)
    torch.set_num_threads(1)
    a.out.mkdir(parents=True, exist_ok=True)
    for name in a.sets:
        if not a.table:
            run_all(name, a.models, a.seeds, a.data, a.out)
        path = a.out / f"fixed_memory_{name}.json"
        if path.exists():
            print("\n" + table(json.loads(path.read_text())))


if __name__ == "__main__":
    main()
