"""Counting parameters as the paper's table does."""

from __future__ import annotations

from torch import nn

from linmem.layers.recurrent import RecurrentLayer


def count_parameters(
    layer: RecurrentLayer | nn.RNNBase, outputs: int = 0, *, input_weights: bool = True, biases: bool = True
) -> int:
    """Count the parameters of a recurrent layer and of a linear readout of its output.

    Works for linmem's layers and for torch's, on any device: on ``device="meta"`` nothing is allocated.

    Parameters
    ----------
    layer
        A layer of linmem, or nn.RNN, nn.LSTM or nn.GRU.
    outputs
        Outputs of the readout; 0 for no readout.
    input_weights
        Whether to count the weights of the first layer's input, which a task without input does not have.
    biases
        Whether to count the biases of layer and readout.

    Examples
    --------
    >>> from linmem import LMN
    >>> count_parameters(LMN(1, 2, memory_size=29), outputs=1, input_weights=False, biases=False)
    986
    """
    readers = ("weight_xh_l0", "weight_ih_l0")
    kept = [
        parameter.numel()
        for name, parameter in layer.named_parameters()
        if (biases or not name.startswith("bias")) and (input_weights or not name.startswith(readers))
    ]
    return sum(kept) + outputs * (_output_size(layer) + biases)


def _output_size(layer: RecurrentLayer | nn.RNNBase) -> int:
    if isinstance(layer, RecurrentLayer):
        return layer.output_size
    return layer.hidden_size * (2 if layer.bidirectional else 1)
