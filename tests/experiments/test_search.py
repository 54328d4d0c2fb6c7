"""Every point of a search counts exactly once, whatever happens to the workers and to the database."""

import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.distributions import FloatDistribution, IntDistribution
from optuna.trial import TrialState

from linmem.experiments import search
from linmem.experiments.search import Patience, Sweep, grid, random_search, retrain
from linmem.experiments.training import DivergedError

#: Of those who take over from the dead.
QUICK = Patience(heartbeat=0.2, grace=1.0)

#: Of those among whom nobody dies, however slow the machine is.
UNHURRIED = Patience(heartbeat=0.2, grace=60.0)

SPACE = {"x": [0, 1, 2, 3, 4, 5]}


def until(true: Callable[[], Any], what: str, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"{what}: not within {seconds} s"
        time.sleep(0.02)


def trials(sweep: Sweep, *states: TrialState) -> list[Any]:
    """What optuna knows, without linmem's view of it."""
    with search._opened(search._url(sweep.storage)) as storage:
        return optuna.load_study(study_name=sweep.name, storage=storage).get_trials(states=states or None)


def assert_each_once(sweep: Sweep, table: search.Table) -> None:
    """Each point once in the table, once among the trials that optuna calls complete, and nothing left to do."""
    assert [row["parameters"]["x"] for row in table.rows] == SPACE["x"]
    assert sorted(trial.params["x"] for trial in trials(sweep, TrialState.COMPLETE)) == SPACE["x"]
    assert trials(sweep, TrialState.WAITING, TrialState.RUNNING) == []


class KilledError(BaseException):
    """Stands for the end of a process."""


def run_and_die_at(point: int, sweep: Sweep) -> None:
    """Take part in a search as one whose process ends when it has claimed a point, before any sign of life."""
    run = search._Worker._run

    def run_or_die(worker: search._Worker, trial: Any) -> None:
        if trial.user_attrs["point"] == point:
            raise KilledError
        run(worker, trial)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search._Worker, "_run", run_or_die)
        with pytest.raises(KilledError):
            grid(sweep, lambda p, seed: p["x"], SPACE)


@pytest.fixture
def sqlite(tmp_path: Path) -> Sweep:
    return Sweep("search", tmp_path / "out" / "searches.sqlite", patience=QUICK)


# One worker


def test_a_grid_has_every_combination_once(sqlite: Sweep) -> None:
    calls = []

    def objective(parameters: dict[str, Any], seed: int) -> float:
        calls.append((parameters, seed))
        return parameters["x"] + len(parameters["name"])

    table = grid(sqlite, objective, {"x": [1, 2.5], "name": ["a", "bb"], "flag": [True, None]}, seed=3)
    expected = [{"flag": f, "name": name, "x": x} for f in (True, None) for name in ("a", "bb") for x in (1, 2.5)]
    assert calls == [(parameters, 3) for parameters in expected]
    assert [row["parameters"] for row in table.rows] == expected
    assert [row["value"] for row in table.rows] == [2, 3.5, 3, 4.5] * 2
    assert all(row["seed"] == 3 and row["seconds"] >= 0 and row["worker"] for row in table.rows)
    assert table.best()["parameters"] == {"flag": True, "name": "a", "x": 1}


def test_a_search_that_has_ended_runs_nothing_again(sqlite: Sweep) -> None:
    first = grid(sqlite, lambda p, seed: p["x"], SPACE)
    assert grid(sqlite, lambda p, seed: pytest.fail("run again"), SPACE) == first == search.table(sqlite)


def test_random_points_depend_on_the_seed_alone() -> None:
    rate, units = FloatDistribution(1e-4, 1e-1, log=True), IntDistribution(10, 200)
    space = {"rate": rate, "units": units, "kind": ["lmn", "lstm"]}

    def points(trials: int, seed: int) -> list[Any]:
        return search._random(space, trials, seed).points

    drawn = points(12, 0)
    assert points(12, 0) == drawn
    assert points(5, 0) == drawn[:5]
    assert points(5, 1) != drawn[:5]
    assert len({json.dumps(parameters) for parameters, _ in drawn}) == 12
    for parameters, _ in drawn:
        assert 1e-4 <= parameters["rate"] <= 1e-1
        assert 10 <= parameters["units"] <= 200
        assert type(parameters["units"]) is int
    assert {parameters["kind"] for parameters, _ in drawn} == {"lmn", "lstm"}


def test_workers_share_the_trials_of_a_random_search(sqlite: Sweep) -> None:
    calls = []

    def take_part(_: int) -> search.Table:
        sweep, space = replace(sqlite, patience=UNHURRIED), {"x": FloatDistribution(0, 1)}
        return random_search(sweep, lambda p, seed: calls.append(p["x"]) or p["x"], space, trials=7, seed=1)

    with ThreadPoolExecutor(2) as threads:
        table, other = threads.map(take_part, range(2))
    assert table == other
    assert table.points == len(calls) == 7
    assert {row["parameters"]["x"] for row in table.rows} == set(calls)
    assert table.best()["value"] == min(calls)


def test_failures_are_reported_and_stop_nothing(sqlite: Sweep, caplog: pytest.LogCaptureFixture) -> None:
    def objective(parameters: dict[str, Any], seed: int) -> Any:
        match parameters["x"]:
            case 0:
                raise DivergedError("the loss became nan")
            case 1:
                return {"nats": float("nan")}
            case 2:
                return {"accuracy": 0.5}
            case 3:
                return None
            case 4:
                return {"nats": 2.0, "accuracy": float("nan")}
        return {"nats": 1.0, "accuracy": 0.5}

    sweep = replace(sqlite, metric="nats")
    table = grid(sweep, objective, SPACE)
    assert [row["error"] for row in table.rows] == [
        "DivergedError: the loss became nan",
        "ValueError: nats is nan: expected a finite number",
        "ValueError: the objective returned ['accuracy']: expected 'nats' among them",
        "TypeError: float() argument must be a string or a real number, not 'NoneType'",
        None,
        None,
    ]
    assert "point 0 failed" in caplog.text
    assert len(table.failed) == 4
    assert table.best()["value"] == 1.0
    assert table.rows[4]["metrics"] == {"nats": 2.0, "accuracy": None}
    assert grid(sweep, lambda p, seed: pytest.fail("run again"), SPACE) == table
    table.write(sqlite.storage.parent / "table.json")  # type: ignore[union-attr]
    written = json.loads((sqlite.storage.parent / "table.json").read_text())  # type: ignore[union-attr]
    assert written == {"name": "search", "metric": "nats", "direction": "minimize", "points": 6, "rows": table.rows}


def test_the_best_is_retrained_over_seeds(sqlite: Sweep) -> None:
    def objective(parameters: dict[str, Any], seed: int) -> dict[str, float]:
        return {"accuracy": parameters["x"] + seed, "loss": 1.0}

    sweep = replace(sqlite, metric="accuracy", direction="maximize")
    best = grid(sweep, objective, SPACE).best()
    assert best["parameters"] == {"x": 5}
    table = retrain(sweep, objective, best["parameters"], seeds=[1, 2, 3])
    assert [(row["seed"], row["value"]) for row in table.rows] == [(1, 6), (2, 7), (3, 8)]
    assert str(table.spread()) == "7 ± 1 (3 seeds)"
    assert table.spread("loss") == (1, 0, 3)
    assert search.table(search.retrained(sweep)) == table


def test_a_table_of_a_running_search_has_what_has_ended(sqlite: Sweep) -> None:
    lengths = []

    def objective(parameters: dict[str, Any], seed: int) -> float:
        lengths.append(len(search.table(sqlite).rows))
        return 0.0

    assert grid(sqlite, objective, SPACE).points == 6
    assert lengths == [0, 1, 2, 3, 4, 5]


# What is refused


def test_another_search_of_the_same_name_is_refused(sqlite: Sweep) -> None:
    grid(sqlite, lambda p, seed: 0.0, SPACE)
    before = trials(sqlite)

    def refused(sentence: str, sweep: Sweep = sqlite, space: dict[str, Any] = SPACE, seed: int = 0) -> None:
        with pytest.raises(ValueError, match=sentence):
            grid(sweep, lambda p, seed: pytest.fail("run"), space, seed)

    refused("name='search': the search there has points 6, this one 2; expected the same", space={"x": [0, 1]})
    refused(r"has space .* 5\]}, this one .* 5\.0\]}; expected the same", space={"x": [0, 1, 2, 3, 4, 5.0]})
    refused("has seed 0, this one 1", seed=1)
    refused('has metric "value", this one "nats"', replace(sqlite, metric="nats"))
    refused('has direction "minimize", this one "maximize"', replace(sqlite, direction="maximize"))
    assert trials(sqlite) == before


def test_a_study_of_somebody_else_is_refused(sqlite: Sweep) -> None:
    with search._opened(search._url(sqlite.storage)) as storage:
        study = optuna.create_study(study_name="search", storage=storage)
        study.add_trial(optuna.create_trial(params={}, distributions={}, value=0.0))
    with pytest.raises(ValueError, match="is no point of this search; expected the same search, or another name"):
        grid(sqlite, lambda p, seed: 0.0, SPACE)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda s: grid(s, abs, {}), r"space has the names \[\]: expected one or more strings"),
        (lambda s: grid(s, abs, {"x": []}), r"space\['x'\] is \[\]: expected a list of values"),
        (lambda s: grid(s, abs, {"x": "abc"}), "is 'abc': expected a list of values"),
        (lambda s: grid(s, abs, {"x": [1, [2]]}), r"holds \[2\]: expected numbers, strings, booleans or None"),
        (lambda s: grid(s, abs, {"x": [float("nan")]}), "holds nan: expected finite numbers"),
        (lambda s: grid(s, abs, {"x": [1, True]}), "expected different values"),
        (lambda s: grid(s, abs, {"x": FloatDistribution(0, 1)}), "expected a list of values"),
        (lambda s: random_search(s, abs, {"x": [1]}, 0), "trials=0: expected at least 1"),
        (lambda s: retrain(s, abs, {"x": 1}, []), r"seeds=\[\]: expected one or more, all different"),
        (lambda s: retrain(s, abs, {"x": 1}, [2, 2]), "expected one or more, all different"),
        (lambda s: retrain(s, abs, {"x": 1}, [1.5]), "seed=1.5: expected an integer from 0 on"),
        (lambda s: grid(s, abs, {"x": [1]}, seed=-1), "seed=-1: expected an integer from 0 on"),
        (lambda s: replace(s, name=""), "name is empty: expected a name that workers share"),
        (lambda s: replace(s, direction="up"), "direction='up': expected 'minimize' or 'maximize'"),
        (lambda s: Patience(heartbeat=0), "heartbeat=0: expected some seconds"),
        (lambda s: Patience(heartbeat=5, grace=10), "grace=10: expected more than two heartbeats of 5 s"),
        (lambda s: Patience(outage=-1), "outage=-1: expected seconds"),
        (lambda s: Patience(attempts=0), "attempts=0: expected at least 1"),
        (lambda s: search.table(s), "name='search': expected a search that was started in sqlite:"),
        (lambda s: search.table(replace(s, storage="sqlite://")), "storage='sqlite://': expected a file"),
        (
            lambda s: search.table(replace(s, storage="://")),
            "storage is no URL of a database: expected such as postgres",
        ),
        (lambda s: search.table(replace(s, storage="any://u:secret@h/d")), "storage is no URL of a database"),
        (
            lambda s: search.table(replace(s, storage="mysql://u:secret@h/d")),
            "needs a driver .*MySQLdb.*: expected",
        ),
    ],
)
def test_bad_input_gets_a_sentence_before_any_work(sqlite: Sweep, call: Callable[[Sweep], Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as error:
        call(sqlite)
    assert "secret" not in str(error.value)
    assert not Path(sqlite.storage).exists()


def test_what_is_no_database_gets_a_sentence(sqlite: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "OPENING", 0.1)
    Path(sqlite.storage).parent.mkdir()
    Path(sqlite.storage).write_bytes(b"no database" * 100)
    with pytest.raises(ConnectionError, match=r"searches.sqlite' cannot be opened: .*file is not a database"):
        grid(sqlite, lambda p, seed: 0.0, SPACE)
    nowhere = replace(sqlite, storage="postgresql://u:secret@127.0.0.1:1/d")
    with pytest.raises(ConnectionError, match=r"psycopg://u:\*\*\*@127.0.0.1:1/d' cannot be opened: .*onnection"):
        grid(nowhere, lambda p, seed: 0.0, SPACE)


# Workers that die where it hurts, in one process


def test_a_trial_whose_worker_died_before_any_sign_of_life_is_run_again(sqlite: Sweep) -> None:
    run_and_die_at(3, sqlite)
    assert_each_once(sqlite, grid(sqlite, lambda p, seed: p["x"], SPACE))
    assert [t.params["x"] for t in trials(sqlite, TrialState.FAIL)] == [3]


def test_a_point_that_every_worker_dies_of_is_reported(sqlite: Sweep) -> None:
    sweep = replace(sqlite, patience=replace(QUICK, attempts=2))
    for _ in range(2):
        run_and_die_at(3, sweep)
    table = grid(sweep, lambda p, seed: pytest.fail("run"), SPACE)
    assert [row["error"] for row in table.rows] == [None] * 3 + ["given up: 2 workers fell silent on it"] + [None] * 2


@pytest.mark.parametrize("added", [0, 3])
def test_a_study_whose_creator_died_is_filled(sqlite: Sweep, added: int) -> None:
    add, count = search._Worker._add, iter(range(6))

    def add_or_die(worker: search._Worker, *arguments: Any) -> None:
        if next(count) == added:
            raise KilledError
        add(worker, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search._Worker, "_add", add_or_die)
        if not added:
            patch.setattr(search._Worker, "_describe", lambda worker: None)
        with pytest.raises(KilledError):
            grid(sqlite, lambda p, seed: p["x"], SPACE)
    assert len(trials(sqlite)) == added
    assert_each_once(sqlite, grid(sqlite, lambda p, seed: p["x"], SPACE))


def test_an_interrupted_trial_waits_for_the_next_worker(sqlite: Sweep) -> None:
    def objective(parameters: dict[str, Any], seed: int) -> float:
        if parameters["x"] == 2:
            raise KeyboardInterrupt
        return parameters["x"]

    sweep = replace(sqlite, patience=replace(UNHURRIED, attempts=1))  # nobody dies of it, nor is it waited for
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            grid(sweep, objective, SPACE)
        assert sorted(t.params["x"] for t in trials(sweep, TrialState.WAITING)) == [2, 3, 4, 5]
    assert_each_once(sweep, grid(sweep, lambda p, seed: p["x"], SPACE))


# Workers in threads, on both databases


class Server:
    """A PostgreSQL server of its own, in a temporary folder, run by nobody if we are root."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self.programs, self.folder = programs, folder
        self.data = folder / "data"
        self.who: dict[str, Any] = {}
        if os.geteuid() == 0:
            shutil.chown(folder, "nobody")
            self.who = {"user": "nobody", "extra_groups": []}
        initdb = [programs / "initdb", "-D", self.data, "-U", "ann", "-A", "trust", "--no-sync", "--no-locale"]
        subprocess.run(initdb, check=True, capture_output=True, cwd=folder, **self.who)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.process: subprocess.Popen[bytes] | None = None

    def url(self, role: str = "ann") -> str:
        return f"postgresql://{role}@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        options = ["-c", "fsync=off", "-c", "listen_addresses=127.0.0.1", "-p", str(self.port), "-k", self.folder]
        self.process = subprocess.Popen(
            [self.programs / "postgres", "-D", self.data, *options],
            stderr=subprocess.DEVNULL,
            cwd=self.folder,
            **self.who,
        )
        until(lambda: self.execute("SELECT 1"), "a connection to PostgreSQL", 20)

    def stop(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGQUIT)  # as a crash: connections break, and the log is replayed
            self.process.wait(20)
            self.process = None

    def execute(self, *statements: str) -> bool:
        import psycopg

        try:
            with psycopg.connect(self.url(), autocommit=True) as connection:
                for statement in statements:
                    connection.execute(statement)  # type: ignore[call-overload]
        except psycopg.OperationalError:
            return False
        return True


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    found = [*sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))[-1:], *filter(None, [shutil.which("initdb")])]
    if not found:
        pytest.skip("no PostgreSQL: neither is initdb on the PATH, nor in /usr/lib/postgresql")
    pytest.importorskip("psycopg")
    folder = Path(tempfile.mkdtemp(prefix="postgresql-"))  # others may enter its parent, unlike pytest's
    running = Server(found[0].resolve().parent, folder)
    try:
        running.start()
        yield running
    finally:
        running.stop()
        shutil.rmtree(folder)


@pytest.fixture(params=["sqlite", "postgresql"])
def anywhere(request: pytest.FixtureRequest, sqlite: Sweep) -> Sweep:
    """A search on either database; the name is new on the server."""
    if request.param == "sqlite":
        return sqlite
    return replace(sqlite, storage=request.getfixturevalue("server").url(), name=request.node.name)


def test_workers_that_start_at_once_share_the_points(anywhere: Sweep) -> None:
    """On a database without tables, in the case of SQLite."""
    calls: list[int] = []
    together = threading.Barrier(4)

    def objective(parameters: dict[str, Any], seed: int) -> float:
        calls.append(parameters["x"])
        return parameters["x"]

    def take_part(_: int) -> search.Table:
        together.wait()
        return grid(replace(anywhere, patience=UNHURRIED), objective, SPACE)

    with ThreadPoolExecutor(4) as threads:
        tables = list(threads.map(take_part, range(4)))
    assert sorted(calls) == SPACE["x"]
    assert len(trials(anywhere)) == len(calls)
    assert tables == tables[:1] * 4
    assert_each_once(anywhere, tables[0])


def test_points_that_were_added_twice_are_run_once(anywhere: Sweep) -> None:
    calls: list[int] = []

    def objective(parameters: dict[str, Any], seed: int) -> float:
        calls.append(parameters["x"])
        if len(calls) == 1:
            with search._opened(search._url(anywhere.storage)) as storage:
                study = optuna.load_study(study_name=anywhere.name, storage=storage)
                study.add_trials(study.get_trials(states=[TrialState.WAITING]))
        return parameters["x"]

    table = grid(anywhere, objective, SPACE)
    assert sorted(calls) == SPACE["x"]
    assert len(trials(anywhere)) == 11
    assert_each_once(anywhere, table)


def test_on_postgresql_the_server_may_crash_and_return(server: Server) -> None:
    """While one worker runs a point, and another one waits."""
    sweep = Sweep("crash", server.url(), patience=UNHURRIED)
    calls: list[int] = []
    crashed = threading.Event()

    def objective(parameters: dict[str, Any], seed: int) -> float:
        calls.append(parameters["x"])
        if parameters["x"] == 5:
            server.stop()
            crashed.set()
        return parameters["x"]

    def restart() -> None:
        crashed.wait(60)
        time.sleep(1)  # both workers have met the outage by then
        server.start()

    with ThreadPoolExecutor(3) as threads:
        restarting = threads.submit(restart)
        table, other = threads.map(lambda _: grid(sweep, objective, SPACE), range(2))
        restarting.result()
    assert table == other
    assert sorted(calls) == SPACE["x"]
    assert_each_once(sweep, table)


def test_on_postgresql_a_server_that_stays_away_ends_the_worker_with_a_sentence(server: Server) -> None:
    sweep = Sweep("gone", server.url(), patience=replace(QUICK, outage=0.3))

    def objective(parameters: dict[str, Any], seed: int) -> float:
        server.stop()
        return parameters["x"]

    try:
        with pytest.raises(ConnectionError, match=r"the database has not answered for 0.3 s: .*onnection"):
            grid(sweep, objective, SPACE)
    finally:
        server.start()
    assert_each_once(sweep, grid(sweep, lambda p, seed: p["x"], SPACE))


# Processes that are killed, stopped and cut off


def work(folder: Path, storage: str, name: str) -> None:
    """Run the search; each point says that it has begun, and waits for a file ``go``."""
    logging.basicConfig(filename=folder / f"{os.getpid()}.log")

    def objective(parameters: dict[str, Any], seed: int) -> float:
        (folder / f"{parameters['x']}.{os.getpid()}").touch()
        until((folder / "go").exists, "go")
        return parameters["x"] ** 2

    table = grid(Sweep(name, storage, patience=UNHURRIED), objective, SPACE)
    table.write(folder / f"{os.getpid()}.json")


@contextmanager
def workers(folder: Path, sweep: Sweep, *storages: str) -> Iterator[tuple[list[subprocess.Popen[bytes]], list[int]]]:
    """Processes that share a search, when each of them is in a point, and those points."""
    processes = [subprocess.Popen([sys.executable, __file__, folder, storage, sweep.name]) for storage in storages]

    def begun() -> list[int]:
        return [int(path.stem) for process in processes for path in folder.glob(f"*.{process.pid}")]

    try:
        until(lambda: len(begun()) == len(processes), "a point for every worker")
        yield processes, begun()
    finally:
        for process in processes:
            process.kill()
            process.wait()


def take_over(folder: Path, sweep: Sweep, gone: list[int]) -> search.Table:
    """Run all points, and check that each was run once here although workers had begun those that are `gone`."""
    (folder / "go").touch()  # from here on who still can ends its point
    begun = Counter[int]()

    def objective(parameters: dict[str, Any], seed: int) -> float:
        begun[parameters["x"]] += 1
        return parameters["x"] ** 2

    table = grid(sweep, objective, SPACE)
    assert begun == Counter(SPACE["x"])
    assert [row["value"] for row in table.rows] == [0, 1, 4, 9, 16, 25]
    assert sorted(trial.params["x"] for trial in trials(sweep, TrialState.FAIL)) == sorted(gone)
    assert_each_once(sweep, table)
    return table


def assert_comes_back_in_vain(folder: Path, process: subprocess.Popen[bytes], table: search.Table) -> None:
    assert process.wait(60) == 0
    assert "was given to another worker" in (folder / f"{process.pid}.log").read_text()
    assert json.loads((folder / f"{process.pid}.json").read_text())["rows"] == table.rows


def test_a_killed_and_a_stopped_worker_lose_nothing_and_count_nothing_twice(sqlite: Sweep, tmp_path: Path) -> None:
    with workers(tmp_path, sqlite, *[str(sqlite.storage)] * 2) as ((killed, stopped), points):
        killed.kill()
        stopped.send_signal(signal.SIGSTOP)
        table = take_over(tmp_path, sqlite, gone=points)
        stopped.send_signal(signal.SIGCONT)
        assert_comes_back_in_vain(tmp_path, stopped, table)
    assert_each_once(sqlite, table)
    assert search.table(sqlite) == table


def test_a_search_is_resumed_when_all_its_workers_were_killed(sqlite: Sweep, tmp_path: Path) -> None:
    with workers(tmp_path, sqlite, str(sqlite.storage)) as ((killed,), points):
        killed.kill()
    take_over(tmp_path, sqlite, gone=points)


def test_on_postgresql_a_worker_is_killed_another_stopped_and_one_cut_off(server: Server, tmp_path: Path) -> None:
    sweep = Sweep("processes", server.url(), patience=QUICK)
    assert server.execute("CREATE ROLE bob SUPERUSER LOGIN")
    with workers(tmp_path, sweep, server.url(), server.url(), server.url("bob")) as (processes, points):
        killed, stopped, cut_off = processes
        killed.kill()
        stopped.send_signal(signal.SIGSTOP)
        kick = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'bob'"
        assert server.execute("ALTER ROLE bob NOLOGIN", kick)
        table = take_over(tmp_path, sweep, gone=points)
        stopped.send_signal(signal.SIGCONT)
        assert server.execute("ALTER ROLE bob LOGIN")
        assert_comes_back_in_vain(tmp_path, stopped, table)
        assert_comes_back_in_vain(tmp_path, cut_off, table)
    assert_each_once(sweep, table)
    assert search.table(sweep) == table


if __name__ == "__main__":  # one of the processes
    work(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
