"""How a layer's time loop runs. The layers call these functions and never ask which kernel answers.

Only the reference equations exist so far; this is the one place that will choose between them and faster
kernels, call by call.
"""

from linmem.kernels.modules import Connections, Modules
from linmem.kernels.reference import NONLINEARITIES, Output, clockwork_rnn, lmn, multiscale_lmn, unrolled_rnn

__all__ = [
    "NONLINEARITIES",
    "Connections",
    "Modules",
    "Output",
    "clockwork_rnn",
    "lmn",
    "multiscale_lmn",
    "unrolled_rnn",
]
