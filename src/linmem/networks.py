"""Networks of memories that are computed and feed-forward parts that are trained, without gradients through time."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from linmem.autoencoder.sequences import as_sequences
from linmem.autoencoder.stack import dense
from linmem.codes import compute_codes
from linmem.files import Saved
from linmem.layers.checks import check_bool, check_dropout, check_size
from linmem.layers.linear import LinearMemory
from linmem.layers.lmn import LMN
from linmem.layers.parameters import any_parameter
from linmem.pretraining.activations import evaluating


class MemoryReader(nn.Module):
    r"""The functional part of a network whose memory is given: a feed-forward net of a memory and the newest input.

    .. math::

        h_1 = \mathrm{relu}(W^{mh} m + W^{xh} x + b), \quad h_2 = \mathrm{relu}(W h_1 + b), \quad \dots, \quad
        y = W^{hy} h + W^{xy} x + b

    Parameters
    ----------
    memory_size, input_size, hidden_size, output_size
        Widths of m, of x, of each h and of y.
    depth
        Hidden layers.
    dropout
        Of every h, in training.
    memory_dropout
        Of the memory, in training.
    memory_scale
        What the memory is multiplied by before it is read. A smaller memory is learned from more slowly, which is a
        regularisation: on small data sets a strong one.
    direct
        Whether there is W^xy, which leads from the input to the output past all hidden layers.

    Examples
    --------
    >>> reader = MemoryReader(200, 88, 300, 88, direct=True)
    >>> reader(torch.zeros(5, 200), torch.zeros(5, 88)).shape
    torch.Size([5, 88])
    """

    def __init__(
        self,
        memory_size: int,
        input_size: int,
        hidden_size: int,
        output_size: int,
        *,
        depth: int = 2,
        dropout: float = 0.0,
        memory_dropout: float = 0.0,
        memory_scale: float = 1.0,
        direct: bool = False,
    ) -> None:
        sizes = {"memory_size": memory_size, "input_size": input_size, "hidden_size": hidden_size}
        for name, size in (sizes | {"output_size": output_size, "depth": depth}).items():
            check_size(name, size)
        check_dropout(dropout)
        check_dropout(memory_dropout)
        check_bool("direct", direct)
        if not isinstance(memory_scale, (int, float)) or not memory_scale > 0:
            raise ValueError(f"memory_scale={memory_scale!r}: expected a number above zero")
        super().__init__()
        self.from_memory = nn.Linear(memory_size, hidden_size)
        self.from_input = nn.Linear(input_size, hidden_size, bias=False)
        self.deeper = nn.ModuleList(nn.Linear(hidden_size, hidden_size) for _ in range(depth - 1))
        self.readout = nn.Linear(hidden_size, output_size)
        self.direct = nn.Linear(input_size, output_size, bias=False) if direct else None
        self.dropout = nn.Dropout(dropout)
        self.memory_dropout = nn.Dropout(memory_dropout)
        self.memory_scale = float(memory_scale)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the weights of the first layer as those of one layer of memory and input together."""
        bound = (self.from_memory.in_features + self.from_input.in_features) ** -0.5
        for p in (*self.from_memory.parameters(), *self.from_input.parameters()):
            nn.init.uniform_(p, -bound, bound)
        for layer in (*self.deeper, self.readout):
            layer.reset_parameters()
        if self.direct is not None:
            self.direct.weight.zero_()

    def _arguments(self) -> dict[str, Any]:
        return {
            "memory_size": self.from_memory.in_features,
            "input_size": self.from_input.in_features,
            "hidden_size": self.readout.in_features,
            "output_size": self.readout.out_features,
            "depth": 1 + len(self.deeper),
            "dropout": self.dropout.p,
            "memory_dropout": self.memory_dropout.p,
            "memory_scale": self.memory_scale,
            "direct": self.direct is not None,
        }

    def hidden(self, m: Tensor, x: Tensor) -> Tensor:
        """Return the last hidden layer of memories and inputs."""
        h: Tensor = self.dropout(
            torch.relu(self.from_memory(self.memory_scale * self.memory_dropout(m)) + self.from_input(x))
        )
        for layer in self.deeper:
            h = self.dropout(torch.relu(layer(h)))
        return h

    def read(self, h: Tensor, x: Tensor) -> Tensor:
        """Return the output of a hidden layer and the input."""
        y: Tensor = self.readout(h)
        return y if self.direct is None else y + self.direct(x)

    def forward(self, m: Tensor, x: Tensor) -> Tensor:
        """Return the output."""
        return self.read(self.hidden(m, x), x)


class MemoryNetwork(nn.Module):
    r"""Memories that are computed, each with a feed-forward reader that is trained: no gradient goes through time.

    The first memory is of the input, every other one of the hidden layer of the reader below, which is also its
    reader's input. The output is that of the last reader.

    It runs as a layer does: whole sequences, chunks or steps, with the memories as its state.

    Parameters
    ----------
    memories
        Time first.
    readers
        One for each memory.

    Examples
    --------
    A memory that forgets, and a reader of it:

    >>> from linmem import LinearMemory
    >>> rolls = [torch.rand(60, 8) < 0.3 for _ in range(5)]
    >>> memory = LinearMemory.fit(rolls, 20, forgetting=0.9)
    >>> network = MemoryNetwork([memory], [MemoryReader(20, 8, 30, 8)])
    >>> y, state = network(torch.zeros(60, 1, 8))
    >>> y.shape
    torch.Size([60, 1, 8])

    To train it, compute what the reader reads once, and fit it to frames in any order:

    >>> m, x = network.inputs(rolls)
    >>> m.shape, x.shape
    (torch.Size([300, 20]), torch.Size([300, 8]))
    >>> some = torch.randperm(300)[:32]
    >>> loss = torch.nn.functional.mse_loss(network.readers[-1](m[some], x[some]), x[some])
    >>> loss.backward()

    When that is done, another memory may be put on top, of what the reader makes of the frames:

    >>> deeper = network.grown(rolls, MemoryReader(25, 30, 30, 8), forgetting=0.9)
    >>> len(deeper.memories)
    2
    """

    def __init__(self, memories: Iterable[LinearMemory], readers: Iterable[MemoryReader]) -> None:
        super().__init__()
        memories, readers = list(memories), list(readers)
        _check_parts(memories, readers)
        self.memories: Any = nn.ModuleList(memories)
        self.readers: Any = nn.ModuleList(readers)

    def forward(self, x: Tensor, state: Any = None, lengths: Tensor | None = None) -> tuple[Tensor, tuple[Any, ...]]:
        """Return the output, (T, B, outputs), and the states of all memories.

        Parameters
        ----------
        x
            (T, B, input).
        state
            What an earlier call returned, to go on.
        lengths
            (B,), of padded sequences.
        """
        m, u, states = self._run(x, state, lengths)
        y: Tensor = self.readers[-1](m, u)
        return y, states

    def _run(self, x: Tensor, state: Any, lengths: Tensor | None) -> tuple[Tensor, Tensor, tuple[Any, ...]]:
        """Return memory and input of the last reader, and the states."""
        before = [None] * len(self.memories) if state is None else state
        m, first = self.memories[0](x, before[0], lengths=lengths)
        after = [first]
        for reader, memory, old in zip(self.readers[:-1], self.memories[1:], before[1:], strict=True):
            x = reader.hidden(m, x)
            m, new = memory(x, old, lengths=lengths)
            after.append(new)
        return m, x, tuple(after)

    @torch.no_grad()
    def inputs(self, sequences: Any) -> tuple[Tensor, Tensor]:
        """Return what the last reader reads at every frame: memories, (frames, units), and inputs, (frames, width).

        Without dropout and without gradients, one sequence behind the other.

        Parameters
        ----------
        sequences
            In any container of :class:`linmem.LinearAutoencoder`.
        """
        weight = any_parameter(self)
        arrays = as_sequences(sequences, "sequences").arrays
        codes = compute_codes(self.memories[0], arrays)
        x = torch.cat([dense(array, weight.dtype, weight.device) for array in arrays])
        with evaluating(self):
            for reader, memory in zip(self.readers[:-1], self.memories[1:], strict=True):
                x = reader.hidden(codes.frames, x)
                codes = compute_codes(memory, list(torch.split(x, codes.lengths)))
        return codes.frames, x

    def grown(self, sequences: Any, reader: MemoryReader, **options: Any) -> MemoryNetwork:
        """Return a network with one more memory, fitted to the hidden layer of the last reader, and a reader of it.

        Parameters
        ----------
        sequences
            What to fit the memory to, usually the training sequences.
        reader
            Reads the new memory, and the hidden layer that the memory is of.
        **options
            Further arguments of :meth:`LinearMemory.fit`, such as `forgetting`.
        """
        below = self.readers[-1].readout.in_features
        if reader.from_input.in_features != below:
            raise ValueError(
                f"reader reads an input of {reader.from_input.in_features}: expected {below}, the hidden layer below"
            )
        arrays = as_sequences(sequences, "sequences").arrays
        with evaluating(self):
            hidden = self.readers[-1].hidden(*self.inputs(arrays))
        parts = list(torch.split(hidden, [array.shape[0] for array in arrays]))
        like = any_parameter(self)
        memory = LinearMemory.fit(
            parts, reader.from_memory.in_features, device=like.device, dtype=like.dtype, **options
        )
        return MemoryNetwork([*self.memories, memory], [*self.readers, reader])

    def _to_saved(self) -> Saved:
        parts = {"memories": self.memories, "readers": self.readers}
        arguments = {name: [part._arguments() for part in group] for name, group in parts.items()}
        return Saved(dict(self.state_dict()), arguments, {})

    @classmethod
    def _from_saved(cls, saved: Saved) -> MemoryNetwork:
        memories, readers = (saved.arguments.get(name) for name in ("memories", "readers"))
        for found in (memories, readers):
            if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
                raise ValueError(f"the parts are {reprlib.repr(found)}, expected a list of arguments")
        sizes = [item.get("num_layers") for item in memories] + [item.get("depth") for item in readers]  # type: ignore[union-attr]
        if not all(isinstance(size, int) and size <= len(saved.tensors) for size in sizes):
            raise ValueError(f"the parts have {reprlib.repr(sizes)} layers with {len(saved.tensors)} tensors")
        if len({tensor.dtype for tensor in saved.tensors.values()}) != 1:
            raise ValueError("tensors of several types, expected one")
        with torch.device("meta"):  # takes no memory, whatever sizes the file claims
            network = cls([LinearMemory(**item) for item in memories], [MemoryReader(**item) for item in readers])  # type: ignore[union-attr]
        if network._to_saved().arguments != saved.arguments:
            raise ValueError(f"arguments {reprlib.repr(saved.arguments)} do not make a {cls.__name__}")
        network.load_state_dict(saved.tensors, assign=True)
        for memory in network.memories:
            memory.requires_grad_(memory.trainable)
        return network


def _check_parts(memories: list[LinearMemory], readers: list[MemoryReader]) -> None:
    if not memories or len(memories) != len(readers):
        raise ValueError(f"memories are {len(memories)} and readers {len(readers)}: expected one for each, and some")
    width = memories[0].input_size
    for k, (memory, reader) in enumerate(zip(memories, readers, strict=True)):
        if not isinstance(memory, LinearMemory) or memory.batch_first or memory.bidirectional:
            raise ValueError(f"memories[{k}] is {memory}: expected a LinearMemory, time first, in one direction")
        if not isinstance(reader, MemoryReader):
            raise TypeError(f"readers[{k}] should be of type linmem.MemoryReader, got: {type(reader).__name__}")
        reads = (reader.from_memory.in_features, reader.from_input.in_features)
        if (memory.input_size, reads) != (width, (memory.output_size, width)):
            raise ValueError(
                f"memories[{k}] is of {memory.input_size} features and readers[{k}] reads a memory of {reads[0]} and "
                f"an input of {reads[1]}: expected {width}, {memory.output_size} and {width}"
            )
        width = reader.readout.in_features


def lmn_from_network(network: MemoryNetwork, *, nonnegative: bool = False) -> tuple[LMN, nn.Module]:
    r"""Return an LMN that computes the same as a network of one memory, and its readout.

    The hidden state of the LMN has the first hidden layer of the reader,
    :math:`h = \mathrm{relu}(W^{mh}(A x + B m^{t-1}) + W^{xh} x + b)`, and beside it the input itself, as relu(x) and
    relu(-x), from which W^hm = [0, A, -A] feeds the memory. W^mm is B. The layers behind are the readout. All of it can
    then be trained as in any LMN.

    Parameters
    ----------
    network
        With one memory, whose period is 1.
    nonnegative
        Whether inputs are never below zero, as those of piano rolls: then relu(x) is all of x, and relu(-x) is left
        out.

    Examples
    --------
    >>> rolls = [torch.rand(60, 8) < 0.3 for _ in range(5)]
    >>> memory = LinearMemory.fit(rolls, 20, forgetting=0.9)
    >>> network = MemoryNetwork([memory], [MemoryReader(20, 8, 30, 8)]).eval()
    >>> lmn, readout = lmn_from_network(network, nonnegative=True)
    >>> x = rolls[0].float()[:, None]
    >>> torch.testing.assert_close(readout(lmn(x)[0]), network(x)[0], atol=1e-5, rtol=1e-5)
    """
    if not isinstance(network, MemoryNetwork):
        raise TypeError(f"network should be of type linmem.MemoryNetwork, got: {type(network).__name__}")
    memory: Any = network.memories[0]
    reader: Any = network.readers[0]
    if len(network.memories) > 1 or memory.num_layers > 1 or memory.layout.periods != (1,):
        raise ValueError(
            f"network has {len(network.memories)} memories, the first of {memory.num_layers} layers and periods "
            f"{memory.layout.periods}: expected one of one layer and of period 1"
        )
    p = memory._parameters_of(0)
    A, B, c = p["weight_xm"], p["weight_mm"], p.get("bias_m")
    units, N_x, N_m = reader.from_memory.out_features, memory.input_size, memory.memory_size
    signs = (1,) if nonnegative else (1, -1)
    same = torch.eye(N_x, dtype=A.dtype, device=A.device)
    lmn = LMN(
        N_x, units + len(signs) * N_x, memory_size=N_m, output="hidden", nonlinearity="relu", device=A.device,
        dtype=A.dtype,
    )  # fmt: skip
    with torch.no_grad():
        w_m = reader.memory_scale * reader.from_memory.weight
        b = reader.from_memory.bias if c is None else reader.from_memory.bias + w_m @ c
        q = lmn._parameters_of(0)
        q["weight_xh"].copy_(torch.cat([w_m @ A + reader.from_input.weight, *(sign * same for sign in signs)]))
        q["weight_mh"].zero_()[:units] = w_m @ B
        q["bias_h"].zero_()[:units] = b
        q["weight_hm"].copy_(torch.cat([A.new_zeros(N_m, units), *(sign * A for sign in signs)], 1))
        q["weight_mm"].copy_(B)
        q["bias_m"].zero_() if c is None else q["bias_m"].copy_(c)
    return lmn, _readout(reader, signs, N_x)


def _readout(reader: Any, signs: Sequence[int], N_x: int) -> nn.Module:
    """Return what reads the hidden state of the LMN: the reader from its first hidden layer on.

    Where the reader has a direct path, the input goes along through every layer, as relu(x) and relu(-x).
    """
    along = 0 if reader.direct is None else len(signs) * N_x
    width = len(signs) * N_x
    layers: list[nn.Module] = [reader.dropout]
    for layer in reader.deeper:
        units = layer.in_features
        wide = nn.Linear(units + width, units + along).to(layer.weight)
        with torch.no_grad():
            wide.weight.zero_()[:units, :units] = layer.weight
            wide.bias.zero_()[:units] = layer.bias
            if along:
                wide.weight[units:, units:] = torch.eye(along)
        layers += [wide, nn.ReLU(), reader.dropout]
        width = along
    units = reader.readout.in_features
    last = nn.Linear(units + width, reader.readout.out_features).to(reader.readout.weight)
    with torch.no_grad():
        last.weight.zero_()[:, :units] = reader.readout.weight
        last.bias.copy_(reader.readout.bias)
        if reader.direct is not None:
            last.weight[:, units:] = torch.cat([sign * reader.direct.weight for sign in signs], 1)
    return nn.Sequential(*layers, last)
