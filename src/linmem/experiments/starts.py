"""Four starts of an LMN side by side: random, autoencoders of inputs and of random features, and an unrolled RNN.

    python -m linmem.experiments.starts [--task music|recall] [--forgetting 1] [--seeds 5] [--data FOLDER]

Same optimiser, same sizes, and for every start the epoch with the best validation score. The unrolled start stops by
itself, in both of its trainings; the others train for as many epochs as it took for both together. Writes
starts_<task>.json into the folder `--out`, after each seed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import linmem
from linmem.datasets import piano_rolls
from linmem.datasets.piano_rolls import Split
from linmem.experiments.metrics import paired_difference, spread
from linmem.experiments.pretraining import Phases, unrolled_then_lmn
from linmem.experiments.training import QUANTITIES, NextFrame, Run, Settings, evaluate, train
from linmem.files import write_atomically

STARTS = ("random", "inputs", "features", "unrolled")

#: Keys of the recall task: those of the pattern, and the last one, which calls for it.
PATTERN = 8


def recall(delay: int, pieces: int = 300, length: int = 5, seed: int = 0) -> Split:
    """Return rolls in which a random pattern is followed by silence, a call, and the pattern again.

    The next frame can be known only behind the call, and only by who remembers `delay` + `length` + 1 frames.
    """
    rng = np.random.default_rng(seed)
    rolls = []
    for _ in range(pieces):
        pattern = np.pad(rng.random((length, PATTERN)) < 0.5, ((0, 0), (0, 1)))
        call = np.zeros((delay + 1, PATTERN + 1), bool)
        call[-1, -1] = True
        rolls.append(np.concatenate([pattern, call, pattern]))
    whole = np.zeros((len(rolls), len(rolls[0]), piano_rolls.KEYS), bool)
    whole[..., : PATTERN + 1] = rolls
    return piano_rolls.split(list(whole), seed)


def start(
    name: str, parts: Split, sizes: tuple[int, int], settings: Settings, epochs: int, forgetting: float
) -> tuple[NextFrame, Run]:
    """Train an LMN from one of the starts other than the unrolled one, for exactly so many epochs."""
    torch.manual_seed(settings.seed)
    layer = linmem.LMN(piano_rolls.KEYS, sizes[0], memory_size=sizes[1])
    if name != "random":
        layer = linmem.encode_memory(layer, list(parts.train), source=name, forgetting=forgetting)  # type: ignore[arg-type]
    model = NextFrame(layer).start_at_frequencies(parts.train)
    settings = replace(settings, epochs=epochs, patience=epochs)
    return model, train(model, parts.train, parts.valid, settings)


def scores(model: NextFrame, run: Run, parts: Split) -> dict[str, Any]:
    """Return test scores of the best states by either quantity, and the cut that validation data chose for each."""
    result: dict[str, Any] = {}
    for quantity in QUANTITIES:
        model.load_state_dict(run.states[quantity])
        cut = evaluate(model, parts.valid).best_cut()
        test = evaluate(model, parts.test)
        result[quantity] = {
            "epoch": run.best[quantity].number,
            "valid_nats": run.best[quantity].valid_nats,
            "valid_accuracy": run.best[quantity].valid_accuracy,
            "nats": test.nats,
            "at .5": test.pooled(),
            "cut": cut,
            "at cut": test.pooled(cut),
        }
    return result


def compare(parts: Split, sizes: tuple[int, int], settings: Settings, order: int, forgetting: float) -> dict[str, Any]:
    """Run all starts with one seed."""
    phases = Phases(parts, report=lambda line: print("   ", line, flush=True))
    runs: list[Run] = []

    def kept(model: NextFrame, run: Run) -> Run:
        runs.append(run)
        return run

    model = unrolled_then_lmn(phases, *sizes, settings, order=order, keep=kept, forgetting=forgetting)
    spent = {"epochs": phases.epochs, "seconds": sum(phase.seconds for phase in phases.done)}
    result = {"unrolled": scores(model, runs[-1], parts) | spent | {"phases": [asdict(p) for p in phases.done]}}
    for quantity in QUANTITIES:  # the detour counts
        result["unrolled"][quantity]["epoch"] += phases.done[0].epochs
    for name in STARTS[:-1]:
        model, run = start(name, parts, sizes, settings, phases.epochs, forgetting)
        result[name] = scores(model, run, parts) | {"epochs": run.trained, "seconds": run.seconds}
    return result


def table(results: Sequence[dict[str, Any]]) -> str:
    """Return means over seeds, and differences from the random start."""
    lines = []
    for quantity in QUANTITIES:
        lines.append(f"epoch selected by validation {quantity}; test scores")
        lines.append(
            f"{'start':10}{'epoch':>8}" + "".join(f"{name:>26}" for name in ("nats", "% at .5", "% at the cut"))
        )
        for name in STARTS:
            values = {
                key: [(1 if key in ("nats", "epoch") else 100) * r[name][quantity][key] for r in results]
                for key in ("epoch", "nats", "at .5", "at cut")
            }
            cells = [
                f"{spread(values[key]).mean:.3f} ± {spread(values[key]).deviation:.3f}" for key in list(values)[1:]
            ]
            lines.append(f"{name:10}{np.mean(values['epoch']):8.1f}" + "".join(f"{cell:>26}" for cell in cells))
        if len(results) > 1:
            lines.append("less those of the random start, with 95 % intervals over seeds")
            for name in STARTS[1:]:
                cells = []
                for key in ("nats", "at .5", "at cut"):
                    scale = 1 if key == "nats" else 100
                    ours, theirs = ([scale * r[n][quantity][key] for r in results] for n in (name, "random"))
                    d = paired_difference(ours, theirs)
                    cells.append(f"{d.mean:+.3f} [{d.low:+.3f}, {d.high:+.3f}]")
                lines.append(f"{name:18}" + "".join(f"{cell:>26}" for cell in cells))
        lines.append("")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(prog="python -m linmem.experiments.starts", description=main.__doc__)
    parser.add_argument("--task", choices=("music", "recall"), default="music")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--data", help="folder with JSB_Chorales.npz")
    parser.add_argument("--hidden", type=int, default=100)
    parser.add_argument("--memory", type=int, default=250)
    parser.add_argument("--order", type=int, default=10, help="hidden states on the tape of the unrolled RNN")
    parser.add_argument("--forgetting", type=float, default=1.0, help="discount of the autoencoders; 1 is the paper's")
    parser.add_argument("--delay", type=int, default=20, help="silent frames in the recall task")
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--patience", type=int, default=20, help="epochs without improvement, of the unrolled start")
    parser.add_argument("--out", type=Path, default=Path("results"))
    a = parser.parse_args(arguments)
    torch.set_num_threads(1)
    parts = piano_rolls.load("JSB_Chorales", a.data) if a.task == "music" else recall(a.delay)
    results = []
    for seed in range(a.seeds):
        print(f"seed {seed}", flush=True)
        settings = Settings(seed=seed, epochs=a.epochs, patience=a.patience)
        results.append(compare(parts, (a.hidden, a.memory), settings, a.order, a.forgetting))
        write(results, a)
    print("\n" + table(results))


def write(results: list[dict[str, Any]], a: argparse.Namespace) -> None:
    """Write what is known after each seed."""
    a.out.mkdir(parents=True, exist_ok=True)
    arguments = {name: value for name, value in vars(a).items() if name not in ("data", "out")}
    record = {"arguments": arguments, "torch": torch.__version__, "seeds": results}
    path = a.out / f"starts_{a.task}{'' if a.forgetting == 1 else f'_forgetting_{a.forgetting:g}'}.json"
    write_atomically(path.resolve(), json.dumps(record, indent=1).encode())
    print(f"written: {path}")


if __name__ == "__main__":
    main()
