"""Recurrent networks whose memory is a linear autoencoder, computed in closed form."""

from linmem.autoencoder import LinearAutoencoder

__version__ = "0.1.0.dev0"

__all__ = ["LinearAutoencoder"]
