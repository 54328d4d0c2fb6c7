"""Recurrent networks whose memory is a linear autoencoder, computed in closed form."""

from linmem import export
from linmem.autoencoder import LinearAutoencoder
from linmem.files import load, save
from linmem.layers import (
    LMN,
    ClockworkRNN,
    ClockworkRNNCell,
    LMNCell,
    MultiScaleLMN,
    MultiScaleLMNCell,
    UnrolledRNN,
    UnrolledRNNCell,
)
from linmem.pretraining import lmn_from_rnn

__all__ = [
    "LMN",
    "ClockworkRNN",
    "ClockworkRNNCell",
    "LMNCell",
    "LinearAutoencoder",
    "MultiScaleLMN",
    "MultiScaleLMNCell",
    "UnrolledRNN",
    "UnrolledRNNCell",
    "export",
    "lmn_from_rnn",
    "load",
    "save",
]

__version__ = "0.1.0.dev0"
