"""A memory that encodes from the start, without the detour over an unrolled RNN."""

from __future__ import annotations

import copy
from typing import Any, Literal

import torch
from torch import Tensor

from linmem.layers import LMN
from linmem.layers.checks import check_choice
from linmem.pretraining.activations import autoencoder, check_input, hidden_and_inputs
from linmem.pretraining.readouts import least_squares

Source = Literal["features", "inputs"]


@torch.no_grad()
def encode_memory(
    lmn: LMN,
    sequences: Any,
    *,
    source: Source = "features",
    solver: str = "auto",
    forgetting: float = 1.0,
    distributed: bool = False,
) -> LMN:
    """Return the LMN with a memory that is the autoencoder of what an untrained functional part makes of the data.

    The functional part stops listening to the memory (W^mh = 0), so that what it computes depends on the frame alone;
    training may connect them again.

    Parameters
    ----------
    lmn
        Usually untrained. In a stack, layers are done from the first on, each with the memories below as its input.
    sequences
        The training sequences, in any container of :class:`linmem.LinearAutoencoder`, or an iterable of such
        containers.
    source
        ``"features"`` encodes the hidden sequences: random features of the frames, if nothing was trained.
        ``"inputs"`` encodes the frames themselves, as far as the hidden states tell them: W^hm = A D, with D the
        matrix that gives frames from hidden states by least squares.
    solver, forgetting
        As in :class:`linmem.LinearAutoencoder`.
    distributed
        Whether other processes of a torch.distributed job hold more of the sequences, and call this, too; all get the
        same. Activations stay where they are.

    Examples
    --------
    >>> sequences = [torch.randn(30, 3) for _ in range(5)]
    >>> lmn = encode_memory(LMN(3, 8, memory_size=16), sequences)
    >>> lmn.weight_mh_l0.abs().max().item()
    0.0
    """
    if not isinstance(lmn, LMN):
        raise TypeError(f"lmn should be of type linmem.LMN, got: {type(lmn).__name__}")
    check_choice("source", source, ("features", "inputs"))
    autoencoder(lmn.memory_size, solver, forgetting, distributed)
    check_input(sequences, lmn, distributed)
    new = copy.deepcopy(lmn)
    for layer in range(new.num_layers):
        for reverse in range(new.num_directions):
            new._parameters_of(layer, bool(reverse))["weight_mh"].zero_()
        read = hidden_and_inputs(new, sequences, layer, inputs=source == "inputs")
        for reverse, (hidden, inputs) in enumerate(read):
            laes = autoencoder(new.memory_size, solver, forgetting, distributed).fit(inputs or hidden)
            A = torch.from_numpy(laes.A_)
            if inputs:
                A = A @ frame_from_hidden(hidden, inputs, distributed).cpu()
            new.set_memory_(A, laes.B_, layer=layer, reverse=bool(reverse))
    return new


def frame_from_hidden(hidden: list[Tensor], frames: list[Tensor], distributed: bool) -> Tensor:
    """Return the matrix D with x ≈ D h by least squares, without a constant: the memory has none."""
    h, x = torch.cat(hidden), torch.cat(frames)
    start = torch.nn.Linear(h.shape[1], x.shape[1], bias=False, dtype=torch.float64, device=h.device)
    return least_squares(h, x, start, distributed).weight.detach()
