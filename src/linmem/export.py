"""Layers as ONNX graphs whose batch and length stay free, and as graphs of one step for streams.

An ordinary trace of a loop over time keeps the length of the example. Here the loop is a scan, so one graph
serves sequences of every length. torch.export works on the layers in the same way, without this module:
with a dynamic length it writes the scan, with a static one its graph refuses other lengths.

Needs the extra ``linmem[export]``.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from os import PathLike, fspath
from typing import Any

import torch
from torch import Tensor, nn

from linmem.layers.recurrent import RecurrentLayer

EXAMPLE = {"T": 5, "B": 2}  # sizes of the example; neither 0 nor 1, which torch.export takes for constants


def to_onnx(
    model: nn.Module,
    path: str | PathLike[str],
    *,
    example: Tensor | None = None,
    batch_first: bool | None = None,
) -> None:
    """Write a layer, or a model that contains layers, as an ONNX graph for sequences of any length.

    A layer's graph has the input ``input`` and, for the state to start from, ``state`` and, if the layer has
    a clock, ``clock``; zeros are the start of a sequence. It returns ``output``, ``state_out`` and
    ``clock_out``. A model's graph has the input ``input`` and returns what the model returns, as ``output``,
    or ``output_0``, ``output_1``, … if it returns several tensors.

    Parameters
    ----------
    model
        A layer of linmem, or a module that maps one batch of sequences to one or several tensors. It is
        exported in evaluation mode.
    path
        Where to write the graph.
    example
        For a model, an example of its input: three dimensions, at least two sequences and two steps.
    batch_first
        For a model, whether the batch is the first dimension of its input.

    Examples
    --------
    >>> import linmem
    >>> layer = linmem.LMN(88, 100, batch_first=True)
    >>> linmem.export.to_onnx(layer, "lmn.onnx")  # doctest: +SKIP
    """
    if isinstance(model, RecurrentLayer):
        if example is not None or batch_first is not None:
            raise ValueError("example and batch_first are for models; a layer knows its own input")
        _export(*_whole(model), path)
        return
    if example is None or batch_first is None:
        raise ValueError(
            f"example and batch_first are needed to export a {type(model).__name__}: they say what its input "
            "looks like and which dimension is time"
        )
    if example.dim() != 3 or min(example.shape[:2]) < 2:
        raise ValueError(
            "example must have 3 dimensions with at least two sequences and two steps, got the shape "
            f"{tuple(example.shape)}"
        )
    axes = {0: "batch", 1: "length"} if batch_first else {0: "length", 1: "batch"}
    _export(model, {"input": (example, axes)}, _output_names(model, example), path)


def step_to_onnx(layer: RecurrentLayer, path: str | PathLike[str]) -> None:
    """Write one step of a layer as an ONNX graph, for streams.

    The graph takes ``input``, (B, input_size), with ``state`` and, if the layer has a clock, ``clock``, and
    returns ``output``, (B, output_size), with ``state_out`` and ``clock_out``, which go into the next step.
    Zeros start a stream, and in a layer with a learned initial state that state.

    Parameters
    ----------
    layer
        A layer of linmem, stacked or not, in one direction.
    path
        Where to write the graph.
    """
    if not isinstance(layer, RecurrentLayer):
        raise TypeError(f"layer should be a recurrent layer of linmem, got: {type(layer).__name__}")
    if layer.bidirectional:
        raise ValueError("a bidirectional layer reads the end of a sequence first, so it has no single step")
    _, inputs, outputs = _whole(layer)
    x, _ = inputs["input"]
    step = x[:, 0] if layer.batch_first else x[0]
    _export(_Step(layer), inputs | {"input": (step, {0: "batch"})}, outputs, path)


class _WithState(nn.Module):
    """A layer whose state comes and goes as separate tensors, as the inputs and outputs of a graph do."""

    def __init__(self, layer: RecurrentLayer) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, input: Tensor, state: Tensor, clock: Tensor | None = None) -> tuple[Tensor, ...]:
        y, final = self.layer(input, state if clock is None else (state, clock))
        return (y, final) if clock is None else (y, *final)


class _Step(_WithState):
    """The same for one step."""

    def forward(self, input: Tensor, state: Tensor, clock: Tensor | None = None) -> tuple[Tensor, ...]:
        time = 1 if self.layer.batch_first else 0
        y, *final = super().forward(input.unsqueeze(time), state, clock)
        return y.squeeze(time), *final


Inputs = Mapping[str, tuple[Tensor, dict[int, str]]]


def _whole(layer: RecurrentLayer) -> tuple[nn.Module, dict[str, tuple[Tensor, dict[int, str]]], list[str]]:
    """Return the module to export, example inputs with the names of their free dimensions, and outputs."""
    weight = next(layer.parameters())
    time, batch = EXAMPLE["T"], EXAMPLE["B"]
    shape = (batch, time) if layer.batch_first else (time, batch)
    axes = ("batch", "length") if layer.batch_first else ("length", "batch")
    rows = layer.num_layers * layer.num_directions
    inputs = {
        "input": (weight.new_zeros(*shape, layer.input_size), dict(enumerate(axes))),
        "state": (weight.new_zeros(rows, batch, layer.state_size), {1: "batch"}),
    }
    outputs = ["output", "state_out"]
    if layer.equations.clocked:
        clock = torch.zeros(batch, dtype=torch.int64, device=weight.device)
        inputs["clock"] = (clock, {0: "batch"})
        outputs.append("clock_out")
    return _WithState(layer), inputs, outputs


def _output_names(model: nn.Module, example: Tensor) -> list[str]:
    training = model.training
    with torch.no_grad():
        result: Any = model.eval()(example)
    model.train(training)
    results: Sequence[Any] = [result] if isinstance(result, Tensor) else result
    if not isinstance(results, list | tuple) or not all(isinstance(r, Tensor) for r in results):
        raise TypeError("a model to export must return a tensor or a flat tuple of tensors")
    return ["output"] if len(results) == 1 else [f"output_{i}" for i in range(len(results))]


def _export(module: nn.Module, inputs: Inputs, outputs: list[str], path: str | PathLike[str]) -> None:
    """Export with free dimensions; torch.export raises if the graph would fix one of them."""
    missing = [name for name in ("onnx", "onnxscript") if find_spec(name) is None]
    if missing:
        raise ImportError(f"exporting needs {' and '.join(missing)}: pip install 'linmem[export]'")
    training = module.training
    axes = {name: torch.export.Dim(name, min=1) for name in ("batch", "length")}
    shapes = {name: {i: axes[axis] for i, axis in free.items()} for name, (_, free) in inputs.items()}
    with torch.no_grad(), warnings.catch_warnings():
        for message in (".torch.jit", ".isinstance.treespec"):  # torch's exporter uses what torch deprecates
            warnings.filterwarnings("ignore", message=message)
        program = torch.export.export(
            module.eval(), tuple(x for x, _ in inputs.values()), dynamic_shapes=tuple(shapes.values())
        )
        torch.onnx.export(
            program,
            (),
            fspath(path),
            input_names=list(inputs),
            output_names=outputs,
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    module.train(training)
