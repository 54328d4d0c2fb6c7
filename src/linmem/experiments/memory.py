"""How much of the past a closed-form memory of a given size holds.

``python -m linmem.experiments.memory`` fits autoencoders to data inside the package, prints what share of all
pasts they capture and the error with which they give whole sequences back, and draws it.

``python -m linmem.experiments.memory --unrolled --data FOLDER`` is the paper's figure 3: it trains an unrolled RNN on
JSB Chorales, encodes its hidden sequences in memories of several sizes, and says how near the LMNs made of them come.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure  # not pyplot: no window, no global state
from numpy.typing import NDArray

from linmem import LinearAutoencoder, UnrolledRNN, lmn_from_unrolled
from linmem.datasets import piano_rolls, waveforms
from linmem.datasets.piano_rolls import Split
from linmem.experiments import training
from linmem.experiments.metrics import RollMetrics
from linmem.experiments.training import NextFrame, evaluate
from linmem.files import write_atomically
from linmem.pretraining.activations import hidden_sequences


class Held(NamedTuple):
    """What a memory of `size` units holds."""

    size: int
    energy: float
    error: float
    seconds: float
    solver: str


def by_size(sequences: Sequence[NDArray[Any]], sizes: Iterable[int], **options: Any) -> list[Held]:
    """Fit one autoencoder per memory size."""
    rows = []
    for size in sizes:
        start = time.perf_counter()
        laes = LinearAutoencoder(size, **options).fit(list(sequences))
        seconds = time.perf_counter() - start
        rows.append(Held(size, laes.energy_, laes.reconstruction_error(list(sequences)), seconds, laes.solver_))
    return rows


def error_by_lag(laes: LinearAutoencoder, sequences: Sequence[NDArray[Any]], lags: int) -> NDArray[Any]:
    """Relative error of the frame that was seen 0, 1, ... `lags` - 1 steps ago, over all memories old enough.

    At 1 a lag is as good as forgotten: zeros in its place would be no worse.
    """
    wrong, total = np.zeros(lags), np.zeros(lags)
    for x in sequences:
        if len(x) < lags:
            continue
        codes = laes.transform(x)[lags - 1 :]
        pasts = laes.decode(codes, lags)[:, ::-1]  # (frames, lags, features), newest first
        seen = np.lib.stride_tricks.sliding_window_view(x, lags, axis=0)  # (frames, features, lags)
        seen = seen.transpose(0, 2, 1)[:, ::-1].astype(float)
        wrong += np.square(pasts - seen).sum((0, 2))
        total += np.square(seen).sum((0, 2))
    if not total.all():
        raise ValueError(f"lags={lags}: expected at most the length of the longest sequence, with sound at every lag")
    relative: NDArray[Any] = np.sqrt(wrong / total)
    return relative


def table(rows: Iterable[Held]) -> str:
    """The rows as text."""
    lines = [f"{'memory':>8}{'energy':>10}{'error':>10}{'seconds':>10}  solver"]
    lines += [f"{r.size:8d}{r.energy:10.4f}{r.error:10.2e}{r.seconds:10.3f}  {r.solver}" for r in rows]
    return "\n".join(lines)


def figure(
    wave: NDArray[Any], wave_rows: list[Held], rolls: list[NDArray[Any]], roll_rows: list[Held], path: Path
) -> None:
    """What memories of some sizes give back, and the error by size."""
    canvas = Figure(figsize=(10, 6.5), layout="constrained")
    (top, errors), (true, decoded) = canvas.subplots(2, 2)
    top.plot(wave[:, 0], color="0.7", lw=4, label="300 samples of a guitar")
    for size, color in ((5, "tab:red"), (10, "tab:orange"), (20, "tab:blue")):
        laes = LinearAutoencoder(size).fit(wave)
        top.plot(laes.decode(laes.encode(wave), len(wave))[:, 0], color=color, lw=1, label=f"from {size} units")
    top.legend(fontsize=8)
    top.set(xlabel="sample", title="Waveform decoded from the last memory")
    for rows, name in ((wave_rows, "waveform"), (roll_rows, "piano rolls")):
        errors.loglog([r.size for r in rows], [max(r.error, 1e-16) for r in rows], marker="o", ms=4, label=name)
    errors.legend(fontsize=8)
    errors.set(xlabel="memory units", ylabel="relative error", title="Error of whole sequences")
    laes = LinearAutoencoder(200).fit(rolls)
    shown = rolls[0]
    extent = (0, len(shown), piano_rolls.LOWEST, piano_rolls.LOWEST + piano_rolls.KEYS)
    for axes, roll, title in (
        (true, shown, "A piano roll"),
        (decoded, laes.decode(laes.encode(shown), len(shown)), "The same, decoded from 200 units"),
    ):
        axes.imshow(roll.T, origin="lower", aspect="auto", cmap="Greys", vmin=0, vmax=1, extent=extent)
        axes.set_ylim(36, 72)
        axes.set(xlabel="frame", ylabel="key (MIDI number)", title=title)
    canvas.savefig(path, dpi=120)


def forgetting_figure(rolls: list[NDArray[Any]], path: Path) -> None:
    """What is left of a frame after some steps, for memories of one size that forget at different rates."""
    canvas = Figure(figsize=(7, 4), layout="constrained")
    axes = canvas.subplots()
    for forgetting in (1.0, 0.95, 0.9, 0.8, 0.5):
        laes = LinearAutoencoder(100, solver="exact", forgetting=forgetting).fit(rolls)
        axes.plot(error_by_lag(laes, rolls, 40), label=f"{forgetting:g}")
    axes.axhline(1, color="0.7", lw=1, ls="--")
    axes.legend(title="forgetting", fontsize=8)
    axes.set(xlabel="steps ago", ylabel="relative error", ylim=(0, 1.1), title="100 units, generated piano rolls")
    canvas.savefig(path, dpi=120)


class Made(NamedTuple):
    """How near an LMN of `memory_size` units comes to the unrolled RNN that it was made of."""

    memory_size: int
    svd_error: float
    """Relative, of all pasts, with exact singular vectors."""
    error: float
    """Relative, when the autoencoder gives whole sequences back from its last memory."""
    error_by_lag: list[float]
    train_nats: float
    train_accuracy: float
    valid_nats: float
    valid_accuracy: float


def made_of_unrolled(model: Any, parts: Split, sizes: Iterable[int], lags: int = 50) -> list[Made]:
    """Make an LMN of each size of a trained unrolled RNN.

    Errors are those on the training set's hidden sequences; by lag, when the first `lags` frames of a sequence are
    decoded from the memory behind them.
    """
    sizes = sorted(sizes)
    (hidden,) = hidden_sequences(model.layer, list(parts.train), 0)
    exact = LinearAutoencoder(max(sizes), solver="exact", dtype="float64").fit(hidden)
    held = np.cumsum(exact.singular_values_**2) * exact.energy_ / np.sum(exact.singular_values_**2)
    starts = [h.numpy()[:lags] for h in hidden if len(h) >= lags]
    rows = []
    for size in sizes:
        layer, readout = lmn_from_unrolled(model.layer, model.readout, list(parts.train), size)
        laes = LinearAutoencoder(size, dtype="float64").fit(hidden)
        scores = [evaluate(NextFrame(layer, readout), rolls) for rolls in (parts.train, parts.valid)]
        rows.append(
            Made(
                size,
                float(np.sqrt(max(0.0, 1 - held[size - 1]))),
                laes.reconstruction_error(hidden),
                error_by_lag(laes, starts, lags).tolist(),
                scores[0].nats,
                scores[0].pooled(),
                scores[1].nats,
                scores[1].pooled(),
            )
        )
    return rows


def unrolled_figure(rows: list[Made], train: RollMetrics, valid: RollMetrics, path: Path) -> None:
    """Draw the paper's figure 3: errors by size, the LMNs against the unrolled RNN, and errors by lag."""
    canvas = Figure(figsize=(13, 4), layout="constrained")
    errors, scores, by_lag = canvas.subplots(1, 3)
    sizes = [row.memory_size for row in rows]
    errors.plot(sizes, [row.svd_error for row in rows], marker="o", label="truncated SVD")
    errors.plot(sizes, [row.error for row in rows], marker="o", label="autoencoder")
    errors.set(xlabel="memory units", ylabel="relative error", ylim=(0, None), title="Hidden sequences, given back")
    errors.legend()
    for name, color, own, unrolled in (
        ("training", "tab:blue", "train", train),
        ("validation", "tab:orange", "valid", valid),
    ):
        scores.plot(sizes, [getattr(row, f"{own}_nats") for row in rows], marker="o", color=color, label=f"LMN, {name}")
        scores.axhline(unrolled.nats, color=color, ls="--", label=f"unrolled RNN, {name}")
    scores.set(xlabel="memory units", ylabel="nats per frame", title="Before any training of the LMN")
    scores.legend(fontsize=8)
    for row in rows:
        by_lag.plot(row.error_by_lag, label=str(row.memory_size))
    by_lag.set(xlabel="steps ago", ylabel="relative error", ylim=(0, None), title="The first 50 hidden states, decoded")
    by_lag.legend(title="memory units", fontsize=8)
    canvas.savefig(path, dpi=120)


def unrolled_main(data: str | None, out: Path, epochs: int, sizes: Sequence[int]) -> None:
    """Train an unrolled RNN of 50 units and order 10, and make LMNs of it."""
    parts = piano_rolls.load("JSB_Chorales", data)
    torch.manual_seed(0)
    model = NextFrame(UnrolledRNN(piano_rolls.KEYS, 50, order=10)).start_at_frequencies(parts.train)
    run = training.train(model, parts.train, parts.valid, training.Settings(epochs=epochs))
    scores = [evaluate(model, rolls) for rolls in (parts.train, parts.valid)]
    rows = made_of_unrolled(model, parts, sizes)
    print(f"unrolled RNN, 50 units, order 10, epoch {run.best['nats'].number} by validation likelihood")
    print(
        f"{'memory':>9}{'SVD error':>11}{'error':>8}{'nats: train':>13}{'valid':>8}{'% at .5: train':>16}{'valid':>8}"
    )
    line = "{:>9}{:>11}{:>8}{:13.3f}{:8.3f}{:16.2f}{:8.2f}".format
    t, v = scores
    print(line("unrolled", "", "", t.nats, v.nats, 100 * t.pooled(), 100 * v.pooled()))
    for r in rows:
        accuracies = 100 * r.train_accuracy, 100 * r.valid_accuracy
        print(line(r.memory_size, f"{r.svd_error:.3f}", f"{r.error:.3f}", r.train_nats, r.valid_nats, *accuracies))
    out.mkdir(parents=True, exist_ok=True)
    unrolled_figure(rows, t, v, out / "unrolled.png")
    record = {
        "unrolled": {
            "train_nats": scores[0].nats,
            "train_accuracy": scores[0].pooled(),
            "valid_nats": scores[1].nats,
            "valid_accuracy": scores[1].pooled(),
        }
        | run.facts(),
        "made": [row._asdict() for row in rows],
        "torch": torch.__version__,
    }
    write_atomically((out / "unrolled.json").resolve(), json.dumps(record, indent=1).encode())
    print(f"figure: {out / 'unrolled.png'}, figures: {out / 'unrolled.json'}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the experiment on the data inside the package."""
    parser = argparse.ArgumentParser(prog="python -m linmem.experiments.memory", description=main.__doc__)
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder for the figures (%(default)s)")
    parser.add_argument("--unrolled", action="store_true", help="the paper's figure 3, on JSB Chorales")
    parser.add_argument("--data", help="folder with JSB_Chorales.npz, for --unrolled")
    parser.add_argument("--epochs", type=int, default=200, help="of the unrolled RNN at most")
    parser.add_argument("--sizes", type=int, nargs="+", default=[10, 25, 50, 100, 250, 500, 1000])
    options = parser.parse_args(arguments)
    if options.unrolled:
        unrolled_main(options.data, options.out, options.epochs, options.sizes)
        return
    out = options.out
    wave = waveforms.embedded()[0][:, None]
    wave_rows = by_size([wave], (5, 10, 20, 50, 100, 200, 300), dtype="float64")
    print(f"A waveform, 300 samples of a guitar (CC0)\n{table(wave_rows)}\n")
    rolls = piano_rolls.synthetic()
    roll_rows = by_size(rolls, (25, 50, 100, 200, 400, 800, 1500), dtype="float64")
    frames = sum(map(len, rolls))
    print(f"Generated piano rolls, {len(rolls)} pieces, {frames} frames of 88 keys\n{table(roll_rows)}\n")
    print("energy: share of all pasts, squared, that the memory holds")
    print("error:  of whole sequences decoded from their last memory, relative (1: nothing is remembered)")
    out.mkdir(parents=True, exist_ok=True)
    figure(wave, wave_rows, rolls, roll_rows, out / "memory.png")
    forgetting_figure(rolls, out / "forgetting.png")
    print(f"figures: {out / 'memory.png'}, {out / 'forgetting.png'}")


if __name__ == "__main__":
    main()
