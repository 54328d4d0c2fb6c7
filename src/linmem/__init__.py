"""Recurrent networks whose memory is a linear autoencoder, computed in closed form."""

__version__ = "0.1.0.dev0"
