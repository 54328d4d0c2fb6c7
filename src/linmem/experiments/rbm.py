r"""The RNN-RBM of Boulanger-Lewandowski, Bengio and Vincent (2012), whose results the paper's table of music quotes.

    python -m linmem.experiments.rbm [--set JSB_Chorales] [--data FOLDER] [--out results/rbm]

A recurrent network reads the frames up to t and sets the biases of a restricted Boltzmann machine, which is a joint
distribution of all keys in frame t + 1: unlike a linear readout, it knows that keys come in chords. It is trained with
contrastive divergence by the same loop as every other model; the same folder goes on where a run was cut off. What the
log calls `train_nats` is then a difference of free energies, which says little.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from linmem.datasets import piano_rolls
from linmem.experiments import baselines
from linmem.experiments.batches import Batch, next_frame_batches
from linmem.experiments.metrics import RollMetrics
from linmem.experiments.training import QUANTITIES, NextFrame, Settings, evaluate, train
from linmem.files import write_atomically

#: Probabilities nearer to 0 or 1 than this are said to be as near.
SUREST = 1e-6


def drawn(p: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Return ones with these probabilities, and zeros; by default with torch's own generator."""
    return (torch.rand(p.shape, generator=generator) < p).to(p.dtype)


class Rbm:
    r"""Restricted Boltzmann machines that share their weights: :math:`p(v, h) \propto e^{b_v v + b_h h + h W v}`.

    Parameters
    ----------
    weight
        W, (hidden, keys).
    b_v, b_h
        (N, keys) and (N, hidden): a machine in every row.
    """

    def __init__(self, weight: Tensor, b_v: Tensor, b_h: Tensor) -> None:
        self.weight, self.b_v, self.b_h = weight, b_v, b_h

    def free_energy(self, v: Tensor) -> Tensor:
        """Return the negative logarithm of what the frames' probabilities are proportional to, (N,)."""
        return -(self.b_v * v).sum(-1) - softplus(self.b_h + v @ self.weight.T).sum(-1)

    @torch.no_grad()
    def gibbs(self, v: Tensor, steps: int, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Draw hidden units and keys in turns, from the frames `v` on.

        Returns
        -------
        p, v
            The probabilities of the keys given the last hidden units, and the keys drawn from them, (N, keys).
        """
        for _ in range(steps):
            h = drawn((self.b_h + v @ self.weight.T).sigmoid(), generator)
            p = (self.b_v + h @ self.weight).sigmoid()
            v = drawn(p, generator)
        return p, v

    @torch.no_grad()
    def log_partition(self, chains: int, temperatures: int, generator: torch.Generator | None = None) -> Tensor:
        """Estimate the logarithms of the partition functions, (N,), by annealed importance sampling.

        Chains start at the machine with the same biases and no weights, which is known exactly, and the weights are
        scaled up to what they are in even steps (Salakhutdinov and Murray, 2008). The estimate of the partition
        function has no bias, so that of its logarithm is too small rather than too large, and a likelihood too good.
        """
        betas = torch.linspace(0, 1, temperatures + 1).tolist()
        logs = []
        for _ in range(chains):
            v, log = drawn(self.b_v.sigmoid(), generator), self.b_h.new_zeros(len(self.b_h), dtype=torch.float64)
            for before, beta in pairwise(betas):
                heard = v @ self.weight.T
                log += (softplus(self.b_h + beta * heard) - softplus(self.b_h + before * heard)).sum(-1)
                _, v = Rbm(beta * self.weight, self.b_v, self.b_h).gibbs(v, 1, generator)
            logs.append(log)
        start = softplus(self.b_v).sum(-1) + softplus(self.b_h).sum(-1)
        return start + torch.stack(logs).logsumexp(0) - math.log(chains)


class RnnRbm(NextFrame):
    r"""An RBM for each next frame, with biases set by a recurrent network.

    .. math::

        u^t &= \tanh(W_{uu} u^{t-1} + W_{vu} v^t + b_u) \\
        b_v^{t+1} &= b_v + W_{uv} u^t, \qquad b_h^{t+1} = b_h + W_{uh} u^t

    So its readout gives the biases of the keys, and with W = 0 they are the logits of any other model. The first frame
    of a piece is only read.

    Parameters
    ----------
    keys, hidden, recurrent
        Width of v, h and u.
    steps
        Of Gibbs sampling: of contrastive divergence (CD-k), and before a prediction.
    chains
        How many a prediction is the mean of.

    Examples
    --------
    >>> model = RnnRbm(88, 20, 10)
    >>> logits, state = model(torch.zeros(7, 2, 88))
    >>> logits.shape, state.shape
    (torch.Size([7, 2, 88]), torch.Size([1, 2, 10]))
    """

    def __init__(self, keys: int, hidden: int, recurrent: int, *, steps: int = 15, chains: int = 10) -> None:
        for name, value in {
            "keys": keys,
            "hidden": hidden,
            "recurrent": recurrent,
            "steps": steps,
            "chains": chains,
        }.items():
            if value < 1:
                raise ValueError(f"{name}={value}: expected at least 1")
        super().__init__(nn.RNN(keys, recurrent), keys=keys)
        self.to_hidden = nn.Linear(recurrent, hidden)
        self.weight = nn.Parameter(0.01 * torch.randn(hidden, keys))
        self.steps, self.chains = steps, chains

    def extra_repr(self) -> str:
        """Return what the parts do not say."""
        return f"hidden={len(self.weight)}, steps={self.steps}, chains={self.chains}"

    def machines(self, u: Tensor) -> Rbm:
        """Return the RBMs of the frames that follow the states `u`."""
        return Rbm(self.weight, self.readout(u), self.to_hidden(u))

    @torch.no_grad()
    def forward(self, x: Tensor, state: Any = None, lengths: Tensor | None = None) -> tuple[Tensor, Any]:
        """Return logits of each key by itself, and the state at the end.

        Chains of Gibbs sampling start at frame t and run for `steps` with the biases of frame t + 1. The probability of
        a key is the mean, over the chains, of its probability given the hidden units that were drawn last. The draws
        are the same in every call. There is no gradient: see `loss`.
        """
        u, state = self.layer(x, state)  # a padded frame is predicted too, and nobody looks at it
        machines, generator = self.machines(u), torch.Generator().manual_seed(0)
        p = torch.zeros_like(x)
        for _ in range(self.chains):
            p += machines.gibbs(x, self.steps, generator)[0]
        return (p / self.chains).logit(SUREST), state

    def loss(self, batch: Batch, state: Any = None) -> tuple[Tensor, Any]:
        """Return by how much the free energy of each frame is above that of a sample, (T, B), and the state.

        The sample is where a chain from the frame is after `steps`. The gradient of this difference is contrastive
        divergence, through the biases back in time; its value is no likelihood.
        """
        u, state = self.layer(batch.x, state)
        machines, v = self.machines(u[batch.mask]), batch.y[batch.mask]  # no chains for padding
        _, sample = machines.gibbs(v, self.steps)
        difference = machines.free_energy(v) - machines.free_energy(sample)
        return torch.zeros_like(batch.mask, dtype=v.dtype).masked_scatter(batch.mask, difference), state


@torch.no_grad()
def estimated_nats(
    model: RnnRbm, rolls: Sequence[Any], *, chains: int = 20, temperatures: int = 200, seed: int = 0
) -> float:
    """Estimate the negative log-likelihood of a frame, all keys together, by annealed importance sampling.

    Takes `chains` · `temperatures` steps of Gibbs sampling for each frame, so give it few of them. `RollMetrics.nats`,
    of each key by itself, is another figure.

    Examples
    --------
    >>> model = RnnRbm(88, 20, 10).start_at_frequencies(piano_rolls.synthetic(2))
    >>> bool(estimated_nats(model, piano_rolls.synthetic(2), chains=5, temperatures=10) > 0)
    True
    """
    total = frames = 0.0
    generator = torch.Generator().manual_seed(seed)
    for batch in next_frame_batches(rolls, 1):
        u, _ = model.layer(batch.x)
        machines = model.machines(u[:, 0])
        nats = machines.free_energy(batch.y[:, 0]) + machines.log_partition(chains, temperatures, generator)
        total, frames = total + float(nats.sum()), frames + len(nats)
    return total / frames


def figures(test: RollMetrics, cut: float) -> dict[str, float]:
    """Return what is known of a model on the test set, with the cut that validation data chose."""
    return {
        "at .5": test.pooled(),
        "cut": cut,
        "at cut": test.pooled(cut),
        "of drawn notes": test.expected,
        "nats of single keys": test.nats,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Train an RNN-RBM on a published set, and compare it with repeating the frame before."""
    parser = argparse.ArgumentParser(prog="python -m linmem.experiments.rbm", description=main.__doc__)
    parser.add_argument("--set", choices=sorted(piano_rolls.PUBLISHED), default="JSB_Chorales")
    parser.add_argument("--data", help="folder with the set")
    parser.add_argument("--hidden", type=int, default=150)
    parser.add_argument("--recurrent", type=int, default=100)
    parser.add_argument("--steps", type=int, default=15, help="of Gibbs sampling: the k of CD-k")
    parser.add_argument("--chains", type=int, default=50, help="for a prediction on the test set")
    parser.add_argument("--likelihood", type=int, default=10, help="test pieces whose likelihood is estimated")
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--patience", type=int, default=20)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--chunk", type=int, help="steps after which back-propagation is cut off")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("results/rbm"), help="folder of this run (%(default)s)")
    a = parser.parse_args(arguments)
    parts = piano_rolls.load(a.set, a.data)
    torch.manual_seed(a.seed)
    model = RnnRbm(piano_rolls.KEYS, a.hidden, a.recurrent, steps=a.steps)
    model.start_at_frequencies(parts.train)
    settings = Settings(a.learning_rate, epochs=a.epochs, patience=a.patience, chunk=a.chunk, seed=a.seed)
    run = train(model, parts.train, parts.valid, settings, folder=a.out)
    results = {"repeat the frame": figures(baselines.evaluate(baselines.RepeatFrame(), parts.test), 0.5)}
    model.chains = a.chains
    for quantity in QUANTITIES:
        model.load_state_dict(run.states[quantity])
        cut = evaluate(model, parts.valid).best_cut()
        row = figures(evaluate(model, parts.test), cut) | {"epoch": run.best[quantity].number}
        row["nats, estimated"] = estimated_nats(model, parts.test[: a.likelihood])
        results[f"RNN-RBM, by validation {quantity}"] = row
    for name, row in results.items():
        print(f"{name}: {', '.join(f'{key} {value:.4g}' for key, value in row.items())}")
    asked = {name: value for name, value in vars(a).items() if name not in ("data", "out")}
    record = {"arguments": asked, "torch": torch.__version__, "seconds": run.seconds, "results": results}
    write_atomically((a.out / "rbm.json").resolve(), json.dumps(record, indent=1).encode())


if __name__ == "__main__":
    main()
