"""Recurrent networks whose memory is a linear autoencoder, computed in closed form."""

from linmem import export
from linmem.autoencoder import LinearAutoencoder
from linmem.codes import Codes, compute_codes
from linmem.files import load, save
from linmem.layers import (
    LMN,
    ClockworkRNN,
    ClockworkRNNCell,
    LinearMemory,
    LinearMemoryCell,
    LMNCell,
    MultiScaleLMN,
    MultiScaleLMNCell,
    UnrolledRNN,
    UnrolledRNNCell,
)
from linmem.networks import MemoryNetwork, MemoryReader, lmn_from_network
from linmem.pretraining import (
    add_memory_module,
    choose_forgetting,
    encode_memory,
    lmn_from_rnn,
    lmn_from_unrolled,
    rnn_from_autoencoder,
)

__all__ = [
    "LMN",
    "ClockworkRNN",
    "ClockworkRNNCell",
    "Codes",
    "LMNCell",
    "LinearAutoencoder",
    "LinearMemory",
    "LinearMemoryCell",
    "MemoryNetwork",
    "MemoryReader",
    "MultiScaleLMN",
    "MultiScaleLMNCell",
    "UnrolledRNN",
    "UnrolledRNNCell",
    "add_memory_module",
    "choose_forgetting",
    "compute_codes",
    "encode_memory",
    "export",
    "lmn_from_network",
    "lmn_from_rnn",
    "lmn_from_unrolled",
    "load",
    "rnn_from_autoencoder",
    "save",
]

__version__ = "0.1.0.dev0"
