"""Sizes and periods of modules, from what a user gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from linmem.kernels import Connections, Modules
from linmem.layers.checks import check_choice, check_size


def make_modules(
    name: str,
    size: int | Sequence[int],
    num_modules: int | None,
    periods: Sequence[int] | None,
    connections: Connections,
) -> Modules:
    """Divide `size` units into modules; the periods are powers of two unless they are given.

    Parameters
    ----------
    name
        What the size is called where the user gave it.
    size
        Units of all modules together, divided evenly, or of each module.
    num_modules
        How many; it follows from `periods` or from `size` where these list modules, else it is 1.
    periods
        Increasing.
    connections
        Which modules feed which.
    """
    check_choice("connections", connections, get_args(Connections))
    if num_modules is not None:
        check_size("num_modules", num_modules)
    if periods is not None:
        if not periods:
            raise ValueError("periods must list at least one module")
        for period in periods:
            check_size("periods", period)
        if list(periods) != sorted(set(periods)):
            raise ValueError(f"periods must be increasing, got {tuple(periods)}")
    counts = {
        "num_modules": num_modules,
        "periods": None if periods is None else len(periods),
        name: None if isinstance(size, int | float | str) else len(size),
    }
    given = {key: count for key, count in counts.items() if count is not None}
    if len(set(given.values())) > 1:
        text = ", ".join(f"{key} says {count}" for key, count in given.items())
        raise ValueError(f"the number of modules is not clear: {text}")
    count = next(iter(given.values()), 1)
    return Modules(
        sizes=_divide(name, size, count),
        periods=tuple(2**k for k in range(count)) if periods is None else tuple(periods),
        connections=connections,
    )


def _divide(name: str, size: int | Sequence[int], count: int) -> tuple[int, ...]:
    if isinstance(size, int | float | str):
        check_size(name, size)
        if size % count:
            raise ValueError(f"{name} must be divisible by the {count} modules, got {size}")
        return (size // count,) * count
    for part in size:
        check_size(name, part)
    if not size:
        raise ValueError(f"{name} must list at least one module")
    return tuple(size)


def modules_repr(modules: Modules) -> str:
    """Show the modules where they differ from a single one."""
    count = len(modules.sizes)
    if count == 1 and modules.periods == (1,):
        return ""
    text = f", num_modules={count}"
    if len(set(modules.sizes)) > 1:
        text += f", sizes={modules.sizes}"
    if modules.periods != tuple(2**k for k in range(count)):
        text += f", periods={modules.periods}"
    if modules.connections != "slow_to_fast":
        text += f", connections={modules.connections!r}"
    return text
