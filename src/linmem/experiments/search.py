"""Grids and random searches, shared by any number of workers through one optuna study.

A search is a list of *points*, parameters and a seed, which every worker writes down by itself from the same
description; random ones are drawn in advance. Each point counts exactly once, whoever dies when:

- A point is run by the one worker whose change of its trial from waiting to running the database accepts, and a
  trial that has ended never changes again.
- A trial that ended with a value or an error counts. One whose worker fell silent is given up, for good, and its
  point gets a new trial; a worker that comes back after that finds its trial closed, and its result is not counted.
- Of several trials of a point, only the oldest that is not given up may run. So workers need no lock to add what is
  missing: what two of them added at once is run once.

Nor do they need a common clock. A running trial counts upwards, and is silent if the count stands still for long enough
while another worker watches.
"""

from __future__ import annotations

import itertools
import json
import logging
import math
import os
import platform
import random
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict, TypeVar

import optuna
import sqlalchemy
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
    distribution_to_json,
)
from optuna.exceptions import DuplicatedStudyError, StorageInternalError, UpdateFinishedTrialError
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from linmem.experiments.metrics import Spread, spread
from linmem.files import write_atomically

log = logging.getLogger(__name__)

#: What a parameter may be: what JSON and optuna can say.
Scalar = str | int | float | bool | None

#: Called with the parameters of a point and a seed; returns the figure to optimise, or a dictionary that has it.
Objective = Callable[[dict[str, Scalar], int], float | Mapping[str, float]]

#: Values for each parameter, or for a random search a distribution of optuna.
Space = Mapping[str, Sequence[Scalar] | FloatDistribution | IntDistribution]

Direction = Literal["minimize", "maximize"]

#: Where searches are kept unless another place is named.
STORAGE = "results/searches.sqlite"

#: Seconds for which a database that does not answer is asked again before any work starts.
OPENING = 10.0

#: A lost connection, a locked file, a table that another worker is just creating.
OUTAGES = (StorageInternalError, SQLAlchemyError, sqlite3.Error)

#: Seconds for which a worker waits for others to let go of an SQLite file.
LOCKED = 30.0

#: Characters that are kept of an error.
LONGEST_ERROR = 2000

#: Asked of PostgreSQL unless the URL says otherwise: a worker that is cut off should find out, and hold up no other.
POSTGRESQL = {
    "client_encoding": "utf8",  # text comes as bytes from a server that has no encoding
    "connect_timeout": "10",
    "tcp_user_timeout": "30000",
    "options": "-c lock_timeout=20s -c idle_in_transaction_session_timeout=30s",
}

T = TypeVar("T")


@dataclass(frozen=True)
class Patience:
    """How long to wait for others, in seconds; the same for all workers of a search."""

    heartbeat: float = 10.0
    """Time between two signs of life of a running trial."""
    grace: float = 60.0
    """A trial without any for so long is run again by another worker."""
    outage: float = 600.0
    """For so long a database that is gone is asked again."""
    attempts: int = 5
    """A point that this many workers died of is reported as failed."""

    def __post_init__(self) -> None:
        if not self.heartbeat > 0:
            raise ValueError(f"heartbeat={self.heartbeat}: expected some seconds")
        if not self.grace > 2 * self.heartbeat:
            raise ValueError(f"grace={self.grace}: expected more than two heartbeats of {self.heartbeat} s")
        if not self.outage >= 0:
            raise ValueError(f"outage={self.outage}: expected seconds")
        if self.attempts < 1:
            raise ValueError(f"attempts={self.attempts}: expected at least 1")


@dataclass(frozen=True)
class Sweep:
    """Where a search is kept, and what it looks for.

    Parameters
    ----------
    name
        Workers that give the same name and storage share the work.
    storage
        An SQLite file, for workers on one machine, or the URL of a database.
    metric
        Which of the objective's figures is optimised; an objective that returns a number has no other.
    direction
        ``"minimize"`` or ``"maximize"``.
    patience
        How long to wait for other workers, and for the database.
    """

    name: str
    storage: str | os.PathLike[str] = STORAGE
    metric: str = "value"
    direction: Direction = "minimize"
    patience: Patience = field(default_factory=Patience)

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("name is empty: expected a name that workers share")
        if self.direction not in ("minimize", "maximize"):
            raise ValueError(f"direction={self.direction!r}: expected 'minimize' or 'maximize'")


class Row(TypedDict):
    """What became of a point."""

    parameters: dict[str, Scalar]
    seed: int
    value: float | None
    """None where the objective failed."""
    metrics: dict[str, float | None]
    """None in place of NaN and inf."""
    seconds: float | None
    worker: str | None
    error: str | None


@dataclass(frozen=True)
class Table:
    """The points of a search that have ended, in the search's order."""

    name: str
    metric: str
    direction: Direction
    points: int
    """Of the whole search."""
    rows: list[Row]

    @property
    def failed(self) -> list[Row]:
        """The points whose objective failed."""
        return [row for row in self.rows if row["error"] is not None]

    def best(self) -> Row:
        """Return the best row; of several, the first."""
        rows = [row for row in self.rows if row["error"] is None]
        if not rows:
            raise ValueError(f"search {self.name!r} has no point that succeeded: expected at least one")
        sign = 1 if self.direction == "minimize" else -1
        return min(rows, key=lambda row: sign * float(row["value"] or 0.0))

    def spread(self, metric: str | None = None) -> Spread:
        """Return mean and deviation of a metric, by default the optimised one, over the rows that succeeded."""
        name = self.metric if metric is None else metric
        values = [row["metrics"][name] for row in self.rows if row["error"] is None]
        return spread([math.nan if value is None else value for value in values])

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the table as JSON."""
        facts = {name: getattr(self, name) for name in ("name", "metric", "direction", "points", "rows")}
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(Path(path).resolve(), json.dumps(facts, indent=1, allow_nan=False).encode())


def grid(sweep: Sweep, objective: Objective, space: Space, seed: int = 0) -> Table:
    """Run all combinations of values, or what other workers leave of them, and return the whole table.

    Returns when every point has ended. A point whose objective raises an exception, or whose value is no finite number,
    ends with an error in its row.

    Parameters
    ----------
    sweep
        Where the search is kept; created, joined or resumed.
    objective
        Called with the parameters of a point and the seed.
    space
        Values for each parameter.
    seed
        The same for all points.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     sweep = Sweep("parabola", f"{folder}/searches.sqlite")
    ...     table = grid(sweep, lambda p, seed: (p["x"] - p["y"]) ** 2, {"x": [1, 2, 3], "y": [2, 5]})
    >>> len(table.rows), table.best()["parameters"]
    (6, {'x': 2, 'y': 2})
    """
    return _work(sweep, objective, _grid(space, seed))


def random_search(sweep: Sweep, objective: Objective, space: Space, trials: int, seed: int = 0) -> Table:
    """Run so many random points, all workers together, and return the whole table.

    Parameters
    ----------
    sweep, objective
        As for `grid`.
    space
        For each parameter a distribution, such as ``optuna.distributions.FloatDistribution(1e-4, 1e-2, log=True)``, or
        values to choose from. Numbers are rounded to six digits.
    trials
        How many points.
    seed
        The points depend on it, and the objective gets it.
    """
    return _work(sweep, objective, _random(space, trials, seed))


def retrain(sweep: Sweep, objective: Objective, parameters: Mapping[str, Scalar], seeds: Sequence[int]) -> Table:
    """Run one configuration with each of the seeds, shared by workers like any search.

    Parameters
    ----------
    sweep
        Of the search that found the parameters: this one is kept beside it, under its name and ``" retrained"``.
    objective
        As for `grid`.
    parameters
        Such as ``table.best()["parameters"]``.
    seeds
        One for each run.
    """
    return _work(retrained(sweep), objective, _retraining(parameters, seeds))


def retrained(sweep: Sweep) -> Sweep:
    """Return where `retrain` keeps its runs."""
    return replace(sweep, name=f"{sweep.name} retrained")


def table(sweep: Sweep) -> Table:
    """Return what has ended so far, without running anything."""
    url = _url(sweep.storage)
    missing = ValueError(f"name={sweep.name!r}: expected a search that was started in {url.render_as_string()}")
    if url.get_backend_name() == "sqlite" and not Path(url.database or "").exists():
        raise missing
    with _opened(url) as storage:
        try:
            study = optuna.load_study(study_name=sweep.name, storage=storage)
        except KeyError:
            raise missing from None
        facts = study.user_attrs.get("search")
        if facts is None:
            raise missing
        for name in ("metric", "direction"):
            _same(sweep, {name: facts[name]}, {name: getattr(sweep, name)})
        points: list[list[FrozenTrial]] = [[] for _ in range(facts["points"])]
        for trial in study.get_trials(deepcopy=False):
            points[trial.user_attrs["point"]].append(trial)
        return _table(sweep, points)


class Point(NamedTuple):
    """What the objective is called with."""

    parameters: dict[str, Scalar]
    seed: int


@dataclass(frozen=True)
class Plan:
    """The points of a search, and what says in JSON which they are."""

    facts: dict[str, Any]
    points: list[Point]
    distributions: dict[str, BaseDistribution]


def _grid(space: Space, seed: int) -> Plan:
    """All combinations, in the order of the parameters' names."""
    _seed(seed)
    values = {name: _values(name, space[name]) for name in _names(space)}
    combinations = itertools.product(*values.values())
    points = [Point(dict(zip(values, combination, strict=True)), seed) for combination in combinations]
    distributions: dict[str, BaseDistribution] = {n: CategoricalDistribution(v) for n, v in values.items()}
    return Plan({"kind": "grid", "space": values, "seed": seed}, points, distributions)


def _random(space: Space, trials: int, seed: int) -> Plan:
    """Points drawn one after the other from one seed."""
    _seed(seed)
    if trials < 1:
        raise ValueError(f"trials={trials}: expected at least 1")
    distributions: dict[str, BaseDistribution] = {}
    described: dict[str, Any] = {}
    for name in _names(space):
        choices = space[name]
        if isinstance(choices, FloatDistribution | IntDistribution):
            distributions[name] = choices
            described[name] = json.loads(distribution_to_json(choices))
        else:
            described[name] = _values(name, choices)
            distributions[name] = CategoricalDistribution(described[name])
    drawn = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed))
    points = []
    for _ in range(trials):
        parameters = drawn.ask(distributions).params
        for name, distribution in distributions.items():
            if isinstance(distribution, FloatDistribution):  # machines may differ in the last bit of a logarithm
                rounded = float(f"{parameters[name]:.6g}")
                parameters[name] = min(max(rounded, distribution.low), distribution.high)
        points.append(Point(parameters, seed))
    return Plan({"kind": "random", "space": described, "trials": trials, "seed": seed}, points, distributions)


def _retraining(parameters: Mapping[str, Scalar], seeds: Sequence[int]) -> Plan:
    """One configuration, some seeds."""
    seeds = [_seed(seed) for seed in seeds]
    if not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds={seeds}: expected one or more, all different")
    plain = {name: _values(name, [parameters[name]])[0] for name in _names(parameters)}
    distributions: dict[str, BaseDistribution] = {name: CategoricalDistribution([v]) for name, v in plain.items()}
    facts = {"kind": "seeds", "parameters": plain, "seeds": seeds}
    return Plan(facts, [Point(plain, seed) for seed in seeds], distributions)


def _seed(seed: int) -> int:
    if not isinstance(seed, int) or seed < 0:
        raise ValueError(f"seed={seed!r}: expected an integer from 0 on")
    return seed


def _names(space: Mapping[str, Any]) -> list[str]:
    if not space or not all(isinstance(name, str) for name in space):
        raise ValueError(f"space has the names {list(space)}: expected one or more strings")
    return sorted(space)


def _values(name: str, values: Any) -> list[Scalar]:
    """The values of a parameter, if optuna and JSON will give them back as they were."""
    if not isinstance(values, list | tuple) or not values:
        raise ValueError(f"space[{name!r}] is {values!r}: expected a list of values")
    for value in values:
        if not (value is None or isinstance(value, str | int | float)):
            raise ValueError(f"space[{name!r}] holds {value!r}: expected numbers, strings, booleans or None")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"space[{name!r}] holds {value}: expected finite numbers")
    if any(value in values[:place] for place, value in enumerate(values)):
        raise ValueError(f"space[{name!r}] is {list(values)}: expected different values")
    return list(values)


def _work(sweep: Sweep, objective: Objective, plan: Plan) -> Table:
    """Take part in a search until it has ended."""
    plan.facts.update(points=len(plan.points), metric=sweep.metric, direction=sweep.direction)
    with _opened(_url(sweep.storage)) as storage:
        return _Worker(sweep, objective, plan, storage).run()


class _Worker:
    """One of those that share a search."""

    def __init__(self, sweep: Sweep, objective: Objective, plan: Plan, storage: RDBStorage) -> None:
        self.sweep, self.objective, self.plan, self.storage = sweep, objective, plan, storage
        self.patience = sweep.patience
        self.name = f"{platform.node()}:{os.getpid()}:{secrets.token_hex(2)}"
        self.pause = self.patience.heartbeat / 2
        self.watched: dict[object, tuple[object, float]] = {}
        self._join()

    def run(self) -> Table:
        """Run points until all have ended, whoever ran them."""
        while True:
            points = self._look()
            self._tidy(points)
            if all(_ended(trials) for trials in points):
                return _table(self.sweep, points)
            trial = self._claim(points)
            if trial is None:
                time.sleep(self.pause)
            else:
                self._run(trial)

    def _join(self) -> None:
        """Create the study and add its points, or find that it is the same search."""
        name, storage = self.sweep.name, self.storage

        def create() -> optuna.Study | None:
            with suppress(DuplicatedStudyError):
                return optuna.create_study(study_name=name, storage=storage, direction=self.sweep.direction)
            return None

        created = self._patiently(create)
        self.study = created or self._patiently(lambda: optuna.load_study(study_name=name, storage=storage))
        if created:
            self._describe()
            for index in range(len(self.plan.points)):
                self._add(index, [])
        while (facts := self._patiently(lambda: self.study.user_attrs.get("search"))) is None:
            if self._unchanged_for("search", None) > self.patience.grace:  # its creator died at once
                self._describe()
            else:
                time.sleep(self.pause)
        _same(self.sweep, facts, self.plan.facts)

    def _describe(self) -> None:
        self._patiently(lambda: self.study.set_user_attr("search", self.plan.facts))

    def _look(self) -> list[list[FrozenTrial]]:
        """Return the trials of each point, the oldest first."""
        points: list[list[FrozenTrial]] = [[] for _ in self.plan.points]
        for trial in sorted(self._patiently(lambda: self.study.get_trials(deepcopy=False)), key=_id):
            index = trial.user_attrs.get("point", -1)
            if not 0 <= index < len(points) or trial.params != self.plan.points[index].parameters:
                raise ValueError(
                    f"name={self.sweep.name!r}: the study there has a trial with {trial.params}, which is no point "
                    f"of this search; expected the same search, or another name"
                )
            points[index].append(trial)
        return points

    def _tidy(self, points: list[list[FrozenTrial]]) -> None:
        """Give up what was added twice and whose worker fell silent, and add what is missing."""
        total = sum(map(len, points))
        for index, trials in enumerate(points):
            held = [trial for trial in trials if not _given_up(trial)]
            for trial in held[1:]:
                if trial.state == TrialState.WAITING:
                    self._give_up(trial)
            if not held:
                # Who gave a trial up adds the next one at once, and who made the study adds them all; unless it died.
                if self._unchanged_for(("missing", index), total) > self.patience.grace:
                    self._add(index, trials)
            elif held[0].state == TrialState.RUNNING:
                count = held[0].user_attrs.get("alive")
                if self._unchanged_for(_id(held[0]), count) > self.patience.grace and self._give_up(held[0]):
                    worker = held[0].user_attrs.get("worker")
                    log.warning("point %d is run again: worker %s has fallen silent", index, worker)
                    self._add(index, trials)

    def _claim(self, points: list[list[FrozenTrial]]) -> FrozenTrial | None:
        """Return a trial that is now this worker's, if any is waiting."""
        for trials in points:
            held = [trial for trial in trials if not _given_up(trial)]
            if held and held[0].state == TrialState.WAITING:
                with suppress(UpdateFinishedTrialError):
                    if self._patiently(lambda t=held[0]: self._set_state(t, TrialState.RUNNING)):  # type: ignore[misc]
                        return held[0]
        return None

    def _run(self, trial: FrozenTrial) -> None:
        """Run a point, and write down what came of it unless the trial was given up meanwhile."""
        index = trial.user_attrs["point"]
        try:
            self._note(trial, worker=self.name)
            with self._alive(trial):
                value, facts = self._call(index)
            self._note(trial, **facts)
            state, values = (TrialState.FAIL, None) if value is None else (TrialState.COMPLETE, [value])
            self._patiently(lambda: self._set_state(trial, state, values))
        except UpdateFinishedTrialError:
            log.warning("point %d was given to another worker: its result here is not counted", index)
        except BaseException:  # interrupted: whoever is there may run it at once
            with suppress(*OUTAGES, UpdateFinishedTrialError):
                self.storage.set_trial_user_attr(_id(trial), "interrupted", True)
                self._set_state(trial, TrialState.FAIL)
                self.study.add_trial(self._trial(index))
            raise

    def _call(self, index: int) -> tuple[float | None, dict[str, Any]]:
        """Return the value of a point, None if the objective fails, and what is known besides."""
        point, name = self.plan.points[index], self.sweep.metric
        start = time.perf_counter()
        try:
            result = self.objective(dict(point.parameters), point.seed)
            metrics = {n: float(v) for n, v in (result if isinstance(result, Mapping) else {name: result}).items()}
            if name not in metrics:
                raise ValueError(f"the objective returned {sorted(metrics)}: expected {name!r} among them")
            if not math.isfinite(metrics[name]):
                raise ValueError(f"{name} is {metrics[name]}: expected a finite number")
        except Exception as error:
            log.warning("point %d failed: %s", index, point, exc_info=True)
            return None, {
                "seconds": time.perf_counter() - start,
                "error": f"{type(error).__name__}: {error}"[:LONGEST_ERROR],
            }
        seconds = time.perf_counter() - start
        log.info("point %d took %.1f s: %s %s", index, seconds, point, metrics)
        plain = {n: v if math.isfinite(v) else None for n, v in metrics.items()}
        return metrics[name], {"seconds": seconds, "metrics": plain}

    @contextmanager
    def _alive(self, trial: FrozenTrial) -> Iterator[None]:
        """Count upwards in the trial, beside what runs meanwhile."""
        stop = threading.Event()

        def count() -> None:
            for number in itertools.count(1):
                try:
                    self.storage.set_trial_user_attr(_id(trial), "alive", number)
                except UpdateFinishedTrialError:  # given up: nobody listens any more
                    break
                except OUTAGES:
                    log.debug("no sign of life could be written", exc_info=True)
                if stop.wait(self.patience.heartbeat):
                    break
            self.storage.remove_session()

        thread = threading.Thread(target=count, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def _add(self, index: int, before: list[FrozenTrial]) -> None:
        """Add a trial for a point, which has given-up ones `before`."""
        deaths = [t for t in before if t.datetime_start is not None and "interrupted" not in t.user_attrs]
        if len(deaths) < self.patience.attempts:
            trial = self._trial(index)
        else:
            error = f"given up: {len(deaths)} workers fell silent on it"
            log.warning("point %d %s", index, error)
            trial = self._trial(index, state=TrialState.FAIL, error=error)
        self._patiently(lambda: self.study.add_trial(trial))

    def _trial(self, index: int, state: TrialState = TrialState.WAITING, **facts: Scalar) -> FrozenTrial:
        point = self.plan.points[index]
        return optuna.create_trial(
            state=state,
            params=point.parameters,
            distributions=self.plan.distributions,
            user_attrs={"point": index, "seed": point.seed, **facts},
        )

    def _give_up(self, trial: FrozenTrial) -> bool:
        """Close a trial without an error; False if it has ended, or another worker was faster."""
        try:
            return self._patiently(lambda: self._set_state(trial, TrialState.FAIL))
        except UpdateFinishedTrialError:
            return False

    def _set_state(self, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None = None) -> bool:
        return self.storage.set_trial_state_values(_id(trial), state, values)

    def _note(self, trial: FrozenTrial, **facts: Any) -> None:
        for name, value in facts.items():
            self._patiently(lambda n=name, v=value: self.storage.set_trial_user_attr(_id(trial), n, v))  # type: ignore[misc]

    def _unchanged_for(self, what: object, value: object) -> float:
        """For how many seconds this worker has seen the same value."""
        known, since = self.watched.get(what, (None, 0.0))
        if what not in self.watched or known != value:
            since = time.monotonic()
            self.watched[what] = value, since
        return time.monotonic() - since

    def _patiently(self, call: Callable[[], T]) -> T:
        """Call, again and again while the database is gone."""
        return _patiently(call, self.patience.outage, self.watched.clear)  # others could not count either


def _patiently(call: Callable[[], T], seconds: float, failed: Callable[[], object] = lambda: None) -> T:
    """Call until it succeeds, or has failed for so many seconds; `failed` is called after each failure."""
    start = time.monotonic()
    for attempt in itertools.count():
        try:
            return call()
        except OUTAGES as error:
            failed()
            cause = " ".join(str(error.__cause__ or error).split())
            if time.monotonic() - start > seconds:
                raise ConnectionError(f"the database has not answered for {seconds:g} s: {cause}") from error
            log.log(logging.WARNING if attempt == 4 else logging.DEBUG, "the database does not answer: %s", cause)
            time.sleep(random.uniform(0.05, 0.1) * 2 ** min(attempt, 5))
    raise AssertionError


def _id(trial: FrozenTrial) -> int:
    """Given by the database, increasing, and unlike the number always unique."""
    return trial._trial_id


def _given_up(trial: FrozenTrial) -> bool:
    return trial.state == TrialState.FAIL and "error" not in trial.user_attrs


def _ended(trials: list[FrozenTrial]) -> FrozenTrial | None:
    """The trial of a point that counts, if there is one."""
    for trial in trials:
        if trial.state == TrialState.COMPLETE:
            return trial
    return next((t for t in trials if t.state == TrialState.FAIL and not _given_up(t)), None)


def _table(sweep: Sweep, points: list[list[FrozenTrial]]) -> Table:
    ended = [trial for trial in map(_ended, points) if trial is not None]
    return Table(sweep.name, sweep.metric, sweep.direction, len(points), [_row(trial) for trial in ended])


def _row(trial: FrozenTrial) -> Row:
    facts = trial.user_attrs
    complete = trial.state == TrialState.COMPLETE
    return {
        "parameters": dict(trial.params),
        "seed": facts["seed"],
        "value": trial.value if complete else None,
        "metrics": facts["metrics"] if complete else {},
        "seconds": facts.get("seconds"),
        "worker": facts.get("worker"),
        "error": None if complete else facts["error"],
    }


def _same(sweep: Sweep, theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    """Refuse to join another search."""
    for name in sorted(theirs.keys() | ours.keys()):
        # As text, because 1, 1.0 and True are the same to Python.
        there, here = (json.dumps(facts.get(name), sort_keys=True) for facts in (theirs, ours))
        if there != here:
            raise ValueError(
                f"name={sweep.name!r}: the search there has {name} {there}, this one {here}; "
                f"expected the same search, or another name"
            )


def _url(storage: str | os.PathLike[str]) -> sqlalchemy.URL:
    """The database's URL, of a file too."""
    text = os.fspath(storage)
    if "://" not in text:
        return sqlalchemy.URL.create("sqlite", database=str(Path(text).expanduser().resolve()))
    try:
        url = sqlalchemy.make_url(text)
        if url.drivername in ("postgres", "postgresql"):
            url = url.set(drivername="postgresql+psycopg")
        url.get_dialect()
    except ArgumentError:  # which does not repeat the URL, as it may have a password in it
        raise ValueError("storage is no URL of a database: expected such as postgresql://user@host/name") from None
    if url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:"):
        raise ValueError(f"storage={text!r}: expected a file, which workers can share")
    return url


@contextmanager
def _opened(url: sqlalchemy.URL) -> Iterator[RDBStorage]:
    """The database, with optuna's tables in it."""
    try:
        storage = _patiently(lambda: _open(url), OPENING)
    except ImportError as error:
        cause = error.__cause__ or error
        raise ValueError(f'storage needs a driver ({cause}): expected such as pip install "linmem[postgres]"') from None
    except ConnectionError as error:
        raise ConnectionError(f"storage={url.render_as_string()!r} cannot be opened: {error}") from error
    try:
        yield storage
    finally:
        storage.remove_session()
        storage.engine.dispose()


def _open(url: sqlalchemy.URL) -> RDBStorage:
    text = url.render_as_string(hide_password=False).replace("{", "{{").replace("}", "}}")  # optuna formats it
    if url.get_backend_name() == "sqlite":
        return _open_file(text, Path(url.database or ""))
    # Without a pool no connection is held while a point runs: many workers need few of them, and none goes stale.
    options: dict[str, Any] = {"poolclass": sqlalchemy.NullPool}
    if url.drivername in ("postgresql+psycopg", "postgresql+psycopg2"):
        options["connect_args"] = {name: value for name, value in POSTGRESQL.items() if name not in url.query}
    return RDBStorage(text, engine_kwargs=options)


def _open_file(url: str, file: Path) -> RDBStorage:
    file.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(file, timeout=LOCKED)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")  # who only reads never waits; it stays with the file
    storage = RDBStorage(url, engine_kwargs={"connect_args": {"timeout": LOCKED, "isolation_level": None}})
    # SQLite locks nothing that is only read, so that two workers could claim what both have seen waiting.
    sqlalchemy.event.listen(storage.engine, "begin", lambda c: c.exec_driver_sql("BEGIN IMMEDIATE"))
    return storage
