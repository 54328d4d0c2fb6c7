"""From trained parts to better-initialised parts."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

import linmem


@pytest.mark.parametrize("nonlinearity", ["tanh", "relu"])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_lmn_from_rnn(
    agree: Callable[..., None], nonlinearity: str, bidirectional: bool, bias: bool, batch_first: bool
) -> None:
    """Outputs, states and input gradients of an Elman network, whole and packed."""
    torch.manual_seed(0)
    rnn = nn.RNN(
        3,
        5,
        2,
        nonlinearity,
        bias=bias,
        batch_first=batch_first,
        bidirectional=bidirectional,
        dtype=torch.float64,
    )
    lmn = linmem.lmn_from_rnn(rnn)
    x = torch.randn(9, 9, 3, dtype=torch.float64, requires_grad=True)
    h0 = torch.randn(4 if bidirectional else 2, 9, 5, dtype=torch.float64)
    (y, h), (expected, expected_h) = lmn(x, h0), rnn(x, h0)
    what = "lmn_from_rnn against nn.RNN"
    agree(what, y, expected)
    agree(what, h, expected_h)
    gradients = [torch.autograd.grad(z.square().sum(), x)[0] for z in (y, expected)]
    agree("lmn_from_rnn against nn.RNN, gradients", *gradients)
    packed = pack_padded_sequence(x, torch.arange(1, 10), batch_first, enforce_sorted=False)
    (p, h), (expected_p, expected_h) = lmn(packed, h0), rnn(packed, h0)
    agree(what, p.data, expected_p.data)
    agree(what, h, expected_h)


def test_lmn_from_rnn_keeps_mode_and_owns_its_parameters() -> None:
    rnn = nn.RNN(3, 4, num_layers=2, dropout=0.5).eval()
    lmn = linmem.lmn_from_rnn(rnn)
    assert not lmn.training
    assert lmn.dropout == 0.5
    assert not {p.data_ptr() for p in rnn.parameters()} & {p.data_ptr() for p in lmn.parameters()}


@pytest.mark.usefixtures("unchecked")
def test_lmn_from_rnn_wants_an_rnn() -> None:
    with pytest.raises(TypeError, match=r"rnn should be of type torch.nn.RNN, got: GRU"):
        linmem.lmn_from_rnn(nn.GRU(3, 4))


def test_an_rnn_from_an_autoencoder_has_its_matrices_and_no_bias():
    sequences = [torch.randn(20, 3, dtype=torch.float64) for _ in range(4)]
    rnn = linmem.rnn_from_autoencoder(sequences, 7, scale=0.5, batch_first=True)
    laes = linmem.LinearAutoencoder(7).fit(sequences)
    torch.testing.assert_close(rnn.weight_ih_l0, torch.from_numpy(0.5 * laes.A_).float())
    torch.testing.assert_close(rnn.weight_hh_l0, torch.from_numpy(laes.B_).float())
    assert not rnn.bias_ih_l0.any()
    assert not rnn.bias_hh_l0.any()
    assert rnn.batch_first
    assert rnn.weight_ih_l0.requires_grad
    for scale in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="expected a positive number"):
            linmem.rnn_from_autoencoder(sequences, 7, scale=scale)
    with pytest.raises(ValueError, match="hidden_size must be"):
        linmem.rnn_from_autoencoder(sequences, 0)
