"""Refresh every table of a project, compute everything from scratch beside it, and compare rows.

    raw Delta tables ─► one run of a `Builder`: each source brought up to date   (refresh)
                    └─► bare Spark writes each query's own text as Parquet       (whole)

Both happen in one warm session, one source after the other, and each is timed on the wall and in
CPU seconds of this process, its children and the JVM. The refresh includes planning, finding the
change, checks, commit and publication. Bare Spark does none of these, so it is the fair floor: what
a user has without us. It is also an independent oracle, because it shares only the text of the
query with the table. The invariant that is measured: both have the same rows.
"""

from __future__ import annotations

import math
import shutil
import statistics
import time
from collections import Counter, defaultdict
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import DeltaTable
from increments import cpu_seconds

from persist_assets.building.builder import Builder
from persist_assets.compiler.load import load_project, require
from persist_assets.core.settings.load import load_settings
from persist_assets.engine.session import create_session
from persist_assets.engine.spark import SparkEngine
from persist_assets.ledger.ledger import Ledger
from persist_assets.operations.gc import collect
from persist_assets.planning.render import stored_rows, substitute

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
    from pathlib import Path

    from persist_assets.building.stages import PendingBuild
    from persist_assets.core.model.plans import Estimates
    from persist_assets.core.model.sources import Source

SETTINGS = """
keep = "1 second"

[spark]
"spark.master" = "local[*]"
"spark.driver.memory" = "6g"
"spark.ui.enabled" = "false"
"spark.sql.shuffle.partitions" = "8"
"""
TOLERANCE = 1e-9
"""By so much of the larger value, or of 1, may doubles differ."""
MOST_COLLECTED = 1_000_000
"""Tables with doubles that differ in more rows count as different without a closer look."""


FEED = {"delta.enableChangeDataFeed": "true"}
"""The properties of Delta tables that record their changed rows."""


@dataclass
class Cost:
    """Seconds on the wall and of the processors."""

    wall: float = 0.0
    cpu: float = 0.0


@dataclass
class Refresh:
    """One source, brought up to date once.

    Attributes
    ----------
    method
        How the plan maintained the table: see `find_method`.
    reason
        The plan's reason for it.
    rows_read
        The rows that Spark's tasks read from files, of inputs and of the table itself.
    rows_written
        The rows in new files; 0 if nothing was written.
    whole
        The cost of computing it from scratch.
    difference
        The difference from the rows computed from scratch; None: they are equal.
    compared
        Whether rows were compared; those of nondeterministic sources are not.
    expected
        The seconds that the plan expected of both ways; None: it did not compare them.
    shared_s
        The seconds that it spent on rows that other sources use too, less its share of these
        seconds: see `Effort.seconds_shared`.
    """

    method: str
    reason: str
    rows_read: int
    rows_written: int
    cost: Cost
    whole: Cost = field(default_factory=Cost)
    difference: str | None = None
    compared: bool = True
    expected: Estimates | None = None
    shared_s: float = 0.0


class Bench:
    """A project with raw Delta tables, and the session in which it is measured.

    Parameters
    ----------
    root
        The directory of the project: `sources` and the raw tables are in it.
    uncompared
        The names of sources whose rows are others each time, besides nondeterministic ones.
    spark
        The session; None: a new one.
    """

    def __init__(self, root: Path, uncompared: Collection[str] = (), spark: Any = None) -> None:
        self.root, self.uncompared = root, uncompared
        (root / "persist.toml").write_text(SETTINGS)
        self.settings = load_settings(root)
        self.project = require(load_project(self.settings))
        self.spark: Any = spark or create_session(self.settings)
        self.engine = SparkEngine(self.settings, lambda: self.spark)
        self._first_stage = 0

    @contextmanager
    def run(self) -> Generator[Builder]:
        """Yield a builder for one run."""
        ledger = Ledger(self.settings.ledger)
        builder = Builder(self.settings, self.project, ledger, self.engine)
        try:
            yield builder
        finally:
            builder.close()
            ledger.close()

    def turn(self) -> dict[str, Refresh]:
        """Refresh all sources, compute them from scratch, and compare; return it by name."""
        refreshed = self.refresh()
        whole = self.compute()
        for name, cost in whole.items():
            refreshed[name].whole = cost
        self.compare(refreshed)
        self._tidy()
        return refreshed

    def refresh(self) -> dict[str, Refresh]:
        """Bring all sources up to date, one after the other."""
        refreshed: dict[str, Refresh] = {}
        with self.run() as builder:
            for source in self.project.persisted:
                self.count_rows_read()
                cost = Cost()
                with timed(cost), builder.work(source) as work:
                    builder.publish(work)
                refreshed[source.name] = Refresh(
                    find_method(work),
                    find_reason(work),
                    self.count_rows_read(),
                    work.staged.rows if work.staged else 0,
                    cost,
                    compared=not source.volatile and source.name not in self.uncompared,
                    expected=work.step.expected,
                )
            last = builder.ledger.builds.fetch_last(self.settings.environment)
        for source in self.project.persisted:
            effort = last[source.source_id].effort
            refreshed[source.name].shared_s = effort.seconds_shared if effort else 0.0
        return refreshed

    def compute(self) -> dict[str, Cost]:
        """Have bare Spark compute all sources from the raw tables, and write their rows."""
        views: dict[str, str] = {}
        costs: dict[str, Cost] = {}
        for source in self.project.sources:
            name = f"whole_{source.name}"
            if source.raw is not None:
                files = DeltaTable(self.settings.resolve(source.raw.location or "")).file_uris()
                self.spark.read.parquet(*files).createOrReplaceTempView(name)
            elif source.persisted:
                costs[source.name] = cost = Cost()
                place = str(self.root / "whole" / source.name)
                with timed(cost):
                    self.spark.sql(self._statement(source, views)).write.parquet(place)
                self.spark.read.parquet(place).createOrReplaceTempView(name)
            else:
                continue
            views[source.source_id] = name
        return costs

    def _statement(self, source: Source, views: Mapping[str, str]) -> str:
        """Return a source's own text, with names of views for those of tables."""
        assert source.query is not None
        sql = substitute(self.project, source.query, source.bindings, views).sql
        return sql if source.annotation.merge is None else stored_rows(source, sql, source.columns)

    def compare(self, refreshed: Mapping[str, Refresh]) -> None:
        """Compare all tables with what was computed from scratch."""
        with self.run() as builder:
            for source in self.project.persisted:
                result = refreshed[source.name]
                if result.compared:
                    fresh = self.spark.table(f"whole_{source.name}")
                    result.difference = find_difference(builder.read(source), fresh)

    def _tidy(self) -> None:
        """Delete what was computed from scratch, and superseded rows of the tables."""
        shutil.rmtree(self.root / "whole")
        ledger = Ledger(self.settings.ledger)
        try:
            collect(self.settings, self.project, ledger)
        finally:
            ledger.close()

    def count_rows_read(self) -> int:
        """Return how many rows Spark's tasks have read from files since the last call."""
        jvm = self.spark.sparkContext._jvm
        context = self.spark.sparkContext._jsc.sc()
        context.listenerBus().waitUntilEmpty(60_000)
        empty = self.spark.sparkContext._gateway.new_array(jvm.double, 0)
        none = jvm.java.util.ArrayList()
        stages = context.statusStore().stageList(none, False, False, empty, none)
        rows, last = 0, self._first_stage
        for stage in (stages.apply(n) for n in range(stages.size())):
            if stage.stageId() < self._first_stage:
                break  # they come newest first
            rows += stage.inputRecords()
            last = max(last, stage.stageId() + 1)
        self._first_stage = last
        return rows


@contextmanager
def timed(cost: Cost) -> Generator[None]:
    """Add the seconds of the block to a cost."""
    begun, before = time.perf_counter(), cpu_seconds()
    yield
    cost.wall += time.perf_counter() - begun
    cost.cpu += cpu_seconds() - before


def find_method(work: PendingBuild) -> str:
    """Return how a build maintained its table.

    It is the plan's own word, `Step.maintenance`, where the step has one. Otherwise it follows from
    the increment: ``append``, ``windows``, ``merge`` (rows replace others of their key), ``reuse``,
    or ``whole``.
    """
    step = work.step
    maintenance = getattr(step, "maintenance", None)
    if maintenance is not None:
        return str(getattr(maintenance, "method", maintenance))
    if step.action == "reuse":
        return "reuse"
    if step.increment is None:
        return "windows" if step.base is not None else "whole"
    if work.source.annotation.merge is not None:
        return "merge"
    return "append" if step.increment.added else "windows"


def find_reason(work: PendingBuild) -> str:
    """Return the plan's reason for the method, or all of its reasons."""
    reasons = work.step.reasons
    chosen = [r for r in reasons if r.code == "whole"] or reasons
    return "; ".join(r.message for r in chosen)


# ------------------------------------------------------------------------------------- raw tables


def change_each_file(
    place: Path, verb: str, key: str, last: int, predicate: str, **how: Any
) -> int:
    """Delete or update rows of a Delta table, file by file, and return how many.

    Asked for all files at once, delta-rs mixes their rows, and statistics prune nothing any more.
    Other writers keep the order of a table.

    Parameters
    ----------
    verb
        ``delete`` or ``update``.
    key, last
        The column by which files follow each other; rows with a greater key stay as they are.
    """
    files = pa.table(DeltaTable(place).get_add_actions(flatten=True)).to_pylist()
    touched = 0
    for low, high in sorted((f[f"min.{key}"], f[f"max.{key}"]) for f in files):
        if low <= last:
            among = f"{key} >= {low} AND {key} <= {min(high, last)} AND {predicate}"
            done = getattr(DeltaTable(place), verb)(predicate=among, **how)
            touched += done.get("num_deleted_rows") or done.get("num_updated_rows") or 0
    return touched


def is_picked(key: str, salt: int, share: float) -> str:
    """Return a condition that a share of scattered keys meets, others for each salt."""
    prime = 1_000_003
    return f"({key} * 7919 + {salt * 104_729}) % {prime} < {round(prime * share)}"


# ------------------------------------------------------------------------------------- comparison


def find_difference(ours: Any, fresh: Any) -> str | None:
    """Return the difference of two frames as bags of rows; None: there is none.

    This is EXCEPT ALL both ways, in one pass: rows count +1 on one side and -1 on the other. All
    values have to be the same, but doubles may differ by `TOLERANCE`.
    """
    columns = [(c.name, c.dataType.simpleString()) for c in fresh.schema]
    of_ours = [(c.name, c.dataType.simpleString()) for c in ours.schema]
    if [(n.lower(), kind) for n, kind in of_ours] != [(n.lower(), kind) for n, kind in columns]:
        return f"columns {of_ours} instead of {columns}"
    cells = [f"c{n}" for n in range(len(columns))]
    both = ours.toDF(*cells).selectExpr("*", "1 AS side").unionAll(
        fresh.toDF(*cells).selectExpr("*", "-1 AS side")
    )  # fmt: skip
    rows = both.groupBy(*cells).agg({"side": "sum"}).where("`sum(side)` <> 0")
    inexact = [n for n, (_, kind) in enumerate(columns) if "double" in kind or "float" in kind]
    if not inexact:
        sides = "coalesce(sum(if(n > 0, n, 0)), 0)", "coalesce(sum(if(n < 0, -n, 0)), 0)"
        added, missing = rows.toDF(*cells, "n").selectExpr(*sides).collect()[0]
        return _describe(added, missing)
    differing = [tuple(row) for row in rows.limit(MOST_COLLECTED + 1).collect()]
    if len(differing) > MOST_COLLECTED:
        return f"more than {MOST_COLLECTED:,} rows differ"
    return _describe(*count_unmatched(differing, inexact))


def _describe(added: int, missing: int) -> str | None:
    return f"{added:,} wrong rows, {missing:,} missing" if added or missing else None


def count_unmatched(rows: Iterable[tuple[Any, ...]], inexact: Collection[int]) -> tuple[int, int]:
    """Return the numbers of rows on either side that no close row of the other side matches.

    Parameters
    ----------
    rows
        Values, and last a number: how much more often one side has the row than the other.
    inexact
        The positions of values that only have to be close.
    """
    groups: dict[str, tuple[Counter[Any], Counter[Any]]] = defaultdict(
        lambda: (Counter[Any](), Counter[Any]())
    )
    for *values, n in rows:
        key = repr([v for i, v in enumerate(values) if i not in inexact])
        groups[key][n < 0][tuple(freeze(values[i]) for i in inexact)] += abs(n)
    for left, right in groups.values():
        for value in [*left]:
            for other in [o for o in right if is_close(value, o)]:
                n = min(left[value], right[other])
                left[value] -= n
                right[other] -= n
    return (
        sum(left.total() for left, _ in groups.values()),
        sum(right.total() for _, right in groups.values()),
    )


def freeze(value: Any) -> Any:
    """Return a value with tuples for its lists and dictionaries."""
    if isinstance(value, dict):
        return tuple(sorted((freeze(k), freeze(v)) for k, v in value.items()))
    if isinstance(value, list | tuple):
        return tuple(map(freeze, value))
    return value


def is_close(value: Any, other: Any) -> bool:
    """Whether two values are the same, except for the last digits of doubles."""
    if isinstance(value, tuple) and isinstance(other, tuple):
        return len(value) == len(other) and all(map(is_close, value, other))
    if isinstance(value, float) and isinstance(other, float):
        if math.isnan(value) or math.isnan(other):
            return math.isnan(value) and math.isnan(other)
        return math.isclose(value, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    return value == other


# --------------------------------------------------------------------------------------- printing


def ratio(refresh: float, whole: float) -> float:
    """Return the share of a whole computation; 1 if there was none to speak of."""
    return refresh / whole if whole > 0 else 1.0


def total(results: Iterable[Refresh]) -> tuple[Cost, Cost]:
    """Return the summed costs of refreshing, and of computing everything from scratch."""
    ours, whole = Cost(), Cost()
    for result in results:
        ours.wall += result.cost.wall
        ours.cpu += result.cost.cpu
        whole.wall += result.whole.wall
        whole.cpu += result.whole.cpu
    return ours, whole


HEAD = (
    "source", "method", "rows read", "rows written",
    "refresh s", "whole s", "ratio", "CPU s", "whole CPU s", "ratio", "equal",
)  # fmt: skip


def print_results(title: str, results: Mapping[str, Refresh]) -> None:
    """Print a table with a line per source, and their sums."""
    lines: list[Sequence[str]] = [HEAD]
    for name, result in results.items():
        equal = "yes" if result.difference is None else f"NO: {result.difference}"
        lines.append(
            (
                name, result.method, f"{result.rows_read:,}", f"{result.rows_written:,}",
                *_costs(result.cost, result.whole), equal if result.compared else "not compared",
            )
        )  # fmt: skip
    read, written = (
        sum(getattr(r, f"rows_{w}") for r in results.values()) for w in ("read", "written")
    )
    n_equal = sum(r.difference is None and r.compared for r in results.values())
    n_compared = sum(r.compared for r in results.values())
    sums = _costs(*total(results.values()))
    lines.append(("all", "", f"{read:,}", f"{written:,}", *sums, f"{n_equal} of {n_compared}"))
    print(f"\n{title}")
    widths = [max(len(line[n]) for line in lines) for n in range(len(HEAD))]
    for line in lines:
        cells = (
            cell.ljust(w) if n in (0, 1, len(HEAD) - 1) else cell.rjust(w)
            for n, (cell, w) in enumerate(zip(line, widths, strict=True))
        )
        print("  ".join(cells).rstrip(), flush=True)


def _costs(ours: Cost, whole: Cost) -> tuple[str, ...]:
    wall = f"{ours.wall:.2f}", f"{whole.wall:.2f}", f"{ratio(ours.wall, whole.wall):.2f}"
    return (*wall, f"{ours.cpu:.2f}", f"{whole.cpu:.2f}", f"{ratio(ours.cpu, whole.cpu):.2f}")


def summary(what: str, turns: Iterable[Mapping[str, Refresh]], target: str) -> list[str]:
    """Return the row of the page that tells of all turns: what, floor, ours, target."""
    results = [r for turn in turns for r in turn.values()]
    ours, whole = total(results)
    ratios = [ratio(r.cost.cpu, r.whole.cpu) for r in results]
    compared = [r for r in results if r.compared]
    equal = sum(r.difference is None for r in compared)
    return [
        what,
        f"from scratch by bare Spark: {whole.wall:.1f} s, {whole.cpu:.1f} CPU s",
        f"{ours.wall:.1f} s ({ratio(ours.wall, whole.wall):.3f}×), {ours.cpu:.1f} CPU s "
        f"({ratio(ours.cpu, whole.cpu):.3f}×), median {statistics.median(ratios):.3f}×; "
        f"{count_methods(results)}; "
        f"{equal} of {len(compared)} equal",
        target,
    ]


def count_methods(results: Iterable[Refresh]) -> str:
    """Return how often each method was used, the most frequent one first."""
    return ", ".join(f"{n} {m}" for m, n in Counter(r.method for r in results).most_common())


def print_predictions(turns: Mapping[str, Mapping[str, Refresh]]) -> None:
    """Print how often the cheaper method is the one that the plan expected, and each exception.

    Builds that maintained a table count, and what bare Spark took to compute the same rows.
    """
    n_right, wrong = 0, list[str]()
    for turn, results in turns.items():
        for name, r in results.items():
            if r.expected is None or r.method == "whole":
                continue
            if r.expected.prefers_delta == (r.cost.wall < r.whole.wall):
                n_right += 1
            else:
                wrong.append(
                    f"  {turn}, {name}: {r.cost.wall:.2f} s and {r.whole.wall:.2f} s as a whole,"
                    f" expected {r.expected.delta_s:.2f} s and {r.expected.whole_s:.2f} s"
                )
    print(f"\nplans expected the cheaper method in {n_right} of {n_right + len(wrong)} builds")
    print("\n".join(wrong))


def as_json(turns: Mapping[str, Mapping[str, Refresh]]) -> dict[str, Any]:
    """Return everything measured, by turn and source, for a JSON file."""
    return {
        turn: {name: asdict(r) for name, r in results.items()} for turn, results in turns.items()
    }


def added(turns: Iterable[Mapping[str, Refresh]]) -> dict[str, Refresh]:
    """Return the sums of several turns, by source; all methods that it was maintained by."""
    by_name: dict[str, list[Refresh]] = defaultdict(list)
    for turn in turns:
        for name, result in turn.items():
            by_name[name].append(result)
    sums: dict[str, Refresh] = {}
    for name, results in by_name.items():
        ours, whole = total(results)
        sums[name] = Refresh(
            method="/".join(dict.fromkeys(r.method for r in results)),
            reason=results[-1].reason,
            rows_read=sum(r.rows_read for r in results),
            rows_written=sum(r.rows_written for r in results),
            cost=ours,
            whole=whole,
            difference=next((r.difference for r in results if r.difference), None),
            compared=results[-1].compared,
        )
    return sums


def has_differences(turns: Iterable[Mapping[str, Refresh]]) -> bool:
    """Whether any table differs from its computation from scratch."""
    return any(r.difference is not None for turn in turns for r in turn.values())
