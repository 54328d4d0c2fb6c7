"""Argument checks with the error types and the wording of torch.nn's recurrent layers."""

from __future__ import annotations

import torch
from torch import Tensor

from linmem.kernels import NONLINEARITIES


def check_size(name: str, value: object) -> None:
    """Check that `value` is a positive int."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} should be of type int, got: {type(value).__name__}")
    if value <= 0:
        raise ValueError(f"{name} must be greater than zero")


def check_bool(name: str, value: object) -> None:
    """Check that `value` is a bool."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} should be of type bool, got: {type(value).__name__}")


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Check that `value` is one of `choices`."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")


def check_nonlinearity(value: object) -> None:
    """Check that `value` names a nonlinearity that the kernels know."""
    check_choice("nonlinearity", value, tuple(NONLINEARITIES))


def check_dropout(value: object) -> None:
    """Check that `value` is a probability."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 1:
        raise ValueError(
            "dropout should be a number in range [0, 1] representing the probability of an element being "
            f"zeroed, got {value!r}"
        )


def check_same_kind(x: Tensor, weight: Tensor) -> None:
    """Check that the input has the weights' dtype and lives on their device."""
    if x.dtype != weight.dtype:
        raise ValueError(
            f"RNN input dtype ({x.dtype}) does not match weight dtype ({weight.dtype}). "
            f"Convert input: input.to({weight.dtype}), or convert model: model.to({x.dtype})"
        )
    if x.device != weight.device:
        raise RuntimeError(
            "Input and parameter tensors are not at the same device, found input tensor at "
            f"{x.device} and parameter tensor at {weight.device}"
        )


def check_state(state: Tensor, x: Tensor) -> None:
    """Check that the state has the input's dtype and lives on its device."""
    if state.dtype != x.dtype:
        raise RuntimeError(
            f"Input and hidden tensors are not the same dtype, found input tensor with {x.dtype} and "
            f"hidden tensor with {state.dtype}"
        )
    if state.device != x.device:
        raise RuntimeError(
            "Input and hidden tensors are not at the same device, found input tensor at "
            f"{x.device} and hidden tensor at {state.device}"
        )


def check_clock(clock: object, expected: tuple[int, ...], x: Tensor) -> None:
    """Check a clock, which counts steps: int64, one per sequence, where the input lives."""
    if not isinstance(clock, Tensor):
        raise TypeError(f"Expected the clock of hx to be a Tensor, got {type(clock).__name__}")
    if clock.dtype != torch.int64:
        raise ValueError(f"Expected the clock of hx to be of dtype torch.int64, got {clock.dtype}")
    if clock.shape != expected:
        raise RuntimeError(f"Expected clock size {expected}, got {list(clock.shape)}")
    if clock.device != x.device:
        raise RuntimeError(
            "Input and clock tensors are not at the same device, found input tensor at "
            f"{x.device} and clock tensor at {clock.device}"
        )
