"""Codes of a whole data set, in memory and in a file."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import linmem
from linmem import LinearAutoencoder
from linmem import codes as module
from linmem.codes import Codes, compute_codes


def sequences(lengths=(30, 7, 52)):
    rng = np.random.default_rng(0)
    return [rng.standard_normal((n, 3)) for n in lengths]


def memories():
    data = sequences()
    return {
        "one": linmem.LinearMemory.fit(data, 8, forgetting=0.9),
        "side by side": linmem.LinearMemory.fit(data, 12, forgetting=[0.8, 0.95], periods=[1, 3], batch_first=True),
        "both ways": linmem.LinearMemory(3, 5, bidirectional=True, num_layers=2, dropout=0.5),
        "autoencoder": LinearAutoencoder(9, center=True).fit(data),
        "another layer": linmem.LMN(3, 4, memory_size=6),
    }


@pytest.mark.parametrize("name", memories())
@pytest.mark.parametrize("chunk", [10, 1000])
def test_codes_are_what_the_memory_gives_each_sequence_alone(name, chunk, monkeypatch):
    """Also those of sequences that are encoded in pieces."""
    monkeypatch.setattr(module, "CHUNK_FRAMES", chunk)
    memory = memories()[name]
    codes = compute_codes(memory, sequences())
    assert not codes.frames.requires_grad
    for sequence, code in zip(sequences(), codes, strict=True):
        if isinstance(memory, LinearAutoencoder):
            expected = torch.from_numpy(memory.transform(sequence))
        else:
            expected = memory.eval()(torch.from_numpy(sequence).float())[0]
        torch.testing.assert_close(code, expected.detach(), atol=1e-5, rtol=1e-5)


def test_a_layer_goes_on_training_after_its_codes_were_computed():
    layer = memories()["both ways"]
    compute_codes(layer, sequences())
    assert layer.training


def test_a_file_has_the_same_codes_and_is_used_again(tmp_path, monkeypatch):
    memory, path = memories()["side by side"], tmp_path / "codes.safetensors"
    wanted = compute_codes(memory, sequences())
    written = compute_codes(memory, sequences(), path)
    assert torch.equal(written.frames, wanted.frames)
    assert written.lengths == wanted.lengths
    assert [p.name for p in tmp_path.iterdir()] == [path.name]

    def nothing(*_):
        raise AssertionError("codes were computed though the file has them")

    monkeypatch.setattr(module, "_encoded", nothing)
    assert torch.equal(compute_codes(memory, sequences(), path).frames, wanted.frames)


@pytest.mark.parametrize("change", ["data", "order", "weights", "memory"])
def test_codes_of_something_else_are_not_used(change, tmp_path):
    path, memory, data = tmp_path / "codes.safetensors", memories()["one"], sequences()
    before = compute_codes(memory, data, path).frames.clone()
    if change == "data":
        data[1][3, 2] += 1
    elif change == "order":
        data = data[::-1]
    elif change == "weights":
        with torch.no_grad():
            memory.weight_mm_l0[0, 0] += 0.1
    else:
        memory = memories()["side by side"]
    after = compute_codes(memory, data, path)
    assert torch.equal(after.frames, compute_codes(memory, data).frames)
    assert after.frames.shape != before.shape or not torch.equal(after.frames, before)


def test_the_same_sequences_in_another_dtype_or_as_sparse_matrices_give_the_same_codes():
    import scipy.sparse

    rolls = [np.random.default_rng(k).random((20, 3)) < 0.3 for k in range(3)]
    memory = linmem.LinearMemory.fit(rolls, 8)
    wanted = compute_codes(memory, rolls).frames
    for other in ([scipy.sparse.csr_matrix(r) for r in rolls], [torch.from_numpy(r) for r in rolls], np.stack(rolls)):
        assert torch.equal(compute_codes(memory, other).frames, wanted)


@pytest.mark.parametrize("content", ["text", "tensors", "truncated"])
def test_a_file_of_something_else_is_not_written_over(content, tmp_path):
    path, memory = tmp_path / "precious", memories()["one"]
    if content == "text":
        path.write_text("my thesis")
    elif content == "tensors":
        save_file({"weights": torch.ones(3)}, path)
    else:
        compute_codes(memory, sequences(), path)
        path.write_bytes(path.read_bytes()[:-50])
    before = path.read_bytes()
    with pytest.raises(ValueError, match="is there and no file of codes"):
        compute_codes(memory, sequences(), path)
    assert path.read_bytes() == before


def test_a_failed_write_leaves_nothing(tmp_path, monkeypatch):
    def broken(*_):
        yield torch.zeros(30, 8)
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "_encoded", broken)
    with pytest.raises(KeyboardInterrupt):
        compute_codes(memories()["one"], sequences(), tmp_path / "codes.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_wrong_arguments_are_refused():
    memory = memories()["one"]
    with pytest.raises(TypeError, match="memory is a Linear: expected a layer of linmem"):
        compute_codes(torch.nn.Linear(3, 3), sequences())
    with pytest.raises(ValueError, match="sequences have 4 features: expected 3"):
        compute_codes(memory, [np.zeros((5, 4))])
    with pytest.raises(ValueError, match="contains NaN at frame 0"):
        compute_codes(memory, [np.full((5, 3), np.nan)])
    with pytest.raises(ValueError, match=r"frames are \(5, 2\): expected two dimensions"):
        Codes(torch.zeros(5, 2), [3, 3])
