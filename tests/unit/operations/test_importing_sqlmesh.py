"""Importing SQLMesh projects: everything that is not converted is listed with its location."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import yaml
from conftest import ROOT
from importing import carried, reasons_of
from typer.testing import CliRunner

from persist_assets.cli import app
from persist_assets.core.errors import NotFoundError, SettingsError
from persist_assets.operations.cases import read_cases
from persist_assets.operations.importing.sqlmesh import import_sqlmesh

if TYPE_CHECKING:
    from pathlib import Path

    from persist_assets.core.model.project import Project
    from persist_assets.core.model.sources import Source
    from persist_assets.operations.importing.writing import Imported

SUSHI = ROOT / "tests" / "data" / "sushi_moderate" / "project"
CONFIG = "model_defaults: {dialect: spark}\n"
EXTERNAL = "- name: raw.people\n  columns: {id: INT, name: TEXT, day: DATE}\n"


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return tmp_path / "new"


def sqlmesh(tmp_path: Path, files: dict[str, str]) -> Path:
    """Write a SQLMesh project; by default it has an external model `raw.people`."""
    root = tmp_path / "mesh"
    base = {"config.yaml": CONFIG, "external_models.yaml": EXTERNAL}
    for path, text in {**base, **files}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


def carry(root: Path, new: Path, dialect: str | None = None) -> tuple[Imported, Project]:
    """Import a project, and compile the converted sources."""
    return carried(import_sqlmesh(root, dialect), new)


def source(project: Project, name: str) -> Source:
    return next(s for s in project.sources if s.name == name)


def model(name: str, query: str, kind: str = "FULL", *more: str) -> str:
    """Return the text of a model."""
    header = ",\n  ".join((f"name {name}", f"kind {kind}", *more))
    return f"MODEL (\n  {header},\n);\n\n{query};\n"


@pytest.mark.proves("W9")
def test_a_real_project_is_converted_except_for_its_unsupported_models(new: Path) -> None:
    imported, project = carry(SUSHI, new)
    kinds = [entry.origin.kind for entry in imported.carried]
    counts = {kind: kinds.count(kind) for kind in kinds}
    assert counts == {"external model": 5, "model": 6, "seed": 1, "audit": 12}
    reasons = reasons_of(imported)
    lifetime = reasons["model", "sushimoderate.customer_revenue_lifetime"]
    assert lifetime.startswith("`@end_ds` is known only to SQLMesh: it is not in a condition")
    by_day = reasons["model", "sushimoderate.customer_revenue_by_day"]
    assert by_day == "the format `YYYY-MM-dd` of its time column is unknown"
    assert len(reasons) == 3  # and the test of that model
    assert {raw.name for raw in imported.to_fill_in} == {
        *("demographics", "marketing", "raw_items", "raw_order_items", "raw_orders"),
    }
    assert not project.problems
    text = (new / "sources" / "orders.sql").read_text()
    assert "-- Incremental table loading orders table from raw." in text
    assert "FROM raw_orders AS orders\nWHERE\n  ds >= '2023-01-01'" in text
    orders = source(project, "orders").annotation
    assert orders.automation == "@daily"
    assert {c.name for c in orders.checks} >= {"not_null_waiter_id", "unique_id_ds"}
    rows = source(project, "waiter_revenue_by_day").annotation.checks
    assert [(c.kind, c.least) for c in rows] == [("row_count", 1)]


@pytest.mark.proves("W9")
@pytest.mark.parametrize(
    ("kind", "persisted"),
    [
        ("FULL", True),
        ("VIEW", False),
        ("VIEW (materialized true)", True),
        ("EMBEDDED", False),
        ("INCREMENTAL_BY_UNIQUE_KEY (unique_key id)", True),
        ("INCREMENTAL_UNMANAGED", None),
        ("SCD_TYPE_2_BY_TIME (unique_key id)", None),
        ("CUSTOM (materialization 'x')", None),
    ],
)
def test_the_kind_of_a_model_decides_whether_it_is_persisted(
    tmp_path: Path, new: Path, kind: str, persisted: bool | None
) -> None:
    files = {"models/a.sql": model("x.a", "SELECT id FROM raw.people", kind)}
    imported, project = carry(sqlmesh(tmp_path, files), new)
    if persisted is None:
        assert "have no counterpart" in reasons_of(imported)["model", "x.a"]
    else:
        assert ("a" in {s.name for s in project.persisted}) is persisted
        assert source(project, "a").reads


@pytest.mark.proves("W9")
def test_unsupported_options_of_kinds_and_of_model_defaults_are_listed(
    tmp_path: Path, new: Path
) -> None:
    merged = (
        "INCREMENTAL_BY_UNIQUE_KEY (unique_key id, batch_size 3, forward_only true,"
        " when_matched (WHEN MATCHED THEN UPDATE SET target.id = source.id), merge_filter id > 1,"
        " disable_restatement false, on_destructive_change warn)"
    )
    query = "SELECT id, day FROM raw.people"
    files = {
        "config.yaml": (
            "model_defaults:\n  dialect: spark\n  start: 2024-01-01\n  audits: [not_null]\n"
            "  kind: {name: INCREMENTAL_BY_TIME_RANGE, time_column: day, forward_only: true}\n"
        ),
        "models/a.sql": model("x.a", query, merged),
        "models/b.sql": f"MODEL (name x.b);\n{query};\n",
        "models/c.sql": model("x.c", query, "INCREMENTAL_BY_PARTITION", "partitioned_by day"),
    }
    imported, project = carry(sqlmesh(tmp_path, files), new)
    reasons = reasons_of(imported)
    assert {name for kind, name in reasons if kind == "property"} == {
        *("x.a.forward_only", "x.a.when_matched", "x.a.merge_filter", "x.a.on_destructive_change"),
        *("x.b.forward_only", "x.c.partitioned_by", "model_defaults.audits"),
    }
    assert "all rows of the query" in reasons["property", "x.a.merge_filter"]
    (line,) = {
        e.origin.line for e in imported.not_carried if e.origin.name == "model_defaults.audits"
    }
    assert line == 4
    notes = {c.origin.name: " ".join(c.notes) for c in imported.carried}
    assert "nothing merges rows of one key" in notes["x.a"]
    assert "partitions that the query no longer has" in notes["x.c"]
    assert "WHERE day >= '2024-01-01'" in (new / "sources" / "b.sql").read_text()
    assert {s.name for s in project.persisted} == {"a", "b", "c"}


@pytest.mark.proves("W9")
def test_a_python_configuration_is_listed_as_not_converted(tmp_path: Path, new: Path) -> None:
    root = sqlmesh(tmp_path, {"models/a.sql": model("x.a", "SELECT id FROM raw.people")})
    (root / "config.yaml").rename(root / "config.py")
    imported, _ = carry(root, new, "spark")
    assert "are not known" in reasons_of(imported)["configuration", "config.py"]


@pytest.mark.proves("W9")
@pytest.mark.parametrize(
    ("where", "start", "sql"),
    [
        ("WHERE day BETWEEN @start_date AND @end_date", "2024-01-02",
         "WHERE day >= CAST('2024-01-02' AS DATE)"),
        ("WHERE id > 0 AND day >= @start_ds AND day < @end_ds", "2024-01-02",
         "WHERE id > 0 AND day >= '2024-01-02' AND day IS NOT NULL"),
        ("WHERE day BETWEEN @start_ds AND @end_ds", "1 week ago", "WHERE day IS NOT NULL"),
        ("", "2024-01-02", ") AS q WHERE day >= '2024-01-02'"),
        ("", None, ") AS q WHERE day IS NOT NULL"),
        # SQLMesh keeps the rows of the range, whatever the query says.
        ("WHERE day <= @end_ds", "2024-01-02",
         "p WHERE day IS NOT NULL\n) AS q WHERE day >= '2024-01-02'"),
    ],
)  # fmt: skip
def test_time_range_models_become_queries_over_all_time_since_their_start(
    tmp_path: Path, new: Path, where: str, start: str | None, sql: str
) -> None:
    query = f"SELECT id, day FROM raw.people AS p {where}".strip()
    more = [f"start '{start}'"] if start else []
    kind = "INCREMENTAL_BY_TIME_RANGE (time_column day)"
    files = {"models/a.sql": model("x.a", query, kind, *more)}
    imported, _ = carry(sqlmesh(tmp_path, files), new)
    assert sql in (new / "sources" / "a.sql").read_text()
    (carried,) = (c for c in imported.carried if c.origin.name == "x.a")
    assert "the table follows its data" in carried.notes[0]


@pytest.mark.proves("W9")
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (model("x.bad", "SELECT @start_ds AS a FROM raw.people"), "`@start_ds` is known only"),
        (model("x.bad", "SELECT @x(1) AS a"), "`@x` is known only to SQLMesh"),
        (model("x.bad", "JINJA_QUERY_BEGIN; SELECT {{ a }}"), "statements beside its query"),
        (model("x.bad", "SELECT {{ a }} AS a"), "`{{` is known only to SQLMesh"),
        (model("x.bad", "SET a = 1; SELECT 1 AS a"), "statements beside its query"),
        ("MODEL (name x.bad)", "it has no query"),
        (model("x.bad", "SELECT nope(1) AS a"), "in Spark: "),
        (model("x.bad", "SELECT 1 AS a", "FULL", "enabled false"), "it is disabled"),
        (
            model("x.bad", "SELECT 1 AS a", "SEED (path '../../../secret.csv')"),
            "not in the project",
        ),
    ],
)
def test_a_model_that_cannot_be_converted_is_listed_with_its_readers(
    tmp_path: Path, new: Path, text: str, reason: str
) -> None:
    reader = model("x.reader", "SELECT * FROM x.bad")
    files = {"models/bad.sql": f"\n{text}", "models/reader.sql": reader}
    (tmp_path / "secret.csv").write_text("a\n1\n")
    imported, _ = carry(sqlmesh(tmp_path, files), new)
    (bad,) = (entry for entry in imported.not_carried if entry.origin.name == "x.bad")
    assert (bad.origin.path, bad.origin.line) == ("models/bad.sql", 2)
    assert reason in bad.reason
    if "disabled" not in reason:  # a disabled model may be a table of another program
        assert "x.reader" in {entry.origin.name for entry in imported.not_carried}
    assert not (new / "data").exists()


@pytest.mark.proves("W9")
def test_models_with_one_name_in_two_schemas_get_distinct_names(tmp_path: Path, new: Path) -> None:
    files = {
        "models/a.sql": model("one.orders", "SELECT id FROM raw.people"),
        "models/b/b.sql": model("two.orders", "SELECT orders.id FROM one.orders"),
        "models/c.sql": model("x.people", "SELECT people.id FROM db.raw.people JOIN other.things"),
    }
    imported, project = carry(sqlmesh(tmp_path, files), new)
    assert source(project, "two_orders").reads == (source(project, "one_orders").source_id,)
    assert source(project, "two_orders").location.path == "sources/b/two_orders.sql"
    assert "FROM one_orders AS orders" in (new / "sources/b/two_orders.sql").read_text()
    assert "FROM raw_people AS people JOIN things" in (new / "sources/people.sql").read_text()
    assert {raw.name for raw in imported.to_fill_in} == {"raw_people", "things"}


@pytest.mark.proves("W9")
def test_audits_become_checks_or_sources_of_failing_rows(tmp_path: Path, new: Path) -> None:
    audits = """audits (
    not_null(columns := (id, name)), UNIQUE_VALUES(columns=[id]),
    accepted_values_non_blocking(column := name, is_in := ('Ann', 'Bob')),
    forall(criteria := (id > 0, LENGTH(name) < 9)), number_of_rows(threshold := 2),
    own, own_with(least := 1), unheard_of(column := id)
  )"""
    files = {
        "models/a.sql": model("x.a", "SELECT id, name FROM raw.people", "FULL", audits),
        "audits/own.sql": "AUDIT (name own, blocking false);\nSELECT * FROM @this_model WHERE id = 9",
        "audits/b.sql": (
            "AUDIT (name own_with);\nSELECT * FROM @this_model WHERE id < @least;\n"
            "AUDIT (name unused);\nSELECT 1"
        ),
    }
    imported, project = carry(sqlmesh(tmp_path, files), new)
    checks = source(project, "a").annotation.checks
    assert {c.name for c in checks} == {
        *("not_null_id", "not_null_name", "unique_id", "accepted_values_name"),
        *("expr_id_0", "expr_length_name_9", "row_count"),
    }
    assert {c.name for c in checks if not c.blocking} == {"accepted_values_name"}
    own = source(project, "own_a")
    assert own.reads == (source(project, "a").source_id,)
    assert [(c.kind, c.most, c.blocking) for c in own.annotation.checks] == [
        ("row_count", 0, False)
    ]
    assert set(reasons_of(imported)) == {
        *(("audit", "own_with_a"), ("audit", "unheard_of_a"), ("audit", "unused")),
    }
    assert {e.origin.line for e in imported.not_carried if e.origin.name == "unused"} == {3}


@pytest.mark.proves("W9")
def test_seeds_and_model_headers_are_converted(tmp_path: Path, new: Path) -> None:
    files = {
        "seeds/s.csv": "id,name\n1,Ann\n",
        "models/s.sql": (
            "/* Names of\n people */\nMODEL (name x.s, kind SEED (path '$root/seeds/s.csv'),"
            " columns (id BIGINT, name TEXT), tags (fine, 'no good'), owner Ann);"
        ),
        "models/a.sql": model(
            "x.a", "SELECT id, name FROM x.s", "FULL",
            "description 'What it is'", "column_descriptions (id = 'A number')",
            "owner 'ann@example.org'", "cron '5 4 * * *'", "columns (id INT, name TEXT)",
            "grain id", "partitioned_by id",
        ),
    }  # fmt: skip
    imported, project = carry(sqlmesh(tmp_path, files), new)
    seed = source(project, "s")
    assert [(c.name, c.type) for c in seed.columns or ()] == [("id", "bigint"), ("name", "string")]
    assert (seed.description or "").split() == ["Names", "of", "people"]
    assert (new / "data" / "s.csv").read_text() == "id,name\n1,Ann\n"
    a = source(project, "a")
    assert a.description == "What it is\n- id: A number"
    assert (a.annotation.automation, [*a.annotation.owners]) == ("5 4 * * *", ["ann@example.org"])
    assert set(reasons_of(imported)) == {
        *(("tag", "no good"), ("owner", "Ann"), ("property", "x.a.partitioned_by")),
    }
    (carried,) = (c for c in imported.carried if c.origin.name == "x.a")
    assert "grain id: nothing checks it, as in SQLMesh" in carried.notes


@pytest.mark.proves("W9")
def test_words_that_pandas_reads_as_null_are_null_or_noted(tmp_path: Path, new: Path) -> None:
    files = {
        "seeds/a.csv": "id,name\n1,n/a\n2,x\n",
        "seeds/b.csv": "id,name\n1,nan\n2,None\n3,007\n",
        "models/a.sql": "MODEL (name x.a, kind SEED (path '$root/seeds/a.csv'));",
        "models/b.sql": "MODEL (name x.b, kind SEED (path '$root/seeds/b.csv'));",
    }
    imported, _ = carry(sqlmesh(tmp_path, files), new)
    assert "nullValue 'n/a'" in (new / "sources" / "raw" / "a.sql").read_text()
    assert {c.origin.name: [*c.notes] for c in imported.carried if c.origin.kind == "seed"} == {
        "x.a": [],
        "x.b": [
            "check cells with `None`, `nan`: they are NULL in SQLMesh, and texts here",
            "check `name`: SQLMesh may read its texts as numbers",
        ],
    }


@pytest.mark.proves("W9")
def test_sqlmesh_unit_tests_become_persist_tests(tmp_path: Path, new: Path) -> None:
    query = "WITH b AS (SELECT id FROM raw.people) SELECT id FROM b"
    files = {
        "models/a.sql": model("x.a", query),
        "tests/test_a.yaml": """\
test_rows:
  model: x.a
  inputs:
    raw.people: [{id: 1, day: 2024-01-01}]
  outputs:
    ctes: {b: {rows: [{id: 1}]}}
    query: {partial: true, rows: [{id: 1}]}
  vars: {start: 2024-01-01, execution_time: 2024-01-31 10:00:00}
test_gateway: {model: x.a, gateway: g, inputs: {}, outputs: {query: []}}
""",
    }
    imported, _ = carry(sqlmesh(tmp_path, files), new)
    assert yaml.safe_load((new / "tests" / "a.yml").read_text())["test_rows"] == {
        "source": "a",
        "inputs": {"people": [{"id": 1, "day": "2024-01-01"}]},
        "expect": [{"id": 1}],
        "ctes": {"b": [{"id": 1}]},
        "clock": "2024-01-31 10:00:00",
    }
    assert [case.name for case in read_cases(new)] == ["test_rows"]
    assert reasons_of(imported) == {("unit test", "test_gateway"): "`gateway` has no counterpart"}


@pytest.mark.proves("W9")
def test_python_code_is_listed_and_a_missing_dialect_is_an_error(tmp_path: Path, new: Path) -> None:
    files = {
        "models/a.sql": model("x.a", "SELECT id::TEXT AS id FROM raw.people"),
        "models/p.py": "@model('x.p')\ndef execute(): ...",
        "macros/__init__.py": "",
        "macros/m.py": "def m(): ...",
    }
    root = sqlmesh(tmp_path, files)
    arguments = ["import", "sqlmesh", str(root), str(new), "--dialect", "duckdb", "--json"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    names = {(entry["kind"], entry["path"]) for entry in document["not_carried"]}
    assert names == {("model", "models/p.py"), ("macro", "macros/m.py")}
    assert "CAST(id AS STRING)" in (new / "sources" / "a.sql").read_text()
    assert [raw["name"] for raw in document["to_fill_in"]] == ["people"]
    (root / "config.yaml").write_text("gateways: {}\n")
    with pytest.raises(SettingsError, match="dialect"):
        import_sqlmesh(root)
    with pytest.raises(NotFoundError, match=r"no config\.yaml"):
        import_sqlmesh(tmp_path)
