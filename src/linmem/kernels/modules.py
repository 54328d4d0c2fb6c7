"""How a memory is divided into modules, and which module hears which."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import lcm
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from linmem._shapes import Bool, Float, Int

Connections = Literal["slow_to_fast", "fast_to_slow", "full"]


@dataclass(frozen=True)
class Modules:
    """The modules of a clocked state, from the fastest to the slowest.

    A matrix between modules is stored *packed*: a vector that holds only the blocks which exist, so
    neither an optimiser nor a checkpoint ever sees an absent one. The vector lists module after module
    the row slab of that module, row-major. A slab is contiguous because the modules one of them hears are
    neighbours: itself and all slower ones (``"slow_to_fast"``), itself and all faster ones
    (``"fast_to_slow"``) or everybody (``"full"``).

    Parameters
    ----------
    sizes
        Units of each module.
    periods
        Module k updates at the steps t with ``t % periods[k] == 0``; increasing.
    connections
        Which modules feed which.

    Examples
    --------
    >>> modules = Modules(sizes=(1, 1, 2), periods=(1, 2, 4))
    >>> modules.dense(torch.arange(1.0, 1 + modules.packed_size))
    tensor([[ 1.,  2.,  3.,  4.],
            [ 0.,  5.,  6.,  7.],
            [ 0.,  0.,  8.,  9.],
            [ 0.,  0., 10., 11.]])
    """

    sizes: tuple[int, ...]
    periods: tuple[int, ...]
    connections: Connections = "slow_to_fast"

    @cached_property
    def width(self) -> int:
        """Units of all modules together."""
        return sum(self.sizes)

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """The first unit of each module."""
        return (0, *accumulate(self.sizes[:-1]))

    @cached_property
    def columns(self) -> tuple[tuple[int, int], ...]:
        """For each module the units it hears, as (first, one past the last)."""
        ends = tuple(accumulate(self.sizes))
        if self.connections == "slow_to_fast":
            return tuple((start, self.width) for start in self.offsets)
        if self.connections == "fast_to_slow":
            return tuple((0, end) for end in ends)
        return tuple((0, self.width) for _ in ends)

    @cached_property
    def packed_size(self) -> int:
        """How many numbers the existing blocks have."""
        return sum(size * (end - start) for size, (start, end) in zip(self.sizes, self.columns, strict=True))

    @cached_property
    def period(self) -> int:
        """After how many steps all modules fire at once again."""
        return lcm(*self.periods)

    def slabs(self, packed: Float[Tensor, " packed"]) -> list[Float[Tensor, "units heard"]]:
        """View the packed vector as one slab for each module: what it hears."""
        widths = [end - start for start, end in self.columns]
        counts = [size * width for size, width in zip(self.sizes, widths, strict=True)]
        parts = torch.split_with_sizes(packed, counts)
        return [p.view(s, w) for p, s, w in zip(parts, self.sizes, widths, strict=True)]

    def diagonal(self, packed: Float[Tensor, " packed"]) -> list[Float[Tensor, "units units"]]:
        """View in the packed vector what each module hears from itself."""
        blocks = zip(self.slabs(packed), self.offsets, self.columns, self.sizes, strict=True)
        return [slab[:, at - start : at - start + n] for slab, at, (start, _), n in blocks]

    def dense(self, packed: Float[Tensor, " packed"]) -> Float[Tensor, "width width"]:
        """Return the whole matrix, with zeros where there is no block."""
        rows = zip(self.slabs(packed), self.columns, strict=True)
        return torch.cat([pad(slab, (start, self.width - end)) for slab, (start, end) in rows])

    def pack(self, dense: Float[Tensor, "width width"]) -> Float[Tensor, " packed"]:
        """Keep the existing blocks of a whole matrix: the inverse of :meth:`dense`."""
        rows = zip(torch.split_with_sizes(dense, self.sizes), self.columns, strict=True)
        return torch.cat([slab[:, start:end].flatten() for slab, (start, end) in rows])

    def fires(self, clock: Int[Tensor, " B"], length: int) -> Bool[Tensor, "T B width"]:
        """Which units update at each of the next `length` steps of rows whose clocks stand at `clock`."""
        steps = torch.arange(length, device=clock.device)[:, None] + clock  # (T, B)
        periods = torch.tensor(self.periods, device=clock.device)
        module_of_unit = [k for k, size in enumerate(self.sizes) for _ in range(size)]
        fires = steps[..., None] % periods == 0  # (T, B, modules)
        return fires[..., module_of_unit]
