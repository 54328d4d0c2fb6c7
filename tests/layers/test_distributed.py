"""Two processes under DistributedDataParallel train to the weights of one."""

import gc
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import linmem

LAYERS: dict[str, tuple[str, dict[str, Any]]] = {
    "LMN": ("LMN", {"memory_size": 5, "learn_initial_state": True}),
    "MultiScaleLMN": ("MultiScaleLMN", {"num_modules": 2}),
    "ClockworkRNN": ("ClockworkRNN", {"num_modules": 2}),
    "UnrolledRNN": ("UnrolledRNN", {"order": 3}),
}


class Model(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        kind, options = LAYERS[name]
        self.layer = getattr(linmem, kind)(3, 4, num_layers=2, dtype=torch.float64, **options)
        self.readout = nn.Linear(self.layer.output_size, 2, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return self.readout(self.layer(x)[0])


def train(name: str, wrap: Callable[[nn.Module], nn.Module], rows: slice) -> dict[str, Tensor]:
    torch.manual_seed(0)
    model = Model(name)
    wrapped = wrap(model)
    optimiser = torch.optim.Adam(wrapped.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(1)
    for _ in range(5):
        x = torch.randn(6, 8, 3, dtype=torch.float64, generator=generator)[:, rows]
        optimiser.zero_grad()
        wrapped(x).sub(x.cumsum(0)[..., :2]).square().mean().backward()
        optimiser.step()
    return model.state_dict()


def worker(rank: int, folder: str) -> None:
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    for name in LAYERS:
        weights = train(name, DistributedDataParallel, slice(4 * rank, 4 * rank + 4))
        torch.save(weights, f"{folder}/{name}-{rank}.pt")
    # A process group destroyed while DDP's objects live may abort at exit.
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ddp")
    processes = [subprocess.Popen([sys.executable, __file__, str(rank), str(folder)]) for rank in range(2)]
    assert [process.wait(timeout=120) for process in processes] == [0, 0]
    return folder


@pytest.mark.parametrize("name", LAYERS)
def test_two_processes_equal_one(trained: Path, agree: Callable[..., None], name: str) -> None:
    alone = train(name, lambda model: model, slice(0, 8))
    for rank in range(2):
        together = torch.load(trained / f"{name}-{rank}.pt")
        assert together.keys() == alone.keys()
        for key, weight in alone.items():
            agree(f"{name}: weights trained by two processes against one", together[key], weight)


if __name__ == "__main__":  # one of the two processes
    worker(int(sys.argv[1]), sys.argv[2])
