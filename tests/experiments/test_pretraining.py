"""The two algorithms, phase by phase, and the comparison of starts."""

import json
from dataclasses import replace

import pytest
import torch

import linmem
from linmem.datasets import piano_rolls
from linmem.experiments import pretraining, starts
from linmem.experiments.pretraining import Phases, grow, unrolled_then_lmn
from linmem.experiments.training import Settings

QUICK = Settings(epochs=3, batch_size=8, learning_rate=3e-3)


@pytest.fixture(scope="module")
def parts():
    return piano_rolls.split(piano_rolls.synthetic(pieces=20))


def test_algorithm_1_trains_makes_an_lmn_and_trains_on(parts):
    lines = []
    phases = Phases(parts, report=lines.append)
    model = unrolled_then_lmn(phases, 12, 30, QUICK, order=3)
    assert [phase.name for phase in phases.done] == ["train unrolled", "make an LMN of it", "train LMN"]
    assert type(model.layer) is linmem.LMN
    first, made, last = phases.done
    assert made.train_nats < 1.5 * first.train_nats, "the LMN starts near the unrolled RNN"
    assert last.valid_nats <= made.valid_nats
    assert (made.epochs, phases.epochs) == (0, first.epochs + last.epochs)
    assert pretraining.table(phases.done).splitlines()[1:] == lines


def test_algorithm_2_grows_and_every_readout_fit_pays(parts):
    phases = Phases(parts, report=lambda line: None)
    model = grow(phases, 12, 10, QUICK, modules=3, epochs=2)
    assert [phase.name for phase in phases.done] == [
        "train 1 module",
        "add module 2",
        "train 2 modules",
        "add module 3",
        "train 3 modules",
    ]
    assert model.layer.layout.periods == (1, 2, 4)
    nats = [phase.train_nats for phase in phases.done]
    assert nats[1] < nats[0]
    assert nats[3] < nats[2]


@pytest.mark.parametrize("algorithm", [unrolled_then_lmn, grow])
def test_phases_that_ended_are_not_run_again(algorithm, parts, tmp_path):
    """A run that is cut off and resumed ends as one that was not, and what was done is only read."""
    options = {"order": 2} if algorithm is unrolled_then_lmn else {"modules": 2, "epochs": 2}

    def run(folder):
        phases = Phases(parts, folder, report=lambda line: None)
        return algorithm(phases, 8, 10, QUICK, **options), phases.done

    whole, done = run(tmp_path / "whole")
    files = sorted((tmp_path / "whole").iterdir())
    assert len(files) == len(done) == 3
    (tmp_path / "cut").mkdir()
    for path in files[:1]:
        (tmp_path / "cut" / path.name).write_bytes(path.read_bytes())
    again, resumed = run(tmp_path / "cut")
    assert resumed[0] == done[0], "seconds and all"
    for name, value in whole.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name
    before = [path.stat().st_mtime_ns for path in files]
    _, read = run(tmp_path / "whole")
    assert read == done
    assert [path.stat().st_mtime_ns for path in files] == before


def test_a_folder_of_another_run_is_refused(parts, tmp_path):
    def run(settings, **options):
        unrolled_then_lmn(Phases(parts, tmp_path, report=lambda line: None), 8, 10, settings, order=2, **options)

    run(QUICK)
    for settings, options in [(replace(QUICK, seed=5), {}), (QUICK, {"decoder": "powers"})]:
        with pytest.raises(ValueError, match="is of another run: expected an empty folder, or the same data"):
            run(settings, **options)
    other = piano_rolls.split(piano_rolls.synthetic(pieces=20, seed=1))
    with pytest.raises(ValueError, match="is of another run"):
        unrolled_then_lmn(Phases(other, tmp_path, report=lambda line: None), 8, 10, QUICK, order=2)


def test_recall_needs_the_memory_that_it_says():
    parts = starts.recall(delay=4, pieces=20)
    roll = parts.train[0]
    assert len(roll) == 5 + 4 + 1 + 5
    assert (roll[:5] == roll[-5:]).all()
    assert not roll[5:9].any()
    assert roll[9].nonzero()[0].tolist() == [starts.PATTERN]


def test_the_comparison_writes_what_it_found(tmp_path, capsys):
    sizes = "--hidden 8 --memory 20 --order 9 --epochs 2 --seeds 2"
    starts.main([*f"--task recall --delay 2 {sizes}".split(), "--out", str(tmp_path)])
    record = json.loads((tmp_path / "starts_recall.json").read_text())
    assert len(record["seeds"]) == 2
    for seed in record["seeds"]:
        assert set(seed) == {"random", "inputs", "features", "unrolled"}
        spent = sum(phase["epochs"] for phase in seed["unrolled"]["phases"])
        assert seed["random"]["epochs"] == spent, "every start has as many epochs as the longest way"
    printed = capsys.readouterr().out
    assert "less those of the random start" in printed
