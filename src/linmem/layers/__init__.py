"""Recurrent layers with torch's contract."""

from linmem.layers.clockwork import ClockworkRNN, ClockworkRNNCell
from linmem.layers.count import count_parameters
from linmem.layers.linear import LinearMemory, LinearMemoryCell
from linmem.layers.lmn import LMN, LMNCell
from linmem.layers.multiscale import MultiScaleLMN, MultiScaleLMNCell
from linmem.layers.unrolled import UnrolledRNN, UnrolledRNNCell

__all__ = [
    "LMN",
    "ClockworkRNN",
    "ClockworkRNNCell",
    "LMNCell",
    "LinearMemory",
    "LinearMemoryCell",
    "MultiScaleLMN",
    "MultiScaleLMNCell",
    "UnrolledRNN",
    "UnrolledRNNCell",
    "count_parameters",
]
