"""The closed-form linear autoencoder: estimator, shift algebra, solvers."""

from linmem.autoencoder.estimator import LinearAutoencoder

__all__ = ["LinearAutoencoder"]
