"""A first project in Malloy: what works, and how mistakes are reported."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import warm
from conftest import ROOT
from malloy import compiler

from persist_assets.compiler.load import load as load_whole
from persist_assets.compiler.load import load_project
from persist_assets.core.errors import Problem, SourcesError
from persist_assets.core.settings.load import load_settings
from persist_assets.planning.diff import line_of, of_project

if TYPE_CHECKING:
    from persist_assets.core.model.project import Project

FLAG = "##! experimental.persistence\n"
RAW = """
CREATE TABLE orders (
  id BIGINT, customer STRING, amount DECIMAL(10, 2), ordered_at TIMESTAMP, `odd name` INT
) USING parquet LOCATION 'raw/orders';
--@ persist
CREATE VIEW spending AS
SELECT customer, reduce(collect_list(amount), 0.0, (a, b) -> a + b) AS total,
  transform(array(max(ordered_at)), t -> t + INTERVAL 1 DAY)[0] AS until
FROM orders GROUP BY customer;
"""
BASE = f"""{FLAG}
source: orders is spark.table('orders') extend {{ measure: n is count(), late is max(ordered_at) }}
#@ persist time_column=last_at
#@ check {{ unique=[customer] }}
source: buyers is orders -> {{ group_by: customer; aggregate: n, last_at is late }}
"""

Make = Callable[..., Path]


@pytest.fixture(autouse=True)
def node() -> None:
    compiler()


def load(root: Path) -> Project:
    return load_project(load_settings(root, environ={}))


def problems_of(root: Path) -> list[tuple[str, int, int, str]]:
    """Return the location and the code of each problem."""
    found = load(root).problems
    return [(p.location.path[8:], p.location.line, p.location.column, p.code) for p in found]


def wrong(make_project: Make, text: str) -> list[Problem]:
    """Return the problems of a project with this Malloy file."""
    root = make_project({"raw.sql": RAW, "a.malloy": FLAG + text})
    return list(load(root).problems)


def sql(root: Path, file: str, run: str) -> str:
    return load_whole(load_settings(root, environ={})).query(f"sources/{file}", text=run).text


# -------------------------------------------------------------------------------------------- docs


@pytest.mark.slow
def test_the_examples_in_the_malloy_docs_work_as_shown(make_project: Make) -> None:
    text = (ROOT / "docs" / "malloy.md").read_text()
    blocks = re.findall(r"^```\w+\n(?:--|//) sources/(\S+)\n(.*?)^```", text, re.M | re.S)
    files = dict(blocks[:3])
    assert list(files) == ["raw.sql", "shop.malloy", "mail.sql"]
    settings = re.findall(r"^```toml\n(.*?)^```", text, re.M | re.S)[0]
    assert "[malloy.givens]" in settings
    root = make_project(files, settings)
    for command in ("check", "show shop.malloy"):
        done = warm.run(
            [sys.executable, "-m", "persist_assets.cli", *command.split()],
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
        )
        shown = text.split(f"$ persist {command}\n")[1].split("\n```")[0].split("\n$ ")[0]
        assert [line.rstrip() for line in done.stdout.splitlines()] == shown.splitlines()
    raw = "CREATE TABLE visits_raw (customer STRING, stay BIGINT) USING csv LOCATION 'visits';"
    project = load(make_project({**dict(blocks), "visits.sql": raw}, settings))
    assert not project.problems
    persisted = {s.name: s for s in project.persisted}
    assert set(persisted) == {"buyers", "letters", "buyers_by_name", "large", "long_visits"}
    assert persisted["buyers_by_name"].build_id == persisted["buyers"].build_id
    visits = persisted["long_visits"].query
    assert visits is not None
    assert "FROM visits_raw" in visits.text
    assert ">1\n" in f"{visits.text}\n", "the value of the environment"
    readers = {"large_buyers": "FROM `buyers@", "live_buyers": "FROM orders"}
    for name, table in readers.items():
        assert table in sql(root, "more.malloy", f"run: {name} -> {{ select: name }}")


# ------------------------------------------------------------------------------------------- types


def test_a_table_with_uncertain_column_types_can_be_read(make_project: Make) -> None:
    text = """
    source: s is spark.table('spending')
    #@ persist
    source: a is s -> { select: * }
    #@ persist
    source: b is s -> { group_by: customer; aggregate: t is sum(total::number), d is max(until::date) }
    """
    root = make_project({"raw.sql": RAW, "a.malloy": FLAG + text})
    project = load(root)
    assert not project.problems
    columns = {s.name: [(c.name, c.type) for c in s.columns] for s in project.sources}
    assert columns["a"] == [("customer", "string"), ("total", None), ("until", None)]
    assert "CAST(base.`until` AS DATE)" in sql(
        root, "a.malloy", "run: s -> {select: d is until::date}"
    )


def test_computing_with_an_uncertain_type_is_an_error_with_a_location(
    make_project: Make,
) -> None:
    text = "source: s is spark.table('spending') -> { select: double is total * 2 }"
    (problem,) = wrong(make_project, text)
    assert (problem.location.line, problem.location.column) == (2, 61)
    assert problem.code == "uncertain-type"
    assert "name::number" in (problem.hint or "")


@pytest.mark.parametrize("kind", ["date", "timestamp"])
def test_casts_that_depend_on_a_time_zone_need_a_certain_type(
    make_project: Make, kind: str
) -> None:
    query = f"{{ timezone: 'America/New_York'; select: d is until::{kind} }}"
    (problem,) = wrong(make_project, f"source: s is spark.table('spending') -> {query}")
    assert "certain" in problem.message
    certain = query.replace("until", "ordered_at")
    assert wrong(make_project, f"source: s is spark.table('orders') -> {certain}") == []


def test_columns_of_any_name_can_be_read(make_project: Make) -> None:
    text = "#@ persist\nsource: a is spark.table('orders') -> { group_by: odd is `odd name` }"
    assert wrong(make_project, text) == []


# -------------------------------------------------------------------------------------- extensions


def test_a_filtered_extension_of_a_persisted_source_reads_its_table(make_project: Make) -> None:
    more = f"""{FLAG}
    import "base.malloy"
    source: often is buyers extend {{ where: n > 1 }}
    """
    root = make_project({"raw.sql": RAW, "base.malloy": BASE, "more.malloy": more})
    project = load(root)
    assert not project.problems
    assert {s.name for s in project.sources} == {"buyers", "orders", "spending"}
    found = sql(root, "more.malloy", "run: often -> { select: customer }")
    assert "FROM `buyers@sources/base.malloy` as base\nWHERE base.`n`>1" in found


def test_persisting_a_source_extended_with_a_filter_is_rejected(make_project: Make) -> None:
    more = "#@ persist\nsource: often is buyers extend { where: n > 1 }"
    root = make_project({"raw.sql": RAW, "base.malloy": BASE + more})
    assert problems_of(root) == [("base.malloy", 7, 4, "malloy-persist")]


def test_annotations_apply_only_to_their_own_source_in_a_statement(
    make_project: Make,
) -> None:
    text = """source:
      orders is spark.table('orders')
      #@ persist
      buyers is orders -> { group_by: customer, id }
      early is buyers extend { where: id < 10 }
    #@ persist
    source:
      one is orders -> { group_by: customer }
      two is buyers extend { where: id > 10 }
    """
    (problem,) = wrong(make_project, text)
    assert (problem.code, problem.location.line) == ("malloy-persist", 7)
    assert "`two`" in problem.message


def test_a_source_without_persist_ignores_inherited_annotations(
    make_project: Make,
) -> None:
    more = "#@ -persist\nsource: live is buyers extend { measure: m is count() }\n"
    root = make_project({"raw.sql": RAW, "base.malloy": BASE + more})
    assert problems_of(root) == []
    assert not {s.name: s for s in load(root).sources}["live"].persisted
    path = root / "sources" / "base.malloy"
    path.write_text(
        path.read_text().replace("#@ -persist", '#@ -persist\n#@ freshness.window="1h"')
    )
    assert problems_of(root) == [("base.malloy", 8, 4, "annotation-misplaced")]


@pytest.mark.proves("W22")
def test_an_unpersisted_source_inherits_no_checks_and_cannot_declare_any(
    make_project: Make,
) -> None:
    more = "#@ -persist\nsource: live is buyers extend { measure: m is count() }\n"
    root = make_project({"raw.sql": RAW, "base.malloy": BASE + more})
    sources = {s.name: s for s in load(root).sources}
    assert [len(sources[name].checks) for name in ("buyers", "live")] == [1, 0]
    path = root / "sources" / "base.malloy"
    path.write_text(
        path.read_text().replace("#@ -persist", "#@ -persist\n#@ check.unique=customer")
    )
    assert problems_of(root) == [("base.malloy", 8, 4, "annotation-misplaced")]


# ---------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("text", "place", "code", "message"),
    [
        ("spark.table('ordres') -> { group_by: id }", (2, 14), "failed-to-fetch-table-schema",
         "unknown source `ordres` (did you mean `orders`?)"),
        ("duck.table('orders') -> { group_by: id }", (2, 14), "unknown-connection",
         "there is no connection `duck`"),
        ('spark.sql("""SELECT i FROM orders""") -> { group_by: i }', (2, 20),
         "failed-to-fetch-table-schema", "`i` is not a column of the tables in this query"),
        ("spark.table('größen') -> { group_by: id }", (1, 1), "compiler", "Malloy does not say what"),
        ("spark.table('größen')", (2, 14), "invalid-table-path", "größen"),
    ],
)  # fmt: skip
def test_invalid_references_are_reported_with_their_location(
    make_project: Make, text: str, place: tuple[int, int], code: str, message: str
) -> None:
    (problem,) = wrong(make_project, f"source: s is {text}")
    assert (problem.location.line, problem.location.column, problem.code) == (*place, code)
    assert message in problem.message
    assert "~malformed~" not in problem.message


def test_files_that_read_each_others_tables_are_both_reported(make_project: Make) -> None:
    files = {"raw.sql": RAW}
    for one, other in (("a", "b"), ("b", "a")):
        files[f"{one}.malloy"] = f"""{FLAG}
        source: {one}_1 is spark.table('orders') -> {{ group_by: customer }}
        source: {one}_2 is spark.table('{other}_1') -> {{ group_by: customer }}
        """
    found = load(make_project(files)).problems
    assert [p.location.path for p in found] == ["sources/a.malloy", "sources/b.malloy"]
    assert all("or reads this file" in p.message for p in found)


def test_an_error_in_an_imported_file_is_reported_only_there(make_project: Make) -> None:
    files = {
        "raw.sql": RAW,
        "a.malloy": "source: s is spark.table('ordres') -> { group_by: id }",
        "b.malloy": 'import "a.malloy"\nsource: t is s -> { group_by: id }',
    }
    assert problems_of(make_project(files)) == [("a.malloy", 1, 14, "failed-to-fetch-table-schema")]


@pytest.mark.parametrize("written", ["--@ persist", "//@ persist", "##@ persist", "  -- @ persist"])
def test_almost_valid_annotations_cause_a_warning(make_project: Make, written: str) -> None:
    (problem,) = wrong(make_project, f"{written}\nsource: s is spark.table('orders')")
    assert (problem.code, problem.severity) == ("annotation-almost", "warning")
    assert (problem.location.line, problem.location.column) == (
        2,
        written.index(written.strip()) + 1,
    )


def test_readers_of_quoted_sources_in_a_broken_file_get_no_errors(make_project: Make) -> None:
    broken = "source: `buyers` is spark.table('orders') -> { group_by id }"
    reader = "CREATE VIEW r AS SELECT * FROM buyers;"
    root = make_project({"raw.sql": RAW, "a.malloy": broken, "r.sql": reader})
    assert {path for path, *_ in problems_of(root)} == {"a.malloy"}


@pytest.mark.slow
def test_errors_in_an_ad_hoc_query_are_reported_with_its_own_lines(
    make_project: Make,
) -> None:
    root = make_project({"raw.sql": RAW, "a.malloy": BASE + "query: q is buyers -> { select: * }"})
    settings = load_settings(root, environ={})

    def problem(name: str | None, text: str | None) -> tuple[str, str, str | None]:
        with pytest.raises(SourcesError) as caught:
            load_whole(settings).query("sources/a.malloy", name=name, text=text)
        (found,) = caught.value.problems
        return str(found.location), found.code, found.hint

    assert problem(None, "run: buyers -> {\n group_by: x is 'ü', y }")[:2] == (
        "query:2:22",
        "field-not-found",
    )
    assert problem("p", None) == ("sources/a.malloy:1:1", "unknown-query", "there are: q")
    assert problem(None, "source: x is buyers")[1:] == ("no-query", "run: NAME -> { … }")


def test_columns_of_generated_sql_have_the_line_of_their_source(make_project: Make) -> None:
    root = make_project({"raw.sql": RAW, "a.malloy": BASE})
    project = load(root)
    (buyers,) = (s for s in project.sources if s.name == "buyers")
    assert line_of(buyers, "last_at") == buyers.location.line == 6
    assert of_project(project)[buyers.source_id].query is None
