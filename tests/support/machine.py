"""A machine that makes random histories of a tiny project, and checks them after every step.

It is built by several runs in three environments, old and new ones; edited; loaded with other
data; promoted, rolled back and collected; and other processes do the same, which are killed at a
step of theirs, or halted there while the history goes on. What must hold then is read past the
code that is tested, from the ledger's database and the files, and compared with the model of
`histories.py`.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import tempfile
from collections import Counter
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import hypothesis
from histories import (
    BRIEF,
    CONTENTS,
    FIRST,
    SOURCES,
    WORDS,
    Child,
    Clock,
    Place,
    Quick,
    Rows,
    Run,
    Task,
    Zygote,
    evaluate,
    make_project,
    persisted,
    read_rows,
    write_code,
    write_raw,
)
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from persist_assets.building.stages import PendingBuild
from persist_assets.core.errors import (
    BuildError,
    CheckFailedError,
    ConflictError,
    NotFoundError,
    PersistError,
)
from persist_assets.core.model.snapshots import Build, ManifestChange
from persist_assets.core.settings.load import load_settings
from persist_assets.ledger.leases import LEASE_S
from persist_assets.ledger.ledger import Ledger
from persist_assets.ledger.processes import has_ended, this_process
from persist_assets.operations.environments import steps_of
from persist_assets.operations.gc import LONGEST
from persist_assets.planning.inputs import CONTENT
from persist_assets.storage.changes import LISTINGS
from persist_assets.storage.delta_tables import LOG, is_whole, read_version

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from persist_assets.core.model.project import Project
    from persist_assets.engine.spark import SparkEngine

ENVIRONMENTS = ("dev", "prod", "qa")
READS = {"dev": ("dev", "prod"), "prod": ("prod",), "qa": ("qa",)}
KEEP = timedelta(days=7)
ALL = ("p", "p2", "q", "r", "s")
Entry = tuple[str, int]
"""A table and its version."""
Step = tuple[Any, ...]
"""The name of a method of `Histories`, and its arguments."""

_LONG = {"build": 30, "pool": 40, "promote": 12, "roll_back": 12, "collect": 60}
"""About how many steps a task of another process has; for each source, where it has some."""

in_one = st.sampled_from(ENVIRONMENTS)
some = st.one_of(
    st.just(ALL),
    st.sampled_from([(name,) for name in ALL]),
    st.sets(st.sampled_from(ALL), min_size=1, max_size=3).map(lambda s: tuple(sorted(s))),
)
days = st.sampled_from((0.0, 0.0, 0.001, 0.1, 1.1, 8.0, 8.0, 8.0))
_near = st.tuples(st.just(""), st.sampled_from(range(20)))
_far = st.tuples(st.just(""), st.sampled_from(range(200)))
_named = st.tuples(st.sampled_from(WORDS), st.sampled_from((0, 0, 1, 2, 5)))
_old = st.sampled_from(range(7))
_changes = st.one_of(
    st.tuples(st.sampled_from([*SOURCES]), st.sampled_from((1, 2))),
    st.tuples(st.sampled_from([*CONTENTS]), st.sampled_from(range(6))),
)


def _often(*weighted: tuple[int, Callable[[], st.SearchStrategy[Any]]]) -> st.SearchStrategy[Any]:
    """Return one of several strategies, each so many times: `one_of` takes the same one once."""
    return st.one_of(*(make() for n, make in weighted for _ in range(n)))


tasks = _often(
    (2, lambda: st.tuples(st.just("build"), some, st.booleans())),
    (1, lambda: st.tuples(st.just("pool"), some)),
    (1, lambda: st.tuples(st.just("promote"), in_one, some, st.booleans())),
    (1, lambda: st.tuples(st.just("roll_back"), st.sampled_from((1, 2, 3, 4)))),
    (2, lambda: st.tuples(st.just("collect"), st.booleans())),
)
_places = st.one_of(_far, _named)
_places_ahead = st.one_of(st.none(), _near, _named)
steps = _often(
    (2, lambda: st.tuples(st.just("change"), _changes, st.sampled_from((None, *ENVIRONMENTS)))),
    (1, lambda: st.tuples(st.just("deliver"), in_one, days)),
    (4, lambda: st.tuples(st.just("do"), in_one, _old, tasks, days)),
    (2, lambda: st.tuples(st.just("park"), in_one, _old, some)),
    (2, lambda: st.tuples(st.just("resume"), _old, st.sampled_from((False, False, True)))),
    (3, lambda: st.tuples(st.just("kill"), in_one, tasks, _places, days)),
    (3, lambda: st.tuples(st.just("halt"), in_one, tasks, _places, days, st.booleans())),
    (1, lambda: st.tuples(st.just("undo"), in_one, st.sampled_from([*SOURCES]), _named)),
    (1, lambda: st.tuples(st.just("outlive"), in_one, st.sampled_from(ALL), _near)),
    (3, lambda: st.tuples(st.just("go_on"), _old, _places_ahead, st.booleans(), st.booleans())),
)
"""The names of methods of `Histories`, and their arguments."""


@dataclass
class Change:
    """A change of a manifest, and what it was afterwards."""

    change_id: int
    at: datetime
    kind: str
    moves: list[tuple[str, str | None, str | None]]
    after: Mapping[str, str]


@dataclass
class Tally:
    """What all histories of a test came to."""

    histories: int = 0
    steps: int = 0
    killed: Counter[str] = field(default_factory=Counter[str])
    halted: Counter[str] = field(default_factory=Counter[str])
    done: Counter[str] = field(default_factory=Counter[str])
    collected: int = 0
    unknown: int = 0
    """Snapshots of which not all inputs could be known."""

    def __add__(self, other: Tally) -> Tally:
        return Tally(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __str__(self) -> str:
        lines = [
            f"{self.histories} histories of {self.steps} steps; {self.collected} times something "
            f"of a table was collected; inputs of {self.unknown} snapshots unknown",
            f"{self.killed.total()} processes killed: {in_words_of(self.killed)}",
            f"{self.halted.total()} processes halted: {in_words_of(self.halted)}",
            f"what was done: {in_words_of(self.done)}",
        ]
        return "\n".join(lines)


def in_words_of(counted: Counter[str]) -> str:
    return ", ".join(f"{n} {what}" for what, n in counted.most_common())


class Histories(RuleBasedStateMachine):
    """One history."""

    toml: ClassVar[str]
    zygote: ClassVar[Zygote | None]
    engine: ClassVar[Callable[[Any], SparkEngine]]
    tally: ClassVar[Tally]
    projects: ClassVar[dict[tuple[Any, ...], Project]]
    """What compiling the same code found before."""

    def __init__(self) -> None:
        super().__init__()
        memory = Path("/dev/shm")  # where there is one: a history waits for the disk mostly
        self.base = tempfile.mkdtemp(dir=memory if memory.is_dir() else None)
        self.root = make_project(Path(self.base, "project"), self.toml)
        self.warehouse = self.root / ".persist" / "warehouse"
        self.clock = Clock(datetime(2030, 1, 1, tzinfo=UTC))
        self.code = dict(FIRST)
        self.raw: dict[str, Rows] = {name: contents[0] for name, contents in CONTENTS.items()}
        self.versions: dict[tuple[str, str], Rows] = {}
        self.meanings: dict[str, tuple[str, dict[str, int], dict[str, str]]] = {}
        self.names: dict[str, set[str]] = {}
        self.fresh: dict[str, Run] = {}
        self.old: list[Run] = []
        self.children: list[Child] = []
        self.rows: dict[str, Rows] = {}
        self.contents: dict[str, Rows] = {}
        self.verified: set[str] = set()
        self.prints: dict[str, Any] = {}
        self.changes: dict[str, list[Change]] = {e: [] for e in ENVIRONMENTS}
        self.states: dict[str, list[dict[str, Entry]]] = {e: [{}] for e in ENVIRONMENTS}
        self.dirty: set[str] = set()
        self.collected_to = datetime(2029, 1, 1, tzinfo=UTC)
        self.killed_at = self.collected_to
        self.n = 0
        url = load_settings(self.root, environment="dev").ledger
        self.ledger = Ledger(url, clock=self.clock)
        self.learn()
        self.database = sqlite3.connect(self.root / ".persist" / "ledger.db")
        self.database.row_factory = sqlite3.Row

    def teardown(self) -> None:
        for child in self.children:
            child.kill()
        self.ledger.close()
        self.database.close()
        shutil.rmtree(self.base)

    # ------------------------------------------------------------------------------- the model

    def learn(self) -> None:
        """Begin new runs, after the code or the data changed, and note what all that means."""
        self.old = [*self.fresh.values(), *self.old][:6]
        for environment in ENVIRONMENTS:
            key = environment, *self.code.values()
            run = Run(
                self.root,
                environment,
                self.clock,
                type(self).engine,
                ledger=self.ledger,
                project=self.projects.get(key),
            )
            self.fresh[environment] = run
            self.projects[key] = run.project
        run = self.fresh["dev"]
        self.ids = {s.name: s.build_id for s in run.project.sources}
        self.raws = {self.ids[name]: name for name in CONTENTS}
        for name, values in self.raw.items():
            version = run.builder.observer.pins.find_version(run.source(name))
            assert version
            self.versions[name, version] = values
        for name in persisted(self.code):
            self.meanings[self.ids[name]] = (name, dict(self.code), self.ids)
            self.names.setdefault(self.ids[name], set()).add(name)

    def now(self, name: str) -> Rows:
        """Return the rows that a source has by the present code and data."""
        return evaluate(self.code, name, self.raw.get)

    def guarded(self, name: str) -> bool:
        """Whether the table of a source has to pass the check."""
        return name == "p" or (name == "p2" and self.ids["p"] == self.ids["p2"])

    # ------------------------------------------------------------------------------- the rules

    @initialize(n=st.sampled_from((None, *(0, 1, 2, 3) * 99)))
    def start(self, n: int | None) -> None:
        """None stands for no history: hypothesis begins with what is simplest, at full length."""
        self.is_empty = n is None
        self.tally.histories += not self.is_empty
        for environment in ENVIRONMENTS[: n or 0]:
            self.do_build(self.fresh[environment], ALL, False)

    @rule(step=steps)
    def step(self, step: Step) -> None:
        """What comes next. One rule for all: hypothesis would leave most of several rules out."""
        name, *given = step
        if not self.is_empty:
            getattr(self, name)(*given)

    def change(self, change: tuple[str, int], built: str | None) -> None:
        """Somebody edits a source, or loads other data, and builds everything somewhere."""
        name, n = change
        if name in SOURCES:
            self.code[name] = (self.code[name] + n) % len(SOURCES[name])
            write_code(self.root, self.code)
        else:
            self.raw[name] = CONTENTS[name][n % len(CONTENTS[name])]
            write_raw(self.root, name, self.raw[name])
        self.learn()
        if built:
            self.do_build(self.fresh[built], ALL, False)

    def deliver(self, environment: str, after: float) -> None:
        """Somebody builds everything, and promotes it."""
        self.wait(timedelta(days=after))
        run = self.fresh[environment]
        self.do_build(run, ALL, False)
        self.do_promote(run, "dev" if environment == "prod" else "prod", ALL, False)

    def do(self, environment: str, old: int, task: Task, after: float) -> None:
        """A run of this process does something, after some days."""
        self.wait(timedelta(days=after))
        run = self.run(environment, old)
        getattr(self, f"do_{task[0]}")(run, *self.proper(environment, task)[1:])

    def undo(self, environment: str, name: str, place: Place) -> None:
        """Somebody undoes an edit while what it replaced is collected."""
        self.change((name, 1), environment)
        self.halt(environment, ("collect", False), place, 1.1 * KEEP.days)
        self.change((name, len(SOURCES[name]) - 1), environment)

    def park(self, environment: str, old: int, names: Sequence[str]) -> None:
        """A run begins some sources before their turn."""
        run = self.run(environment, old)
        self.judge(run, {name: run.park(name) for name in names if name not in run.parked})

    def resume(self, which: int, abandoned: bool) -> None:
        waiting = [(run, name) for run in self.runs() for name in run.parked]
        if not waiting:
            return
        run, name = waiting[which % len(waiting)]
        if abandoned:
            run.abandon()
        else:
            self.judge(run, {name: run.resume(name)})
            self.exported(run.settings.environment)

    def kill(self, environment: str, task: Task, place: Place, after: float) -> None:
        """Another process does something, and is killed at a step of it."""
        if self.zygote is None:
            return
        child = self.begin(environment, task, place, after, gently=False)
        if child.step is not None:
            self.end(child)
        else:
            self.ended(child)

    def outlive(self, environment: str, name: str, place: Place) -> None:
        """What a slow process has planned to reuse is replaced and collected meanwhile."""
        self.halt(environment, ("build", (name,), False), place, 0.0, beats=True)
        self.change((name, 1), environment)
        self.wait(1.1 * KEEP)
        self.do_collect(self.fresh[environment])

    def halt(
        self, environment: str, task: Task, place: Place, after: float, beats: bool = False
    ) -> None:
        """Another process does something, and halts at a step of it.

        Parameters
        ----------
        beats
            It is only slow there: its heartbeats go on, so that it keeps its leases.
        """
        if self.zygote is None or len(self.children) > 1:
            return
        child = self.begin(environment, task, place, after, gently=True)
        if child.step is not None:
            child.beats = beats
            self.tally.halted[child.step] += 1
            self.children.append(child)
        else:
            self.ended(child)

    def go_on(self, which: int, place: Place | None, kill: bool, late: bool) -> None:
        """A process that had halted goes on; to its end, or it is killed, at once or later.

        Parameters
        ----------
        late
            All that it holds and has written is long given to others.
        """
        if late and self.children:
            environment = self.children[which % len(self.children)].environment
            self.wait(timedelta(minutes=2))
            self.do_build(self.fresh[environment], ALL, True)
            self.wait(2 * KEEP)
            self.do_collect(self.fresh["prod"])
        if not self.children:
            return
        child = self.children.pop(which % len(self.children))
        if place or not kill:
            self.let(child, place, gently=not kill)
        if child.step is None:
            return
        if kill:
            self.end(child)
        else:
            self.children.append(child)

    # ------------------------------------------------------------------------- what rules need

    def proper(self, environment: str, task: Task) -> Task:
        """Return a task that makes sense in an environment."""
        if task[0] == "promote" and task[1] == environment:
            return ("promote", "prod" if environment == "dev" else "dev", *task[2:])
        return task

    def runs(self) -> list[Run]:
        return [*self.fresh.values(), *self.old]

    def run(self, environment: str, old: int) -> Run:
        found = [r for r in self.old if r.settings.environment == environment]
        return found[old - 3] if 0 <= old - 3 < len(found) else self.fresh[environment]

    def is_fresh(self, run: Run) -> bool:
        return run in self.fresh.values()

    def is_usual(self, run: Run) -> bool:
        """Whether a run sees the present code and data, and what it has put aside is not old."""
        began = (self.clock.now - work.build.started_at for work in run.parked.values())
        return self.is_fresh(run) and all(age <= LONGEST for age in began)

    def exported(self, environment: str) -> None:
        """Note that the manifest of an environment, and of those that read it, were written."""
        if not self.children:
            self.dirty -= {e for e, read in READS.items() if environment in read}

    def wait(self, time: timedelta) -> None:
        """Let time pass; for those too who must not stand still for so long where they are."""
        for child in [c for c in self.children if time and c.step in BRIEF]:
            self.children.remove(child)
            self.let(child, None)
        self.clock.now += time
        until = f"{self.clock.now + timedelta(seconds=LEASE_S):%Y-%m-%d %H:%M:%S.%f}"
        beating = [(until, child.pid) for child in self.children if child.beats]
        with self.database as database:
            database.executemany("UPDATE leases SET expires_at = ? WHERE pid = ?", beating)

    def let(self, child: Child, place: Place | None, *, gently: bool = True) -> None:
        """Let a process that had halted go on."""
        child.go_on(place, gently=gently)
        self.dirty |= {*ENVIRONMENTS}  # at its last step it may have changed what it exports now
        if child.task[0] == "collect":
            self.collected_to = max(self.collected_to, self.clock.now - KEEP)
        if child.step is None:
            self.tally.done[f"{child.task[0]} later"] += 1

    def begin(
        self, environment: str, task: Task, place: Place, after: float, *, gently: bool
    ) -> Child:
        assert self.zygote
        self.wait(timedelta(days=after))
        if task[0] == "collect":
            self.collected_to = max(self.collected_to, self.clock.now - KEEP)
        task = self.proper(environment, task)
        if place[0] == "":
            long = _LONG[task[0]] * (len(task[1]) if task[0] in ("build", "pool") else 1)
            place = "", place[1] % long
        return Child(self.zygote, self.root, environment, task, self.clock, place, gently=gently)

    def end(self, child: Child) -> None:
        assert child.step
        self.tally.killed[child.step] += 1
        child.kill()
        self.dirty |= {*ENVIRONMENTS}
        self.killed_at = self.clock()

    def ended(self, child: Child) -> None:
        """Check what came of a task of a process that nothing happened to."""
        name = child.task[0]
        self.tally.done[f"{name} elsewhere"] += 1
        if name in ("build", "pool"):
            self.judge(self.fresh[child.environment], child.result)
        if name == "collect" and not self.children:
            self.dirty.clear()
            self.check_swept()

    def do_build(self, run: Run, names: Sequence[str], force: bool) -> None:
        outcomes = run.build(names, force)
        self.judge(run, outcomes)
        self.check_built(run, names, outcomes)

    def do_pool(self, run: Run, names: Sequence[str]) -> None:
        outcomes = run.pool([n for n in names if n not in run.parked])
        self.judge(run, outcomes)
        self.check_built(run, names, outcomes)

    def check_built(self, run: Run, names: Sequence[str], outcomes: Mapping[str, Any]) -> None:
        """Check what is read after all was built by a run that saw the present code and data."""
        environment = run.settings.environment
        if any(isinstance(o, Build) for o in outcomes.values()):
            self.exported(environment)
        self.audit()
        done = {o.snapshot.table for o in outcomes.values() if isinstance(o, Build) and o.snapshot}
        for row in self.builds.values():
            if row["table_name"] in done and row["state"] == "started":
                assert not has_ended(row["process"]), "it can never end"
        fine = all(isinstance(o, Build) for o in outcomes.values())
        if not self.is_usual(run) or names != ALL or not fine or run.parked:
            return
        if not outcomes.keys() >= {*persisted(self.code)}:
            return
        seen = run.ledger.manifests.fetch(*READS[environment])
        for name in persisted(self.code):
            assert self.rows[seen[self.ids[name]].build_uid] == self.now(name), name
        steps = run.builder.plan(run.source(n).source_id for n in persisted(self.code)).steps
        assert [s.source_id for s in steps if s.action != "reuse"] == []

    def judge(self, run: Run, outcomes: Mapping[str, Any]) -> None:
        """Check that what failed had to fail, and the other way round."""
        for name, outcome in outcomes.items():
            self.tally.done[action_of(outcome)] += 1
            if not self.is_usual(run) or self.children or outcome is None:
                continue
            bad = self.guarded(name) and any(a == 7 for _, a in self.now(name))
            assert isinstance(outcome, CheckFailedError) == bad, (name, outcome)
            if isinstance(outcome, BuildError) and not bad:
                seen = run.builder.observer.manifest()
                assert "its checks have not passed" in outcome.message, outcome
                assert any(self.guarded(n) and self.ids[n] not in seen for n in ("p", "p2"))
            elif not bad:
                assert isinstance(outcome, (Build, PendingBuild)), (name, outcome)

    def do_promote(self, run: Run, target: str, names: Sequence[str], allow_stale: bool) -> None:
        result = run.promote(target, names, allow_stale)
        assert not isinstance(result, PersistError), result
        decided, change = result
        if change is None:
            return
        self.tally.done["promoted"] += 1
        self.exported(target)
        self.audit()
        seen = run.ledger.manifests.fetch(target)
        for source in decided.sources:
            assert seen[source.build_id] == decided.snapshots[source.build_id]
            if self.is_fresh(run) and names == ALL and not allow_stale:
                rows = self.rows[seen[source.build_id].build_uid]
                assert rows == self.now(source.name), source.name

    def do_roll_back(self, run: Run, steps: int) -> None:
        environment = run.settings.environment
        self.audit()
        history = self.changes[environment]
        real = [c for c in history if c.kind != "collect"]
        everything = len(steps_of(run.ledger.manifests.fetch_history(environment)))
        if steps > len(real) or (steps == len(real) and not everything):
            result = run.roll_back(steps)  # no run makes less than one change
            assert isinstance(result, NotFoundError), result
            return
        undone = real[-steps:]
        if steps == len(real):  # to where nothing was published
            result = run.roll_back(everything)
            back, then = history.index(undone[0]), dict[str, str]()
        else:
            # To a change, since runs are what counts as steps; `test_rollbacks` goes back by these.
            result = run.roll_back(to=real[-steps - 1].change_id)
            back, then = history.index(real[-steps - 1]), real[-steps - 1].after
        if isinstance(result, ConflictError):
            assert any(c.at < self.collected_to for c in undone), result
            return
        assert isinstance(result, ManifestChange), result
        self.tally.done["rolled back"] += 1
        self.exported(environment)
        self.audit()
        now = history[-1].after
        collects = [m for c in history[back:] if c.kind == "collect" for m in c.moves]
        forgotten = {(b, before) for b, before, _ in collects}
        for build_id in then.keys() | now.keys():
            was, got = then.get(build_id), now.get(build_id)
            assert got == was or (got is None and (build_id, was) in forgotten), build_id

    def do_collect(self, run: Run, removed: bool = False) -> None:
        self.collected_to = max(self.collected_to, self.clock.now - KEEP)
        before = self.on_disk(), run.ledger.events.position()
        told = run.collect(removed, dry_run=True)
        assert (self.on_disk(), run.ledger.events.position()) == before, (
            "a dry run changed something"
        )
        found = run.collect(removed)
        self.audit()
        for environment in ENVIRONMENTS:
            last = self.changes[environment][-1:]
            if last and last[0].kind == "collect" and last[0].change_id > before[1]:
                here = environment == run.settings.environment
                self.check_forgotten(last[0], run.project, removed=removed and here)
        self.tally.collected += len(found)
        self.tally.done["collected"] += 1
        if not self.children:
            assert found == told
            self.dirty.clear()
            self.check_swept()
            assert run.collect(removed, dry_run=True) == []

    def check_forgotten(self, change: Change, project: Project, *, removed: bool) -> None:
        """Check that a manifest has forgotten nothing that somebody may mean.

        Parameters
        ----------
        removed
            It forgets what the project defines no more, too.
        """
        there = {name for b in change.after for name in self.names[b]}
        defined = {s.name for s in project.persisted}
        for build_id, _, _ in change.moves:
            assert all(s.build_id != build_id for s in project.persisted), "the code means it"
            sharing = {
                row["source_id"].partition("@")[0]
                for row in self.builds.values()
                if row["build_id"] == build_id and row["state"] == "succeeded"
            }
            gone = removed and sharing.isdisjoint(defined)
            assert gone or sharing <= there, sharing

    def check_swept(self) -> None:
        """Check that nothing is left that nobody needs, once a collection has ended."""
        self.audit()
        named = {uid for state in self.entries.values() for uid in state.values()}
        kept = [
            uid
            for changes in self.changes.values()
            for change in changes
            if change.kind != "collect" and change.at >= self.collected_to
            for _, *ends in change.moves
            for uid in ends
            if uid is not None
        ]
        needed = {self.builds[uid]["snapshot_uid"] for uid in (*named, *kept)}
        alive = {
            uid: row["table_name"]
            for uid, row in self.builds.items()
            if (row["state"] == "started" or row["error"] == "interrupted")
            and self.clock.now - _instant(row["started_at"]) <= LONGEST
            and row["process"] == this_process()
        }
        for table, builds in self.on_disk().items():
            assert builds.keys() - {LOG} <= needed | alive.keys(), f"{table} was not collected"
            assert builds.keys() - {LOG} or table in alive.values(), f"{table} is nothing but a log"

    # -------------------------------------------------------------------- what must always hold

    @invariant()
    def all_is_well(self) -> None:
        if self.is_empty:
            return
        self.n += 1
        self.tally.steps += 1
        self.audit()
        self.check_whole()
        self.check_parked()
        self.check_files()
        self.check_plan(self.fresh[ENVIRONMENTS[self.n % 3]])

    def audit(self) -> None:
        """Read the ledger, and check that its parts agree and that new snapshots are right."""
        with self.database as database:
            database.execute("BEGIN")
            self.builds = {r["build_uid"]: r for r in database.execute("SELECT * FROM builds")}
            told = database.execute("SELECT idx, kind, data FROM events ORDER BY idx").fetchall()
            events = {idx: kind for idx, kind, _ in told}
            (n,) = database.execute("SELECT value FROM counters WHERE name = 'events'").fetchone()
            assert [*events] == [*range(1, n + 1)]
            kinds = ("build-failed", "build-succeeded")
            ended = [json.loads(data)["build_uid"] for _, kind, data in told if kind in kinds]
            assert len(ended) == len({*ended}), "a build ended twice"
            self.replay(events)
            self.entries: dict[str, dict[str, str]] = {e: {} for e in ENVIRONMENTS}
            for row in database.execute("SELECT * FROM manifest_entries"):
                self.entries[row["environment"]][row["build_id"]] = row["build_uid"]
        for environment, changes in self.changes.items():
            assert self.entries[environment] == (changes[-1].after if changes else {})
        new = [
            row
            for uid, row in self.builds.items()
            if row["state"] == "succeeded" and uid not in self.verified
        ]
        for row in sorted(new, key=lambda row: row["finished_at"]):
            self.verify(row)

    def replay(self, events: Mapping[int, str]) -> None:
        """Follow the changes of manifests that are new, each from what was before it."""
        last = max((c[-1].change_id for c in self.changes.values() if c), default=0)
        changed = self.database.execute(
            "SELECT * FROM manifest_changes WHERE change_id > ? ORDER BY change_id", (last,)
        ).fetchall()
        for row in changed:
            environment, change_id = row["environment"], row["change_id"]
            assert events[change_id] == _EVENTS[row["kind"]]
            history = self.changes[environment]
            state = dict(history[-1].after) if history else {}
            moves = self.database.execute(
                "SELECT build_id, before, after FROM manifest_moves WHERE change_id = ?",
                (change_id,),
            )
            moved = [(b, before, after) for b, before, after in moves]
            for build_id, before, after in moved:
                assert state.pop(build_id, None) == before, "it did not move from where it was"
                if after is not None:
                    assert self.builds[after]["build_id"] == build_id
                    assert self.builds[after]["state"] == "succeeded"
                    state[build_id] = after
            history.append(Change(change_id, _instant(row["at"]), row["kind"], moved, state))
            for name in ENVIRONMENTS:
                if environment in READS[name]:
                    self.states[name].append(self.seen(name))

    def seen(self, environment: str) -> dict[str, Entry]:
        """Return what readers of an environment see: of each BuildID the best one."""
        found: dict[str, tuple[str, datetime, Entry]] = {}
        for name in READS[environment]:
            history = self.changes[name]
            at = {b: c.at for c in history for b, _, after in c.moves if after is not None}
            for build_id, uid in (history[-1].after if history else {}).items():
                row = self.builds[uid]
                it = (row["finished_at"], at[build_id], (row["table_name"], row["version"]))
                if build_id not in found or found[build_id][:2] < it[:2]:
                    found[build_id] = it
        return {build_id: entry for build_id, (_, _, entry) in found.items()}

    def verify(self, row: sqlite3.Row) -> None:
        """Check that a snapshot holds the rows that its BuildID and its inputs mean."""
        self.verified.add(row["build_uid"])
        uid, name = row["snapshot_uid"], row["source_id"].partition("@")[0]
        if uid not in self.rows:
            if row["collected_at"] is not None:
                return
            root = self.warehouse / row["table_name"]
            self.rows[uid] = read_rows(read_version(str(root), row["version"]).files)
        rows = self.rows[uid]
        assert len(rows) == row["rows"]
        assert self.contents.setdefault(row["content"], rows) == rows
        meant, code, ids = self.meanings[row["build_id"]]
        inputs = dict(json.loads(row["inputs"]))
        given: dict[str, Rows | None] = {}
        for other, build_id in ids.items():
            version = inputs.get(build_id)
            if version is not None and version.startswith(CONTENT):
                given[other] = self.contents.get(version.removeprefix(CONTENT))
            elif version is not None:
                given[other] = self.versions[other, version]
        if None in given.values():
            self.tally.unknown += 1
        else:
            assert evaluate(code, meant, {**given, meant: None}.get) == rows, f"inputs of {name}"
        as_of: dict[str, set[str]] = {}
        for build_id, version in json.loads(row["as_of"]):
            as_of.setdefault(self.raws[build_id], set()).add(version)
        if all(len(versions) == 1 for versions in as_of.values()):
            raw = {other: self.versions[other, *versions] for other, versions in as_of.items()}
            assert evaluate(code, meant, raw.get) == rows, f"as_of of {name}"

    def check_whole(self) -> None:
        """Check that everything can be read which a manifest names, or may name again."""
        named = {uid for state in self.entries.values() for uid in state.values()}
        for change in (c for changes in self.changes.values() for c in changes):
            if change.kind != "collect" and change.at >= self.collected_to:
                named.update(uid for _, *ends in change.moves for uid in ends if uid is not None)
        disk = self.on_disk()
        given_up = {r["snapshot_uid"] for r in self.builds.values() if r["collected_at"]}
        for uid in named:
            row = self.builds[uid]
            snapshot = row["snapshot_uid"]
            assert snapshot not in given_up, f"{row['table_name']} {row['version']} is needed"
            print_ = disk.get(row["table_name"])
            if print_ is None or self.prints.get(snapshot) != print_:
                found = read_version(str(self.warehouse / row["table_name"]), row["version"])
                assert all(Path(path).parent.name == snapshot for path in found.files)
                assert read_rows(found.files) == self.rows[snapshot]
                self.prints[snapshot] = print_

    def check_parked(self) -> None:
        """Check that what a run has put aside is there until somebody builds it again."""
        for run in self.runs():
            for work in run.parked.values():
                row = self.builds[work.build.build_uid]
                age = self.clock.now - _instant(row["started_at"])
                assert work.snapshot
                if age <= LONGEST and work.snapshot.build_uid == row["build_uid"]:
                    assert is_whole(str(self.warehouse / work.table), work.snapshot)
                # Who died or has halted may have begun to build it, and not recorded it yet.
                halted = any(c.task[0] in ("build", "pool") for c in self.children)
                blamed = halted or _instant(row["started_at"]) < self.killed_at
                if age <= LONGEST and row["state"] != "started" and not blamed:
                    assert any(
                        other["table_name"] == row["table_name"]
                        and other["started_at"] > row["started_at"]
                        for other in self.builds.values()
                    ), "nobody has built it since"

    def check_files(self) -> None:
        """Check that exported manifests are whole, and tell what is or at least was."""
        for environment in ENVIRONMENTS:
            path = self.root / ".persist" / "manifests" / f"{environment}.json"
            told: dict[str, Entry] = {}
            if path.exists():
                for build_id, entry in json.loads(path.read_text())["entries"].items():
                    table = Path(entry["path"]).relative_to(self.warehouse).as_posix()
                    told[build_id] = (table, entry["version"])
            assert told in self.states[environment], "it never was so"
            if environment not in self.dirty and not self.children:
                assert told == self.states[environment][-1], f"{environment} was not exported"

    def check_plan(self, run: Run) -> None:
        """Check that what need not be built has the rows that it would get."""
        if not self.is_usual(run):
            return
        chosen = [s.source_id for s in run.project.persisted]
        for step in run.builder.plan(chosen).steps:
            if step.snapshot is not None:
                name, snapshot = run.project.by_id[step.source_id].name, step.snapshot
                if snapshot.build_uid not in self.rows:  # parked
                    found = read_version(str(self.warehouse / snapshot.table), snapshot.version)
                    self.rows[snapshot.build_uid] = read_rows(found.files)
                assert self.rows[snapshot.build_uid] == self.now(name), f"{name} is not so"

    def on_disk(self) -> dict[str, dict[str, Any]]:
        """Return the files of all tables, by table and directory, and what tells their content."""
        found: dict[str, dict[str, Any]] = {}
        for path in sorted(self.warehouse.rglob("*")):
            if path.is_file() and LISTINGS not in path.parts:
                table, directory, *_ = path.relative_to(self.warehouse).parts
                told, stat = found.setdefault(table, {}), path.stat()
                told.setdefault(directory, []).append((path.name, stat.st_ino, stat.st_mtime_ns))
        return found


_EVENTS = {
    "build": "build-succeeded",
    "promote": "promoted",
    "rollback": "rolled-back",
    "collect": "entries-collected",
}


def _instant(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def action_of(outcome: Any) -> str:
    if isinstance(outcome, Build):
        return outcome.action
    return "parked" if isinstance(outcome, PendingBuild) else type(outcome).__name__


def explore(
    n: int,
    *,
    zygote: Zygote | None = None,
    engine: Callable[[Any], SparkEngine] = Quick,
    toml: str = "",
    seed: int = 0,
    steps: int = 25,
    first: int = 0,
    shrink: bool = True,
) -> Tally:
    """Check so many histories, and return what they came to.

    Parameters
    ----------
    zygote
        Where other processes come from; None: there are no others.
    seed, first
        Which histories, and where among them to begin.
    shrink
        Look, for minutes, for a shorter one if one is found where something is wrong.
    """
    tally = Tally()
    given = {"zygote": zygote, "engine": engine, "toml": toml, "tally": tally, "projects": {}}
    repeat(Histories, given, n, seed=seed, steps=steps, first=first, shrink=shrink)
    return tally


def repeat(
    machine: type[RuleBasedStateMachine],
    attributes: Mapping[str, Any],
    n: int,
    *,
    seed: int,
    steps: int,
    first: int,
    shrink: bool,
) -> None:
    """Let so many machines run; `given` is what they have in common. See `explore`."""
    phases = [hypothesis.Phase.generate, *([hypothesis.Phase.shrink] if shrink else ())]
    for number in range(first, first + n):
        made: Any = type(f"Random{machine.__name__}", (machine,), dict(attributes))
        hypothesis.seed(f"{seed} {number}")(made)
        # Of more than one at once most would be made of others, and not differ much.
        chosen = hypothesis.settings(
            max_examples=2,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            phases=phases,
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        try:
            run_state_machine_as_test(made, settings=chosen)
        except BaseException as error:
            error.add_note(f"history {number} from seed {seed}")
            raise
