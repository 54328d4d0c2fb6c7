"""Linear memory: what the autoencoder computes, as a layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Self

import numpy as np
import torch
from scipy.linalg import block_diag
from torch import Tensor

from linmem import kernels
from linmem.autoencoder import LinearAutoencoder
from linmem.autoencoder.sequences import as_sequences
from linmem.autoencoder.side_by_side import side_by_side
from linmem.kernels import Connections, Modules, Output, Prepared
from linmem.layers.cell import RecurrentCell
from linmem.layers.checks import check_bool, check_size
from linmem.layers.clocks import make_modules, modules_repr
from linmem.layers.equations import Equations
from linmem.layers.initial import contract_, uniform_
from linmem.layers.lmn import check_memory_options, designed_memory, install_
from linmem.layers.parameters import Parameters
from linmem.layers.recurrent import RecurrentLayer


@dataclass(frozen=True)
class _LinearEquations(Equations):
    """The linear memory for one layer and direction."""

    modules: Modules
    init: str = "uniform"
    window: int | None = None

    @property
    def clocked(self) -> bool:  # type: ignore[override]
        """A single module that fires at every step needs no clock."""
        return self.modules.periods != (1,)

    @property
    def state_size(self) -> int:
        return self.modules.width

    def width(self, output: str) -> int:
        return {"memory": self.modules.width}[output]

    def shapes(self, input_size: int) -> dict[str, tuple[int, ...]]:
        n = self.modules.width
        return {
            "weight_xm": (n, input_size),
            "weight_mm": (self.modules.packed_size,) if self.clocked else (n, n),
            "bias_m": (n,),
        }

    def initialize(self, p: Parameters) -> None:
        if "bias_m" in p:
            p["bias_m"].zero_()  # the autoencoder has none, and a constant would pile up in the memory
        packed = p["weight_mm"].view(-1)
        if self.init == "uniform":
            uniform_(p["weight_xm"])
            for slab in self.modules.slabs(packed):
                uniform_(slab)
            contract_(self.transition(p), (packed,))
            return
        packed.zero_()
        encoders = torch.split_with_sizes(p["weight_xm"], self.modules.sizes)
        for encoder, block in zip(encoders, self.modules.diagonal(packed), strict=True):
            memory_size, input_size = encoder.shape
            channels = min(input_size, memory_size)
            features = torch.eye(input_size)
            encode, carry = designed_memory(self.init, features, input_size, memory_size, self.window, channels)
            encoder.copy_(encode)
            block.copy_(carry)

    def transition(self, p: Parameters) -> Tensor:
        return self.modules.dense(p["weight_mm"].view(-1))

    def run(
        self, p: Parameters, x: Tensor, state: Tensor, clock: Tensor | None, lengths: Tensor | None, output: Output
    ) -> tuple[Tensor, Tensor]:
        weights = p["weight_xm"], p["weight_mm"], p.get("bias_m")
        if clock is None:
            return kernels.linear_memory(x, state, *weights, lengths=lengths)
        return kernels.clockwork_rnn(
            x, state, clock, *weights, modules=self.modules, nonlinearity="identity", lengths=lengths
        )

    def prepare(self, p: Parameters, output: Output) -> Prepared | None:
        weights = (None, None, p["weight_xm"], p["weight_mm"], None, p.get("bias_m"))
        return kernels.prepare_clocked(*weights, modules=self.modules, nonlinearity="identity")


class LinearMemory(RecurrentLayer):
    r"""A memory without a functional part: :math:`m^t = W^{xm} x^t + W^{mm} m^{t-1} + b^m`.

    It is the encoder of :class:`linmem.LinearAutoencoder` under the contract of :class:`torch.nn.GRU`, so that a fixed
    memory, computed in closed form, can stand before any feed-forward network, which is then all there is to train.

    Parameters
    ----------
    input_size
        As in :class:`torch.nn.GRU`.
    memory_size
        Units of the memory: of all modules together, divided evenly, or of each module, fastest first.
    num_layers, bias, batch_first, dropout, bidirectional
        As in :class:`torch.nn.GRU`.
    num_modules, periods, connections
        Several memories side by side with clocks of their own, as in :class:`linmem.MultiScaleLMN`. Then the state is
        the tuple (memory, clock).
    init
        ``"uniform"`` draws every weight from ±1/√fan_in; ``"orthogonal"`` never forgets; ``"legendre"`` is the fixed
        memory of the Legendre Memory Unit, one for each input feature, or for as many projections as there are units;
        ``"autoencoder"`` is the autoencoder of white noise, a set of delay lines. For that of data, see
        :meth:`from_autoencoder`.
    window
        The steps, of its own clock, that a Legendre or autoencoder memory is designed for.
    trainable
        Whether gradients may change it. A frozen memory costs no more in training than in use.
    learn_initial_state
        As in :class:`linmem.LMN`.
    device, dtype
        As in :class:`torch.nn.GRU`.

    Examples
    --------
    >>> layer = LinearMemory(88, 200, init="legendre", window=20, trainable=False, batch_first=True)
    >>> m, state = layer(torch.zeros(4, 30, 88))
    >>> m.shape, state.shape
    (torch.Size([4, 30, 200]), torch.Size([1, 4, 200]))
    """

    def __init__(
        self,
        input_size: int,
        memory_size: int | Sequence[int],
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        num_modules: int | None = None,
        periods: Sequence[int] | None = None,
        connections: Connections = "slow_to_fast",
        init: str = "uniform",
        window: int | None = None,
        trainable: bool = True,
        learn_initial_state: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        modules = make_modules("memory_size", memory_size, num_modules, periods, connections)
        check_memory_options("memory", init, "identity", window)
        check_bool("trainable", trainable)
        super().__init__(
            _LinearEquations(modules, init, window),
            input_size,
            modules.width,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            output="memory",
            learn_initial_state=learn_initial_state,
            device=device,
            dtype=dtype,
        )
        self.layout = modules
        self.num_modules = len(modules.sizes)
        self.memory_size = modules.width
        self.init = init
        self.window = window
        self.trainable = trainable
        self.requires_grad_(trainable)

    @classmethod
    def fit(
        cls,
        sequences: Any,
        memory_size: int,
        *,
        forgetting: float | list[float] | tuple[float, ...] = 1.0,
        periods: int | list[int] | tuple[int, ...] = 1,
        solver: str = "auto",
        whiten: bool = False,
        trainable: bool = False,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> Self:
        """Return the memory that encodes these sequences, in closed form; or several memories side by side.

        Parameters
        ----------
        sequences
            In any container of :class:`linmem.LinearAutoencoder`.
        memory_size
            Units, of all memories together. They are divided by energy: each goes where it holds the largest share.
        forgetting
            The discount λ of the past per step; or one for each memory.
        periods
            A memory of period k takes every k-th frame, and keeps its state in between; one for each memory, or for
            all.
        solver
            As in :class:`linmem.LinearAutoencoder`.
        whiten
            Give every unit a root mean square of about one over the sequences. By default units are as large as what
            they hold, the first the largest, so that a network learns from them first.
        trainable, batch_first, device, dtype
            As for the class.

        Examples
        --------
        The recent past in detail, and a longer one with a slow clock:

        >>> rolls = [torch.rand(100, 8) < 0.3 for _ in range(5)]
        >>> memory = LinearMemory.fit(rolls, 40, forgetting=[0.8, 0.95], periods=[1, 4], batch_first=True)
        >>> codes, (state, clock) = memory(rolls[0].float()[None])
        >>> codes.shape
        torch.Size([1, 100, 40])
        """
        check_size("memory_size", memory_size)
        check_bool("whiten", whiten)
        discounts = list(forgetting) if isinstance(forgetting, (list, tuple)) else [forgetting]
        clocks = list(periods) if isinstance(periods, (list, tuple)) else [periods]
        count = max(len(discounts), len(clocks))
        discounts = discounts * count if len(discounts) == 1 else discounts
        clocks = clocks * count if len(clocks) == 1 else clocks
        arrays = as_sequences(sequences, "sequences").arrays
        fitted = side_by_side(arrays, memory_size, discounts, clocks, solver=solver)
        layer = cls.from_autoencoder(
            fitted, periods=clocks, trainable=trainable, batch_first=batch_first, device=device, dtype=dtype
        )
        if whiten:
            units = []
            for laes, period in sorted(zip(fitted, clocks, strict=True), key=itemgetter(1)):  # as they lie in the layer
                frames = sum(-(-array.shape[0] // period) for array in arrays)
                units.append(laes.singular_values_ / frames**0.5)
            layer._measure_in(torch.from_numpy(np.concatenate(units)))
        return layer

    @classmethod
    def from_autoencoder(
        cls,
        autoencoder: LinearAutoencoder | list[LinearAutoencoder] | tuple[LinearAutoencoder, ...],
        *,
        periods: int | list[int] | tuple[int, ...] = 1,
        trainable: bool = False,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> Self:
        """Return the memory of a fitted autoencoder, whose output is what `transform` returns; or of several.

        Parameters
        ----------
        autoencoder
            One, or several of the same features, whose memories lie side by side, those of the shortest period first.
        periods
            The period of each, in steps: an autoencoder of period k sees every k-th frame, as it should have been
            fitted.
        trainable, batch_first, device, dtype
            As for the class.

        Examples
        --------
        >>> sequences = [torch.randn(30, 3) for _ in range(5)]
        >>> laes = LinearAutoencoder(8).fit(sequences)
        >>> memory = LinearMemory.from_autoencoder(laes)
        >>> codes, _ = memory(sequences[0][:, None])
        >>> torch.testing.assert_close(codes[:, 0], laes.transform(sequences[0]), atol=1e-5, rtol=1e-5)
        """
        several = list(autoencoder) if isinstance(autoencoder, (list, tuple)) else [autoencoder]
        clocks = list(periods) if isinstance(periods, (list, tuple)) else [periods] * len(several)
        _check_fitted(several, clocks)
        together: dict[int, list[LinearAutoencoder]] = {period: [] for period in sorted(clocks)}
        for laes, period in zip(several, clocks, strict=True):
            together[period].append(laes)
        ordered = [laes for group in together.values() for laes in group]
        layer = cls(
            ordered[0].n_features_in_,
            [sum(len(laes.A_) for laes in group) for group in together.values()],
            periods=list(together),
            bias=any(laes.mean_ is not None for laes in ordered),
            batch_first=batch_first,
            trainable=trainable,
            device=device,
            dtype=dtype,
        )
        offsets = [np.zeros(len(laes.A_)) if laes.mean_ is None else -laes.A_ @ laes.mean_ for laes in ordered]
        with torch.no_grad():
            p = layer._parameters_of(0)
            install_(p["weight_xm"], np.concatenate([laes.A_ for laes in ordered]), "A_")
            blocks = layer.layout.diagonal(p["weight_mm"].zero_().view(-1))
            for block, group in zip(blocks, together.values(), strict=True):
                install_(block, block_diag(*(laes.B_ for laes in group)), "B_")
            if "bias_m" in p:
                install_(p["bias_m"], np.concatenate(offsets), "mean_")
        return layer

    @torch.no_grad()
    def _measure_in(self, units: Tensor) -> None:
        """Change what the memory is measured in: what was as large as `units`, (memory_size,), becomes one."""
        p = self._parameters_of(0)
        units = torch.where(units > 0, units, 1).to(p["weight_xm"])
        packed = p["weight_mm"].view(-1)
        packed.copy_(self.layout.pack(self.layout.dense(packed) * units / units[:, None]))
        for name in ("weight_xm", "bias_m"):
            if name in p:
                p[name].div_(units.view(-1, *[1] * (p[name].ndim - 1)))

    def memory_matrix(self, layer: int = 0, *, reverse: bool = False) -> Tensor:
        """W^mm of one layer and direction as a matrix, with zeros where there is no block."""
        return self.equations.transition(self._parameters_of(layer, reverse))

    def _arguments(self) -> dict[str, Any]:
        arguments = super()._arguments()
        del arguments["hidden_size"], arguments["output"]  # there is no hidden state, and one output only
        clocks = {"memory_size": list(self.layout.sizes), "periods": list(self.layout.periods)}
        own = {name: getattr(self, name) for name in ("init", "window", "trainable")}
        return arguments | clocks | {"connections": self.layout.connections} | own

    @classmethod
    def _from_saved(cls, saved: Any) -> Self:
        layer = super()._from_saved(saved)
        return layer.requires_grad_(layer.trainable)

    def extra_repr(self) -> str:
        """Sizes, and whatever differs from the defaults."""
        text = super().extra_repr() + modules_repr(self.layout)
        defaults = {"init": "uniform", "window": None, "trainable": True}
        return text + "".join(f", {k}={getattr(self, k)!r}" for k, v in defaults.items() if getattr(self, k) != v)


def _check_fitted(autoencoders: list[LinearAutoencoder], periods: list[int]) -> None:
    for laes in autoencoders:
        if not isinstance(laes, LinearAutoencoder):
            raise TypeError(f"autoencoder should be of type linmem.LinearAutoencoder, got: {type(laes).__name__}")
        if not hasattr(laes, "A_"):
            raise ValueError("autoencoder is not fitted: expected a call of fit before")
    widths = sorted({laes.n_features_in_ for laes in autoencoders})
    if len(widths) != 1:
        raise ValueError(f"autoencoder has features {widths}: expected at least one, and all of the same features")
    if len(periods) != len(autoencoders):
        raise ValueError(f"periods has {len(periods)} items: expected one for each of {len(autoencoders)} autoencoders")
    for period in periods:
        check_size("periods", period)


class LinearMemoryCell(RecurrentCell):
    """One step of a :class:`LinearMemory`.

    Parameters
    ----------
    input_size, bias, device, dtype
        As in :class:`torch.nn.GRUCell`.
    memory_size, num_modules, periods, connections, init, window
        As in :class:`LinearMemory`.

    Examples
    --------
    >>> cell = LinearMemoryCell(3, 4)
    >>> cell(torch.zeros(2, 3)).shape
    torch.Size([2, 4])
    """

    def __init__(
        self,
        input_size: int,
        memory_size: int | Sequence[int],
        bias: bool = True,
        *,
        num_modules: int | None = None,
        periods: Sequence[int] | None = None,
        connections: Connections = "slow_to_fast",
        init: str = "uniform",
        window: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        modules = make_modules("memory_size", memory_size, num_modules, periods, connections)
        check_memory_options("memory", init, "identity", window)
        equations = _LinearEquations(modules, init, window)
        super().__init__(equations, input_size, modules.width, bias, device=device, dtype=dtype)
