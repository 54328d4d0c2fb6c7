"""The comparison of fixed memories on music, on a small scale."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from linmem.datasets import piano_rolls
from linmem.experiments import fixed_memory
from linmem.experiments.fixed_memory import (
    CHOICES,
    Budget,
    Choice,
    main,
    one_layer,
    parameters,
    recurrent,
    seconds_to,
    table,
    train_memory,
)

DOCS = Path(__file__).parents[2] / "docs"

SMALL = Choice(memory_size=20, hidden_size=24, epochs=2)


@pytest.fixture
def made_up(monkeypatch):
    """A set of made-up pieces in the place of a published one, and small models."""
    parts = piano_rolls.split(piano_rolls.synthetic(pieces=12))
    monkeypatch.setattr(piano_rolls, "load", lambda name, path=None: parts)
    monkeypatch.setitem(fixed_memory.CHOICES, "JSB_Chorales", SMALL)
    monkeypatch.setitem(fixed_memory.BUDGETS, "JSB_Chorales", Budget(0.5))
    return parts


@pytest.mark.parametrize("name", CHOICES)
@pytest.mark.parametrize("model", fixed_memory.RECURRENT)
def test_recurrent_networks_have_as_many_parameters(name, model):
    target = parameters(one_layer(CHOICES[name]))
    assert parameters(recurrent(model, target)) == pytest.approx(target, rel=0.015)


def test_two_layers_have_as_many_parameters_as_one(made_up):
    choice = replace(SMALL, hidden_size=60)
    one, two = (train_memory(choice, made_up, 0, layers=n) for n in (1, 2))
    assert len(two.model.memories) == 2
    assert parameters(two.model) == pytest.approx(parameters(one.model), rel=0.05)


def test_a_window_is_read_by_the_same_net(made_up):
    found = train_memory(SMALL, made_up, 0, frames=3)
    assert found.model.readers[0].from_memory.in_features == 3 * 88
    assert found.model.readers[0].from_memory.out_features == SMALL.hidden_size


def test_runs_are_written_and_not_repeated(made_up, tmp_path, capsys, monkeypatch):
    command = ["--sets", "JSB_Chorales", "--seeds", "2", "--out", str(tmp_path)]
    models = ["memory", "memory that never forgets, 2 layers", *fixed_memory.FINE_TUNED, "window of 2", "LSTM"]
    main([*command, "--models", *models])
    record = json.loads((tmp_path / "fixed_memory_JSB_Chorales.json").read_text())
    assert [(run["model"], run["seed"]) for run in record["runs"]] == [(m, s) for s in range(2) for m in models]
    for run in record["runs"]:
        assert 0 < run["test"]["at cut"] < 1, run["model"]
        assert len(run["seconds"]) == len(run["valid"]), run["model"]
    assert record["runs"][1]["config"]["forgetting"] == 1.0
    capsys.readouterr()

    def nothing(*_, **__):
        raise AssertionError("a run was repeated")

    monkeypatch.setattr(fixed_memory, "trained", nothing)
    main([*command, "--models", *models])
    shown = capsys.readouterr().out
    assert all(f"| {model} | " in shown for model in models)


def test_files_of_other_choices_are_not_added_to(made_up, tmp_path, monkeypatch):
    command = ["--sets", "JSB_Chorales", "--seeds", "1", "--out", str(tmp_path), "--models", "memory"]
    main(command)
    monkeypatch.setitem(fixed_memory.CHOICES, "JSB_Chorales", replace(SMALL, dropout=0.1))
    with pytest.raises(SystemExit, match="move it away"):
        main(command)


def test_a_study_changes_one_thing_at_a_time(made_up, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(fixed_memory, "VARIATIONS", {"as chosen": [{}], "depth": [{"depth": 1}, {"depth": 3}]})
    main(["--sets", "JSB_Chorales", "--seeds", "2", "--out", str(tmp_path), "--study"])
    shown = capsys.readouterr().out
    assert all(f"| {label} | " in shown for label in ("as chosen", "depth: 1", "depth: 3"))


def test_the_time_to_a_score_is_that_of_the_first_epoch_that_reaches_it():
    run = {"seconds": [1.0, 2.0, 3.0], "valid": [[9.0, 0.1], [8.0, 0.2], [8.5, 0.3]]}
    assert seconds_to(run, 8.2) == 2.0
    assert seconds_to(run, 7.0) == float("inf")


@pytest.mark.parametrize("path", sorted((DOCS / "results").glob("fixed_memory_*.json")), ids=lambda path: path.stem)
def test_the_tables_in_the_documentation_are_those_of_the_results(path):
    page = (DOCS / "fixed_memory.md").read_text()
    for line in table(json.loads(path.read_text())).splitlines():
        assert line in page
