"""The training loop learns, stops, keeps the best, does the same again from the same seed, and survives its end."""

import csv
import io
import math
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import linmem
from linmem.datasets import piano_rolls
from linmem.experiments import training
from linmem.experiments.checkpoints import Folder
from linmem.experiments.training import DivergedError, NextFrame, Settings, evaluate, train

QUICK = Settings(epochs=4, batch_size=8, learning_rate=1e-2)


@pytest.fixture(scope="module")
def parts():
    return piano_rolls.split(piano_rolls.synthetic(pieces=40))


def model(parts, layer=None):
    torch.manual_seed(0)
    layer = linmem.LMN(88, 10, memory_size=12) if layer is None else layer
    return NextFrame(layer).start_at_frequencies(parts.train)


LAYERS = {
    "LMN": lambda: linmem.LMN(88, 10),
    "MultiScaleLMN": lambda: linmem.MultiScaleLMN(88, 10, num_modules=2),
    "UnrolledRNN": lambda: linmem.UnrolledRNN(88, 10, order=3),
    "nn.LSTM": lambda: nn.LSTM(88, 10),
    "nn.RNN": lambda: nn.RNN(88, 10),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("chunk", [None, 15])
def test_every_kind_of_layer_learns(name, chunk, parts):
    torch.manual_seed(0)
    m = model(parts, LAYERS[name]())
    run = train(m, parts.train, parts.valid, Settings(epochs=10, batch_size=2, learning_rate=1e-2, chunk=chunk))
    assert [epoch.number for epoch in run.epochs] == list(range(11))
    assert run.best["nats"].valid_nats < run.epochs[0].valid_nats - 1
    assert evaluate(m, parts.valid).nats == pytest.approx(run.best["nats"].valid_nats, rel=1e-5)


def test_the_same_seed_gives_the_same_bits_and_another_does_not(parts):
    def weights(seed):
        m = model(parts)
        train(m, parts.train, parts.valid, Settings(epochs=2, batch_size=2, learning_rate=1e-2, seed=seed))
        return torch.cat([p.detach().flatten() for p in m.parameters()])

    one, two, other = weights(0), weights(0), weights(1)
    assert torch.equal(one, two)
    assert not torch.equal(one, other)


def test_it_stops_when_neither_quantity_improves_any_more(parts, monkeypatch):
    """Likelihood is best at epoch 1, accuracy at epoch 3; with a patience of 2 that makes 5."""
    scripted = iter([(9, 0.1), (5, 0.2), (6, 0.2), (7, 0.3), (8, 0.3), (9, 0.3), (1, 0.9)])

    class Scores:
        def __init__(self):
            self.nats, self.accuracy = next(scripted)

        def pooled(self):
            return self.accuracy

    monkeypatch.setattr(training, "evaluate", lambda *_: Scores())
    m = model(parts)
    run = train(m, parts.train, parts.valid, Settings(epochs=50, patience=2), select="accuracy")
    assert run.trained == 5
    assert (run.best["nats"].number, run.best["accuracy"].number) == (1, 3)
    assert all(torch.equal(value, run.states["accuracy"][name]) for name, value in m.state_dict().items())
    assert not torch.equal(run.states["nats"]["readout.bias"], run.states["accuracy"]["readout.bias"])


def test_a_start_that_is_the_best_is_kept(parts):
    m = model(parts)
    train(m, parts.train, parts.valid, Settings(epochs=10, batch_size=8, learning_rate=1e-2))
    before = {name: value.clone() for name, value in m.state_dict().items()}
    run = train(m, parts.train, parts.valid, Settings(epochs=2, learning_rate=0.2))
    assert run.best["nats"].number == 0
    assert all(torch.equal(value, before[name]) for name, value in m.state_dict().items())


def test_padding_counts_nowhere(parts):
    """The loss of a batch is that of its pieces one by one."""
    m = model(parts)
    together = evaluate(m, parts.valid)
    alone = [evaluate(m, parts.valid[i : i + 1]) for i in range(len(parts.valid))]
    frames = [scores.frames for scores in alone]
    assert together.frames == sum(frames)
    assert together.nats == pytest.approx(np.average([s.nats for s in alone], weights=frames), rel=1e-6)
    run = train(model(parts), parts.train, parts.valid, Settings(epochs=1, learning_rate=0.0, batch_size=3))
    assert run.epochs[1].train_nats == pytest.approx(evaluate(model(parts), parts.train).nats, rel=1e-5)


def test_a_loss_that_is_no_number_says_so(parts):
    m = model(parts)
    with torch.no_grad():
        m.readout.weight[0, 0] = math.nan
    with pytest.raises(ValueError, match="logits contain NaN"):
        train(m, parts.train, parts.valid, QUICK)
    batch = next(iter(training.next_frame_batches(parts.train, 4)))
    with pytest.raises(DivergedError, match="the loss became nan: expected a number"):
        training.train_batch(m, batch, torch.optim.SGD(m.parameters(), lr=0.1), QUICK)


def test_gradients_are_clipped(parts):
    m = model(parts)
    batch = next(iter(training.next_frame_batches(parts.train, 4)))
    before = torch.cat([p.detach().flatten() for p in m.parameters()])
    training.train_batch(m, batch, torch.optim.SGD(m.parameters(), lr=1.0), Settings(clip=1e-3))
    after = torch.cat([p.detach().flatten() for p in m.parameters()])
    assert float((after - before).norm()) == pytest.approx(1e-3, rel=1e-3)


def test_a_layer_that_is_none_is_refused():
    with pytest.raises(TypeError, match="layer should be a recurrent layer of linmem or torch, got: Linear"):
        NextFrame(nn.Linear(88, 10))


# ------------------------------------------------------------------------------------------------ a folder

SHORT = Settings(epochs=5, batch_size=8, learning_rate=1e-2)

#: Whose bits depend on more than weights: Adam's moments, and what dropout draws.
WITH_DROPOUT = {
    "LMN": lambda: linmem.LMN(88, 10, num_layers=2, dropout=0.3),
    "nn.LSTM": lambda: nn.LSTM(88, 10, num_layers=2, dropout=0.3),
    "frozen": lambda: linmem.LinearMemory(88, [4], 2, init="legendre", window=7, trainable=False),
}


class Cut(Exception):  # noqa: N818
    """What a run is cut off by."""


def outcome(parts, folder=None, *, cut=None, settings=SHORT, layer=WITH_DROPOUT["LMN"], seed=0):
    """Everything that a run leaves behind, but for seconds; `cut` is the epoch behind which it is cut off."""
    torch.manual_seed(seed)
    m = NextFrame(layer()).start_at_frequencies(parts.train)

    def report(epoch):
        if epoch.number == cut:
            raise Cut

    run = train(m, parts.train, parts.valid, settings, report=report, folder=folder)
    history = [repr(replace(epoch, seconds=0)) for epoch in [*run.epochs, *run.best.values()]]
    states = [m.state_dict(), *run.states.values()]
    bits = [value.numpy().tobytes() for state in states for value in state.values()]
    return history, bits, torch.get_rng_state().numpy().tobytes()


def interrupted(parts, folder, cut, **options):
    with pytest.raises(Cut):
        outcome(parts, folder, cut=cut, **options)


@pytest.mark.parametrize("name", WITH_DROPOUT)
def test_resuming_gives_the_same_bits(name, parts, tmp_path):
    options = {"layer": WITH_DROPOUT[name]}
    whole = outcome(parts, **options)
    for cut in (0, 2, 3):
        interrupted(parts, tmp_path, cut, **options)
    assert outcome(parts, tmp_path, **options) == whole, "cut off behind three epochs"
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert outcome(parts, tmp_path, **options) == whole, "read only"
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_run_that_stopped_by_itself_is_not_continued(parts, tmp_path):
    settings = Settings(epochs=50, patience=2, learning_rate=0.0)
    whole = outcome(parts, settings=settings)
    assert outcome(parts, tmp_path, settings=settings) == whole
    changed = (tmp_path / "checkpoint.safetensors").stat().st_mtime_ns
    assert outcome(parts, tmp_path, settings=settings) == whole
    assert (tmp_path / "checkpoint.safetensors").stat().st_mtime_ns == changed


def test_a_run_that_was_ended_by_its_report_can_go_on(parts, tmp_path):
    settings, epochs = replace(SHORT, epochs=3), []
    for _ in range(3):
        m = model(parts)
        epochs += train(m, parts.train, parts.valid, settings, report=lambda epoch: True, folder=tmp_path).epochs[-1:]
    assert [epoch.number for epoch in epochs] == [0, 1, 2]


KILLED = """
import os, random, signal, sys, time
from dataclasses import replace
from pathlib import Path
import torch, linmem
from linmem.datasets import piano_rolls
from linmem.experiments.training import NextFrame, Settings, train
from linmem.files import read_saved

torch.set_num_threads(1)  # and this process computes nothing: its children must not inherit locks of threads
torch.optim.Adam(torch.nn.Linear(1, 1).parameters())  # imports what would delay each of them
parts, chance = piano_rolls.split(piano_rolls.synthetic(pieces=10)), random.Random(0)

def live(folder):
    torch.manual_seed(0)
    model = NextFrame(linmem.LMN(88, 10, num_layers=2, dropout=0.3))
    run = train(model, parts.train, parts.valid, Settings(epochs=20, batch_size=2, learning_rate=1e-2), folder=folder)
    bits = [value.numpy().tobytes() for state in run.states.values() for value in state.values()]
    history = [repr(replace(epoch, seconds=0)) for epoch in run.epochs]
    Path(folder, "outcome").write_text(repr((bits, history, torch.get_rng_state().numpy().tobytes())))

def begin(folder, function=None, number=0):
    # The child kills itself when it calls a function of os for this time.
    child = os.fork()
    if child:
        return child
    if function is not None:
        left, real = iter(range(number, -1, -1)), getattr(os, function)
        setattr(os, function, lambda *a: real(*a) if next(left) else os.kill(os.getpid(), signal.SIGKILL))
    live(folder)
    os._exit(0)

def end(child):
    return os.waitpid(child, 0)[1]

def kept(folder):
    return read_saved(Path(folder, "checkpoint.safetensors"))[1].facts["epochs"]

whole, cut = sys.argv[1:]
assert end(begin(whole)) == 0
took = sum(epoch["seconds"] for epoch in kept(whole))
behind = []
for kill in range(12):
    if kill % 2:  # while it writes: a file that has been begun, and one that is not in its place yet
        child = begin(cut, chance.choice(["fsync", "replace"]), chance.randrange(4))
    else:
        child = begin(cut)
        time.sleep(chance.uniform(0, took / 3))
        os.kill(child, signal.SIGKILL)
    status = end(child)
    if status == 0:
        break
    assert status == signal.SIGKILL, status
    log = Path(cut, "epochs.csv")
    numbers = [int(line.split(",")[0]) for line in log.read_text().splitlines()[1:]] if log.exists() else []
    assert numbers == list(range(len(numbers))), numbers
    if Path(cut, "checkpoint.safetensors").exists():
        behind.append(len(kept(cut)))
        assert behind[-1] - len(numbers) in (0, 1), "the log is made of the checkpoint, and right behind it"
assert end(begin(cut)) == 0
assert Path(cut, "outcome").read_bytes() == Path(whole, "outcome").read_bytes()
assert sorted(os.listdir(cut)) == sorted(os.listdir(whole)), os.listdir(cut)
assert behind == sorted(behind)
print(len(set(behind)))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are started by fork")
def test_a_run_that_is_killed_again_and_again_ends_with_the_same_bits(tmp_path):
    """SIGKILL at random moments of training, and in the midst of writing."""
    folders = [str(tmp_path / "whole"), str(tmp_path / "cut")]
    done = subprocess.run([sys.executable, "-c", KILLED, *folders], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 3, "it was killed at different epochs"


def test_the_log_has_every_epoch_once(parts, tmp_path):
    log = tmp_path / "epochs.csv"

    def numbers():
        rows = list(csv.DictReader(io.StringIO(log.read_text())))
        return [int(row["number"]) for row in rows]

    interrupted(parts, tmp_path, 2)
    assert numbers() == [0, 1, 2]
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:-1]))  # killed between the two files
    interrupted(parts, tmp_path, 3)
    assert numbers() == [0, 1, 2, 3]
    log.unlink()
    outcome(parts, tmp_path)
    assert numbers() == [0, 1, 2, 3, 4, 5]
    log.unlink()
    outcome(parts, tmp_path)
    assert numbers() == [0, 1, 2, 3, 4, 5], "made again from a run that has ended"


def test_the_log_says_what_the_run_does(parts, tmp_path):
    run = train(model(parts), parts.train, parts.valid, QUICK, folder=tmp_path)
    assert run.trained == 4
    rows = csv.DictReader(io.StringIO((tmp_path / "epochs.csv").read_text()))
    for row, epoch in zip(rows, run.epochs, strict=True):
        assert {name: float(value) for name, value in row.items()} == pytest.approx(asdict(epoch), rel=0, nan_ok=True)


def test_a_checkpoint_of_another_run_is_refused(parts, tmp_path):
    interrupted(parts, tmp_path, 1)
    before = (tmp_path / "checkpoint.safetensors").read_bytes()
    other = piano_rolls.split(piano_rolls.synthetic(pieces=40), seed=1)
    differing = {
        "settings": {"settings": replace(SHORT, clip=0.5)},
        "training data, validation data, model": {"parts": other},  # it starts at the frequencies of keys
        "validation data": {"parts": piano_rolls.Split(parts.train, other.valid, parts.test)},
        "model": {"seed": 1},
    }
    for what, options in differing.items():
        with pytest.raises(ValueError, match=f"is of another run, which differs in {what}: expected an empty folder"):
            outcome(**{"parts": parts, "folder": tmp_path} | options)
    for layer in (
        lambda: linmem.LMN(88, 10, num_layers=2, dropout=0.4),
        lambda: linmem.LMN(88, 10, num_layers=2, dropout=0.3).requires_grad_(False),
    ):
        with pytest.raises(ValueError, match="differs in model"):
            outcome(parts, tmp_path, layer=layer)
    assert (tmp_path / "checkpoint.safetensors").read_bytes() == before


def test_a_file_that_is_no_checkpoint_is_refused(parts, tmp_path):
    interrupted(parts, tmp_path, 1)
    path = tmp_path / "checkpoint.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(ValueError, match=r"checkpoint\.safetensors is not a safetensors file or is truncated"):
        outcome(parts, tmp_path)
    linmem.save(path, linmem.LMN(3, 4))
    with pytest.raises(ValueError, match="holds a 'LMN': expected the checkpoint of a run"):
        outcome(parts, tmp_path)
    path.write_bytes(whole)
    with pytest.raises(ValueError, match="holds a 'Checkpoint': expected one of"):
        linmem.load(path)


def without_generator(saved):
    del saved.tensors["generator"]


def without_a_moment(saved):
    del saved.tensors["optimizer.0.exp_avg"]


def without_a_weight(saved):
    del saved.tensors["best.nats.readout.bias"]


def without_an_epoch(saved):
    del saved.facts["epochs"][0]


def with_another_shape(saved):
    saved.tensors["model.readout.bias"] = torch.zeros(3)


@pytest.mark.parametrize(
    "damage", [without_generator, without_a_moment, without_a_weight, without_an_epoch, with_another_shape]
)
def test_a_checkpoint_that_contradicts_itself_is_refused(damage, parts, tmp_path, monkeypatch):
    interrupted(parts, tmp_path, 1)
    read = Folder.read

    def damaged(folder):
        saved = read(folder)
        damage(saved)
        return saved

    monkeypatch.setattr(Folder, "read", damaged)
    with pytest.raises(ValueError, match=r"checkpoint\.safetensors contradicts itself: ") as caught:
        outcome(parts, tmp_path)
    assert "\n" not in str(caught.value)


# --------------------------------------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize("batch_size", [4, 100], ids=["in an epoch", "behind its only batch"])
def test_a_run_that_diverges_leaves_what_was_good(batch_size, parts, tmp_path):
    settings = replace(QUICK, learning_rate=1e30, batch_size=batch_size)
    for folder in (None, tmp_path, tmp_path):  # the third one goes on behind the last good epoch, and does it again
        m = model(parts)
        before = {name: value.clone() for name, value in m.state_dict().items()}
        with pytest.raises(DivergedError, match=r"; that was in epoch 1$") as caught:
            train(m, parts.train, parts.valid, settings, folder=folder)
        assert [epoch.number for epoch in caught.value.run.epochs] == [0]
        assert all(torch.equal(value, before[name]) for name, value in m.state_dict().items())
    assert len((tmp_path / "epochs.csv").read_text().splitlines()) == 2, "the header and epoch 0"


def test_a_sweep_survives_a_run_that_diverges(parts):
    nats = {}
    for rate in (1e30, 1e-2):
        m = model(parts)
        try:
            run = train(m, parts.train, parts.valid, replace(QUICK, learning_rate=rate))
        except DivergedError as error:
            run = error.run
        nats[rate] = run.best["nats"].valid_nats
        assert evaluate(m, parts.valid).nats == pytest.approx(nats[rate], rel=1e-6)
    assert nats[1e-2] < nats[1e30]


def test_a_full_disk_leaves_the_last_checkpoint(parts, tmp_path):
    resource = pytest.importorskip("resource", reason="limits the size of files")
    whole = outcome(parts)
    interrupted(parts, tmp_path, 2)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before[tmp_path / "checkpoint.safetensors"]) // 2, limits[1]))
    try:
        with pytest.raises(OSError, match=r"nothing can be written into .*, the last checkpoint is intact"):
            outcome(parts, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert outcome(parts, tmp_path) == whole, "once there is room again"


@pytest.fixture
def read_only():
    """A folder that only reading is allowed in while it is entered, for root too."""
    with tempfile.TemporaryDirectory() as name:  # pytest's own are closed to others than root
        root = hasattr(os, "geteuid") and os.geteuid() == 0

        class ReadOnly(type(Path(name))):
            def __enter__(self):
                os.chmod(name, 0o555)
                if root:
                    os.seteuid(65534)

            def __exit__(self, *_):
                if root:
                    os.seteuid(0)
                os.chmod(name, 0o755)

        yield ReadOnly(name)


def test_a_folder_that_is_read_only_says_so_before_training(parts, read_only):
    outcome(parts)
    with read_only, pytest.raises(PermissionError, match=r"folder .*there is no checkpoint yet") as caught:
        outcome(parts, read_only, cut=0)
    assert caught.value.filename == str(read_only)
    assert list(read_only.iterdir()) == []
    interrupted(parts, read_only, 2)
    before = {path: path.read_bytes() for path in read_only.iterdir()}
    with read_only, pytest.raises(PermissionError, match=r"folder .*the last checkpoint is intact"):
        outcome(parts, read_only)
    assert {path: path.read_bytes() for path in read_only.iterdir()} == before
    whole = outcome(parts, read_only)
    with read_only:
        assert outcome(parts, read_only) == whole, "what has ended needs no writing"


# ------------------------------------------------------------------------------------------------ progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_line_shows_how_far_it_is_on_a_terminal_only(parts, monkeypatch, tmp_path):
    def shown(stream, **options):
        monkeypatch.setattr(sys, "stderr", stream)
        train(model(parts), parts.train, parts.valid, QUICK, **options)
        return stream.getvalue()

    line = shown(Terminal(), folder=tmp_path)
    assert "epoch 4/4: 100%" in line
    assert " frames/s" in line
    assert f"{4 * (parts.train.n_frames - len(parts.train)) / 1000:.2f}k/" in line, "frames that have a next one"
    assert " nats, " in line
    assert "100%" in shown(Terminal(), folder=tmp_path).split("\r")[1], "what was done before counts"
    assert shown(io.StringIO()) == ""
    assert shown(Terminal(), report=lambda epoch: None) == ""
