"""Files come back as they were, or are refused with one sentence; none of them is ever executed."""

import json
import os
import pickle
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

import linmem


@pytest.fixture
def laes():
    x = np.random.default_rng(0).standard_normal((40, 3))
    return linmem.LinearAutoencoder(5, forgetting=0.9, center=True, dtype=torch.float64).fit(x)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "memory.safetensors"


def test_an_autoencoder_comes_back_bit_for_bit(laes, path):
    linmem.save(path, laes)
    other = linmem.load(path)
    x = np.random.default_rng(1).standard_normal((9, 3))
    np.testing.assert_array_equal(other.transform(x), laes.transform(x))
    np.testing.assert_array_equal(other.decode(other.encode(x), 4), laes.decode(laes.encode(x), 4))
    assert other.energy_ == laes.energy_
    assert other.solver_ == laes.solver_
    assert other.get_params() | {"dtype": None} == laes.get_params() | {"dtype": None}
    assert other.dtype == "float64"


LAYERS = {
    "LMN": lambda: linmem.LMN(3, 4, 2, memory_size=5, bidirectional=True, init="legendre", window=7, output="hidden"),
    "LinearMemory": lambda: linmem.LinearMemory(3, [4, 2], 2, init="legendre", window=7, trainable=False),
    "MultiScaleLMN": lambda: linmem.MultiScaleLMN(
        3, 4, memory_size=[2, 3], periods=[1, 3], connections="full", bias=False, dtype=torch.float64
    ),
    "ClockworkRNN": lambda: linmem.ClockworkRNN(3, 6, num_modules=3, batch_first=True, nonlinearity="relu"),
    "UnrolledRNN": lambda: linmem.UnrolledRNN(3, 4, order=3, learn_initial_state=True, dtype=torch.bfloat16),
}


@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS.keys())
def test_a_layer_comes_back_as_it_was(make, path):
    layer = make()
    linmem.save(path, layer)
    other = linmem.load(path)
    assert repr(other) == repr(layer)
    x = torch.randn(2, 6, 3, dtype=next(layer.parameters()).dtype)
    torch.testing.assert_close(other(x), layer(x), rtol=0, atol=0)
    assert all(p.requires_grad is getattr(layer, "trainable", True) and not p.is_meta for p in other.parameters())
    assert other.state_dict().keys() == layer.state_dict().keys()


HOSTILE_LAYERS = [
    {"hidden_size": 10**12},
    {"num_layers": 10**9},
    {"memory_size": 10**6, "init": "orthogonal"},
    {"window": -1},
    {"num_modules": 10**9},
    {"dropout": "high"},
    {"output": "secret"},
    {"hidden_size": None},
    {"code": "import os"},
]


@pytest.mark.parametrize("arguments", HOSTILE_LAYERS, ids=str)
def test_a_layer_that_contradicts_its_tensors_is_refused_before_it_takes_memory(arguments, path):
    layer = linmem.LMN(3, 4, memory_size=5)
    linmem.save(path, layer)
    rewritten(path, {"arguments": layer._arguments() | arguments})
    with pytest.raises(ValueError, match="contradicts itself") as caught:
        linmem.load(path)
    assert "\n" not in str(caught.value)


def test_tensors_of_another_kind_are_refused_for_a_layer(path):
    linmem.save(path, linmem.LMN(3, 4))
    rewritten(path, tensors={"weight_xh_l0": torch.zeros(4, 3, dtype=torch.int32)})
    with pytest.raises(ValueError, match=r"expected one floating type"):
        linmem.load(path)


def test_names_of_features_come_back(path):
    laes = linmem.LinearAutoencoder(2).fit(np.random.default_rng(0).standard_normal((9, 2)))
    laes.feature_names_in_ = np.array(["left", "right"], dtype=object)
    linmem.save(path, laes)
    assert list(linmem.load(path).feature_names_in_) == ["left", "right"]


def test_what_cannot_be_saved_is_refused_before_anything_is_written(laes, path):
    with pytest.raises(TypeError, match="obj is a dict: expected one of"):
        linmem.save(path, {})
    laes.random_state = np.random.RandomState(0)
    with pytest.raises(TypeError, match="a RandomState among the arguments: expected what a file can hold"):
        linmem.save(path, laes)
    with pytest.raises(Exception, match="not fitted"):
        linmem.save(path, linmem.LinearAutoencoder(2))
    assert list(path.parent.iterdir()) == []


def rewritten(path, header=None, tensors=None):
    """The same file with some of its header and its tensors replaced."""
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        old = json.loads(file.metadata()["linmem"])
        kept = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    kept = {key: value for key, value in (kept | (tensors or {})).items() if value is not None}
    save_file(kept, path, {"linmem": json.dumps(old | (header or {}))})


HOSTILE_HEADERS = {
    "newer": (
        {"format": 2, "linmem": "9.1"},
        r"has format 2 \(linmem '9.1'\) and this is .*: expected an older file",
    ),
    "unknown class": ({"class": "os.system"}, r"holds a 'os.system': expected one of .*'LinearAutoencoder'"),
    "no class": ({"class": None}, "damaged header: 'class' is None, expected str"),
    "list for arguments": ({"arguments": [1]}, r"damaged header: 'arguments' is \[1\], expected dict"),
    "unknown argument": (
        {"arguments": {"code": "import os"}},
        r"contradicts itself: unknown arguments \['code'\]",
    ),
    "wrong kind": (
        {"arguments": {"n_components": "5"}},
        "contradicts itself: n_components='5': expected an integer",
    ),
    "no facts": ({"facts": {}}, "contradicts itself: energy_ is None, expected a number from 0 to 1"),
    "huge number": ({"facts": {"energy_": 10**400}}, "contradicts itself: energy_ is 1000.*, expected a number"),
    "NaN": ({"facts": {"energy_": float("nan")}}, "energy_ is nan, expected a number from 0 to 1"),
    "unknown solver": ({"facts": {"energy_": 1, "forgetting_": 1, "solver_": [1]}}, r"solver_ is \[1\]"),
    "format": ({"format": True}, "damaged header: 'format' is True, expected int"),
    "long": ({"class": "x" * 10**6}, "holds a 'xxx"),
    "names": (
        {"facts": {"energy_": 1, "forgetting_": 1, "solver_": "exact", "feature_names_in_": ["a"]}},
        "feature_names_in_ is not a list of 3 names",
    ),
}


@pytest.mark.parametrize(("header", "message"), HOSTILE_HEADERS.values(), ids=HOSTILE_HEADERS.keys())
def test_hostile_headers_are_refused(laes, path, header, message):
    laes.center, laes.mean_ = False, None
    linmem.save(path, laes)
    arguments = {"n_components": 5} | header.get("arguments", {}) if isinstance(header.get("arguments"), dict) else None
    rewritten(path, header | ({"arguments": arguments} if arguments else {}))
    with pytest.raises(ValueError, match=message) as caught:
        linmem.load(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


HOSTILE_TENSORS = {
    "missing": ({"B_": None}, r"B_ is missing, expected shape \(5, 5\)"),
    "surplus": ({"C_": torch.zeros(2)}, "C_ is a tensor .*, expected shape None"),
    "shape": ({"B_": torch.zeros(5, 4, dtype=torch.float64)}, r"B_ is a tensor of shape \(5, 4\)"),
    "kind": ({"B_": torch.zeros(5, 5, dtype=torch.int64)}, "B_ is .* expected finite float64"),
    "value": ({"B_": torch.full((5, 5), float("nan"), dtype=torch.float64)}, "expected finite float64"),
    "no rows": ({"A_": torch.tensor(1.0, dtype=torch.float64)}, "A_ is a tensor of shape"),
}


@pytest.mark.parametrize(("tensors", "message"), HOSTILE_TENSORS.values(), ids=HOSTILE_TENSORS.keys())
def test_hostile_tensors_are_refused(laes, path, tensors, message):
    linmem.save(path, laes)
    rewritten(path, tensors=tensors)
    with pytest.raises(ValueError, match=message):
        linmem.load(path)


def test_foreign_files_are_refused(path, tmp_path):
    save_file({"weight": torch.zeros(3)}, path)
    with pytest.raises(ValueError, match=r"was not written by linmem\.save"):
        linmem.load(path)
    save_file({"weight": torch.zeros(3)}, path, {"linmem": "{"})
    with pytest.raises(ValueError, match="damaged header: expected JSON"):
        linmem.load(path)
    save_file({"weight": torch.zeros(3)}, path, {"linmem": "[" * 100_000})
    with pytest.raises(ValueError, match="damaged header"):
        linmem.load(path)
    path.write_text("")
    with pytest.raises(ValueError, match="is not a safetensors file or is truncated"):
        linmem.load(path)
    with pytest.raises(FileNotFoundError):
        linmem.load(tmp_path / "nothing")


def test_a_pickle_is_not_executed(path):
    class Attack:
        def __reduce__(self):
            return (os.system, (f"touch {path}.executed",))

    for data in (pickle.dumps(Attack()), pickle.dumps({"linmem": Attack()})):
        path.write_bytes(data)
        with pytest.raises(ValueError, match="is not a safetensors file or is truncated"):
            linmem.load(path)
    torch.save({"linmem": Attack()}, path)
    with pytest.raises(ValueError, match="is not a safetensors file or is truncated"):
        linmem.load(path)
    assert not os.path.exists(f"{path}.executed")


def test_every_truncation_is_noticed(laes, path):
    linmem.save(path, laes)
    whole = path.read_bytes()
    for length in range(0, len(whole), 37):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="truncated"):
            linmem.load(path)


@given(data=st.data())
def test_a_damaged_file_gives_a_clear_error_or_finite_numbers(data, tmp_path_factory):
    laes = linmem.LinearAutoencoder(2).fit(np.random.default_rng(0).standard_normal((9, 2)))
    path = tmp_path_factory.mktemp("damaged") / "memory.safetensors"
    linmem.save(path, laes)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    try:
        other = linmem.load(path)
    except ValueError as error:
        sentence = str(error)
    else:
        assert np.isfinite(other.B_).all()
        return
    assert str(path) in sentence


def test_a_failed_write_leaves_the_old_file_and_nothing_else(laes, path, monkeypatch):
    linmem.save(path, laes)
    before = path.read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    laes.energy_ = 0.5
    with pytest.raises(OSError, match="No space left"):
        linmem.save(path, laes)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_killed_writer_leaves_a_whole_file(path):
    script = f"""
import itertools, numpy as np, linmem
laes = linmem.LinearAutoencoder(200, solver="doubling").fit(np.random.default_rng(0).standard_normal((900, 3)))
for i in itertools.count():
    laes.energy_ = i / (i + 1)
    linmem.save({str(path)!r}, laes)
"""
    rng = np.random.default_rng(0)
    seen = []
    with subprocess.Popen([sys.executable, "-c", script]) as writer:
        try:
            while not path.exists():
                assert writer.poll() is None, "the writer died by itself"
                time.sleep(0.02)
            for _ in range(20):  # a reader beside a busy writer
                time.sleep(rng.uniform(0, 0.02))
                seen.append(linmem.load(path).energy_)
        finally:
            writer.kill()
    seen.append(linmem.load(path).energy_)
    assert seen == sorted(seen)
    assert seen[-1] > seen[0], "the writer did not write while it was watched"


def test_a_file_gets_the_permissions_of_any_new_file(laes, path):
    linmem.save(path, laes)
    (path.parent / "other").write_text("")
    assert path.stat().st_mode == (path.parent / "other").stat().st_mode
