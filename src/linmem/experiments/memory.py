"""How much of the past a closed-form memory of a given size holds.

``python -m linmem.experiments.memory`` fits autoencoders to data inside the package, prints what share of all
pasts they capture and the error with which they give whole sequences back, and draws it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure  # not pyplot: no window, no global state
from numpy.typing import NDArray

from linmem import LinearAutoencoder
from linmem.datasets import piano_rolls, waveforms


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


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the experiment on the data inside the package."""
    parser = argparse.ArgumentParser(prog="python -m linmem.experiments.memory", description=main.__doc__)
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder for the figures (%(default)s)")
    out = parser.parse_args(arguments).out
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
