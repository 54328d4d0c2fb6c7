"""How a layer's time loop runs. The layers call these functions and never ask which kernel answers.

This is the one place that chooses: the native library where it can take a call, the reference equations for every
other device, dtype and transformation. :func:`available` says what there is.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from torch import Tensor

from linmem.kernels import native, reference
from linmem.kernels.library import LEVELS, Available, available
from linmem.kernels.modules import Connections, Modules
from linmem.kernels.native import Prepared, nobody_looks_in, prepare_clocked, prepare_lmn
from linmem.kernels.reference import NONLINEARITIES, Output

__all__ = [
    "LEVELS",
    "NONLINEARITIES",
    "Available",
    "Connections",
    "Modules",
    "Output",
    "Prepared",
    "available",
    "clockwork_rnn",
    "linear_memory",
    "lmn",
    "multiscale_lmn",
    "nobody_looks_in",
    "prepare_clocked",
    "prepare_lmn",
    "unrolled_rnn",
]

R = TypeVar("R")


def native_or(equations: Callable[..., R], loops: Callable[..., R]) -> Callable[..., R]:
    """Return a function that runs the native loops where they can, else the reference equations."""

    @wraps(equations)
    def kernel(*tensors: Tensor | None, lengths: Tensor | None = None, **options: Any) -> R:
        run = loops if native.can_run(*tensors, lengths) else equations
        return run(*tensors, lengths=lengths, **options)

    return kernel


lmn = native_or(reference.lmn, native.lmn)
multiscale_lmn = native_or(reference.multiscale_lmn, native.multiscale_lmn)
clockwork_rnn = native_or(reference.clockwork_rnn, native.clockwork_rnn)
unrolled_rnn = native_or(reference.unrolled_rnn, native.unrolled_rnn)
linear_memory = native_or(reference.linear_memory, native.linear_memory)
