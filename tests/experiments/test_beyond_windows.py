"""The tasks, the models and the bookkeeping of the comparison of memories with windows."""

import json
import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

import linmem
from linmem.datasets.words import WORDS, Utterances
from linmem.experiments import beyond_windows, long_models
from linmem.experiments.beyond_windows import Training, run
from linmem.experiments.long_models import (
    FAMILIES,
    PARAMETERS,
    FeedForward,
    count,
    final_codes,
    fitted,
    last_frames,
    lstm,
)
from linmem.experiments.long_tasks import Sequences, Task, adding, digits, recall, spoken_words

FEW = (4, 2, 2)


@pytest.fixture(scope="module")
def speech():
    """Twenty-five words of seven utterances, all different and of different lengths."""
    rng = np.random.default_rng(0)
    features = [rng.standard_normal((5 + i % 9, 13)).astype(np.float32) for i in range(7 * len(WORDS))]
    speakers = tuple(f"S{i}" for i in range(len(features)))
    return Utterances(features, np.repeat(np.arange(25), 7), speakers, ("TRAIN",) * len(features), synthetic=True)


# ------------------------------------------------------------------------------------------------------- tasks


@pytest.mark.parametrize("noise", [False, True])
def test_who_looks_at_the_start_recalls_every_bit(noise):
    task = recall(12, (200, 50, 50), seed=0, noise=noise)
    for part in (task.train, task.valid, task.test):
        assert ((part.x[:, :5, :8] > 0).flatten(1) == (part.y > 0.5)).all()
        assert (part.x[:, 5:-1, :8] != 0).all() if noise else not part.x[:, 5:-1].any()
        assert (part.x[:, -1, 8] == 1).all()
        assert not part.x[:, :-1, 8].any(), "the call comes once, at the end"
    assert abs(float(task.train.y.mean()) - 0.5) < 0.03, "a bit is as often 1 as 0"


def test_who_multiplies_numbers_by_marks_knows_the_sum():
    task = adding(40, (200, 50, 50), seed=0)
    number, mark = task.test.x.unbind(-1)
    torch.testing.assert_close((number * mark).sum(1, keepdim=True), task.test.y)
    assert (mark[:, :20].sum(1) == 1).all()
    assert (mark[:, 20:].sum(1) == 1).all()


def test_digits_are_the_images_row_by_row_and_scaled_by_those_to_learn_from():
    task = digits(seed=0)
    mean, deviation = float(task.train.x.mean()), float(task.train.x.std(correction=0))
    assert (mean, deviation) == (pytest.approx(0, abs=1e-5), pytest.approx(1, abs=1e-5))
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))[1197:1497]
    flat = task.valid.x[..., 0].double().numpy()
    assert np.corrcoef(flat.ravel(), data.data[order].ravel())[0, 1] == pytest.approx(1)
    assert (task.valid.y.numpy() == data.target[order]).all()


def test_words_are_divided_evenly_and_padded_behind_their_end(speech):
    task = spoken_words(speech, seed=3)
    assert task.name == "words-synthetic"
    for part, each in ((task.train, 4), (task.valid, 1), (task.test, 2)):
        assert (np.bincount(part.y) == each).all()
        for x, length in zip(part.x, part.lengths, strict=True):
            assert x[:length].any(1).all()
            assert not x[length:].any()
    everything = [tuple(x[0].tolist()) for part in (task.train, task.valid, task.test) for x in part.x]
    assert len(set(everything)) == 7 * 25, "no utterance is in two parts"


@pytest.mark.parametrize("make", [partial(recall, 5), partial(recall, 5, noise=True), partial(adding, 10)])
def test_a_seed_makes_the_same_task_again_and_another_seed_another(make):
    first, again, other = make(FEW, seed=1), make(FEW, seed=1), make(FEW, seed=2)
    assert torch.equal(first.train.x, again.train.x)
    assert not torch.equal(first.train.x, other.train.x)


def test_sizes_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match=r"sizes=\(1700, 100, 100\): expected three numbers of at least 1, and 1797"):
        digits(0, sizes=(1700, 100, 100))


# ------------------------------------------------------------------------------------------------------ models


def ragged(lengths):
    rng = np.random.default_rng(0)
    x = torch.zeros(len(lengths), max(lengths), 3)
    for row, length in zip(x, lengths, strict=True):
        row[:length] = torch.from_numpy(rng.standard_normal((length, 3)))
    return Sequences(x, torch.zeros(len(lengths)), torch.tensor(lengths))


@pytest.mark.parametrize("periods", [[1], [1, 2, 4]])
def test_codes_that_are_streamed_in_pieces_are_those_of_each_sequence_alone(periods, monkeypatch):
    monkeypatch.setattr(long_models, "ROWS", 2)
    monkeypatch.setattr(long_models, "CHUNK", 4)
    part = ragged([3, 11, 4, 8, 5])
    memory = linmem.LinearMemory.fit(list(part.x.numpy()), 9, forgetting=0.9, periods=periods, batch_first=True)
    codes = final_codes(memory, part)
    for code, x, length in zip(codes, part.x, part.lengths, strict=True):
        torch.testing.assert_close(code, memory(x[:length])[0][-1])


def test_windows_are_the_last_frames_with_zeros_before_the_start():
    part = ragged([3, 11])
    seen = last_frames(part, 5).view(2, 5, 3)
    assert torch.equal(seen[0], torch.cat([torch.zeros(2, 3), part.x[0, :3]]))
    assert torch.equal(seen[1], part.x[1, 6:])


@pytest.mark.parametrize("family", ["lstm", "gru", "multiscale-lmn"])
def test_recurrent_nets_answer_at_the_end_of_each_sequence(family):
    part = ragged([3, 11])
    (make, *_) = FAMILIES[family](Task("any", "class", 4, part, part, part)).values()
    net = make().make_net(part)
    answers = net(part.x, part.lengths)
    assert answers.shape == (2, 4)
    torch.testing.assert_close(answers[:1], net(part.x[:1, :3], part.lengths[:1]))


def test_a_memory_fitted_to_some_of_many_sequences_knows_those_that_come_last(monkeypatch):
    """Classes may come in order, as those of the words do."""
    monkeypatch.setattr(long_models, "FITTED_FRAMES", 40)
    x = torch.zeros(20, 10, 2)
    x[:10, :, 0] = x[10:, :, 1] = torch.randn(10, 10, generator=torch.Generator().manual_seed(0))
    part = Sequences(x, torch.arange(20), torch.full((20,), 10))
    memory = fitted(Task("in order", "class", 20, part, part, part), 1.0, (1,))
    assert (final_codes(memory, part).abs().amax(1) > 0).all()


def test_codes_that_say_nothing_do_no_harm():
    net = FeedForward(3, 2, 5).scaled_to(torch.ones(4, 3))
    assert torch.equal(net(torch.ones(1, 3), torch.tensor([1])), net(torch.zeros(1, 3), torch.tensor([1])))


def test_the_forget_gates_start_where_they_are_told_to():
    net = lstm(3, 2, 4, forget=5.0)
    bias = net.layer.bias_ih_l0 + net.layer.bias_hh_l0
    assert (bias[4:8] == 5).all()
    assert (bias[:4].abs() <= 1).all()


def tasks(speech):
    return [recall(100, FEW, seed=0), adding(100, FEW, seed=0), digits(0, (20, 5, 5)), spoken_words(speech, seed=0)]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_model_has_as_many_parameters_to_within_five_percent(family, speech):
    for task in tasks(speech):
        for name, make in FAMILIES[family](task).items():
            parameters = Training(make(), task, seed=0).parameters
            assert 0.95 * PARAMETERS < parameters <= PARAMETERS, f"{name} on {task.name}"


def test_so_has_the_multiscale_lmn_with_very_many_clocks():
    (make,) = FAMILIES["multiscale-lmn"](recall(10_000, (1, 1, 1), seed=0)).values()
    net = make().make_net(None)
    assert net.layer.num_modules == 13
    assert 0.95 * PARAMETERS < count(net) <= PARAMETERS


def test_a_net_that_cannot_be_small_enough_is_refused():
    with pytest.raises(ValueError, match="allowed=3: expected at least 7, the parameters of a net of one unit"):
        long_models.widest(partial(torch.nn.Linear, 6), allowed=3)


# ---------------------------------------------------------------------------------------------------- training


def trained(task, family, monkeypatch):
    monkeypatch.setattr(beyond_windows, "PATIENCE", 3)
    monkeypatch.setattr(beyond_windows, "BATCH", 50)
    torch.manual_seed(0)
    training = Training(next(iter(FAMILIES[family](task).values()))(), task, seed=0)
    training.run(math.inf)
    return training


@pytest.mark.parametrize("family", ["window-16", "orthogonal", "closed-form"])
def test_whoever_has_seen_everything_recalls_nearly_all_of_it(family, monkeypatch):
    training = trained(recall(3, (500, 100, 100), seed=0), family, monkeypatch)
    assert training.test()["accuracy"] > 0.9


def test_a_window_shorter_than_the_delay_stays_at_chance(monkeypatch):
    scores = trained(recall(16, (300, 100, 500), seed=0), "window-16", monkeypatch).test()
    assert scores["accuracy"] == pytest.approx(0.5, abs=0.02)  # 20000 bits: five deviations
    assert scores["nats"] > 0.99 * math.log(2)


def test_the_epoch_that_is_tested_is_the_best_on_validation_data(monkeypatch):
    training = trained(adding(20, (100, 50, 50), seed=0), "window-4", monkeypatch)
    assert training.epochs == training.best_epoch + 3
    last = training.best_loss
    training.test()
    answers = training.net(training.valid.x, training.valid.lengths).detach()
    assert float(training.loss(answers, training.valid.y)) == last


def test_models_of_a_family_share_the_time_and_the_best_on_validation_data_is_tested():
    task = recall(3, (50, 20, 20), seed=0)
    result = run(task, "closed-form", seed=0, seconds=0)
    assert list(result["tried"]) == ["forgetting 1"], "when the time is up nothing more is tried"
    assert result["steps"] == 0
    result = run(task, "lstm", seed=0, seconds=0.4)
    tried = {name: facts["validation loss"] for name, facts in result["tried"].items()}
    assert result["chosen"] == min(tried, key=tried.get)
    assert result["validation loss"] <= tried[result["chosen"]]


# ------------------------------------------------------------------------------------------------- bookkeeping


@pytest.fixture
def quick(tmp_path, monkeypatch):
    """Return a function that runs two models of a tiny task."""
    monkeypatch.setattr(beyond_windows, "TASKS", {"recall-3": lambda seed: recall(3, (20, 10, 10), seed)})

    def main(*more):
        models = ("--models", "window-1", "window-4")
        beyond_windows.main([*models, "--seconds", "0.05", "--seeds", "2", "--out", str(tmp_path), *more])
        return json.loads((tmp_path / "beyond_windows.json").read_text())

    return main


def test_runs_in_the_file_are_not_repeated(quick, monkeypatch, capsys):
    record = quick("--seeds", "1")
    assert [(r["seed"], r["model"]) for r in record["runs"]] == [(0, "window-1"), (0, "window-4")]
    more = quick()
    assert more["runs"][:2] == record["runs"]
    assert [(r["seed"], r["model"]) for r in more["runs"][2:]] == [(1, "window-1"), (1, "window-4")]
    monkeypatch.setattr(beyond_windows, "run", None)
    assert quick() == more
    assert beyond_windows.table(more["runs"]) in capsys.readouterr().out


def test_a_run_that_is_cut_off_leaves_those_before_it(quick, monkeypatch):
    real = beyond_windows.run

    def cut_off(task, model, seed, seconds):
        if model == "window-4":
            raise KeyboardInterrupt
        return real(task, model, seed, seconds)

    monkeypatch.setattr(beyond_windows, "run", cut_off)
    with pytest.raises(KeyboardInterrupt):
        quick()
    monkeypatch.setattr(beyond_windows, "run", real)
    assert len(quick()["runs"]) == 4


def test_a_file_of_other_settings_is_refused(quick):
    quick()
    with pytest.raises(ValueError, match=r"has settings .*: expected .*, or another folder"):
        quick("--seconds", "0.1")


def test_the_tables_in_the_documentation_are_those_of_the_results():
    docs = Path(__file__).parents[2] / "docs"
    runs = json.loads((docs / "results" / "beyond_windows.json").read_text())["runs"]
    page = (docs / "beyond_windows.md").read_text()
    for line in beyond_windows.table(runs).splitlines():
        assert line in page
