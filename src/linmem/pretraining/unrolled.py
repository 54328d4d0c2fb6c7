"""Algorithm 1 of the paper: from a trained unrolled RNN to an LMN that computes about the same."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from linmem.layers import LMN, UnrolledRNN
from linmem.layers.checks import check_choice, check_size
from linmem.layers.parameters import any_parameter
from linmem.pretraining.activations import autoencoder, check_input, hidden_sequences
from linmem.pretraining.decoders import Decoder, decode
from linmem.pretraining.readouts import check_readout, like


@torch.no_grad()
def lmn_from_unrolled(
    unrolled: UnrolledRNN,
    readout: nn.Linear,
    sequences: Any,
    memory_size: int,
    *,
    decoder: Decoder = "fitted",
    solver: str = "auto",
    forgetting: float = 1.0,
    distributed: bool = False,
) -> tuple[LMN, nn.Linear]:
    r"""Return the LMN, and its readout, that remembers in an autoencoder what an unrolled RNN has on its tape.

    Section 4.4: the hidden sequences of the unrolled RNN are encoded, and what it reads from its tape is read from
    the code. With U_k the decoder of the newest k hidden states,

    .. math::

        W^{hm} = A, \quad W^{mm} = B, \quad W^{mh} = [W^{hh}_1 \dots W^{hh}_k]\, U_k, \quad
        W^{my} = [W^{hy}_0 \dots W^{hy}_k]\, U_{k+1}.

    The LMN computes the same wherever the memory holds the whole past; the closer, the larger it is.

    Parameters
    ----------
    unrolled
        Trained; stacked and bidirectional ones are converted layer by layer and direction by direction.
    readout
        What reads its output. It gets the readout of the LMN.
    sequences
        The training sequences, in any container of :class:`linmem.LinearAutoencoder`, or an iterable of such
        containers.
    memory_size
        Units of the memory, of each layer and direction.
    decoder
        ``"fitted"`` are the matrices that decode the hidden states best, by least squares; ``"powers"`` are the
        paper's A^T (B^T)^j, which are as good where the memory holds everything and less so elsewhere.
    solver, forgetting
        As in :class:`linmem.LinearAutoencoder`.
    distributed
        Whether other processes of a torch.distributed job hold more of the sequences, and call this, too; all get the
        same. Activations stay where they are.

    Returns
    -------
    lmn, readout
        New ones, of the precision and on the device of the old.

    Examples
    --------
    >>> unrolled = UnrolledRNN(3, 5, order=4)
    >>> readout = nn.Linear(unrolled.output_size, 2)
    >>> sequences = [torch.randn(6, 3), torch.randn(4, 3)]
    >>> lmn, new_readout = lmn_from_unrolled(unrolled, readout, sequences, memory_size=10)
    >>> x = sequences[0][:, None]
    >>> torch.testing.assert_close(new_readout(lmn(x)[0]), readout(unrolled(x)[0]), atol=1e-4, rtol=0)
    """
    if not isinstance(unrolled, UnrolledRNN):
        raise TypeError(f"unrolled should be of type linmem.UnrolledRNN, got: {type(unrolled).__name__}")
    check_size("memory_size", memory_size)
    check_choice("decoder", decoder, ("fitted", "powers"))
    check_readout(readout, unrolled)
    autoencoder(memory_size, solver, forgetting, distributed)
    check_input(sequences, unrolled, distributed)
    weight, tape = any_parameter(unrolled), unrolled.output == "tape"
    lmn = LMN(
        **unrolled._common_arguments(),
        memory_size=memory_size,
        output="memory" if tape else "hidden",
        nonlinearity=unrolled.nonlinearity,
    )
    below: Tensor | None = None  # from the memories of the layer below to its tapes
    for layer in range(unrolled.num_layers):
        tapes = []
        for reverse, hidden in enumerate(hidden_sequences(unrolled, sequences, layer)):
            laes = autoencoder(memory_size, solver, forgetting, distributed).fit(hidden)
            blocks = decode(laes, hidden, unrolled.order + 1, decoder, distributed).to(weight)  # (k + 1, N_h, N_m)
            old, new = unrolled._parameters_of(layer, bool(reverse)), lmn._parameters_of(layer, bool(reverse))
            new["weight_xh"].copy_(old["weight_xh"] if below is None else old["weight_xh"] @ below)
            new["weight_mh"].copy_(old["weight_hh"] @ blocks[:-1].flatten(0, 1))
            lmn.set_memory_(laes.A_, laes.B_, layer=layer, reverse=bool(reverse))
            if unrolled.bias:
                new["bias_h"].copy_(old["bias_h"])
            if unrolled.learn_initial_state:
                newest_first = old["initial_state"].view(unrolled.order, -1)
                new["initial_state"].copy_(laes.encode(newest_first.flip(0)))
            tapes.append(blocks.flatten(0, 1))
        below = torch.block_diag(*tapes) if tape else None  # type: ignore[no-untyped-call]
    weights = readout.weight if below is None else readout.weight @ below
    return lmn.train(unrolled.training), like(readout, weights, readout.bias)
