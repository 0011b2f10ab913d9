"""A dbt project is imported; whatever is not imported is listed with its location."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from conftest import ROOT
from importing import carried, reasons_of
from typer.testing import CliRunner

from persist_assets.cli import app
from persist_assets.core.errors import NotFoundError, SettingsError
from persist_assets.operations.cases import read_cases
from persist_assets.operations.importing.dbt import import_dbt
from persist_assets.operations.importing.translation import translate
from persist_assets.operations.importing.writing import write

if TYPE_CHECKING:
    from pathlib import Path

    from persist_assets.core.model.project import Project
    from persist_assets.core.model.sources import Source
    from persist_assets.operations.importing.writing import Imported

SHOP = ROOT / "tests" / "data" / "jaffle_shop_classic" / "project"
PROJECT = "name: shop\nprofile: shop\n"
SEED = "id,name,paid\n1,Ann,1.5\n2,Bob,\n"


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return tmp_path / "new"


def dbt(tmp_path: Path, files: dict[str, str]) -> Path:
    """Write a dbt project; by default it has a seed `people`."""
    root = tmp_path / "dbt"
    for path, text in {"dbt_project.yml": PROJECT, "seeds/people.csv": SEED, **files}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


def carry(root: Path, new: Path, dialect: str | None = "spark") -> tuple[Imported, Project]:
    """Import a project, and compile what is imported."""
    return carried(import_dbt(root, dialect), new)


def source(project: Project, name: str) -> Source:
    return next(s for s in project.sources if s.name == name)


def checks(project: Project, name: str) -> set[str]:
    return {check.name for check in source(project, name).annotation.checks}


# ---------------------------------------------------------------------------- a complete project


@pytest.mark.proves("W8")
def test_a_real_dbt_project_is_imported_completely(new: Path) -> None:
    imported, project = carry(SHOP, new, "duckdb")
    assert imported.not_carried == [] == imported.to_fill_in
    kinds = [entry.origin.kind for entry in imported.carried]
    assert {k: kinds.count(k) for k in kinds} == {"model": 5, "seed": 3, "test": 20}
    assert not project.problems
    persisted = {s.name for s in project.persisted if "/tests/" not in s.location.path}
    assert persisted == {"orders", "customers"}  # tables in dbt_project.yml; the others are views
    orders = source(project, "orders")
    assert orders.location.path == "sources/orders.sql"
    assert {"unique_order_id", "relationship_customer_id"} <= checks(project, "orders")
    assert "status: Orders can be one of the following statuses" in (orders.description or "")
    raw = source(project, "raw_orders")
    assert [(c.name, c.type) for c in raw.columns or ()][:3] == [
        ("id", "bigint"),
        ("user_id", "bigint"),
        ("order_date", "date"),
    ]
    assert (new / "data" / "raw_orders.csv").read_bytes() == (
        SHOP / "seeds" / "raw_orders.csv"
    ).read_bytes()


# -------------------------------------------------------------------------------------- templates


@pytest.mark.proves("W8")
def test_templates_that_can_be_evaluated_are_rendered(tmp_path: Path, new: Path) -> None:
    files = {
        "dbt_project.yml": PROJECT + "vars: {least: 1, shop: {most: 9}}\n",
        "macros/cents.sql": (
            "{% macro cents(c) %}{{ return(adapter.dispatch('cents')(c)) }}{% endmacro %}\n"
            "{% macro default__cents(c) %}{{ scaled(c) }}{% endmacro %}"
        ),
        "macros/later.sql": "{% macro scaled(c) -%} ({{ c }} * 100) {%- endmacro %}",
        "models/a.sql": (
            "{{ config(materialized='table', tags=['nightly']) }}\n"
            "-- from {{ ref('people') }}\n"
            "SELECT id, {% for c in ['paid'] %}{{ cents(c) }} AS {{ c }}_cents{% endfor %}\n"
            "FROM {{ ref('people') }}"
            " WHERE id BETWEEN {{ var('least') }} AND {{ var('most') }} + {{ var('no', 2) }}"
        ),
    }
    _, project = carry(dbt(tmp_path, files), new)
    text = (new / "sources" / "a.sql").read_text()
    assert "-- from people\nSELECT id, (paid * 100) AS paid_cents\nFROM people" in text
    assert "BETWEEN 1 AND 9 + 2" in text
    assert dict(source(project, "a").annotation.tags) == {"nightly": ""}


@pytest.mark.proves("W8")
@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("\nSELECT {{ dbt_utils.star(ref('people')) }}", 2, "`dbt_utils` is known only to dbt"),
        ("SELECT 1 AS {{ var('nope') }}", 1, "the variable `nope` has no value"),
        ("SELECT *\nFROM {{ ref('nobody') }}", 2, "there is no nobody"),
        ("SELECT * FROM {{ this }}", 1, "it reads its own table"),
        ("SELECT 1 AS a\n{% if %}", 2, "Jinja: "),
        ("SELECT '{{ ref('people') }}' AS a FROM {{ ref('people') }}", 1, "where no table can be"),
        ("{{ config(materialized='lake') }} SELECT 1 AS a", 1, "the materialization `lake`"),
        ("SELECT nope(id) AS a FROM {{ ref('people') }}", 1, "in Spark: "),
        (
            "SELECT 1 AS a FROM {{ ref('other', 'people') }}",
            1,
            "`people` is of the package `other`",
        ),
        ("SELECT ''.__class__ FROM {{ ''.__class__.__mro__ }}", 1, "Jinja: SecurityError"),
    ],
)
def test_a_model_that_cannot_be_imported_is_listed_with_its_readers(
    tmp_path: Path, new: Path, text: str, line: int, reason: str
) -> None:
    files = {
        "models/bad.sql": text,
        "models/reader.sql": "SELECT * FROM {{ ref('bad') }}",
        "models/schema.yml": "models:\n- name: bad\n  columns: [{name: a, tests: [unique]}]\n",
    }
    imported, project = carry(dbt(tmp_path, files), new)
    assert {s.name for s in project.sources} == {"people"}
    (bad,) = (entry for entry in imported.not_carried if entry.origin.name == "bad")
    assert (bad.origin.path, bad.origin.line) == ("models/bad.sql", line)
    assert reason in bad.reason
    assert "`bad`, which is not imported" in reasons_of(imported)["model", "reader"]
    assert "not imported" in reasons_of(imported)["test", "unique_bad_a"]


@pytest.mark.proves("W8")
def test_sql_that_dbt_compiled_is_used_if_it_is_up_to_date(tmp_path: Path, new: Path) -> None:
    text = "SELECT id FROM {{ ref('people') }} WHERE {{ dbt_utils.x() }}"
    old, grows = "SELECT {{ old() }}", "SELECT {{ x() }} {% if is_incremental() %}{% endif %}"
    asks = "SELECT {{ x() }} FROM {{ ref('people') }} {{ recent() }}"
    files = {"models/a.sql": text, "models/old.sql": old, "models/grows.sql": grows}
    root = dbt(tmp_path, {**files, "models/asks.sql": asks})

    def node(name: str, raw: str, compiled: str, kind: str = "model") -> dict[str, Any]:
        directory, suffix = ("models", "sql") if kind == "model" else ("seeds", "csv")
        return {
            "resource_type": kind,
            "name": name,
            "package_name": "shop",
            "original_file_path": f"{directory}/{name}.{suffix}",
            "relation_name": f'"db"."main"."{name}"',
            "raw_code": raw,
            "compiled_code": compiled,
            "unrendered_config": {"materialized": "table"},
            "config": {"materialized": "incremental" if name == "asks" else "table"},
        }

    nodes = [
        node("a", text, 'SELECT "id" FROM "db"."main"."people" WHERE TRUE'),
        node("old", "SELECT 1 AS a", "SELECT 1 AS a"),
        node("grows", grows, "SELECT 1 AS a"),
        node("asks", asks, 'SELECT 1 AS a FROM "db"."main"."people" WHERE id > 1'),
        node("people", "", "", "seed"),
    ]
    document = {"metadata": {"adapter_type": "duckdb"}, "nodes": {n["name"]: n for n in nodes}}
    (root / "target").mkdir()
    (root / "target" / "manifest.json").write_text(json.dumps(document))
    imported, project = carry(root, new, None)
    assert {s.name for s in project.persisted} == {"a"}
    assert "`id`\nFROM people" in (new / "sources" / "a.sql").read_text()
    # The text of one has changed, and it is unknown how the others were compiled.
    assert set(reasons_of(imported)) == {("model", "old"), ("model", "grows"), ("model", "asks")}


@pytest.mark.proves("W8")
def test_incremental_models_are_imported_without_their_incremental_filter(
    tmp_path: Path, new: Path
) -> None:
    text = (
        "{{ config(materialized='incremental', unique_key='id', on_schema_change='fail') }}\n"
        "SELECT id, paid FROM {{ ref('people') }}\n"
        "{% if is_incremental() %}WHERE id > (SELECT max(id) FROM {{ this }}){% endif %}"
    )
    imported, project = carry(dbt(tmp_path, {"models/a.sql": text}), new)
    (carried,) = (c for c in imported.carried if c.origin.name == "a")
    assert any("is_incremental()" in note for note in carried.notes)
    assert any("unique_key" in note for note in carried.notes)
    assert {s.name for s in project.persisted} == {"a"}
    assert source(project, "a").annotation.on_schema_change == "fail"
    assert "max(id)" not in (new / "sources" / "a.sql").read_text()


@pytest.mark.proves("W8")
def test_settings_that_make_dbt_keep_other_rows_are_listed(tmp_path: Path, new: Path) -> None:
    text = "SELECT id, paid FROM {{ ref('people') }}"
    written = {
        "a": "full_refresh=false, merge_update_columns=['paid']",
        "b": "full_refresh=true, merge_exclude_columns=['paid']",
        "c": "incremental_predicates=['x']",
    }
    models = {
        f"models/{name}.sql": f"{{{{ config(materialized='incremental', {more}) }}}}\n{text}"
        for name, more in written.items()
    }
    models["models/d.sql"] = f"{{{{ config(materialized='table', full_refresh=false) }}}}\n{text}"
    imported, _ = carry(dbt(tmp_path, models), new)
    reasons = reasons_of(imported)
    assert set(reasons) == {
        *(("config", "a.full_refresh"), ("config", "a.merge_update_columns")),
        ("config", "b.merge_exclude_columns"),
    }
    assert "keeps rows that its inputs no longer have" in reasons["config", "a.full_refresh"]
    assert all("has the rows of the query" in reason for reason in reasons.values())


@pytest.mark.proves("W8")
def test_seeds_use_their_delimiter_and_always_have_a_header(tmp_path: Path, new: Path) -> None:
    files = {
        "dbt_project.yml": f'{PROJECT}seeds: {{shop: {{a: {{+delimiter: "~"}}, b: {{+delimiter: "~~"}}}}}}\n',
        "seeds/a/a.csv": "id~name\n1~x,y\n2~z,u\n",
        "seeds/b/b.csv": "id~~name\n1~~x\n",
        "seeds/years.csv": "2020,2021\n1,2\n3,4\n",
    }
    imported, project = carry(dbt(tmp_path, files), new)
    columns = {s.name: [(c.name, c.type) for c in s.columns or ()] for s in project.sources}
    assert columns["a"] == [("id", "bigint"), ("name", "string")]
    assert columns["years"] == [("2020", "bigint"), ("2021", "bigint")]
    assert "header 'true', sep '~'" in (new / "sources" / "raw" / "a.sql").read_text()
    assert reasons_of(imported) == {("seed", "b"): "the delimiter '~~' is not one character"}


@pytest.mark.proves("W8")
def test_cells_of_seeds_that_dbt_reads_otherwise_are_null_or_noted(
    tmp_path: Path, new: Path
) -> None:
    files = {
        "dbt_project.yml": f"{PROJECT}seeds: {{shop: {{c: {{+column_types: {{zip: text}}}}}}}}\n",
        "seeds/a.csv": "id,name\n1,x\n2,NULL\n3,\n",
        "seeds/b.csv": "zip,name\n01234,null\n02345,Null\n",
        "seeds/c/c.csv": "zip,name\n01234,x\n",
        "seeds/d.csv": "n,name\n1,x\nNA,y\n",
        "seeds/e.csv": 'id,name\n1,"null"\n2,""\n',
    }
    imported, _ = carry(dbt(tmp_path, files), new)
    notes = {c.origin.name: [*c.notes] for c in imported.carried if c.origin.kind == "seed"}
    assert "nullValue 'NULL'" in (new / "sources" / "raw" / "a.sql").read_text()
    assert notes == {
        "a": [],
        "b": [
            "check cells with `Null`, `null`: they are NULL in dbt, and texts here",
            "check `zip`: dbt may read its texts as numbers",
        ],
        "c": [],
        "d": ["check cells with `NA`: they are NULL here, and may be texts in dbt"],
        "e": ["check cells with `null`: they are NULL in dbt, and texts here"],
        "people": [],
    }


@pytest.mark.proves("W8")
def test_checks_keep_the_blanks_of_their_texts(tmp_path: Path, new: Path) -> None:
    files = {
        "models/a.sql": "SELECT name, id FROM {{ ref('people') }}",
        "models/schema.yml": """\
models:
- name: a
  columns:
  - name: name
    tests:
    - accepted_values: {values: ["New  York", " x", "a\\tb\\n\\"c"]}
  tests:
  - dbt_utils.expression_is_true: {expression: "name <> 'a  b'"}
  - dbt_utils.expression_is_true: {expression: "id::text <> 'x'"}
  - dbt_utils.expression_is_true: {expression: "id > 0 -- positive\\nAND id < 9"}
""",
    }
    imported, project = carry(dbt(tmp_path, files), new, "duckdb")
    assert not imported.not_carried
    checks = source(project, "a").annotation.checks
    assert [c.values for c in checks if c.values] == [("New  York", " x", 'a\tb\n"c')]
    assert {c.expression for c in checks if c.expression} == {
        "name <> 'a  b'",
        "id > 0 AND id < 9",
        "CAST(id AS STRING) <> 'x'",
    }
    (noted,) = (c for c in imported.carried if c.origin.kind == "test" and c.notes)
    assert "casts to texts" in noted.notes[1]


@pytest.mark.proves("W8")
@pytest.mark.parametrize(
    "text",
    [
        "{% if execute is defined %}1{% else %}2{% endif %}",
        "{{ target | default('x') }}",
        "{{ 1 if dbt_utils is undefined else 2 }}",
        "{{ 1 if graph is none else 2 }}",
    ],
)
def test_names_of_dbt_are_not_taken_for_undefined_ones(
    tmp_path: Path, new: Path, text: str
) -> None:
    files = {
        "models/a.sql": f"SELECT {text} AS x",
        "models/b.sql": "SELECT {{ mine | default(1) }}{% if mine is defined %}2{% endif %} AS x",
    }
    imported, _ = carry(dbt(tmp_path, files), new)
    assert "known only to dbt" in reasons_of(imported)["model", "a"]
    assert "SELECT 1 AS x" in (new / "sources" / "b.sql").read_text()


@pytest.mark.proves("W8")
def test_constraints_become_checks_and_options_of_external_data_are_listed(
    tmp_path: Path, new: Path
) -> None:
    config = "{{ config(materialized='table', contract={'enforced': true}) }}\n"
    files = {
        "models/a.sql": config + "SELECT id, paid FROM {{ ref('people') }}",
        "models/b.sql": "SELECT id FROM {{ ref('people') }}",
        "models/x.yml": """\
models:
- name: a
  constraints:
  - {type: primary_key, columns: [id]}
  - {type: not_null, columns: [id]}
  columns:
  - name: id
    data_type: bigint
    tests: [not_null]
  - name: paid
    data_type: double
    constraints: [{type: not_null}, {type: check, expression: "paid > 0"}]
- name: b
  columns: [{name: id, constraints: [{type: not_null}]}]
sources:
- name: s
  tables: [{name: t, external: {location: "data/t.csv", options: "(sep '|')"}}]
""",
    }
    imported, project = carry(dbt(tmp_path, files), new)
    assert set(reasons_of(imported)) == {
        ("constraint", "a_primary_key"),
        ("external", "s.t.options"),
    }
    (line,) = {e.origin.line for e in imported.not_carried if e.origin.kind == "constraint"}
    assert line == 4
    kinds = [c.kind for c in source(project, "a").annotation.checks if c.kind != "columns"]
    assert sorted(kinds) == ["expr", "not_null", "not_null"], "a test and a constraint are one"
    assert not source(project, "b").annotation.checks, "dbt enforces none without a contract"


# ------------------------------------------------------------------------------------------ names


@pytest.mark.proves("W8")
def test_a_table_is_not_confused_with_a_cte_of_the_same_name(tmp_path: Path, new: Path) -> None:
    files = {
        "models/orders.sql": "SELECT id FROM {{ ref('people') }}",
        "models/a.sql": (
            "WITH orders AS (SELECT 1 AS id), b AS (SELECT id FROM {{ ref('orders') }})\n"
            "SELECT b.id FROM b JOIN orders ON orders.id = b.id"
        ),
        "models/c.sql": "WITH orders AS (SELECT * FROM {{ ref('orders') }}) SELECT id FROM orders",
    }
    _, project = carry(dbt(tmp_path, files), new)
    assert "FROM `orders@sources/orders.sql` AS orders)" in (
        (new / "sources" / "a.sql").read_text()
    )
    assert source(project, "a").reads == (source(project, "orders").source_id,)
    assert source(project, "c").reads == (source(project, "orders").source_id,)


@pytest.mark.proves("W8")
def test_sources_get_unique_names_and_have_to_be_filled_in(tmp_path: Path, new: Path) -> None:
    files = {
        "models/orders.sql": "SELECT orders.id FROM {{ source('shop', 'orders') }}",
        "models/numbers.sql": "SELECT n FROM {{ source('shop', 'typed') }}",
        "models/sources.yml": (
            "sources:\n- name: shop\n  tables:\n  - name: orders\n  - name: typed\n"
            "    description: With types\n    freshness: {warn_after: {count: 1, period: day}}\n"
            "    columns: [{name: n, data_type: int8}, {name: t, data_type: text}]\n"
        ),
    }
    imported, project = carry(dbt(tmp_path, files), new, "postgres")
    assert {raw.name for raw in imported.to_fill_in} == {"shop_orders", "typed"}
    assert "FROM shop_orders AS orders" in (new / "sources" / "orders.sql").read_text()
    raw = (new / "sources" / "raw" / "typed.sql").read_text()
    assert "n BIGINT, t STRING" in raw and raw.startswith("-- With types")
    assert "raw tables have no freshness" in reasons_of(imported)["freshness", "shop.typed"]
    assert {p.location.path for p in project.errors} == {"sources/raw/shop_orders.sql"}


# --------------------------------------------------------------------------------------- dialects


@pytest.mark.proves("W8")
def test_other_dialects_are_translated_and_doubts_are_noted(tmp_path: Path, new: Path) -> None:
    files = {
        "models/kept.sql": "select p.id from {{ ref('people') }} p",
        "models/written.sql": "select id::text as id, paid / id as x from {{ ref('people') }}",
        "models/comma.sql": "select id, name, from {{ ref('people') }}",
        "models/digits.sql": "select id::numeric as id from {{ ref('people') }}",
    }
    imported, _ = carry(dbt(tmp_path, files), new, "postgres")
    notes = {c.origin.name: c.notes for c in imported.carried if c.origin.kind == "model"}
    assert notes["kept"] == ()
    assert notes["written"][0] == "translated from postgres"
    assert "check `/`" in notes["written"][1]
    assert "CAST(id AS STRING)" in (new / "sources" / "written.sql").read_text()
    assert "  name\nFROM people" in (new / "sources" / "comma.sql").read_text()
    assert "digits" in reasons_of(imported)["model", "digits"]


# ------------------------------------------------------------------------------------------ tests


@pytest.mark.proves("W8")
def test_tests_become_checks_or_sources_of_failing_rows(tmp_path: Path, new: Path) -> None:
    files = {
        "models/a.sql": "{{ config(materialized='table') }} SELECT * FROM {{ ref('people') }}",
        "models/b.sql": "{{ config(materialized='table') }} SELECT id FROM {{ ref('a') }}",
        "models/schema.yml": """\
models:
- name: a
  data_tests:
  - dbt_utils.expression_is_true: {arguments: {expression: paid >= 0}}
  - dbt_utils.unique_combination_of_columns: {combination_of_columns: [id, name]}
  columns:
  - name: id
    data_tests:
    - not_null: {config: {where: "id > 0"}}
    - relationships: {to: ref('b'), field: id}
    - accepted_values: {values: [1, 2], quote: false, severity: warn}
    - special
  - name: name
    tests: [not_null, {unique: {severity: warn}}]
""",
        "tests/none_is_free.sql": "SELECT * FROM {{ ref('a') }} WHERE paid = 0",
        "tests/generic/special.sql": "{% test special(model, column_name) %}x{% endtest %}",
    }
    imported, project = carry(dbt(tmp_path, files), new)
    names = {"not_null_name", "accepted_values_id", "expr_paid_0", "unique_id_name"}
    assert checks(project, "a") == names
    warns = {c.name for c in source(project, "a").annotation.checks if not c.blocking}
    assert warns == {"accepted_values_id"}
    apart = {s.name for s in project.persisted if s.location.path.startswith("sources/tests/")}
    # One has a condition, one would be a cycle, one has another severity, one is a query.
    assert apart == {
        *("not_null_a_id", "relationships_a_id"),
        *("unique_a_name", "none_is_free"),
    }
    (check,) = source(project, "unique_a_name").annotation.checks
    assert (check.kind, check.most, check.blocking) == ("row_count", 0, False)
    where = (new / "sources" / "tests" / "not_null_a_id.sql").read_text()
    assert "FROM (SELECT * FROM a WHERE id > 0) WHERE id IS NULL" in where
    assert "known only to dbt" in reasons_of(imported)["test", "special_a_id"]
    assert ("test macro", "special") in reasons_of(imported)


@pytest.mark.proves("W8")
def test_the_configuration_of_tests_is_rendered_and_applied(tmp_path: Path, new: Path) -> None:
    files = {
        "dbt_project.yml": PROJECT
        + "vars: {never: false, level: warn, all: [a, b]}\ndata_tests:\n  +severity: warn\n",
        "models/a.sql": "{{ config(materialized='table') }} SELECT * FROM {{ ref('people') }}",
        "models/b.sql": "SELECT 1 AS x",
        "models/c.sql": "SELECT 1 AS x",
        "models/schema.yml": """\
models:
- name: a
  columns:
  - name: id
    data_tests:
    - not_null
    - unique: {config: {enabled: "{{ var('never') }}"}}
    - accepted_values: {values: "{{ var('all') }}"}
  - name: name
    data_tests:
    - unique: {config: {severity: error}}
    - accepted_values: {values: [Ann, "{{ var('unknown') }}"]}
  - name: paid
    data_tests:
    - accepted_values: {values: ["{{ var('level') }}"]}
- name: b
  config: {enabled: "{{ var('never') }}"}
- name: c
  config: {enabled: "{{ target.name == 'prod' }}"}
""",
        "tests/off.sql": "{{ config(enabled=false) }} SELECT * FROM {{ ref('a') }}",
        "tests/on.sql": "SELECT * FROM {{ ref('a') }}",
    }
    imported, project = carry(dbt(tmp_path, files), new)
    found = {c.name: c for c in source(project, "a").annotation.checks}
    blocking = {name: check.blocking for name, check in found.items()}
    assert blocking == {"not_null_id": False, "unique_name": True, "accepted_values_paid": False}
    assert found["accepted_values_paid"].values == ("warn",)
    (check,) = source(project, "on").annotation.checks
    assert not check.blocking
    reasons = reasons_of(imported)
    assert reasons["test", "unique_a_id"] == reasons["model", "b"] == "it is disabled"
    assert reasons["singular test", "off"] == "it is disabled"
    assert reasons["test", "accepted_values_a_id"] == "its values are not a list"
    assert reasons["test", "accepted_values_a_name"] == "its arguments are known only to dbt"
    assert reasons["model", "c"].startswith("whether it is enabled is known only to dbt")


@pytest.mark.proves("W8")
def test_unit_tests_become_tests(tmp_path: Path, new: Path) -> None:
    files = {
        "models/a.sql": "SELECT id, paid FROM {{ ref('people') }}",
        "models/schema.yml": """\
unit_tests:
- name: rows
  model: a
  given: [{input: ref('people'), rows: [{id: 1, paid: 2.5}]}]
  expect: {rows: [{id: 1, paid: 2.5}]}
- name: texts
  model: a
  given: [{input: ref('people'), format: csv, fixture: people_rows}]
  expect: {format: sql, rows: "select 1 as id"}
- name: grows
  model: a
  overrides: {macros: {is_incremental: true}}
  given: []
  expect: {rows: []}
""",
        "tests/fixtures/people_rows.csv": "id,paid\n1,\n",
    }
    imported, _ = carry(dbt(tmp_path, files), new)
    body = yaml.safe_load((new / "tests" / "a.yml").read_text())
    assert body == {
        "rows": {
            "source": "a",
            "inputs": {"people": [{"id": 1, "paid": 2.5}]},
            "expect": [{"id": 1, "paid": 2.5}],
        },
        "texts": {
            "source": "a",
            "inputs": {"people": [{"id": "1", "paid": None}]},
            "expect": "select 1 as id",
        },
    }
    assert {case.name for case in read_cases(new)} == {"rows", "texts"}
    assert "overrides macros" in reasons_of(imported)["unit test", "grows"]


@pytest.mark.proves("W8")
@pytest.mark.parametrize(
    ("dialect", "sql", "word"),
    [
        ("duckdb", "x::int", "casts to integers"),
        ("snowflake", "extract(dow FROM x)", "weekdays"),
        ("snowflake", "dayofweek(x)", "weekdays"),
        ("mysql", "log(x)", "`log`"),
        ("postgres", "regexp_replace(x, 'a', 'b')", "`regexp_replace`"),
        ("redshift", "datediff(week, x, x)", "`datediff`"),
        ("bigquery", "greatest(x, 1)", "NULLs"),
        ("postgres", "extract(day FROM x)", ""),
        ("postgres", "'1'::int", ""),
        ("bigquery", "extract(dayofweek FROM x)", ""),
    ],
)
def test_expressions_with_another_meaning_in_a_dialect_are_noted(
    dialect: str, sql: str, word: str
) -> None:
    notes = translate(f"SELECT {sql} AS y FROM t", dialect, lambda _: None).notes
    doubts = [note for note in notes if note.startswith("check")]
    assert [word in note for note in doubts] == [True] * bool(word)


# ------------------------------------------------------------------------------------- not imported


@pytest.mark.proves("W8")
def test_features_without_a_counterpart_are_listed(tmp_path: Path, new: Path) -> None:
    files = {
        "dbt_project.yml": PROJECT + "on-run-end: ['grant x']\nmodels: {shop: {+pre-hook: y}}\n",
        "models/a.sql": (
            "{{ config(tags=['no good', 'fine'], meta={'owner': 'Ann', 'level': 1}) }} SELECT 1 AS a"
        ),
        "models/off.sql": "{{ config(enabled=false) }} SELECT 1 AS a",
        "models/p.py": "def model(dbt, session): ...",
        "models/x.yml": "metrics: [{name: m}]\nexposures: [{name: e}]\n",
        "snapshots/s.sql": "\n{% snapshot s %} SELECT 1 AS a {% endsnapshot %}",
        "analyses/q.sql": "SELECT 1",
    }
    imported, project = carry(dbt(tmp_path, files), new)
    assert set(reasons_of(imported)) == {
        *(("hook", "on-run-end"), ("config", "a.pre-hook"), ("tag", "no good"), ("owner", "Ann")),
        *(("meta", "a.level"), ("model", "off"), ("model", "p"), ("metric", "m")),
        *(("exposure", "e"), ("snapshot", "s"), ("analysis", "q")),
    }
    places = {(e.origin.name, e.origin.path, e.origin.line) for e in imported.not_carried}
    assert {("s", "snapshots/s.sql", 2), ("e", "models/x.yml", 2)} <= places
    assert dict(source(project, "a").annotation.tags) == {"fine": ""}


@pytest.mark.proves("W8")
def test_an_import_requires_a_dialect_and_an_empty_directory(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="dialect") as unknown:
        import_dbt(SHOP)
    assert "--dialect" in (unknown.value.hint or "")
    with pytest.raises(SettingsError, match="unknown dialect `elvish`"):
        import_dbt(SHOP, "elvish")
    with pytest.raises(NotFoundError, match=r"no dbt_project\.yml"):
        import_dbt(tmp_path)
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(SettingsError, match="not empty"):
        write(import_dbt(SHOP, "duckdb"), tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.proves("W8")
def test_the_command_lists_imported_and_omitted_resources(tmp_path: Path, new: Path) -> None:
    files = {"models/a.sql": "SELECT 1 AS a", "models/b.sql": "SELECT\n{{ b() }}"}
    root = dbt(tmp_path, {**files, "profiles.yml": "shop: {outputs: {x: {type: databricks}}}\n"})
    done = CliRunner().invoke(app, ["import", "dbt", str(root), str(new)])
    assert done.exit_code == 0, done.output
    assert "models/b.sql:2: model b: `b` is known only to dbt" in done.output
    assert "SQL dialect: databricks (output `x` in profiles.yml)" in done.output
    assert "persist check\n  persist check --spark\n  persist build" in done.output
    done = CliRunner().invoke(app, ["import", "dbt", str(root), str(tmp_path / "2"), "--json"])
    document = json.loads(done.stdout)
    assert document["dialect"] == "databricks"
    (entry,) = document["not_carried"]
    assert (entry["kind"], entry["path"], entry["line"]) == ("model", "models/b.sql", 2)
    carried = {(c["kind"], c["name"]): c["into"] for c in document["carried"]}
    assert carried == {
        ("model", "a"): "sources/a.sql",
        ("seed", "people"): "sources/raw/people.sql",
    }
    done = CliRunner().invoke(app, ["import", "dbt", str(root), str(new)])
    assert done.exit_code == 2
