"""Elman networks: one as an LMN, and one that starts as an autoencoder."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from linmem.autoencoder.sequences import as_sequences
from linmem.layers import LMN
from linmem.layers.checks import check_size
from linmem.pretraining.activations import autoencoder, parts_of


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


@torch.no_grad()
def rnn_from_autoencoder(
    sequences: Any,
    hidden_size: int,
    *,
    scale: float = 1.0,
    solver: str = "auto",
    forgetting: float = 1.0,
    distributed: bool = False,
    batch_first: bool = False,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> nn.RNN:
    """Return an Elman network that starts as an autoencoder of its inputs, but for its nonlinearity.

    The pretraining of Pasa and Sperduti, the paper's row "pret-RNN": the input weights are A, the recurrent ones B,
    and tanh(z) is taken for z. That is an approximation, the worse the larger the codes are.

    Parameters
    ----------
    sequences
        The training sequences, in any container of :class:`linmem.LinearAutoencoder`, or an iterable of such
        containers.
    hidden_size
        Units of the memory, and so of the network.
    scale
        Multiplies A, and with it the codes: a small one keeps them where tanh is straight. 1 is as published.
    solver, forgetting, distributed
        As in :class:`linmem.LinearAutoencoder`.
    batch_first, device, dtype
        As in :class:`torch.nn.RNN`.

    Examples
    --------
    >>> sequences = [torch.randn(30, 3) for _ in range(5)]
    >>> rnn = rnn_from_autoencoder(sequences, 8, scale=1e-4, dtype=torch.float64)
    >>> import linmem
    >>> codes = linmem.LinearAutoencoder(8).fit(sequences).transform(sequences)
    >>> hidden, _ = rnn(sequences[0].double())
    >>> torch.testing.assert_close(hidden / 1e-4, codes[0].double(), atol=1e-5, rtol=1e-5)
    """
    check_size("hidden_size", hidden_size)
    if not 0 < scale < float("inf"):
        raise ValueError(f"scale={scale}: expected a positive number")
    laes = autoencoder(hidden_size, solver, forgetting, distributed)
    laes.fit([array for part in parts_of(sequences) for array in as_sequences(part, "sequences").arrays])
    rnn = nn.RNN(laes.n_features_in_, hidden_size, batch_first=batch_first, device=device, dtype=dtype)
    start = {"weight_ih_l0": scale * laes.A_, "weight_hh_l0": laes.B_}
    zero = torch.zeros(hidden_size)
    rnn.load_state_dict(
        {name: torch.from_numpy(w) for name, w in start.items()} | {"bias_ih_l0": zero, "bias_hh_l0": zero}
    )
    return rnn
