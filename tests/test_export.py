"""ONNX graphs computed by onnxruntime at lengths and batches that were not there when they were exported."""

from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

ort = pytest.importorskip("onnxruntime")

LAYERS: dict[str, tuple[str, tuple[int, ...], dict[str, Any]]] = {
    "LMN": ("LMN", (3, 4), {"memory_size": 5, "num_layers": 2, "bidirectional": True}),
    "LinearMemory": ("LinearMemory", (3, 5), {"num_layers": 2, "batch_first": True}),
    "LMN, learned start": ("LMN", (3, 4), {"learn_initial_state": True, "batch_first": True}),
    "MultiScaleLMN": ("MultiScaleLMN", (3, 4), {"num_modules": 3, "memory_size": 6, "batch_first": True}),
    "ClockworkRNN": ("ClockworkRNN", (3, 6), {"num_modules": 3, "num_layers": 2}),
    "UnrolledRNN": ("UnrolledRNN", (3, 4), {"order": 3}),
}
each_layer = pytest.mark.parametrize("name", LAYERS)


def build(linmem: ModuleType, name: str, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    kind, sizes, defaults = LAYERS[name]
    return getattr(linmem, kind)(*sizes, **(defaults | options))


def run(path: Path, feeds: dict[str, Tensor]) -> list[np.ndarray]:
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, {k: v.numpy() for k, v in feeds.items()})


def assert_equal(actual: list[np.ndarray], expected: Any) -> None:
    for a, b in zip(actual, tree_leaves(expected), strict=True):
        np.testing.assert_allclose(a, b.detach().numpy(), rtol=0, atol=2e-6)


@each_layer
def test_whole_sequences_of_any_length(plain_linmem: ModuleType, tmp_path: Path, name: str) -> None:
    layer = build(plain_linmem, name)
    plain_linmem.export.to_onnx(layer, tmp_path / "layer.onnx")
    rows = layer.num_layers * layer.num_directions
    for length, batch in [(5, 2), (23, 3), (1, 1), (64, 7)]:
        x = torch.randn((batch, length, 3) if layer.batch_first else (length, batch, 3))
        state, clock = torch.randn(rows, batch, layer.state_size), torch.arange(batch)
        feeds = {"input": x, "state": state}
        hx: Any = state
        if layer.equations.clocked:
            feeds, hx = feeds | {"clock": clock}, (state, clock)
        assert_equal(run(tmp_path / "layer.onnx", feeds), layer(x, hx))


@each_layer
def test_steps_of_a_stream(plain_linmem: ModuleType, tmp_path: Path, name: str) -> None:
    layer = build(plain_linmem, name, bidirectional=False)
    plain_linmem.export.step_to_onnx(layer, tmp_path / "step.onnx")
    session = ort.InferenceSession(tmp_path / "step.onnx", providers=["CPUExecutionProvider"])
    x = torch.randn(11, 3, 3)
    feeds = {"state": np.zeros((layer.num_layers, 3, layer.state_size), np.float32)}
    if layer.equations.clocked:
        feeds["clock"] = np.zeros(3, np.int64)
    outputs = []
    for x_t in x:
        y, *states = session.run(None, feeds | {"input": x_t.numpy()})
        feeds = dict(zip(feeds, states, strict=True))
        outputs.append(y)
    expected, final = layer(x.transpose(0, 1) if layer.batch_first else x)
    expected = expected.transpose(0, 1) if layer.batch_first else expected
    assert_equal([np.stack(outputs), *feeds.values()], (expected, final))


def test_model_with_a_layer_inside(plain_linmem: ModuleType, tmp_path: Path) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = plain_linmem.MultiScaleLMN(3, 4, num_modules=2, dropout=0.5, num_layers=2)
            self.readout = nn.Linear(self.layer.output_size, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.readout(self.layer(x)[0])

    model = Model()
    plain_linmem.export.to_onnx(model, tmp_path / "m.onnx", example=torch.zeros(4, 2, 3), batch_first=False)
    assert model.training
    x = torch.randn(30, 5, 3)
    assert_equal(run(tmp_path / "m.onnx", {"input": x}), model.eval()(x))


def test_model_that_fixes_the_length_is_refused(plain_linmem: ModuleType, tmp_path: Path) -> None:
    """A loop over time of the model's own would be exported for one length only."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = plain_linmem.LMNCell(3, 4)

        def forward(self, x: Tensor) -> Tensor:
            m = x.new_zeros(x.shape[1], 4)
            for x_t in x:
                m = self.cell(x_t, m)
            return m

    with pytest.raises(Exception, match=r"[Cc]onstraint|specializ"):
        plain_linmem.export.to_onnx(Model(), tmp_path / "m.onnx", example=torch.zeros(4, 2, 3), batch_first=False)


# While it is traced, torch's scan asks for gradients that are not there and imports what torch deprecates.
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize("name", ["LMN, learned start", "MultiScaleLMN"])
def test_torch_export(plain_linmem: ModuleType, name: str) -> None:
    """With a free length the graph is a scan; with a fixed one it refuses any other."""
    layer = build(plain_linmem, name, batch_first=False).eval()
    example = (torch.randn(5, 2, 3),)
    sizes = {0: torch.export.Dim("length"), 1: torch.export.Dim("batch")}
    free = torch.export.export(layer, example, dynamic_shapes=(sizes,)).module()
    x = torch.randn(17, 4, 3)
    assert_equal([t.detach().numpy() for t in tree_leaves(free(x))], layer(x))
    fixed = torch.export.export(layer, example).module()
    with pytest.raises(AssertionError, match="Guard failed"):
        fixed(torch.randn(17, 2, 3))


def test_missing_extra_is_named(plain_linmem: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_linmem.export, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"exporting needs onnx and onnxscript: pip install 'linmem\[export\]'"):
        plain_linmem.export.to_onnx(plain_linmem.LMN(3, 4), tmp_path / "x.onnx")


def test_wrong_arguments(plain_linmem: ModuleType, tmp_path: Path) -> None:
    export, path = plain_linmem.export, tmp_path / "x.onnx"
    layer = plain_linmem.LMN(3, 4)
    whole = partial(export.to_onnx, path=path)
    with pytest.raises(ValueError, match="a layer knows its own input"):
        whole(layer, example=torch.zeros(4, 2, 3))
    with pytest.raises(ValueError, match="example and batch_first are needed to export a Linear"):
        whole(nn.Linear(3, 3))
    with pytest.raises(ValueError, match=r"at least two sequences and two steps, got the shape \(4, 1, 3\)"):
        whole(nn.Linear(3, 3), example=torch.zeros(4, 1, 3), batch_first=False)
    with pytest.raises(TypeError, match="must return a tensor or a flat tuple of tensors"):
        whole(nn.LSTM(3, 4), example=torch.zeros(4, 2, 3), batch_first=False)
    with pytest.raises(TypeError, match="layer should be a recurrent layer of linmem, got: Linear"):
        export.step_to_onnx(nn.Linear(3, 3), path)
    with pytest.raises(ValueError, match="a bidirectional layer reads the end of a sequence first"):
        export.step_to_onnx(plain_linmem.LMN(3, 4, bidirectional=True), path)
    assert not path.exists()
