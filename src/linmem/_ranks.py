"""Sums over the processes of a torch.distributed job, and what they must agree on.

Everything that leaves a process is a small matrix; sequences and activations stay where they are. Tensors stay on their
device, so any backend that sums there will do.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


def check_ranks(distributed: bool) -> None:
    """Refuse `distributed` where there is no job."""
    if distributed and not (dist.is_available() and dist.is_initialized()):
        raise ValueError("distributed=True: expected torch.distributed.init_process_group to have been called")


def total(x: Tensor, distributed: bool) -> Tensor:
    """Return the sum over all processes, in the place of this process's part."""
    if distributed:
        dist.all_reduce(x)
    return x


def largest(x: float, distributed: bool, device: torch.device) -> float:
    """Return the largest number that any process has."""
    if not distributed:
        return x
    number = torch.tensor(x, dtype=torch.float64, device=device)
    dist.all_reduce(number, dist.ReduceOp.MAX)
    return float(number)


def agreed(x: Tensor, distributed: bool) -> Tensor:
    """Return what the first process has: singular vectors of one matrix may differ in their signs elsewhere."""
    if not distributed:
        return x
    x = x.contiguous()
    dist.broadcast(x, 0)
    return x


def rows_of_all(x: Tensor, distributed: bool) -> Tensor:
    """Return the rows of all processes, one below the other, with zeros where a process has fewer than another."""
    if not distributed:
        return x
    rows = int(largest(len(x), distributed, x.device))
    padded = torch.nn.functional.pad(x, (0, 0, 0, rows - len(x))).contiguous()
    parts = [torch.empty_like(padded) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, padded)
    return torch.cat(parts)
