"""linmem's layers against torch's on a CPU: forward, training step, single step, memory.

    python benchmarks/layers.py [--out FOLDER] [--part PART] [--threads 1 2] [--rounds 15] [--clock wall]

Rivals run in one process in turns, round after round; figures are medians, and what counts are ratios. "=P" has as
many parameters as the layer of linmem, "=width" an output as wide. A training step is a forward and a backward pass to
all weights. The first part is run once more in a process in which both sides may use AVX2 only. Writes layers.json
and layers.png, and what concerns linear memories to linear_memory.json: that part also measures layers of others, which
`pip install "linmem[peers]"` installs.
"""

from __future__ import annotations

import argparse
import bisect
import gc
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from functools import partial
from importlib import metadata
from pathlib import Path

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import nn

import linmem
from autoencoder import machine  # the benchmark beside this one
from linmem.kernels import available

# T, B, N_x, N_h, N_m
LMN_SHAPES = [
    (100, 64, 100, 100, 100),
    (128, 16, 88, 250, 250),
    (300, 1, 1, 2, 29),
    (1000, 16, 88, 100, 250),
    (128, 16, 88, 250, 500),
]
# T, B, N_x, N_h, modules, units of each
MULTISCALE_SHAPES = [(300, 1, 1, 1, 9, 4), (97, 25, 13, 25, 7, 25), (1000, 16, 88, 100, 9, 50)]
# T, B, N_x, N_m
LINEAR_SHAPES = [(128, 16, 88, 250), (1000, 16, 88, 250), (16000, 1, 88, 100)]
PASSES = ("forward", "training")
LSTM = "nn.LSTM =P"
GRU = "nn.GRU =P"
IN_THE_STEP, BEFORE = "frozen, codes in the step", "frozen, codes computed before"
PEERS = ("minGRU-pytorch", "LRU-pytorch", "mambapy")
# Who takes so many seconds is measured in few rounds.
SLOW, FEW_ROUNDS = 1.0, 3
# What seconds are. Those of the process alone can be had for one thread on a machine that others use, too.
CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}
clock = CLOCKS["wall"]


# ------------------------------------------------------------------------------------------------ timing


def seconds_of(rivals, rounds, least=2e-3):
    """Median seconds of every rival. Fast ones are repeated within a round, so that a round takes `least` seconds."""
    repeats, turns = {}, {}
    for name, run in rivals.items():
        for _ in range(2):
            start = clock()
            run()
            seconds = clock() - start
            if seconds > SLOW:
                break
        repeats[name] = max(1, int(least / seconds))
        turns[name] = rounds if seconds < SLOW else min(rounds, FEW_ROUNDS)
    times = {name: [] for name in rivals}
    gc.disable()
    for i in range(rounds):
        for name, run in rivals.items():
            if i >= turns[name]:
                continue
            start = clock()
            for _ in range(repeats[name]):
                run()
            times[name].append((clock() - start) / repeats[name])
    gc.enable()
    return {name: statistics.median(t) for name, t in times.items()}


def sgemm_peak(threads):
    """The best that torch's and NumPy's libraries reach on square products of several sizes, in flops per second.

    One after the other: the threads of either go on spinning for a while, in the way of the other's.
    """
    best = 0.0
    for n in (256, 512, 1024, 2048):
        a = torch.randn(n, n)
        b, c = a.numpy(), np.empty((n, n), np.float32)
        for run in (partial(torch.mm, a, a), partial(np.matmul, b, b, out=c)):
            with threadpool_limits(threads):
                seconds = min(seconds_of({"product": run}, 10).values())
            best = max(best, 2 * n**3 / seconds)
    return best


def forward_of(layer, x, *state):
    @torch.inference_mode()
    def run():
        return layer(x, *state)

    return run


def training_of(layer, x):
    gradient = torch.randn_like(layer(x)[0])

    def run():
        for parameter in layer.parameters():
            parameter.grad = None
        layer(x)[0].backward(gradient)

    return run


# ------------------------------------------------------------------------------------------------ rivals


def count(layer):
    """Parameters, as real numbers."""
    return sum(p.numel() * (2 if p.is_complex() else 1) for p in layer.parameters())


def as_large(kind, input_size, parameters):
    """The layer of torch whose number of parameters comes closest."""
    gates = {nn.LSTM: 4, nn.GRU: 3, nn.RNN: 1}[kind]
    b = input_size + 2
    size = round((-b + (b * b + 4 * parameters / gates) ** 0.5) / 2)
    return kind(input_size, max(1, size))


@torch.jit.script
def scripted_lmn(x, m, w_xh, w_mh, w_hm, w_mm, b_h, b_m):  # type: ignore[no-untyped-def]
    xh = torch.nn.functional.linear(x, w_xh, b_h)
    w_mh_t, w_hm_t, w_mm_t = w_mh.t(), w_hm.t(), w_mm.t()
    out = []
    for t in range(x.shape[0]):
        h = torch.tanh(torch.addmm(xh[t], m, w_mh_t))
        m = torch.addmm(torch.addmm(b_m, h, w_hm_t), m, w_mm_t)
        out.append(m)
    return torch.stack(out), m


class ScriptedLMN(nn.Module):
    """The recurrence of an LMN as a TorchScript loop, with the weights of a layer."""

    def __init__(self, layer):
        super().__init__()
        self.weights = nn.ParameterList(p.detach().clone() for p in layer.parameters())

    def forward(self, x):
        return scripted_lmn(x, x.new_zeros(x.shape[1], self.weights[3].shape[0]), *self.weights)


def torch_rivals(input_size, parameters, width):
    rivals = {f"nn.{k.__name__} =P": as_large(k, input_size, parameters) for k in (nn.LSTM, nn.GRU, nn.RNN)}
    return rivals | {f"nn.{k.__name__} =width": k(input_size, width) for k in (nn.LSTM, nn.GRU, nn.RNN)}


def race(layers, x, rounds, other_inputs=None):
    """Median seconds of forward and training step for each layer, on x or on the other input that it has."""
    inputs = dict.fromkeys(layers, x) | (other_inputs or {})
    # Training comes first: LRU-pytorch keeps a tensor of the latest pass, unfit for it after one in inference mode.
    makers = {"training": training_of, "forward": forward_of}
    result = {}
    for kind, maker in makers.items():
        result[kind] = seconds_of({name: maker(layer, inputs[name]) for name, layer in layers.items()}, rounds)
    return result


def print_ratios(shape, times, first, extra=""):
    print(f"{shape}{extra}")
    for kind in PASSES:
        mine = times[kind][first]
        peers = "  ".join(f"{name} {seconds / mine:.2f}x" for name, seconds in times[kind].items() if name != first)
        print(f"  {kind:9}{mine * 1e3:9.3f} ms   {peers}")


# ------------------------------------------------------------------------------------------------- parts


def lmn(rounds, threads):
    """Shapes from small to large."""
    peak = sgemm_peak(threads)
    print(f"\nLMN, threads: {threads}; sgemm peak {peak / 1e9:.0f} GF/s; how much longer the others take")
    rows = []
    for T, B, N_x, N_h, N_m in LMN_SHAPES:
        layer = linmem.LMN(N_x, N_h, memory_size=N_m)
        layers = {"LMN": layer, **torch_rivals(N_x, count(layer), N_m), "TorchScript": ScriptedLMN(layer)}
        times = race(layers, torch.randn(T, B, N_x), rounds)
        flops = 2 * T * B * (N_h * (N_x + N_m) + N_m * (N_h + N_m))
        # Backwards: to the memories, and to the weights, but not to the input.
        backward = 2 * T * B * (N_m * (2 * N_h + N_m) + N_h * (N_x + 2 * N_m) + N_m * N_m)
        shares = {
            "forward": flops / times["forward"]["LMN"] / peak,
            "training": (flops + backward) / times["training"]["LMN"] / peak,
        }
        shape = f"{T},{B},{N_x},{N_h},{N_m}"
        print_ratios(shape, times, "LMN", f"  share of peak {shares['forward']:.0%} / {shares['training']:.0%}")
        rows.append({"shape": shape, "seconds": times, "share of peak": shares})
    return {"threads": threads, "sgemm peak": peak, "rows": rows}


def multiscale(rounds, threads):
    print(f"\nMultiScaleLMN, threads: {threads}; how much longer the others take")
    rows = []
    for T, B, N_x, N_h, modules, units in MULTISCALE_SHAPES:
        width = modules * units
        layer = linmem.MultiScaleLMN(N_x, N_h, num_modules=modules, memory_size=width)
        layers = {
            "MultiScaleLMN": layer,
            LSTM: as_large(nn.LSTM, N_x, count(layer)),
            "ClockworkRNN =width": linmem.ClockworkRNN(N_x, width, num_modules=modules),
            "LMN with as much memory": linmem.LMN(N_x, N_h, memory_size=width),
            "nn.LSTM =width": nn.LSTM(N_x, width),
        }
        times = race(layers, torch.randn(T, B, N_x), rounds)
        shape = f"{T},{B},{N_x},{N_h},{modules}x{units}"
        print_ratios(shape, times, "MultiScaleLMN")
        rows.append({"shape": shape, "seconds": times})
    return {"threads": threads, "rows": rows}


class WithReadout(nn.Module):
    """A layer and a linear readout of 88 outputs, so that there is something to train where the layer is frozen."""

    def __init__(self, layer, width):
        super().__init__()
        self.layer, self.readout = layer, nn.Linear(width, 88)

    def forward(self, x):
        return self.readout(self.layer(x)[0]), None


class OutputOnly(nn.Module):
    """A module that returns no state, called as layers are."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        return self.module(x), None


def linear_peers(input_size, parameters):
    """Linear recurrences of others, about as large. Their batch comes first."""
    try:
        from LRU_pytorch import LRU
        from mambapy.mamba import Mamba, MambaConfig
        from minGRU_pytorch import minGRU
    except ImportError:
        print('without layers of others, for which: pip install "linmem[peers]"')
        return {}

    makers = {
        # Its width is a fraction of its inputs, cut to an integer.
        "minGRU": lambda width: minGRU(input_size, (width + 0.5) / input_size, proj_out=True),
        "LRU": lambda width: LRU(input_size, width, width),
        # A block is as wide as its input.
        "Mamba": lambda width: nn.Sequential(nn.Linear(input_size, width), Mamba(MambaConfig(width, n_layers=1))),
    }
    return {f"{name} =P": OutputOnly(nearest(make, parameters)) for name, make in makers.items()}


def nearest(make, parameters):
    """Return the layer make(width) whose number of parameters comes closest."""
    above = 1 + bisect.bisect(range(1, 10_000), parameters, key=lambda width: count(make(width)))
    return min((make(width) for width in (max(1, above - 1), above)), key=lambda layer: abs(count(layer) - parameters))


def linear(rounds, threads):
    """A linear memory that is trained, and a frozen one with a readout that is."""
    print(f"\nLinearMemory, threads: {threads}; how much longer the others take")
    rows = []
    for T, B, N_x, N_m in LINEAR_SHAPES:
        x = torch.randn(T, B, N_x)
        layer, frozen = (linmem.LinearMemory(N_x, N_m, trainable=trainable) for trainable in (True, False))
        parameters = count(layer)
        lstm, gru = (as_large(kind, N_x, parameters) for kind in (nn.LSTM, nn.GRU))
        peers = linear_peers(N_x, parameters)
        layers = {"LinearMemory": layer, LSTM: lstm, GRU: gru, **peers}
        times = race(layers, x, rounds, dict.fromkeys(peers, x.transpose(0, 1).contiguous()))
        shape = f"{T},{B},{N_x},{N_m}"
        print_ratios(shape, times, "LinearMemory")

        # How a frozen memory is meant to be trained: its codes never change, so a step is that of the readout alone.
        with torch.no_grad():
            codes, _ = frozen(x)
        readers = {
            IN_THE_STEP: WithReadout(frozen, N_m),
            BEFORE: OutputOnly(nn.Linear(N_m, 88)),
            LSTM: WithReadout(lstm, lstm.hidden_size),
            GRU: WithReadout(gru, gru.hidden_size),
        }
        with_readout = race(readers, x, rounds, {BEFORE: codes})
        print_ratios(shape, with_readout, IN_THE_STEP, ", with a readout of 88 outputs")
        print_ratios(shape, with_readout, BEFORE, ", with a readout of 88 outputs")
        rows.append(
            {
                "shape": shape,
                "parameters": {name: count(rival) for name, rival in layers.items()},
                "seconds": times,
                "with readout": {
                    "parameters": {name: count(rival) for name, rival in readers.items()},
                    "seconds": with_readout,
                },
            }
        )
    return {"threads": threads, "slow": {"seconds": SLOW, "rounds": min(rounds, FEW_ROUNDS)}, "rows": rows}


def linear_tables(rows):
    """Return the two tables of docs/speed.md, for one number of threads."""
    rivals = [name for name in rows[0]["parameters"] if name != "LinearMemory"]
    trained = table(rows, {name: ("LinearMemory", name) for name in rivals})
    with_readout = [row["with readout"] | {"shape": row["shape"]} for row in rows]
    frozen = table(with_readout, {"against " + way: (way, LSTM) for way in (IN_THE_STEP, BEFORE)})
    return f"{trained}\n\n{frozen}"


def table(rows, columns):
    """Return how much longer the second of a pair takes than the first, forward / training step, in Markdown."""
    lines = ["| T, B, inputs, memory | " + " | ".join(columns) + " |", "|---" * (1 + len(columns)) + "|"]
    for row in rows:
        times = row["seconds"]
        cells = [
            " / ".join(f"{times[k][other] / times[k][mine]:.2f}" for k in PASSES) for mine, other in columns.values()
        ]
        lines.append(f"| {row['shape'].replace(',', ', ')} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def versions():
    """Versions of the layers of others, as far as they are installed."""
    installed = {d.name for d in metadata.distributions()}
    return {name: metadata.version(name) for name in PEERS if name in installed}


def stream(rounds):
    """One step of one sequence, as a module is called."""
    size, x = 100, torch.randn(1, 1, 100)
    layer = linmem.LMN(size, size)
    layers = {
        "LMN": (layer, x),
        "LMNCell": (linmem.LMNCell(size, size), x[0]),
        "MultiScaleLMN, 4 modules": (linmem.MultiScaleLMN(size, size, num_modules=4), x),
        "nn.LSTM": (nn.LSTM(size, size), x),
        "nn.GRU": (nn.GRU(size, size), x),
        "nn.RNN": (nn.RNN(size, size), x),
        "nn.LSTMCell": (nn.LSTMCell(size, size), x[0]),
        "nn.GRUCell": (nn.GRUCell(size, size), x[0]),
    }
    rivals = {}
    for name, (module, step) in layers.items():
        with torch.inference_mode():
            result = module(step)
        state = result if name.endswith("Cell") else result[1]
        rivals[name] = forward_of(module, step, state)
    times = seconds_of(rivals, rounds * 5)
    print("\none step, 100 inputs and 100 units")
    for name, seconds in times.items():
        print(f"  {name:26}{seconds * 1e6:8.1f} µs  {seconds / times['LMN']:6.2f}x")
    return times


MEMORY = """
import sys, torch, linmem
from torch import nn
sys.path.insert(0, {here!r})
from autoencoder import peak_megabytes
from layers import as_large, count
torch.manual_seed(0)
layer = linmem.LMN(88, 100, memory_size=250)
if {name!r} == "nn.LSTM =P":
    layer = as_large(nn.LSTM, 88, count(layer))
def step(x):
    y = layer(x)[0]
    y.backward(torch.ones(()).expand_as(y))
if {steps}:
    x, state = torch.randn(1000, 1, 88), None
    with torch.inference_mode():
        for chunk in range({steps} // 1000 + 2):
            if chunk == 2:
                before = peak_megabytes()
            y, state = layer(x, state)
else:
    step(torch.randn(100, 16, 88))
    x = torch.randn(8000, 16, 88)
    before = peak_megabytes()
    step(x)
print(peak_megabytes() - before)
"""


def additional_memory(name, steps=0):
    """Megabytes by which a process's peak grows in one training step of 8000 x 16 frames, or in a stream of `steps`."""
    code = MEMORY.format(here=str(Path(__file__).parent), name=name, steps=steps)
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def memory():
    result = {name: additional_memory(name) for name in ("LMN", LSTM)}
    result["stream of a million steps"] = additional_memory("LMN", 1_000_000)
    mine, peer, stream = (result[name] for name in ("LMN", LSTM, "stream of a million steps"))
    print("\nadditional memory of a training step of 8000 x 16 frames, LMN 100/250")
    print(f"  LMN {mine:.0f} MB, {LSTM} {peer:.0f} MB: ratio {mine / peer:.2f}")
    print(f"  a stream of a million steps, in chunks of a thousand: {stream:.1f} MB")
    return result


# ------------------------------------------------------------------------------------------------- output


def figure(record, path):
    from matplotlib.figure import Figure

    bars = {}
    for part in ("lmn", "multiscale"):
        for run in record.get(part, [])[:1]:
            for row in run["rows"]:
                for kind in PASSES:
                    times = row["seconds"][kind]
                    mine = next(iter(times))
                    bars[f"{mine} {row['shape']}, {kind}"] = times[LSTM] / times[mine]
    canvas = Figure(figsize=(9, 0.32 * len(bars) + 1.2), layout="constrained")
    axes = canvas.subplots()
    axes.barh(list(bars)[::-1], list(bars.values())[::-1])
    axes.axvline(1, color="0.3", lw=1)
    axes.set(xlabel="times as fast as nn.LSTM with as many parameters, one thread", title=record["machine"]["cpu"])
    canvas.savefig(path, dpi=120)


def with_avx2_only(rounds):
    """Run the first parts in a process in which nobody may use more."""
    limits = {"LINMEM_NATIVE": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
    limits["OPENBLAS_CORETYPE"] = "Haswell"
    command = [sys.executable, __file__, "--threads", "1", "--rounds", str(rounds), "--part", "avx2"]
    result = subprocess.run(command, env=os.environ | limits, stdout=subprocess.PIPE, text=True, check=True)
    text, _, last = result.stdout.strip().rpartition("\n")
    print(f"\nAVX2 only{text}")
    return json.loads(last)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--part", default="all", help="lmn, multiscale, linear, stream, memory or all (default)")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="processor: what others use does not count")
    arguments = parser.parse_args()
    if arguments.clock == "processor" and arguments.threads != [1]:
        parser.error("--clock processor counts the seconds of all threads: expected --threads 1")
    global clock
    clock = CLOCKS[arguments.clock]
    warnings.filterwarnings("ignore", message=".*jit.*")
    torch.manual_seed(0)
    part, rounds = arguments.part, arguments.rounds
    if part == "avx2":
        torch.set_num_threads(1)
        print(json.dumps({"lmn": lmn(rounds, 1), "multiscale": multiscale(rounds, 1)}))
        return
    record = {"machine": machine() | {"kernels": available().used, "clock": arguments.clock}}
    print(record["machine"])
    for threads in arguments.threads:
        torch.set_num_threads(threads)
        for name, run in {"lmn": lmn, "multiscale": multiscale, "linear": linear}.items():
            if part in (name, "all"):
                record.setdefault(name, []).append(run(rounds, threads))
    torch.set_num_threads(1)
    if part in ("stream", "all"):
        record["stream"] = stream(rounds)
    if part in ("memory", "all"):
        record["memory"] = memory()
    if part == "all" and available().used == "avx512":
        record["avx2"] = with_avx2_only(rounds)
    arguments.out.mkdir(parents=True, exist_ok=True)
    if runs := record.pop("linear", None):
        print("\n" + linear_tables(runs[0]["rows"]))
        text = json.dumps({"machine": record["machine"] | versions(), "rounds": rounds, "linear": runs}, indent=1)
        (arguments.out / "linear_memory.json").write_text(text)
    if part != "linear":
        (arguments.out / "layers.json").write_text(json.dumps(record, indent=1))
        figure(record, arguments.out / "layers.png")
    print(f"\nwritten to {arguments.out}")


if __name__ == "__main__":
    main()
