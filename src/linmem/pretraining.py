"""The paper's algorithms: from trained parts to better-initialised parts."""

from __future__ import annotations

import torch
from torch import nn

from linmem.layers import LMN


@torch.no_grad()
def lmn_from_rnn(rnn: nn.RNN) -> LMN:
    r"""Return the LMN that computes exactly what an Elman network computes.

    Section 3.1: with :math:`W^{hm} = I` and :math:`W^{mm} = 0` the memory is the last hidden state, so
    :math:`W^{mh}` takes the place of the recurrent weights. Output and state equal those of `rnn`.

    Parameters
    ----------
    rnn
        Any :class:`torch.nn.RNN`: stacked, bidirectional, tanh or relu, with biases or without.

    Returns
    -------
    LMN
        A new layer with its own parameters, in the training mode of `rnn`.

    Examples
    --------
    >>> rnn = nn.RNN(3, 5, num_layers=2, bidirectional=True)
    >>> lmn = lmn_from_rnn(rnn)
    >>> x = torch.randn(7, 2, 3)
    >>> torch.testing.assert_close(lmn(x), rnn(x))
    """
    if type(rnn) is not nn.RNN:
        raise TypeError(f"rnn should be of type torch.nn.RNN, got: {type(rnn).__name__}")
    weight = next(rnn.parameters())
    lmn = LMN(
        rnn.input_size,
        rnn.hidden_size,
        rnn.num_layers,
        rnn.bias,
        rnn.batch_first,
        rnn.dropout,
        rnn.bidirectional,
        nonlinearity=rnn.nonlinearity,
        device=weight.device,
        dtype=weight.dtype,
    )
    identity, zero = torch.eye(rnn.hidden_size), torch.zeros(rnn.hidden_size, rnn.hidden_size)
    for layer in range(rnn.num_layers):
        for reverse in range(2 if rnn.bidirectional else 1):
            suffix = f"_l{layer}_reverse" if reverse else f"_l{layer}"
            getattr(lmn, "weight_xh" + suffix).copy_(getattr(rnn, "weight_ih" + suffix))
            getattr(lmn, "weight_mh" + suffix).copy_(getattr(rnn, "weight_hh" + suffix))
            lmn.set_memory_(identity, zero, layer=layer, reverse=bool(reverse))
            if rnn.bias:
                bias = getattr(rnn, "bias_ih" + suffix) + getattr(rnn, "bias_hh" + suffix)
                getattr(lmn, "bias_h" + suffix).copy_(bias)
    return lmn.train(rnn.training)
