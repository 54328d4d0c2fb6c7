"""What the shared layer and cell need to know of a model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor

from linmem.kernels import Output, Prepared
from linmem.layers.parameters import Parameters


class Equations(ABC):
    """One model, for one layer and one direction: its parameters, its start and its kernel.

    Parameters travel as a mapping from names to tensors; a layer without biases leaves them out. The
    object itself holds sizes and choices only and is immutable.
    """

    clocked: ClassVar[bool]
    """Whether the state includes a clock."""

    @property
    @abstractmethod
    def state_size(self) -> int:
        """Width of the state."""

    @abstractmethod
    def width(self, output: str) -> int:
        """Width of the sequence called `output`."""

    @abstractmethod
    def shapes(self, input_size: int) -> dict[str, tuple[int, ...]]:
        """Shape of every parameter, by name."""

    @abstractmethod
    def initialize(self, p: Parameters) -> None:
        """Write starting values into the parameters."""

    @abstractmethod
    def transition(self, p: Parameters) -> Tensor:
        """Return the matrix that leads from one state to the next, linearised at zero without input."""

    @abstractmethod
    def run(
        self, p: Parameters, x: Tensor, state: Tensor, clock: Tensor | None, lengths: Tensor | None, output: Output
    ) -> tuple[Tensor, Tensor]:
        """Run over a time-first batch; return the sequence called `output` and the final state.

        The clock is None where the state has none.
        """

    def prepare(self, p: Parameters, output: Output) -> Prepared | None:
        """Make the parameters ready for calls without gradients; None if there is no short way."""
        return None
