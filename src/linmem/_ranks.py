"""Sums over the processes of a torch.distributed job, and what they must agree on.

Everything that leaves a process is a small matrix; sequences and activations stay where they are. Tensors stay on their
device, so any backend that sums there will do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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
    """Return what the first process has, whose last dimension may have another length than here.

    Of one matrix, other processes may find singular vectors of other signs, and rounding may leave them others.
    """
    if not distributed:
        return x
    columns = torch.tensor(x.shape[-1], device=x.device)
    dist.broadcast(columns, 0)
    x = x.contiguous() if dist.get_rank() == 0 else x.new_empty(*x.shape[:-1], int(columns))
    dist.broadcast(x, 0)
    return x


def first_says(x: bool, distributed: bool, device: torch.device) -> bool:
    """Return what the first process says."""
    if not distributed:
        return x
    flag = torch.tensor(x, dtype=torch.int64, device=device)
    dist.broadcast(flag, 0)
    return bool(flag)


def is_first(distributed: bool) -> bool:
    """Whether this is the first process, or the only one."""
    return not distributed or dist.get_rank() == 0


@contextmanager
def together(distributed: bool, device: torch.device) -> Iterator[None]:
    """Run checks of what only this process has; if one fails anywhere, no process goes on to wait for another."""
    error: Exception | None = None
    try:
        yield
    except Exception as refused:  # whatever it is, the other processes must hear of it before it is raised
        if not distributed:
            raise
        error = refused
    failures = total(torch.tensor(float(error is not None), device=device), distributed)
    if error is not None:
        raise error
    if distributed and float(failures) > 0:
        raise RuntimeError("another process refused its part of the data: expected to go on together, see its message")


def check_same(what: str, number: float, distributed: bool, device: torch.device) -> None:
    """Refuse a number that is not the same in all processes."""
    if not distributed:
        return
    high, low = largest(number, distributed, device), -largest(-number, distributed, device)
    if high != low:
        raise ValueError(f"{what} differs between processes: expected the same in all, got {low:g} to {high:g}")


def rows_of_all(x: Tensor, distributed: bool) -> Tensor:
    """Return the rows of all processes, one below the other, with zeros where a process has fewer than another."""
    if not distributed:
        return x
    rows = int(largest(len(x), distributed, x.device))
    padded = torch.nn.functional.pad(x, (0, 0, 0, rows - len(x))).contiguous()
    parts = [torch.empty_like(padded) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, padded)
    return torch.cat(parts)
