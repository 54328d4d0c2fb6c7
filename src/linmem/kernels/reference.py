r"""The equations as the paper writes them, one function per model.

Everything is time-first. `x` is (T, B, N_x); the state at entry has one row per sequence; a weight
``w_ab`` leads from a to b and is stored (N_b, N_a) as in :class:`torch.nn.Linear`. A function returns the
sequence that was asked for and the final state.

`lengths` makes a batch ragged: a row that has ended keeps its state, its further outputs are zero, and what
its padding holds, NaN included, reaches neither a result nor a gradient. `clock` is the number of steps each
row has already seen, (B,), or (1,) when it is the same for all rows.

These functions are plain differentiable torch. They run on any device and dtype, under vmap, torch.compile
and double backward, and are exported with a dynamic length: then :func:`over_time` writes a scan.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import linear

from linmem._shapes import Bool, Float, Int
from linmem.kernels.modules import Modules

Output = Literal["memory", "hidden", "tape"]
Step = Callable[..., tuple[Tensor, Tensor]]

NONLINEARITIES: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "identity": lambda x: x,
}


def lmn(
    x: Float[Tensor, "T B N_x"],
    m: Float[Tensor, "B N_m"],
    w_xh: Float[Tensor, "N_h N_x"],
    w_mh: Float[Tensor, "N_h N_m"],
    w_hm: Float[Tensor, "N_m N_h"],
    w_mm: Float[Tensor, "N_m N_m"],
    b_h: Float[Tensor, " N_h"] | None,
    b_m: Float[Tensor, " N_m"] | None,
    *,
    nonlinearity: str = "tanh",
    lengths: Int[Tensor, " B"] | None = None,
    output: Output = "memory",
) -> tuple[Float[Tensor, "T B width"], Float[Tensor, "B N_m"]]:
    r"""Linear Memory Network, Section 3.1.

    .. math::

        h^t &= \sigma(W^{xh} x^t + W^{mh} m^{t-1} + b^h) \\
        m^t &= W^{hm} h^t + W^{mm} m^{t-1} + b^m
    """
    sigma = NONLINEARITIES[nonlinearity]
    x, alive = without_padding(x, lengths)
    xh = linear(x, w_xh, b_h)  # (T, B, N_h), for all steps at once

    def step(m: Tensor, xh: Tensor, alive: Tensor | None = None) -> tuple[Tensor, Tensor]:
        h = sigma(xh + linear(m, w_mh))  # (B, N_h)
        m = hold(m, linear(h, w_hm, b_m) + linear(m, w_mm), alive)  # (B, N_m)
        return m, m if output == "memory" else h

    m, sequence = over_time(step, m, xh, alive)
    return zero_padding(sequence, alive), m


def multiscale_lmn(
    x: Float[Tensor, "T B N_x"],
    m: Float[Tensor, "B N_m"],
    clock: Int[Tensor, " _"],
    w_xh: Float[Tensor, "N_h N_x"],
    w_mh: Float[Tensor, "N_h N_m"],
    w_hm: Float[Tensor, "N_m N_h"],
    w_mm: Float[Tensor, " packed"],
    b_h: Float[Tensor, " N_h"] | None,
    b_m: Float[Tensor, " N_m"] | None,
    *,
    modules: Modules,
    nonlinearity: str = "tanh",
    lengths: Int[Tensor, " B"] | None = None,
    output: Output = "memory",
) -> tuple[Float[Tensor, "T B width"], Float[Tensor, "B N_m"]]:
    r"""MultiScale Linear Memory Network, Section 3.2: module k has period p_k.

    .. math::

        h^t &= \sigma(W^{xh} x^t + \sum_i W^{m_i h} m_i^{t-1} + b^h) \\
        m_k^t &= \begin{cases}
            W^{h m_k} h^t + \sum_{i \ge k} W^{m_i m_k} m_i^{t-1} + b^{m_k} & t \bmod p_k = 0 \\
            m_k^{t-1} & \text{otherwise}
        \end{cases}

    The sum over i ≥ k is ``connections="slow_to_fast"``: a module hears itself and all slower ones.
    """
    sigma = NONLINEARITIES[nonlinearity]
    x, alive = without_padding(x, lengths)
    fires = both(modules.fires(clock, x.shape[0]), alive)  # (T, B, N_m)
    xh = linear(x, w_xh, b_h)  # (T, B, N_h)
    w = modules.dense(w_mm)  # (N_m, N_m)

    def step(m: Tensor, xh: Tensor, fires: Tensor) -> tuple[Tensor, Tensor]:
        h = sigma(xh + linear(m, w_mh))  # (B, N_h)
        m = hold(m, linear(h, w_hm, b_m) + linear(m, w), fires)  # (B, N_m)
        return m, m if output == "memory" else h

    m, sequence = over_time(step, m, xh, fires)
    return zero_padding(sequence, alive), m


def clockwork_rnn(
    x: Float[Tensor, "T B N_x"],
    h: Float[Tensor, "B N_h"],
    clock: Int[Tensor, " _"],
    w_xh: Float[Tensor, "N_h N_x"],
    w_hh: Float[Tensor, " packed"],
    b_h: Float[Tensor, " N_h"] | None,
    *,
    modules: Modules,
    nonlinearity: str = "tanh",
    lengths: Int[Tensor, " B"] | None = None,
) -> tuple[Float[Tensor, "T B N_h"], Float[Tensor, "B N_h"]]:
    r"""Clockwork RNN, which the paper compares with: module k has period p_k.

    .. math::

        h_k^t = \begin{cases}
            \sigma(W^{x h_k} x^t + \sum_{i \ge k} W^{h_i h_k} h_i^{t-1} + b^{h_k}) & t \bmod p_k = 0 \\
            h_k^{t-1} & \text{otherwise}
        \end{cases}
    """
    sigma = NONLINEARITIES[nonlinearity]
    x, alive = without_padding(x, lengths)
    fires = both(modules.fires(clock, x.shape[0]), alive)  # (T, B, N_h)
    xh = linear(x, w_xh, b_h)  # (T, B, N_h)
    w = modules.dense(w_hh)  # (N_h, N_h)

    def step(h: Tensor, xh: Tensor, fires: Tensor) -> tuple[Tensor, Tensor]:
        h = hold(h, sigma(xh + linear(h, w)), fires)  # (B, N_h)
        return h, h

    h, sequence = over_time(step, h, xh, fires)
    return zero_padding(sequence, alive), h


def unrolled_rnn(
    x: Float[Tensor, "T B N_x"],
    tape: Float[Tensor, "B tape"],
    w_xh: Float[Tensor, "N_h N_x"],
    w_hh: Float[Tensor, "N_h tape"],
    b_h: Float[Tensor, " N_h"] | None,
    *,
    nonlinearity: str = "tanh",
    lengths: Int[Tensor, " B"] | None = None,
    output: Output = "tape",
) -> tuple[Float[Tensor, "T B width"], Float[Tensor, "B tape"]]:
    r"""Unrolled RNN of order k, Section 4.1; `w_hh` is :math:`[W^{hh}_1 \dots W^{hh}_k]`.

    .. math:: h^t = \sigma(W^{xh} x^t + \sum_{i=1}^{k} W^{hh}_i h^{t-i} + b^h)

    The state is the tape :math:`(h^t, \dots, h^{t-k+1})`, newest first. The output is one block longer,
    :math:`(h^t, \dots, h^{t-k})`, which is what the paper's readout reads.
    """
    sigma = NONLINEARITIES[nonlinearity]
    x, alive = without_padding(x, lengths)
    xh = linear(x, w_xh, b_h)  # (T, B, N_h)

    def step(tape: Tensor, xh: Tensor, alive: Tensor | None = None) -> tuple[Tensor, Tensor]:
        h = sigma(xh + linear(tape, w_hh))  # (B, N_h)
        longer = torch.cat([h, tape], -1)  # (B, (k+1) N_h), copied once; the next tape is a view of it
        return hold(tape, longer[:, : tape.shape[1]], alive), longer if output == "tape" else h

    tape, sequence = over_time(step, tape, xh, alive)
    return zero_padding(sequence, alive), tape


#: Steps of a linear memory that are computed side by side: five rounds of doubling.
LINEAR_STEPS = 32


def linear_memory(
    x: Float[Tensor, "T B N_x"],
    m: Float[Tensor, "B N_m"],
    w_xm: Float[Tensor, "N_m N_x"],
    w_mm: Float[Tensor, "N_m N_m"],
    b_m: Float[Tensor, " N_m"] | None,
    *,
    lengths: Int[Tensor, " B"] | None = None,
) -> tuple[Float[Tensor, "T B N_m"], Float[Tensor, "B N_m"]]:
    r"""Linear memory, the encoder of the autoencoder in Section 2.3: A is W^xm and B is W^mm.

    .. math:: m^t = W^{xm} x^t + W^{mm} m^{t-1} + b^m

    Because it is linear, steps need not wait for each other: when every step of a block holds the sum over its last
    2^j inputs, one product with a power of W^mm doubles that. Only blocks wait for blocks.
    """
    x, alive = without_padding(x, lengths)
    inputs = linear(x, w_xm, b_m)  # (T, B, N_m)
    if torch.compiler.is_exporting():

        def step(m: Tensor, u: Tensor, alive: Tensor | None = None) -> tuple[Tensor, Tensor]:
            m = hold(m, u + linear(m, w_mm), alive)
            return m, m

        m, sequence = over_time(step, m, inputs, alive)
        return zero_padding(sequence, alive), m
    powers = [w_mm]
    while 2 ** len(powers) < min(LINEAR_STEPS, len(inputs)):
        powers.append(powers[-1] @ powers[-1])
    blocks, before = [], m
    for block in torch.split(inputs, LINEAR_STEPS):
        block = torch.cat([block[:1] + linear(before, w_mm), block[1:]])
        for j, power in enumerate(powers):
            if 2**j < len(block):
                block = torch.cat([block[: 2**j], block[2**j :] + linear(block[: -(2**j)], power)])
        blocks.append(block)
        before = block[-1]
    sequence = torch.cat(blocks)
    if lengths is not None:  # a row that has ended keeps its state, and one that never begins the one it came with
        at_end = sequence.gather(0, (lengths - 1).clamp_min(0)[None, :, None].expand(1, *m.shape)).squeeze(0)
        before = torch.where(lengths[:, None] > 0, at_end, m)
    return zero_padding(sequence, alive), before.contiguous()


def over_time(step: Step, state: Tensor, *inputs: Tensor | None) -> tuple[Tensor, Tensor]:
    """Run ``state, output = step(state, *rows)`` over the first dimension of `inputs` (None is left out).

    Under torch.export a Python loop would silently keep the length of the example, so there the loop is
    written as a scan, whose length stays free. Eagerly the loop is many times faster than the scan.
    """
    sequences = tuple(s for s in inputs if s is not None)
    if torch.compiler.is_exporting():
        from torch._higher_order_ops import scan

        def body(state: Tensor, rows: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
            state, output = step(state, *rows)
            return state.clone(), output.clone()  # what a scan carries and what it emits may not alias

        final, outputs = scan(body, state.contiguous(), sequences)
        return final, outputs
    collected = []
    for rows in zip(*(s.unbind(0) for s in sequences), strict=True):
        state, output = step(state, *rows)
        collected.append(output)
    return state.contiguous(), torch.stack(collected)


def hold(old: Tensor, new: Tensor, update: Tensor | None) -> Tensor:
    """Take `new` where `update` says so, and keep `old` elsewhere."""
    return new if update is None else torch.where(update, new, old)


def both(fires: Bool[Tensor, "T _ width"], alive: Bool[Tensor, "T B 1"] | None) -> Bool[Tensor, "T _ width"]:
    """Units update when their module fires and their row has not ended."""
    return fires if alive is None else fires & alive


def without_padding(
    x: Float[Tensor, "T B N_x"], lengths: Int[Tensor, " B"] | None
) -> tuple[Float[Tensor, "T B N_x"], Bool[Tensor, "T B 1"] | None]:
    """Clear the padding of a ragged batch, and say which rows are alive at each step.

    A NaN must be cleared before any product sees it: selecting afterwards would be right in the forward
    pass, but its gradient would be 0 · NaN.
    """
    if lengths is None:
        return x, None
    alive = (torch.arange(x.shape[0], device=x.device)[:, None] < lengths)[..., None]
    return torch.where(alive, x, 0.0), alive


def zero_padding(sequence: Tensor, alive: Tensor | None) -> Tensor:
    """Zero the outputs of rows that have ended."""
    return sequence if alive is None else torch.where(alive, sequence, 0.0)
