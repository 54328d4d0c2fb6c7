"""Networks of fixed memories and trained readers."""

import numpy as np
import pytest
import torch

import linmem
from linmem import LinearMemory, MemoryNetwork, MemoryReader, lmn_from_network


def sequences(lengths=(30, 7, 52), features=4):
    rng = np.random.default_rng(0)
    return [rng.standard_normal((n, features)) for n in lengths]


def network(layers=1, **options):
    torch.manual_seed(0)
    memory = LinearMemory.fit(sequences(), 12, forgetting=0.9, dtype=torch.float64)
    net = MemoryNetwork([memory], [MemoryReader(12, 4, 10, 3, **options).double()])
    for _ in range(layers - 1):
        net = net.grown(sequences(), MemoryReader(9, 10, 10, 3, **options).double(), forgetting=0.8, periods=[1, 2])
    return net


def run(net, x, state=None):
    with torch.no_grad():
        y, state = net(torch.from_numpy(x)[:, None], state)
    return y[:, 0], state


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_chunks_and_steps_give_what_the_whole_sequence_gives(layers):
    net, x = network(layers), sequences()[2]
    whole, _ = run(net, x)
    for size in (1, 7):
        state, parts = None, []
        for start in range(0, len(x), size):
            y, state = run(net, x[start : start + size], state)
            parts.append(y)
        torch.testing.assert_close(torch.cat(parts), whole, atol=1e-12, rtol=0)


@pytest.mark.parametrize("layers", [1, 2])
def test_ragged_batches_give_what_each_sequence_gives_alone(layers):
    net, data = network(layers), sequences()
    lengths = torch.tensor([len(x) for x in data])
    padded = torch.nn.utils.rnn.pad_sequence([torch.from_numpy(x) for x in data])
    y, _ = net(padded, lengths=lengths)
    for k, x in enumerate(data):
        torch.testing.assert_close(y[: len(x), k], run(net, x)[0], atol=1e-12, rtol=0)


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_a_reader_of_computed_inputs_gives_what_the_network_gives(layers):
    net = network(layers, dropout=0.5)
    m, x = net.inputs(sequences())
    assert net.training, "computing inputs changed the mode of the network"
    net.eval()
    alone = torch.cat([run(net, s)[0] for s in sequences()])
    torch.testing.assert_close(net.readers[-1](m, x), alone, atol=1e-12, rtol=0)


def test_a_memory_on_top_leaves_the_parts_below_as_they_are():
    one = network()
    two = one.grown(sequences(), MemoryReader(9, 10, 10, 3).double(), forgetting=0.8)
    assert two.memories[0] is one.memories[0]
    assert two.readers[0] is one.readers[0]
    hidden = one.readers[0].hidden(*one.inputs(sequences()))
    expected = LinearMemory.fit(list(torch.split(hidden.detach(), [30, 7, 52])), 9, forgetting=0.8, dtype=torch.float64)
    torch.testing.assert_close(two.memories[1].weight_xm_l0, expected.weight_xm_l0)


def test_only_readers_are_trained_unless_a_memory_is_trainable():
    net = network(2)
    assert {name.split(".")[0] for name, p in net.named_parameters() if p.requires_grad} == {"readers"}
    net.requires_grad_()
    x = torch.from_numpy(sequences()[0])[:, None]
    net(x)[0].square().sum().backward()
    assert all(p.grad is not None for memory in net.memories for p in memory.parameters())


def test_without_a_direct_path_and_hidden_units_the_input_does_not_reach_the_output():
    reader = MemoryReader(3, 2, 5, 4, direct=True)
    assert torch.equal(reader.direct.weight, torch.zeros(4, 2)), "the direct path should start at nothing"
    m, x = torch.randn(6, 3), torch.randn(6, 2)
    before = reader(m, x)
    with torch.no_grad():
        reader.direct.weight.fill_(1.0)
    torch.testing.assert_close(reader(m, x), before + x.sum(1, keepdim=True))


# ------------------------------------------------------------------------------------------------ as an LMN


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("nonnegative", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_the_lmn_computes_what_the_network_computes(depth, direct, nonnegative, bias):
    net = network(depth=depth, direct=direct, memory_scale=0.3)
    if bias:
        memory = LinearMemory(4, 12, init="orthogonal", dtype=torch.float64)
        torch.nn.init.uniform_(memory.bias_m_l0, -1, 1)
        net = MemoryNetwork([memory], net.readers)
    if direct:
        torch.nn.init.uniform_(net.readers[0].direct.weight)
    net.eval()
    lmn, readout = lmn_from_network(net, nonnegative=nonnegative)
    x = torch.from_numpy(sequences()[0])[:, None]
    x = x.abs() if nonnegative else x
    y, state = net(x[:11])
    hidden, m = lmn(x[:11])
    torch.testing.assert_close(readout(hidden), y, atol=1e-12, rtol=0)
    torch.testing.assert_close(m, state[0], atol=1e-12, rtol=0)
    torch.testing.assert_close(readout(lmn(x[11:], m)[0]), net(x[11:], state)[0], atol=1e-12, rtol=0)


def test_the_lmn_has_weights_of_its_own():
    net = network()
    lmn, readout = lmn_from_network(net)
    before = {name: p.clone() for name, p in net.named_parameters()}
    with torch.no_grad():
        for p in (*lmn.parameters(), *readout.parameters()):
            p.add_(1)
    assert all(torch.equal(p, before[name]) for name, p in net.named_parameters())


def test_networks_that_are_no_lmn_are_refused():
    with pytest.raises(ValueError, match=r"network has 2 memories.*expected one"):
        lmn_from_network(network(2))
    memory = LinearMemory.fit(sequences(), 12, periods=[1, 2], dtype=torch.float64)
    with pytest.raises(ValueError, match=r"periods \(1, 2\): expected"):
        lmn_from_network(MemoryNetwork([memory], network().readers))
    with pytest.raises(TypeError, match=r"network should be of type linmem\.MemoryNetwork, got: Linear"):
        lmn_from_network(torch.nn.Linear(3, 3))


# ------------------------------------------------------------------------------------------ files, bad input


@pytest.mark.parametrize("layers", [1, 2])
def test_a_saved_network_comes_back(layers, tmp_path):
    net = network(layers, depth=2, direct=True, dropout=0.3, memory_dropout=0.1, memory_scale=0.5)
    linmem.save(tmp_path / "net.safetensors", net)
    back = linmem.load(tmp_path / "net.safetensors")
    assert str(back) == str(net)
    assert [p.requires_grad for p in back.parameters()] == [p.requires_grad for p in net.parameters()]
    x = sequences()[0]
    assert torch.equal(run(back.eval(), x)[0], run(net.eval(), x)[0])


@pytest.mark.parametrize(
    "change",
    [
        {"memories": []},
        {"memories": 5},
        {"memories": [{"input_size": 10**9}]},
        {"readers": [{"depth": 10**9}]},
        {"readers": [{"depth": 1, "surprise": 1}]},
    ],
    ids=str,
)
def test_files_that_lie_are_refused(change, tmp_path, monkeypatch):
    net = network()
    saved = net._to_saved()
    monkeypatch.setattr(net, "_to_saved", lambda: linmem.files.Saved(saved.tensors, saved.arguments | change, {}))
    linmem.save(tmp_path / "net.safetensors", net)
    with pytest.raises(ValueError, match="contradicts itself"):
        linmem.load(tmp_path / "net.safetensors")


def test_parts_that_do_not_fit_are_refused():
    net = network()
    memory, reader = net.memories[0], net.readers[0]
    with pytest.raises(ValueError, match="memories are 1 and readers 0"):
        MemoryNetwork([memory], [])
    with pytest.raises(ValueError, match=r"readers\[0\] reads a memory of 11 .*expected 4, 12 and 4"):
        MemoryNetwork([memory], [MemoryReader(11, 4, 10, 3)])
    with pytest.raises(ValueError, match=r"memories\[0\] is .*expected a LinearMemory, time first"):
        MemoryNetwork([LinearMemory(4, 12, batch_first=True)], [reader])
    with pytest.raises(TypeError, match=r"readers\[0\] should be of type linmem.MemoryReader, got: Linear"):
        MemoryNetwork([memory], [torch.nn.Linear(4, 4)])
    with pytest.raises(ValueError, match="reader reads an input of 4: expected 10, the hidden layer below"):
        net.grown(sequences(), MemoryReader(9, 4, 10, 3))
    with pytest.raises(ValueError, match="depth must be greater than zero"):
        MemoryReader(3, 3, 3, 3, depth=0)
    with pytest.raises(ValueError, match="memory_scale=0: expected a number above zero"):
        MemoryReader(3, 3, 3, 3, memory_scale=0)
