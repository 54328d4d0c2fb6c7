"""Algorithm 2 of the paper: a MultiScale LMN grows by one memory module at a time."""

from __future__ import annotations

from typing import Any, get_args

import torch
from torch import Tensor, nn

from linmem.layers import LMN, MultiScaleLMN
from linmem.layers.checks import check_size
from linmem.pretraining.activations import autoencoder, check_input, hidden_sequences
from linmem.pretraining.readouts import Fit, check_readout, check_targets, fit_readout, like


@torch.no_grad()
def add_memory_module(
    layer: LMN | MultiScaleLMN,
    readout: nn.Linear,
    sequences: Any,
    targets: Any = None,
    *,
    memory_size: int | None = None,
    period: int | None = None,
    readout_fit: Fit | None = "least_squares",
    solver: str = "auto",
    forgetting: float = 1.0,
    distributed: bool = False,
) -> tuple[MultiScaleLMN, nn.Linear]:
    """Return the layer with one more, slower memory module that already encodes, and a readout of all modules.

    Section 4.5: the hidden sequences of the layer, at the steps at which the new module will fire, are encoded by an
    autoencoder, whose matrices become what the module hears from the hidden state and from itself. All other new
    connections are zero, so the layer's output for the old modules stays what it was. Then the readout is fitted to
    the memory of all modules together. Train the result, and repeat.

    Parameters
    ----------
    layer
        An :class:`linmem.LMN` or a :class:`linmem.MultiScaleLMN` that returns its memory. In a stack every layer, and
        in both directions, gets a module.
    readout
        What reads its output.
    sequences
        The training sequences, in any container of :class:`linmem.LinearAutoencoder`, or an iterable of such
        containers.
    targets
        For each sequence an array (frames, outputs), in a list; or one vector of integers, the classes of the
        sequences, which are read from their last memory. With an iterable of batches, an iterable of the same.
    memory_size
        Units of the new module, by default as many as the slowest one has.
    period
        Of the new module, by default twice that of the slowest one.
    readout_fit
        How the readout is fitted: ``"least_squares"`` for numbers, ``"logistic"`` for probabilities of ones or of
        classes (both start from the old readout), a function of (memory, targets, readout) that returns one, or None
        to leave it: then the new columns are zero and nothing changes.
    solver, forgetting
        As in :class:`linmem.LinearAutoencoder`.
    distributed
        Whether other processes of a torch.distributed job hold more of the sequences, and call this, too; all get the
        same. Activations stay where they are.

    Returns
    -------
    layer, readout
        New ones, of the precision and on the device of the old.

    Examples
    --------
    >>> layer, readout = LMN(3, 5, memory_size=4), nn.Linear(4, 1)
    >>> sequences = [torch.randn(20, 3) for _ in range(9)]
    >>> targets = [x.cumsum(0)[:, :1] for x in sequences]
    >>> layer, readout = add_memory_module(layer, readout, sequences, targets)
    >>> layer
    MultiScaleLMN(3, 5, memory_size=8, num_modules=2)
    """
    if not isinstance(layer, LMN | MultiScaleLMN):
        raise TypeError(f"layer should be of type linmem.LMN or linmem.MultiScaleLMN, got: {type(layer).__name__}")
    if layer.output != "memory":
        raise ValueError(f"layer has output={layer.output!r}: expected 'memory', which the readout is fitted to")
    check_readout(readout, layer)
    if readout_fit is not None and not callable(readout_fit) and readout_fit not in get_args(get_args(Fit)[0]):
        raise ValueError(f"readout_fit={readout_fit!r}: expected 'least_squares', 'logistic', a function or None")
    if targets is None and readout_fit is not None:
        raise ValueError("targets is missing: expected what the readout shall predict, or readout_fit=None")
    sizes, periods = (
        (layer.layout.sizes, layer.layout.periods) if isinstance(layer, MultiScaleLMN) else ((layer.memory_size,), (1,))
    )
    memory_size = sizes[-1] if memory_size is None else memory_size
    period = 2 * periods[-1] if period is None else period
    check_size("memory_size", memory_size)
    check_size("period", period)
    if period <= periods[-1]:
        raise ValueError(f"period={period}: expected more than {periods[-1]}, the period of the slowest module")
    autoencoder(memory_size, solver, forgetting, distributed)
    longest = check_input(sequences, layer, distributed)
    if period >= longest:
        raise ValueError(f"period={period}: expected less than {longest}, the length of the longest sequence")

    if readout_fit is not None:
        check_targets(layer, readout, sequences, targets, readout_fit, distributed)

    larger = widened(layer, (*sizes, memory_size), (*periods, period))
    for index in range(layer.num_layers):
        for reverse, hidden in enumerate(hidden_sequences(layer, sequences, index)):
            # The clock starts at 0, so the module fires at the first step of a sequence and then every period.
            heard = [h[::period] for h in hidden]
            laes = autoencoder(memory_size, solver, forgetting, distributed).fit(heard)
            larger.set_memory_(laes.A_, laes.B_, module=len(sizes), layer=index, reverse=bool(reverse))
    wider = like(readout, beside_zeros(readout.weight, layer, memory_size), readout.bias)
    if readout_fit is not None:
        wider = fit_readout(larger, wider, sequences, targets, readout_fit, distributed)
    return larger.train(layer.training), wider


def widened(layer: LMN | MultiScaleLMN, sizes: tuple[int, ...], periods: tuple[int, ...]) -> MultiScaleLMN:
    """Return the layer with one more module that nobody hears and that hears nobody."""
    larger = MultiScaleLMN(
        **layer._common_arguments(),
        memory_size=sizes,
        periods=periods,
        connections=layer.layout.connections if isinstance(layer, MultiScaleLMN) else "slow_to_fast",
        nonlinearity=layer.nonlinearity,
    )
    for index in range(layer.num_layers):
        for reverse in range(layer.num_directions):
            old, new = layer._parameters_of(index, bool(reverse)), larger._parameters_of(index, bool(reverse))
            for parameter in new.values():
                parameter.zero_()
            new["weight_xh"].copy_(old["weight_xh"] if index == 0 else beside_zeros(old["weight_xh"], layer, sizes[-1]))
            n = sum(sizes[:-1])
            new["weight_mh"][:, :n] = old["weight_mh"]
            new["weight_hm"][:n] = old["weight_hm"]
            matrix = larger.memory_matrix(index, reverse=bool(reverse))
            w_mm = old["weight_mm"]
            matrix[:n, :n] = layer.layout.dense(w_mm) if isinstance(layer, MultiScaleLMN) else w_mm
            new["weight_mm"].copy_(larger.layout.pack(matrix))
            for name in ("bias_h", "bias_m", "initial_state"):
                if name in old:
                    new[name][: len(old[name])] = old[name]
    return larger


def beside_zeros(weight: Tensor, layer: LMN | MultiScaleLMN, units: int) -> Tensor:
    """Return what reads a layer's output with zeros for so many new units, behind those of each direction."""
    parts = torch.split(weight, layer.memory_size, dim=1)
    return torch.cat([torch.cat([part, part.new_zeros(len(part), units)], 1) for part in parts], 1)
