"""The closed-form autoencoder against the published scheme and what a user would reach for instead.

    python benchmarks/autoencoder.py --data FOLDER [--out FOLDER] [--part piece|corpus|crossing|growth|all]

FOLDER holds the piano rolls, ``MuseData.npz`` and so on. Every part prints a table, and the whole run writes
``autoencoder.json`` and ``autoencoder.png``. Rivals run in one process, one after the other and round again;
figures are medians. Ratios travel between machines, seconds do not.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import scipy.fft
import scipy.sparse.linalg
import torch
from sklearn.decomposition import IncrementalPCA, TruncatedSVD
from sklearn.utils.extmath import randomized_svd

from linmem import LinearAutoencoder

UNITS = 100
LAGS = 50  # length of the windows that PCA sees


def rolls(folder, name, splits=("train",)):
    """Boolean piano rolls in the compact layout, or None with a line that says what is missing."""
    path = Path(folder) / f"{name}.npz" if folder else None
    if path is None or not path.exists():
        print(f"skipped: {name}.npz was not found; expected it in the folder given by --data\n")
        return None
    sequences = []
    with np.load(path, allow_pickle=False) as file:
        for split in splits:
            roll = np.unpackbits(file[f"{split}_bits"], axis=1, count=88).astype(bool)
            sequences += np.split(roll, np.cumsum(file[f"{split}_lengths"])[:-1])
    return sequences


def clocked(call, *arguments):
    start = time.perf_counter()
    result = call(*arguments)
    return time.perf_counter() - start, result


# ------------------------------------------------------------------------------------------ one long piece


class Xi(scipy.sparse.linalg.LinearOperator):
    """Xi of one sequence, never formed: its products are convolutions, done by FFT."""

    def __init__(self, x):
        self.frames, self.features = x.shape
        self.n = scipy.fft.next_fast_len(2 * self.frames, real=True)
        self.spectrum = scipy.fft.rfft(x.T, self.n)
        super().__init__(np.float64, (self.frames, self.frames * self.features))

    def _matvec(self, u):
        lags = scipy.fft.rfft(u.reshape(self.frames, self.features).T, self.n)
        return scipy.fft.irfft((self.spectrum * lags).sum(0), self.n)[: self.frames]

    def _rmatvec(self, v):
        lags = scipy.fft.irfft(self.spectrum.conj() * scipy.fft.rfft(np.ravel(v), self.n), self.n)
        return lags[:, : self.frames].T.ravel()


def dense_xi(x):
    frames, features = x.shape
    full = np.zeros((frames, frames * features), np.float32)
    for lag in range(frames):
        full[lag:, lag * features : (lag + 1) * features] = x[: frames - lag]
    return full


def captured(x, V):
    """Share of Xi, squared, in the span of orthonormal columns V."""
    operator = Xi(x)
    total = float((np.arange(len(x), 0, -1) * np.square(x).sum(1)).sum())
    return sum(float(np.square(operator.rmatvec(v)).sum()) for v in V.T) / total


def encoder_error(x, V, s):
    """Error of the memory that singular vectors from elsewhere give, by the formula of the paper."""
    A = V.T @ x / s[:, None]
    B = V[1:].T @ V[:-1] * s / s[:, None]
    memory = np.zeros(len(s))
    for frame in x:
        memory = A @ frame + B @ memory
    wrong = 0.0
    for frame in x[::-1]:
        wrong += np.square(A.T @ memory - frame).sum()
        memory = B.T @ memory
    return float(np.sqrt(wrong / np.square(x).sum()))


def piece(folder, record):
    """The longest piece of MuseData: solvers and peers."""
    sequences = rolls(folder, "MuseData", ("train", "valid", "test"))
    if sequences is None:
        return
    roll = max(sequences, key=len)
    x = roll.astype(float)
    print(f"longest piece of MuseData: {len(x)} frames of 88 keys, {UNITS} units, float64\n")
    repeats = {"doubling": 9, "doubling, float32": 9, "doubling, 2 exact passes": 5, "exact": 5}
    options = {
        "doubling": {"solver": "doubling"},
        "doubling, float32": {"solver": "doubling", "dtype": "float32"},
        "doubling, 2 exact passes": {"solver": "doubling", "polish": 2},
        "exact": {"solver": "exact"},
    }
    for width in (1, 2, 4, 8):
        name = f"slices, {width} lag{'s' * (width > 1)} at a time"
        options[name], repeats[name] = {"solver": "slices", "slice_width": width}, 2
    seconds, fitted = {name: [] for name in options}, {}
    for turn in range(max(repeats.values())):
        for name, choice in options.items():
            if turn < repeats[name]:
                taken, fitted[name] = clocked(LinearAutoencoder(UNITS, **{"dtype": "float64"} | choice).fit, roll)
                seconds[name].append(taken)
    rows = {
        name: {
            "seconds": statistics.median(seconds[name]),
            "spread": [min(seconds[name]), max(seconds[name])],
            "energy": laes.energy_,
            "error": laes.reconstruction_error(x),
        }
        for name, laes in fitted.items()
    }
    for name, (taken, V, s, error) in peers(x).items():
        energy = None if V is None else captured(x, V)
        rows[name] = {"seconds": taken, "energy": energy, "error": encoder_error(x, V, s) if V is not None else error}
    fast = rows["doubling"]["seconds"]
    best_slices = min(row["seconds"] for name, row in rows.items() if name.startswith("slices"))
    print(f"{'':34}{'seconds':>9}{'x doubling':>12}{'energy':>9}{'error':>8}")
    for name, row in rows.items():
        energy = "" if row["energy"] is None else f"{row['energy']:.4f}"
        print(f"{name:34}{row['seconds']:9.3f}{row['seconds'] / fast:12.1f}{energy:>9}{row['error']:8.3f}")
    summary = {
        "slices / doubling": best_slices / fast,
        "slices / exact": best_slices / rows["exact"]["seconds"],
        "error of doubling / error of exact": rows["doubling"]["error"] / rows["exact"]["error"],
    }
    print_summary(summary)
    forgetful = LinearAutoencoder(UNITS, forgetting=0.95).fit(x)
    print(
        f"PCA sees {LAGS} frames and no more; its error is that of these frames. Decoded from every memory they have "
        f"{window_error(fitted['doubling'], x):.3f}, and with forgetting=0.95 {window_error(forgetful, x):.3f}\n"
    )
    record["piece"] = {"rows": rows, **summary}


def window_error(laes, x):
    """Error of the last LAGS frames as every memory decodes them."""
    from linmem.experiments.memory import error_by_lag

    lags = np.square(error_by_lag(laes, [x], LAGS))
    weights = np.array([np.square(x[LAGS - 1 - lag : len(x) - lag]).sum() for lag in range(LAGS)])
    return float(np.sqrt((lags * weights).sum() / weights.sum()))


def peers(x):
    """Seconds, left singular vectors and values (or None and an error) of what else there is."""
    found = {}
    full = dense_xi(x)
    taken, (V, s, _) = clocked(lambda: randomized_svd(full, UNITS, random_state=0))
    found["sklearn randomized_svd, dense Xi"] = taken, V.astype(float), s.astype(float), None
    svd = TruncatedSVD(UNITS, random_state=0)
    taken, codes = clocked(lambda: svd.fit_transform(full))
    found["sklearn TruncatedSVD, dense Xi"] = (
        taken,
        (codes / svd.singular_values_).astype(float),
        svd.singular_values_,
        None,
    )
    del full
    taken, (V, s, _) = clocked(lambda: scipy.sparse.linalg.svds(Xi(x), UNITS, random_state=0))
    found["scipy svds, LinearOperator by FFT"] = taken, V[:, ::-1], s[::-1], None

    def windows():
        view = np.lib.stride_tricks.sliding_window_view(x, LAGS, axis=0).reshape(len(x) - LAGS + 1, -1)
        pca = IncrementalPCA(UNITS).fit(view)
        return view, pca

    taken, (view, pca) = clocked(windows)
    wrong = view - pca.inverse_transform(pca.transform(view))
    error = float(np.sqrt(np.square(wrong).sum() / np.square(view).sum()))
    found[f"sklearn IncrementalPCA, {LAGS} frames"] = taken, None, None, error
    return found


# ------------------------------------------------------------------------------------------- a whole corpus


def corpus(folder, record):
    """All of MuseData's training set: time and additional memory, in a process of its own."""
    if rolls(folder, "MuseData") is None:
        return
    rows = {}
    for dtype in ("float32", "float64"):
        call = [sys.executable, __file__, "--data", folder, "--part", f"corpus-{dtype}"]
        call += ["--threads", str(torch.get_num_threads())]
        line = subprocess.run(call, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
        rows[dtype] = json.loads(line)
        print(
            f"all of MuseData's training set, {rows[dtype]['frames']} frames, {UNITS} units, doubling, {dtype}: "
            f"{rows[dtype]['seconds']:.2f} s, {rows[dtype]['megabytes']:.0f} MB of additional memory"
        )
    print()
    record["corpus"] = rows


def peak_megabytes():
    """Most memory this process ever held; not its parent's, as getrusage may give."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def corpus_once(folder, dtype):
    sequences = rolls(folder, "MuseData")
    LinearAutoencoder(UNITS, solver="doubling", dtype=dtype).fit(sequences[:5])  # libraries loaded, threads started
    before = peak_megabytes()
    seconds = [
        clocked(lambda: LinearAutoencoder(UNITS, solver="doubling", dtype=dtype).fit(sequences))[0] for _ in range(3)
    ]
    frames = sum(map(len, sequences))
    print(json.dumps({"seconds": statistics.median(seconds), "megabytes": peak_megabytes() - before, "frames": frames}))


# ------------------------------------------------------------------------------------------------- crossing


def crossing(record):
    """Exact and doubling around the size where `auto` changes from one to the other."""
    rng = np.random.default_rng(0)
    rows = []
    print(f"random walks of 8 features in sequences of 500 frames, {UNITS} units: seconds, energy, error\n")
    print(f"{'frames':>8}{'exact':>10}{'doubling':>10}{'energy':>9}{'energy':>9}{'error':>8}{'error':>8}")
    for frames in (500, 1000, 2000, 4000, 8000):
        walks = [rng.standard_normal((500, 8)).cumsum(0) for _ in range(frames // 500)]
        row = {"frames": frames}
        for solver in ("exact", "doubling"):
            timed = [clocked(LinearAutoencoder(UNITS, solver=solver).fit, walks) for _ in range(3)]
            laes = timed[0][1]
            row[solver] = statistics.median(t for t, _ in timed), laes.energy_, laes.reconstruction_error(walks)
        (exact, energy, error), (fast, fast_energy, fast_error) = row["exact"], row["doubling"]
        print(f"{frames:8d}{exact:10.3f}{fast:10.3f}{energy:9.4f}{fast_energy:9.4f}{error:8.4f}{fast_error:8.4f}")
        rows.append(row)
    print()
    record["crossing"] = rows


# --------------------------------------------------------------------------------------------------- growth


def growth(record, largest):
    """One sequence of 8 features, from a thousand frames to a million."""
    rng = np.random.default_rng(0)
    walk = rng.standard_normal((largest, 8)).cumsum(0) / 20
    x = np.sin(walk) + 0.1 * rng.standard_normal(walk.shape)
    frames = [n for n in (1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000) if n <= largest]
    seconds = []
    print(f"doubling, 50 units, one sequence of 8 features, float64\n{'frames':>10}{'seconds':>10}{'per l log2 l':>14}")
    LinearAutoencoder(50, solver="doubling").fit(x[:1000])
    for n in frames:
        times = [
            clocked(LinearAutoencoder(50, solver="doubling").fit, x[:n])[0] for _ in range(3 if n <= 100_000 else 1)
        ]
        seconds.append(statistics.median(times))
        print(f"{n:10d}{seconds[-1]:10.3f}{seconds[-1] / (n * np.log2(n)) * 1e9:11.0f} ns")
    work = frames[-1] * np.log(frames[-1]) / (frames[0] * np.log(frames[0]))
    exponent = float(np.log(seconds[-1] / seconds[0]) / np.log(work))
    print_summary({"exponent of l log l": exponent})
    record["growth"] = {"frames": frames, "seconds": seconds, "exponent of l log l": exponent}


# ------------------------------------------------------------------------------------------------- the rest


def print_summary(summary):
    print("\n".join(f"{name}: {value:.3g}" for name, value in summary.items()) + "\n")


def machine():
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        cpu = next((line.split(":")[1].strip() for line in info.read_text().splitlines() if "model name" in line), cpu)
    return {"cpu": cpu, "threads": torch.get_num_threads(), "torch": torch.__version__, "numpy": np.__version__}


def figure(record, path):
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(11, 4.5), layout="constrained")
    left, right = canvas.subplots(1, 2)
    if "piece" in record:
        rows = record["piece"]["rows"]
        fast = rows["doubling"]["seconds"]
        left.barh(list(rows)[::-1], [row["seconds"] / fast for row in rows.values()][::-1])
        left.set(xscale="log", xlabel="time, in units of doubling", title="MuseData's longest piece, 100 units")
    if "growth" in record:
        frames, seconds = np.array(record["growth"]["frames"]), np.array(record["growth"]["seconds"])
        right.loglog(frames, seconds, marker="o", label="doubling, 8 features, 50 units")
        curve = frames * np.log(frames)
        right.loglog(frames, seconds[0] * curve / curve[0], ls="--", color="0.5", label="l log l")
        right.set(xlabel="frames", ylabel="seconds")
        right.legend()
    canvas.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", help="folder with MuseData.npz")
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--part", default="all", help="piece, corpus, crossing, growth or all (default)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--largest", type=int, default=1_000_000, help="frames at the end of the growth curve")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.part.startswith("corpus-"):
        return corpus_once(arguments.data, arguments.part.removeprefix("corpus-"))
    record = {"machine": machine()}
    print(record["machine"], "\n")
    if arguments.part in ("all", "piece"):
        piece(arguments.data, record)
    if arguments.part in ("all", "corpus"):
        corpus(arguments.data, record)
    if arguments.part in ("all", "crossing"):
        crossing(record)
    if arguments.part in ("all", "growth"):
        growth(record, arguments.largest)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "autoencoder.json").write_text(json.dumps(record, indent=1))
    figure(record, arguments.out / "autoencoder.png")
    print(f"written: {arguments.out / 'autoencoder.json'} and .png")
    return None


if __name__ == "__main__":
    main()
