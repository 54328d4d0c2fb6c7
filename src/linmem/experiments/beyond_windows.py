"""Where a long closed-form memory beats a window of raw frames and trained recurrent nets, and where it does not.

    python -m linmem.experiments.beyond_windows [--tasks ...] [--models ...] [--seeds 3] [--seconds 20] [--out results]

Every run has the same number of parameters and the same seconds of processor time on one thread, whatever else the
machine does. Fitting, encoding, validation and choosing among the models of a family count; making the data and testing
do not. The models of a family are made, then tried one after the other in the first half of the time, and the one with
the lowest validation loss trains on in what is left. Training stops early, and the epoch with the lowest validation
loss is tested. Writes beyond_windows.json after each run; runs that are in it are not repeated.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

from linmem.experiments.long_models import FAMILIES, PARAMETERS, Model, count
from linmem.experiments.long_tasks import TASKS, Sequences, Task
from linmem.experiments.metrics import spread
from linmem.files import write_atomically

#: Adam's step, the largest norm of a gradient, and sequences in a batch.
LEARNING_RATE, CLIP, BATCH = 3e-3, 1.0, 16

#: Epochs without a lower validation loss after which training stops.
PATIENCE = 30

#: Share of the seconds in which the models of a family are tried.
TRIED = 0.5

#: Sequences that are evaluated at a time.
EVALUATED = 250

LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "bits": binary_cross_entropy_with_logits,
    "class": cross_entropy,
    "number": mse_loss,
}


class Training:
    """The training of one model, which can be interrupted and goes on where it was."""

    def __init__(self, model: Model, task: Task, seed: int) -> None:
        self.model, self.task = model, task
        self.train, self.valid = model.see(task.train), model.see(task.valid)
        self.net = model.make_net(self.train)
        self.parameters = model.fixed + count(self.net)
        self.loss = LOSSES[task.kind]
        self.optimizer = torch.optim.Adam(self.net.parameters(), LEARNING_RATE)
        self.generator = torch.Generator().manual_seed(seed)
        self.steps = self.epochs = self.best_epoch = 0
        self.best_loss, self.best_state = math.inf, copy.deepcopy(self.net.state_dict())
        self._validate()

    def run(self, until: float) -> None:
        """Train until this time of `time.process_time`, or until nothing gets better."""
        while time.process_time() < until and self.epochs - self.best_epoch < PATIENCE:
            order = torch.randperm(len(self.train.x), generator=self.generator)
            for at in range(0, len(order), BATCH):
                batch = self.train.take(order[at : at + BATCH])
                loss = self.loss(self.net(batch.x, batch.lengths), batch.y)
                self.optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                nn.utils.clip_grad_norm_(self.net.parameters(), CLIP)
                self.optimizer.step()
                self.steps += 1
                if time.process_time() >= until:
                    break
            self.epochs += 1  # the last one may be cut short
            self._validate()

    def _validate(self) -> None:
        answers = self._answers(self.valid)
        loss = float(self.loss(answers, self.valid.y))
        if loss < self.best_loss:  # never if it is NaN
            self.best_loss, self.best_epoch = loss, self.epochs
            self.best_state = copy.deepcopy(self.net.state_dict())

    @torch.no_grad()
    def _answers(self, seen: Sequences) -> Tensor:
        parts = [seen.take(slice(at, at + EVALUATED)) for at in range(0, len(seen.x), EVALUATED)]
        return torch.cat([self.net(part.x, part.lengths) for part in parts])

    def test(self) -> dict[str, float]:
        """Return test scores of the best epoch."""
        self.net.load_state_dict(self.best_state)
        answers, y = self._answers(self.model.see(self.task.test)), self.task.test.y
        loss = float(self.loss(answers, y))
        if self.task.kind == "number":
            return {"relative error": loss / float(y.var(correction=0))}
        right = answers.argmax(1) == y if self.task.kind == "class" else (answers > 0) == (y > 0.5)
        return {"accuracy": float(right.double().mean()), "nats": loss}


def run(task: Task, family: str, seed: int, seconds: float) -> dict[str, Any]:
    """Try the models of a family, train the best of them on, and test it."""
    start = time.process_time()
    end_of_trials = start + TRIED * seconds
    trials: dict[str, Training] = {}
    for name, make in FAMILIES[family](task).items():
        if trials and time.process_time() >= end_of_trials:
            break  # making those before took all the time there is for trying
        torch.manual_seed(seed)
        trials[name] = Training(make(), task, seed)
    for waiting, trial in zip(range(len(trials), 0, -1), trials.values(), strict=True):
        now = time.process_time()
        trial.run(now + (end_of_trials - now) / waiting)
    chosen = min(trials, key=lambda name: trials[name].best_loss)
    best = trials[chosen]
    best.run(start + seconds)
    spent = time.process_time() - start
    return {
        "task": task.name,
        "model": family,
        "seed": seed,
        "chosen": chosen,
        "tried": {name: {"validation loss": trial.best_loss, "steps": trial.steps} for name, trial in trials.items()},
        "parameters": best.parameters,
        "seconds": round(spent, 2),
        "steps": best.steps,
        "epochs": best.epochs,
        "best epoch": best.best_epoch,
        "validation loss": best.best_loss,
        "test": best.test(),
    }


# -------------------------------------------------------------------------------------------------- what came out


def table(runs: Sequence[dict[str, Any]]) -> str:
    """Return test scores as Markdown: accuracy in percent, or squared error over variance, and seconds.

    Mean ± deviation over seeds, and the mean of the seconds that were used.
    """
    tasks, models = (list(dict.fromkeys(run[key] for run in runs)) for key in ("task", "model"))
    lines = []
    for some in filter(None, (tasks[:3], tasks[3:6], tasks[6:])):
        lines += ["| model | " + " | ".join(some) + " |", "|---" * (len(some) + 1) + "|"]
        lines += [" | ".join([f"| {model}", *(_cell(runs, task, model) for task in some)]) + " |" for model in models]
        lines.append("")
    lines += ["| model | parameters | steps of training, fewest and most |", "|---|---|---|"]
    for model in models:
        ranges = (sorted(run[key] for run in runs if run["model"] == model) for key in ("parameters", "steps"))
        lines.append(f"| {model} | " + " | ".join(f"{values[0]} to {values[-1]}" for values in ranges) + " |")
    return "\n".join(lines)


def _cell(runs: Iterable[dict[str, Any]], task: str, model: str) -> str:
    these = [run for run in runs if run["task"] == task and run["model"] == model]
    if not these:
        return ""
    tests = [run["test"] for run in these]
    if "accuracy" in tests[0]:
        score, digits = spread([100 * test["accuracy"] for test in tests]), 1
    else:
        score, digits = spread([test["relative error"] for test in tests]), 3
    deviation = f" ± {score.deviation:.{digits}f}" if score.seeds > 1 else ""
    return f"{score.mean:.{digits}f}{deviation}, {spread([run['seconds'] for run in these]).mean:.1f} s"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(prog="python -m linmem.experiments.beyond_windows", description=main.__doc__)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS), metavar="TASK")
    parser.add_argument("--models", nargs="+", choices=FAMILIES, default=list(FAMILIES), metavar="MODEL")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="for each run")
    parser.add_argument("--out", type=Path, default=Path("results"))
    a = parser.parse_args(arguments)
    torch.set_num_threads(1)
    a.out.mkdir(parents=True, exist_ok=True)
    path = a.out / "beyond_windows.json"
    settings = {"seconds": a.seconds, "parameters": PARAMETERS, "learning rate": LEARNING_RATE}
    record: dict[str, Any] = {"settings": settings, "torch": torch.__version__, "runs": []}
    if path.exists():
        record = json.loads(path.read_text())
        if record["settings"] != settings:
            raise ValueError(f"{path} has settings {record['settings']}: expected {settings}, or another folder")
    runs = record["runs"]
    for seed, name in itertools.product(range(a.seeds), a.tasks):
        done = {run["model"] for run in runs if run["task"] == name and run["seed"] == seed}
        missing = [model for model in a.models if model not in done]
        if not missing:
            continue
        task = TASKS[name](seed)
        for model in missing:
            runs.append(run(task, model, seed, a.seconds))
            write_atomically(path.resolve(), json.dumps(record, indent=1).encode())
            print(_line(runs[-1]), flush=True)
    print("\n" + table(runs))


def _line(run: dict[str, Any]) -> str:
    scores = "  ".join(f"{key} {value:.4f}" for key, value in run["test"].items())
    cost = f"{run['seconds']:5.1f} s {run['steps']:6d} steps, epoch {run['best epoch']} of {run['epochs']}"
    return f"{run['seed']} {run['task']:19}{run['model']:15}{scores:38}{cost}  {run['chosen']}"


if __name__ == "__main__":
    main()
