"""Which native library this machine runs, and why.

The package's build compiles the kernels once for each instruction set, a *level*. The best one that the machine
can run is loaded when it is first needed. ``LINMEM_NATIVE`` in the environment forces another: the name of a
level, or ``0`` for none.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import torch

LEVELS = ("portable", "neon", "avx2", "avx512")
"""From the most modest on; ``neon`` is for arm64, the two after it are for x86-64."""


CALLS = 3
"""How calls are laid out in memory, counted up with every change; the library was built for one of them."""


@dataclass(frozen=True)
class Available:
    """Which kernels are used, and why.

    Examples
    --------
    >>> import linmem.kernels
    >>> linmem.kernels.available().used in (*linmem.kernels.LEVELS, "reference")
    True
    """

    used: str
    """The level of the native library, or ``"reference"`` for the equations in plain torch."""
    why: str
    """The reason, in one sentence."""
    built: tuple[str, ...]
    """The levels that were compiled when linmem was installed."""


def available() -> Available:
    """Say which kernels the layers use for float32 and float64 on the CPU, and why."""
    return choose()[0]


@cache
def choose() -> tuple[Available, ctypes.CDLL | None]:
    """Choose a library, once for the process."""
    built = tuple(level for level in LEVELS if find(level))
    wanted = os.environ.get("LINMEM_NATIVE", "")
    if wanted not in ("", "0", *LEVELS):
        raise ValueError(f"LINMEM_NATIVE must be 0 or one of {', '.join(LEVELS)}, got {wanted!r}")
    if wanted == "0":
        return Available("reference", "LINMEM_NATIVE=0 switches the native kernels off.", built), None
    if not built:
        return Available("reference", "No native kernels were built: there was no C++ compiler.", built), None
    if load(built[0]).linmem_calls() != CALLS:
        why = "The native kernels were built from other sources than these: install linmem again."
        return Available("reference", why, built), None
    best = machine()
    runs = tuple(level for level in built if LEVELS.index(level) <= LEVELS.index(best))
    if wanted and wanted not in runs:
        where = "this machine cannot run it" if wanted in built else "it was not built"
        raise RuntimeError(f"LINMEM_NATIVE={wanted}, but {where}; there is {', '.join(runs)}")
    if wanted:
        return Available(wanted, f"LINMEM_NATIVE={wanted} asks for it.", built), load(wanted)
    return Available(runs[-1], "It is the fastest that was built and that this machine can run.", built), load(runs[-1])


def machine() -> str:
    """Return the best level that this machine can run; any of the libraries knows."""
    most_modest = next(level for level in LEVELS if find(level))
    ask = load(most_modest).linmem_machine
    ask.restype = ctypes.c_char_p
    return str(ask().decode())


def find(level: str) -> Path | None:
    """Find the library of a level."""
    return next((path for folder in folders() if (path := folder / f"linmem_{level}.so").exists()), None)


@cache
def folders() -> tuple[Path, ...]:
    """Where libraries may lie: beside this file, or where an editable installation puts what it builds."""
    here = Path(__file__).parent
    try:
        return here, Path(str(distribution("linmem").locate_file("linmem/kernels")))
    except PackageNotFoundError:
        return (here,)


@cache
def load(level: str) -> ctypes.CDLL:
    """Load the library of a level, and let it run in torch's threads."""
    library = ctypes.CDLL(str(find(level)))
    if library.linmem_calls() != CALLS:
        return library  # built from other sources: :func:`choose` will not have it
    try:
        # Looked up through what torch has loaded already, whatever its runtime is called there.
        torch_library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        runtime = ctypes.cast(torch_library.GOMP_parallel, ctypes.c_void_p)
    except (OSError, AttributeError):  # another build of torch: the library makes threads of its own
        return library
    library.linmem_use_threads_of(runtime)
    return library
