"""Tables that incremental builds maintain on Spark equal tables that are computed in full."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from growing import check
from maintained import QUERIES, RAW, WITHOUT_COST, Data, methods, put_rows, sources

from persist_assets.building.builder import Builder
from persist_assets.building.changed_tables import ChangedTables
from persist_assets.core.errors import NotIncrementalError

if TYPE_CHECKING:
    from persist_assets.building.stages import PendingBuild

Enter = Callable[..., Builder]
Make = Callable[..., Path]
OF_BOTH = {"named", "inner_named", "by_name", "absent", "present", "upper"}
OF_BOTH |= {"user_names", "full_names", "both", "without", "last_seen", "weights"}
"""The sources that read `dim`, directly or not."""
OF_DAYS = {"weeks"}
OF_EVENTS = {*QUERIES} - OF_DAYS


def built(builder: Builder, name: str = "q") -> PendingBuild:
    """Build a source, and check that its rows are right."""
    source = builder.project.by_id[f"{name}@sources/m.sql"]
    with builder.work(source) as work:
        builder.publish(work)
    check(builder, source, name)
    return work


@pytest.mark.slow
@pytest.mark.proves("T8", "T21")
def test_incremental_builds_follow_every_kind_of_change(make_project: Make, enter: Enter) -> None:
    root = make_project({"m.sql": sources()})
    data = Data(root, random.Random(3))
    assert {*methods(enter(root), "first").values()} == {"whole"}

    def change(label: str, expected: str, reached: set[str]) -> dict[str, str]:
        by_method = methods(enter(root), label)
        print(label, by_method)
        others = {n: m for n, m in by_method.items() if n not in reached}
        assert {*others.values()} == {"reused"}, others
        assert {by_method[n] for n in reached} <= {*expected.split(), "reused"}
        return by_method

    data.put("ev", data.events(4))
    by_method = change("append", "append keys merge", OF_EVENTS)
    assert {n for n, m in by_method.items() if m == "append"} >= {"kept", "named", "inner_named"}
    assert [by_method[n] for n in ("newest", "running", "sets", "total")] == [
        *("keys", "keys", "merge", "merge"),
    ]

    data.table("ev").update({"amt": "amt + 1"}, predicate="id in (3, 50)")
    unread = {"averages", "kinds", "absent", "counts", "user_names", "upper", "full_names"}
    unread |= {"sets", "both", "without", "tagged", "last_seen", "weights"}
    by_method = change("update", "append keys merge", OF_EVENTS - unread)
    assert by_method["shares"] == by_method["running"] == by_method["named"] == "keys"

    data.table("ev").delete("usr = 4 and id < 40")
    by_method = change("delete", "append keys merge", OF_EVENTS)
    assert by_method["by_user"] == by_method["kept"] == "keys"

    data.table("dim").update({"name": "'n9'"}, predicate="usr = 2")
    by_method = change("dimension", "append keys merge", OF_BOTH - {"both", "without"})
    assert by_method["named"] == by_method["user_names"] == "keys"

    data.table("dim").update({"note": "'y'"}, predicate="usr = 1")
    change("unused column", "", set())

    data.table("ev").delete("usr = 5 and id < 40")
    data.put("dim", [(8, "n1", "x"), (None, "n0", "x")])
    change("both", "append keys merge", OF_EVENTS)
    change("nothing", "", set())

    ours = enter(root).ledger.manifests.fetch("dev")
    scratch = enter(root, environment="scratch")
    for source in scratch.project.persisted:
        with scratch.work(source, force=True) as work:
            theirs = scratch.publish(work)
        mine = ours[source.build_id]
        assert (work.maintenance, mine.build_uid != theirs.build_uid) == ("whole", True)
        assert (mine.rows, mine.content) == (theirs.rows, theirs.content), source.name


FLOATS = "SELECT y, count(*) AS n FROM (SELECT usr, sum(y) AS y FROM ev GROUP BY usr) GROUP BY y"


@pytest.mark.slow
@pytest.mark.proves("T8")
def test_a_full_build_runs_if_no_incremental_rule_applies(make_project: Make, enter: Enter) -> None:
    root = make_project({"m.sql": f"{RAW}{WITHOUT_COST}CREATE VIEW q AS {FLOATS};"})
    data = Data(root, random.Random(1))
    built(enter(root))
    data.put("ev", data.events(3))
    work = built(enter(root))
    assert work.maintenance == "whole"
    assert "of sum(), whose last digits may depend on the order of rows" in work.step.why


@pytest.mark.slow
@pytest.mark.proves("T8")
@pytest.mark.parametrize("strict", [False, True], ids=["incremental", "strict"])
@pytest.mark.parametrize("name", ["by_user", "named", "total"])
def test_a_failing_program_falls_back_to_a_full_build_unless_strict(
    make_project: Make,
    enter: Enter,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
    strict: bool,
) -> None:
    annotation = "--@ persist refresh=strict\n" if strict else WITHOUT_COST
    root = make_project({"m.sql": f"{RAW}{annotation}CREATE VIEW q AS {QUERIES[name]};"})
    data = Data(root, random.Random(1))
    first = built(enter(root)).snapshot
    data.table("ev").update({"amt": "amt + 1"}, predicate="id in (3, 50)")
    run = ChangedTables.run

    def fails(self: ChangedTables, sql: str) -> Any:
        return run(self, sql).where("raise_error('a failing program') IS NULL")

    with monkeypatch.context() as patch:
        patch.setattr(ChangedTables, "run", fails)
        builder = enter(root)
        if strict:
            with pytest.raises(NotIncrementalError, match="a failing program"):
                built(builder)
            assert [*builder.ledger.manifests.fetch("dev").values()] == [first]
        else:
            assert built(builder).maintenance == "whole"
            assert "`m/q` is computed in full" in caplog.text
            assert "a failing program" in caplog.text
    if name == "total" and not strict:  # its aggregation states could not be computed either
        data.table("ev").update({"amt": "amt + 1"}, predicate="id in (3, 50)")
        assert built(enter(root)).maintenance == "whole"
    data.table("ev").update({"amt": "amt + 1"}, predicate="id in (3, 50)")
    assert built(enter(root)).maintenance in ("keys", "merge")


@pytest.mark.slow
@pytest.mark.proves("T8")
def test_incremental_builds_follow_sign_changes_of_zero(make_project: Make, enter: Enter) -> None:
    """Spark compares 0.0 and -0.0 as equal, but casts them to different texts."""
    queries = {
        "q": "SELECT k, CAST(y AS STRING) AS y FROM z",
        "same": "SELECT k, y FROM z",
        "texts": "SELECT k, y, CAST(y AS STRING) AS t FROM z WHERE k > 0",
        "above": "SELECT k, CAST(y AS STRING) AS t FROM same",
    }
    text = "CREATE TABLE z (k INT, y DOUBLE) USING delta LOCATION 'raw/z';\n"
    text += "".join(f"{WITHOUT_COST}CREATE VIEW {n} AS {q};\n" for n, q in queries.items())
    root = make_project({"m.sql": text})
    columns = {"k": "INT", "y": "DOUBLE"}
    for number, rows in enumerate(
        (
            [(1, 0.0), (2, 1.0), (3, -0.0)],
            [(1, -0.0), (2, 1.0), (3, 0.0)],
            [(1, -0.0), (1, 0.0), (2, -0.0), (3, 0.0)],
            [(1, 0.0), (3, 0.0), (3, -0.0)],
        )
    ):
        put_rows(root / "raw" / "z", columns, rows)
        builder = enter(root)
        for name in queries:
            work = built(builder, name)
            assert work.snapshot is not None
            assert work.maintenance == ("whole" if not number else "keys"), name


@pytest.fixture
def without_ansi(spark: Any) -> Iterator[str]:
    """Yield settings of a project, of which the session gets some until the test ends."""
    key = "spark.sql.ansi.enabled"
    before = spark.conf.get(key)
    yield f'[env.dev.spark]\n"{key}" = "false"\n'
    spark.conf.set(key, before)


@pytest.mark.slow
@pytest.mark.proves("T20")
def test_sums_that_may_overflow_to_null_are_not_merged(
    make_project: Make, enter: Enter, without_ansi: str
) -> None:
    columns = {"k": "INT", "v": "DECIMAL(38,0)"}
    text = "CREATE TABLE t (k INT, v DECIMAL(38,0)) USING delta LOCATION 'raw/t';\n"
    text += f"{WITHOUT_COST}CREATE VIEW q AS SELECT k, sum(v) AS v FROM t GROUP BY k;\n"
    root = make_project({"m.sql": text}, settings=without_ansi)
    half = Decimal(6 * 10**37)
    rows = [(1, half), (1, half), (2, Decimal(1))]
    put_rows(root / "raw" / "t", columns, rows)
    built(enter(root))
    put_rows(root / "raw" / "t", columns, [*rows, (1, Decimal(5))])
    assert built(enter(root)).maintenance == "keys"


@pytest.mark.slow
@pytest.mark.proves("T8")
def test_vacuumed_files_cause_a_full_build_or_fail_a_strict_one(
    make_project: Make, enter: Enter, caplog: pytest.LogCaptureFixture
) -> None:
    text = "".join(
        f"{annotation}CREATE VIEW {name} AS {QUERIES[query]};\n"
        for name, annotation, query in (
            ("q", WITHOUT_COST, "by_user"),
            ("s", "--@ persist refresh=strict\n", "running"),
        )
    )
    root = make_project({"m.sql": RAW + text})
    data = Data(root, random.Random(1))
    for name in ("q", "s"):
        built(enter(root), name)
    data.table("ev").update({"amt": "amt + 1"}, predicate="id = 3")
    data.table("ev").vacuum(0, dry_run=False, enforce_retention_duration=False)
    gone = "files of the earlier version of ev, from which its table was computed, are gone"
    assert built(enter(root)).maintenance == "whole"
    assert f"`m/q` is computed in full: {gone}" in caplog.text
    with pytest.raises(NotIncrementalError, match=gone):
        built(enter(root), "s")


@pytest.mark.slow
@pytest.mark.proves("T8")
def test_all_rows_are_computed_if_most_of_a_large_table_is_touched(
    make_project: Make, enter: Enter, caplog: pytest.LogCaptureFixture
) -> None:
    query = "SELECT id, {0}, count(*) OVER (PARTITION BY {0} ORDER BY id DESC) AS nth FROM ev"
    views = {name: query.format(name) for name in ("kind", "usr")}
    # Without a key, rows are replaced by value, whatever the names of their columns are.
    views["unkeyed"] = "SELECT day, rank() OVER (PARTITION BY usr ORDER BY id DESC) AS nth FROM ev"
    text = "".join(f"{WITHOUT_COST}CREATE VIEW {n} AS {q};\n" for n, q in views.items())
    text += f"--@ persist refresh=strict\nCREATE VIEW strict AS {views['kind']} WHERE id >= 0;\n"
    root = make_project({"m.sql": RAW + text})
    data = Data(root, random.Random(5))
    data.put("ev", data.events(1_100))
    assert {*methods(enter(root), "first").values()} == {"whole"}
    # Each of the three kinds has new rows, but only one of the users.
    new = [(n, 7, "2024-01-01", kind, "1", None, None) for n, kind in enumerate("abc", 2_000)]
    data.put("ev", new)
    assert methods(enter(root), "new rows") == {
        "kind": "whole",
        "usr": "keys",
        "unkeyed": "keys",
        "strict": "keys",
    }
    assert "kind` is computed in full: more keys are touched than expected" in caplog.text
