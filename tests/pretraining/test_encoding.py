"""A memory that encodes from the start."""

import pytest
import torch

import linmem
from linmem import LinearAutoencoder
from linmem.pretraining.activations import hidden_sequences


def ragged(features=3, lengths=(9, 4, 7)):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(length, features, dtype=torch.float64, generator=generator) for length in lengths]


def memories(layer, sequences):
    return [layer(x[:, None])[0][:, 0] for x in sequences]


@pytest.mark.parametrize("memory_size", [4, 20])
def test_the_memory_is_the_code_of_the_features(memory_size):
    torch.manual_seed(0)
    sequences = ragged()
    layer = linmem.encode_memory(
        linmem.LMN(3, 5, memory_size=memory_size, dtype=torch.float64), sequences, solver="exact"
    )
    (features,) = hidden_sequences(layer, sequences, 0)
    laes = LinearAutoencoder(memory_size, solver="exact").fit(features)
    for memory, code in zip(memories(layer, sequences), laes.transform(features), strict=True):
        torch.testing.assert_close(memory, code, rtol=0, atol=1e-9)


def test_the_memory_is_the_code_of_the_inputs_where_the_features_tell_them():
    """As many linear features as inputs tell them exactly."""
    torch.manual_seed(0)
    sequences = ragged()
    layer = linmem.LMN(3, 5, memory_size=12, nonlinearity="identity", bias=False, dtype=torch.float64)
    layer = linmem.encode_memory(layer, sequences, source="inputs", solver="exact")
    laes = LinearAutoencoder(12, solver="exact").fit(sequences)
    for memory, code in zip(memories(layer, sequences), laes.transform(sequences), strict=True):
        torch.testing.assert_close(memory, code, rtol=0, atol=1e-9)


@pytest.mark.parametrize("source", ["features", "inputs"])
def test_stacks_and_both_directions_are_encoded(source):
    torch.manual_seed(0)
    sequences = ragged(lengths=(30, 20))
    layer = linmem.LMN(3, 5, 2, bidirectional=True, memory_size=6, dtype=torch.float64)
    new = linmem.encode_memory(layer, sequences, source=source)
    for name, value in new.state_dict().items():
        if name.startswith("weight_mh"):
            assert not value.any()
        elif name.startswith(("weight_hm", "weight_mm")):
            assert not torch.equal(value, layer.state_dict()[name])
    if source == "features":
        for index in (0, 1):
            for reverse, hidden in enumerate(hidden_sequences(new, sequences, index)):
                laes = LinearAutoencoder(6, dtype="float64").fit(hidden)
                carry = new._parameters_of(index, bool(reverse))["weight_mm"]
                torch.testing.assert_close(carry, torch.from_numpy(laes.B_), rtol=0, atol=1e-9)


def test_the_given_layer_stays_as_it_is():
    layer = linmem.LMN(3, 5, memory_size=4)
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    linmem.encode_memory(layer, ragged())
    assert all(torch.equal(value, layer.state_dict()[name]) for name, value in before.items())


def test_wrong_calls_are_refused():
    with pytest.raises(TypeError, match=r"lmn should be of type linmem.LMN, got: MultiScaleLMN"):
        linmem.encode_memory(linmem.MultiScaleLMN(3, 4), ragged())
    with pytest.raises(ValueError, match="source"):
        linmem.encode_memory(linmem.LMN(3, 4), ragged(), source="outputs")
    with pytest.raises(ValueError, match="sequences have 3 features: expected 2"):
        linmem.encode_memory(linmem.LMN(2, 4), ragged())
