"""The paper's algorithms: from trained parts to better-initialised parts.

Each is a function that returns new layers and leaves those it was given as they are.
"""

from linmem.pretraining.elman import lmn_from_rnn, rnn_from_autoencoder
from linmem.pretraining.encoding import encode_memory
from linmem.pretraining.forgetting import choose_forgetting
from linmem.pretraining.growing import add_memory_module
from linmem.pretraining.unrolled import lmn_from_unrolled

__all__ = [
    "add_memory_module",
    "choose_forgetting",
    "encode_memory",
    "lmn_from_rnn",
    "lmn_from_unrolled",
    "rnn_from_autoencoder",
]
