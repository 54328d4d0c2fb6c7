"""Two processes with half of the sequences each find what one finds with all of them."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import linmem
from linmem import LinearAutoencoder

RANKS = 2


def sequences(scale: int = 1) -> list[np.ndarray]:
    """Ragged, and so divided that the processes have another longest one and another number of frames."""
    rng = np.random.default_rng(0)
    lengths = [40, 7, 23, 12, 31, 3, 18, 25] * scale
    walks = [np.cumsum(rng.normal(size=(length, 4)), 0) for length in lengths]
    return [np.hstack([walk, np.zeros((len(walk), 1))]) for walk in walks]  # the last feature says nothing


AUTOENCODERS: dict[str, dict[str, Any]] = {
    "truncated": {"n_components": 12},
    "centred": {"n_components": 12, "center": True},
    "forgetting": {"n_components": 12, "forgetting": 0.8},
    "lossless": {"n_components": 95},
    "in float32": {"n_components": 8, "dtype": "float32"},
    "of low rank": {"n_components": 40},
}


def fit(name: str, distributed: bool, rank: int | None) -> dict[str, Any]:
    laes = LinearAutoencoder(solver="doubling", distributed=distributed, **AUTOENCODERS[name])
    data = [np.tile(x[:6, :2], 10) for x in sequences()] if name == "of low rank" else sequences()
    laes.fit(data if rank is None else data[rank::RANKS])
    return {"A": laes.A_, "B": laes.B_, "s": laes.singular_values_, "energy": laes.energy_, "mean": laes.mean_}


def models() -> tuple[Any, ...]:
    torch.manual_seed(0)
    unrolled = linmem.UnrolledRNN(5, 4, order=3, dtype=torch.float64)
    lmn = linmem.LMN(5, 6, memory_size=8, dtype=torch.float64)
    return unrolled, nn.Linear(16, 2, dtype=torch.float64), lmn, nn.Linear(8, 2, dtype=torch.float64)


def pretrain(distributed: bool, rank: int | None) -> dict[str, torch.Tensor]:
    unrolled, tape_readout, lmn, readout = models()
    mine = [x / 5 for x in (sequences() if rank is None else sequences()[rank::RANKS])]
    frames = [(x[:, :2] > 0).astype(float) for x in mine]
    classes = np.array([int(x[0, 0] > 0) for x in mine])
    options = {"solver": "doubling", "distributed": distributed}
    grow = linmem.add_memory_module
    results = {
        "lmn_from_unrolled": linmem.lmn_from_unrolled(unrolled, tape_readout, mine, 10, **options),
        "features": (linmem.encode_memory(lmn, mine, **options),),
        "inputs": (linmem.encode_memory(lmn, mine, source="inputs", **options),),
        "least squares": grow(lmn, readout, mine, frames, **options),
        "logistic": grow(lmn, readout, mine, frames, readout_fit="logistic", **options),
        "classes": grow(lmn, readout, mine, classes, readout_fit="logistic", **options),
    }
    return {
        f"{name}: {part} {key}": value
        for name, layers in results.items()
        for part, layer in zip(("layer", "readout"), layers, strict=False)
        for key, value in layer.state_dict().items()
    }


def bytes_of(fitting: Callable[[], Any]) -> int:
    """Count what this process puts into sums and broadcasts."""
    import torch.distributed as dist

    counted, real = [0], (dist.all_reduce, dist.broadcast, dist.all_gather)

    def counting(call: Callable[..., Any]) -> Callable[..., Any]:
        def count(*arguments: Any, **options: Any) -> Any:
            counted[0] += sum(a.numel() * a.element_size() for a in arguments if isinstance(a, torch.Tensor))
            return call(*arguments, **options)

        return count

    dist.all_reduce, dist.broadcast, dist.all_gather = map(counting, real)
    fitting()
    dist.all_reduce, dist.broadcast, dist.all_gather = real
    return counted[0]


def worker(rank: int, folder: str) -> None:
    import warnings

    import torch.distributed as dist

    torch.set_num_threads(1 + rank)  # so that rounding differs between them
    warnings.filterwarnings("ignore", message=".*numerical rank.*")
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=RANKS)
    results: dict[str, Any] = {name: fit(name, True, rank) for name in AUTOENCODERS}
    results["pretraining"] = pretrain(True, rank)
    shapes = (4, 5) if rank else (4, 3)
    bad = {"nan": np.full((4, 5), np.nan) if rank else np.ones((4, 5)), "width": np.ones(shapes)}
    for name, x in bad.items():
        try:
            LinearAutoencoder(2, distributed=True).fit(x)
        except (ValueError, RuntimeError) as error:
            results[name] = str(error)
    for scale in (1, 8):
        laes = LinearAutoencoder(12, distributed=True)
        mine = sequences(scale)[rank::RANKS]
        results[f"bytes {scale}"] = bytes_of(lambda laes=laes, mine=mine: laes.fit(mine))  # type: ignore[misc]
    torch.save(results, f"{folder}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ranks")
    processes = [subprocess.Popen([sys.executable, __file__, str(rank), str(folder)]) for rank in range(RANKS)]
    try:
        assert [process.wait(timeout=120) for process in processes] == [0] * RANKS
    finally:
        for process in processes:
            process.kill()
    return [torch.load(Path(folder) / f"{rank}.pt", weights_only=False) for rank in range(RANKS)]


@pytest.mark.filterwarnings("ignore:.*numerical rank")
@pytest.mark.parametrize("name", AUTOENCODERS)
def test_every_process_finds_the_autoencoder_of_all_sequences(found: list[dict[str, Any]], name: str) -> None:
    alone = fit(name, False, None)
    tolerance = 2e-4 if name == "in float32" else 1e-10
    for ours in (result[name] for result in found):
        for key, value in alone.items():
            if value is not None:
                np.testing.assert_allclose(ours[key], value, rtol=tolerance, atol=tolerance, err_msg=key)
    for key, value in found[0][name].items():
        if value is not None:
            np.testing.assert_allclose(
                found[1][name][key], value, rtol=0, atol=1e-12 * np.abs(value).max(), err_msg=key
            )


@pytest.mark.filterwarnings("ignore:.*numerical rank")
def test_every_process_pretrains_as_one_with_all_sequences_does(found: list[dict[str, Any]]) -> None:
    alone = pretrain(False, None)
    for result in found:
        ours = result["pretraining"]
        assert ours.keys() == alone.keys()
        for key, value in alone.items():
            # L-BFGS stops where it stops, which rounding decides.
            tolerance = 1e-3 if key.startswith(("logistic: readout", "classes: readout")) else 1e-8
            torch.testing.assert_close(
                ours[key], value, rtol=tolerance, atol=tolerance, msg=lambda m, k=key: f"{k}: {m}"
            )


def test_what_is_sent_does_not_depend_on_the_data(found: list[dict[str, Any]]) -> None:
    """A few matrices of 28 columns (1.5 units and 10) for each of the six rounds that 40 steps take."""
    once, eight_times = found[0]["bytes 1"], found[0]["bytes 8"]
    assert once == eight_times
    assert once < 8 * (6 + 2) * 5 * 28**2


def test_what_one_process_refuses_stops_all(found: list[dict[str, Any]]) -> None:
    assert "contains NaN" in found[1]["nan"]
    assert "another process refused its part of the data" in found[0]["nan"]
    for result in found:
        assert "the number of features differs between processes" in result["width"]


def test_without_a_job_it_says_what_is_missing() -> None:
    with pytest.raises(ValueError, match=r"distributed=True: expected torch\.distributed\.init_process_group"):
        LinearAutoencoder(3, distributed=True).fit(sequences())
    with pytest.raises(ValueError, match=r"distributed=True with solver='exact'.*expected 'doubling' and 0"):
        LinearAutoencoder(3, distributed=True, solver="exact").fit(sequences())


if __name__ == "__main__":  # one of the processes
    worker(int(sys.argv[1]), sys.argv[2])
