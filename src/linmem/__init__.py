"""Recurrent networks whose memory is a linear autoencoder, computed in closed form."""

from linmem.autoencoder import LinearAutoencoder
from linmem.files import load, save

__all__ = ["LinearAutoencoder", "load", "save"]

__version__ = "0.1.0.dev0"
