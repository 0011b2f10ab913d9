"""Properties, settings and compiled texts of a dbt project count as they are now, or are listed."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from importing import carried, reasons_of

from persist_assets.core.errors import SettingsError
from persist_assets.operations.importing.dbt import import_dbt

if TYPE_CHECKING:
    from pathlib import Path

    from persist_assets.core.model.project import Project
    from persist_assets.core.model.sources import Source
    from persist_assets.operations.importing.writing import Imported

PROJECT = "name: shop\nprofile: shop\n"
FILES = {
    "dbt_project.yml": PROJECT,
    "seeds/people.csv": "id,paid\n1,1.5\n2,\n",
    "models/a.sql": "{{ config(materialized='table') }} SELECT * FROM {{ ref('people') }}",
}


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return tmp_path / "new"


def dbt(tmp_path: Path, files: dict[str, str]) -> Path:
    """Write a dbt project with a seed `people` and a model `a` that reads it."""
    root = tmp_path / "dbt"
    for path, text in {**FILES, **files}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


def carry(root: Path, new: Path, dialect: str | None = "spark") -> tuple[Imported, Project]:
    """Import a project, and compile what is imported."""
    return carried(import_dbt(root, dialect), new)


def source(project: Project, name: str) -> Source:
    return next(s for s in project.sources if s.name == name)


def places_of(imported: Imported) -> dict[tuple[str, str], tuple[str, int]]:
    """Return the places of what is not carried, by kind and name."""
    return {
        (e.origin.kind, e.origin.name): (e.origin.path, e.origin.line) for e in imported.not_carried
    }


# ------------------------------------------------------------------------------------------ tests


@pytest.mark.proves("W8")
def test_properties_of_singular_tests_count(tmp_path: Path, new: Path) -> None:
    names = ("soft", "never", "many", "own", "rare")
    files = {f"tests/{name}.sql": "SELECT * FROM {{ ref('a') }} WHERE id < 0" for name in names}
    files["tests/own.sql"] = "{{ config(severity='error') }} " + files["tests/own.sql"]
    files["tests/tests.yml"] = """\
data_tests:
- name: soft
  description: Only warns.
  config: {severity: warn, error_if: ">100", tags: [nightly], meta: {level: 1}}
- name: never
  config: {enabled: false}
- name: many
  config: {error_if: ">10"}
- name: own
  config: {severity: warn}
- name: gone
tests:
- name: rare
  config: {warn_if: ">10", error_if: ">100"}
"""
    imported, project = carry(dbt(tmp_path, files), new)
    blocking = {
        s.name: s.annotation.checks[0].blocking for s in project.sources if s.annotation.checks
    }
    assert blocking == {"soft": False, "own": True}
    assert dict(source(project, "soft").annotation.tags) == {"nightly": ""}
    assert source(project, "soft").description == "Only warns."
    assert reasons_of(imported) == {
        ("singular test", "never"): "it is disabled",
        ("singular test", "many"): "`error_if` of tests has no counterpart",
        ("singular test", "rare"): "`error_if, warn_if` of tests has no counterpart",
        ("test", "gone"): "there is no test gone.sql",
        ("meta", "soft.level"): "persist has no counterpart",
    }
    assert places_of(imported)["test", "gone"] == ("tests/tests.yml", 11)


@pytest.mark.proves("W8")
def test_stored_failures_become_keep_failures(tmp_path: Path, new: Path) -> None:
    files = {
        "dbt_project.yml": PROJECT + "data_tests: {+store_failures: true, +schema: bad}\n",
        "models/b.sql": FILES["models/a.sql"],
        "models/x.yml": """\
models:
- name: a
  columns:
  - name: id
    data_tests: [not_null, unique: {config: {store_failures_as: ephemeral}}]
- name: b
  columns:
  - {name: id, data_tests: [unique: {config: {severity: warn}}, not_null]}
  - {name: paid, data_tests: [not_null: {config: {store_failures: false, tags: [x]}}]}
""",
        "tests/hard.sql": "SELECT * FROM {{ ref('a') }}",
        "tests/soft.sql": "{{ config(severity='warn') }} SELECT * FROM {{ ref('a') }}",
    }
    imported, project = carry(dbt(tmp_path, files), new)
    stored = {
        (name, check.name): bool(check.keep_failures)
        for name in ("a", "b")
        for check in source(project, name).annotation.checks
    }
    assert stored == {
        ("a", "not_null_id"): True,
        ("a", "unique_id"): False,
        ("b", "unique_id"): True,
        ("b", "not_null_id"): False,
        ("b", "not_null_paid"): False,
    }
    reasons = reasons_of(imported)
    assert set(reasons) == {
        *(("store_failures", "hard"), ("store_failures", "not_null_b_id")),
        *(("config", "data_tests.schema"), ("config", "not_null_b_paid.tags")),
    }
    assert "not published" in reasons["store_failures", "hard"]


@pytest.mark.proves("W8")
def test_a_constraint_shares_stored_failures_with_tests(tmp_path: Path, new: Path) -> None:
    config = "{{ config(materialized='table', contract={'enforced': true}) }}"
    files = {
        "models/b.sql": config + " SELECT id, paid FROM {{ ref('people') }}",
        "models/x.yml": """\
models:
- name: b
  columns:
  - {name: id, data_type: bigint, data_tests: [not_null: {config: {store_failures: true}}]}
  - {name: paid, data_type: double, constraints: [{type: not_null}]}
""",
    }
    imported, project = carry(dbt(tmp_path, files), new)
    checks = source(project, "b").annotation.checks
    assert [bool(c.keep_failures) for c in checks if c.kind == "not_null"] == [True, True]
    assert imported.not_carried == []


@pytest.mark.proves("W8")
def test_checks_that_become_sources_need_not_agree_on_stored_failures(
    tmp_path: Path, new: Path
) -> None:
    files = {
        "models/x.yml": """\
models:
- name: a
  columns:
  - name: id
    data_tests:
    - not_null: {config: {store_failures: true, where: id > 0}}
    - not_null: {config: {where: id > 1}}
    - unique: {config: {store_failures: true, severity: warn}}
""",
    }
    imported, project = carry(dbt(tmp_path, files), new)
    stored = {
        check.kind: bool(check.keep_failures) for check in source(project, "a").annotation.checks
    }
    assert stored == {"unique": True}
    assert not [r for r in reasons_of(imported) if "only all checks" in str(r)]
    assert {c.origin.kind for c in imported.not_carried} <= {"store_failures"}


@pytest.mark.proves("W8")
def test_disabled_unit_tests_and_unknown_arguments_are_listed(tmp_path: Path, new: Path) -> None:
    files = {
        "models/x.yml": """\
models:
- name: a
  columns:
  - name: id
    data_tests: [dbt_utils.expression_is_true: {expression: "> 0", group_by: [paid]}]
unit_tests:
- {name: never, model: a, config: {enabled: false}, given: [], expect: {rows: []}}
- name: some
  model: a
  config: {tags: [x]}
  given: [{input: ref('people'), rows: []}]
  expect: {rows: []}
""",
    }
    imported, _ = carry(dbt(tmp_path, files), new)
    assert reasons_of(imported) == {
        ("unit test", "never"): "it is disabled",
        ("config", "some.tags"): "persist has no counterpart",
        ("test", "expression_is_true_a_id"): "its argument `group_by` has no counterpart",
    }


# -------------------------------------------------------------------------------- compiled texts


PERSONS = '"db"."main"."people"'
BIG = "{% macro big() %}paid > {{ least() }}{% endmacro %}"
LEAST = "{% macro least() %}5{% endmacro %}"
READS = "SELECT {{ dbt_utils.star() }} FROM {{ ref('people') }} WHERE {{ big() }}"
COMPILED: dict[str, str] = {
    **FILES,
    "macros/m.sql": f"{BIG}\n{LEAST}\n",
    "tests/generic/small.sql": "{% test small(model, most) %}SELECT 1{% endtest %}",
    "models/b.sql": READS,
    "models/c.sql": "SELECT {{ dbt_utils.star() }} AS v, {{ var('v') }} AS w",
    "models/d.sql": "{{ dbt_utils.x() }} {{ ref('e') }}",
    "models/e.sql": "{{ config(materialized='ephemeral') }} SELECT 1 AS id",
    "models/x.yml": """\
models:
- name: a
  columns:
  - name: id
    data_tests: [small: {most: 5, config: {where: id > 1}}, small: {most: 6}]
""",
}


def compiled(tmp_path: Path, changed: dict[str, str]) -> Path:
    """Write a project as dbt compiled it, and change some files after that."""
    root = dbt(tmp_path, COMPILED)

    def node(name: str, text: str, macros: list[str], **more: Any) -> dict[str, Any]:
        path = f"models/{name}.sql"
        own = {"resource_type": "model", "name": name, "original_file_path": path}
        own |= {"package_name": "shop", "raw_code": COMPILED.get(path), "compiled_code": text}
        depends = {"macros": ["macro.dbt_utils.star", *macros]}
        relation = f'"db"."main"."{name}"'
        return {**own, "relation_name": relation, "depends_on": depends, **more}

    def test(most: int, where: str | None) -> dict[str, Any]:
        kwargs = {"most": most, "column_name": "id", "model": "{{ ref('a') }}"}
        config = {"where": where, "fail_calc": "count(*)", "error_if": "!= 0", "warn_if": "!= 0"}
        text = f'SELECT * FROM "db"."main"."a" WHERE id > {most}'
        named = {"test_metadata": {"name": "small", "kwargs": kwargs}, "column_name": "id"}
        named |= {"resource_type": "test", "attached_node": "model.shop.a", "config": config}
        return node(f"small_{most}", text, ["macro.shop.test_small"], raw_code="", **named)

    cte = "WITH __dbt__cte__e AS (SELECT 1 AS id) SELECT id FROM __dbt__cte__e"
    nodes = [
        node("people", "", [], resource_type="seed"),
        node("a", "SELECT 1", []),
        node("b", f"SELECT id FROM {PERSONS} WHERE paid > 5", ["macro.shop.big"]),
        node("c", "SELECT 1 AS v, 2 AS w", []),
        node("d", cte, [], extra_ctes=[{"id": "model.shop.e", "sql": "…"}]),
        node("e", "SELECT 1 AS id", []),
        *(test(5, "id > 1"), test(6, None)),
    ]
    macros = {
        "macro.shop.big": {"macro_sql": BIG, "depends_on": {"macros": ["macro.shop.least"]}},
        "macro.shop.least": {"macro_sql": LEAST},
        "macro.shop.test_small": {"macro_sql": COMPILED["tests/generic/small.sql"]},
    }
    document = {
        "metadata": {"adapter_type": "duckdb", "generated_at": "2024-01-02T00:00:00Z"},
        "nodes": {f"{n['resource_type']}.shop.{n['name']}": n for n in nodes},
        "macros": macros,
    }
    (root / "target").mkdir()
    (root / "target" / "manifest.json").write_text(json.dumps(document))
    os.utime(root / "dbt_project.yml", (1.7e9, 1.7e9))  # before the manifest was made
    for path, text in changed.items():
        (root / path).write_text(text)
    return root


@pytest.mark.proves("W8")
@pytest.mark.parametrize(
    ("changed", "stale"),
    [
        ({}, {}),
        ({"macros/m.sql": f"{{# new #}}\n{BIG}\n{LEAST.replace('5', '{# five #}5')}"}, {}),
        (
            {"macros/m.sql": f"{BIG}\n{{# {LEAST} #}}{LEAST.replace('5', '7')}"},
            {"b": "the macro `least` has changed"},
        ),
        ({"macros/m.sql": LEAST}, {"b": "the macro `big` has changed"}),
        ({"models/b.sql": READS + " AND TRUE"}, {"b": "its text has changed"}),
        (
            {"models/e.sql": COMPILED["models/e.sql"].replace("1", "2")},
            {"d": "the model `e` has changed"},
        ),
        (
            {"dbt_project.yml": PROJECT + "vars: {v: 3}\n"},
            {"c": "dbt_project.yml has changed, and it reads variables"},
        ),
        (
            {"tests/generic/small.sql": "{% test small(model, most) %}SELECT 2{% endtest %}"},
            {"small_a_id": "the macro `test_small` has changed"},
        ),
        (
            {"models/x.yml": COMPILED["models/x.yml"].replace("most: 5", "most: 4")},
            {"small_a_id": "its arguments or settings have changed"},
        ),
        (
            {"models/x.yml": COMPILED["models/x.yml"].replace("id > 1", "id > 2")},
            {"small_a_id": "its arguments or settings have changed"},
        ),
    ],
)
def test_a_compiled_text_is_used_if_all_that_it_depends_on_is_unchanged(
    tmp_path: Path, new: Path, changed: dict[str, str], stale: dict[str, str]
) -> None:
    imported, project = carry(compiled(tmp_path, changed), new, None)
    listed = {
        e.origin.name: e.reason.partition("; since dbt compiled it, ")[2]
        for e in imported.not_carried
        if e.origin.kind in ("model", "test")
    }
    assert listed == stale
    assert all(
        "dbt compile" in (e.hint or "") for e in imported.not_carried if e.origin.name in stale
    )
    names = {s.name for s in project.sources}
    assert names.isdisjoint(stale.keys() - {"small_a_id"})
    n_tests = sum(name.startswith("small_a_id") for name in names)
    assert n_tests == (2 if "small_a_id" not in stale else 0 if "generic" in str(changed) else 1)


@pytest.mark.proves("W8")
def test_the_configuration_of_a_compiled_model_is_that_of_today(tmp_path: Path, new: Path) -> None:
    root = compiled(tmp_path, {"dbt_project.yml": PROJECT + "models: {+materialized: table}\n"})
    path = root / "target" / "manifest.json"
    document = json.loads(path.read_text())
    for name in ("b", "d"):
        known = {"materialized": "view", "tags": ["only_dbt"]}
        document["nodes"][f"model.shop.{name}"]["unrendered_config"] = known
    own = "{{ config(materialized='view') }} " + COMPILED["models/d.sql"]
    document["nodes"]["model.shop.d"]["raw_code"] = own
    (root / "models" / "d.sql").write_text(own)
    path.write_text(json.dumps(document))
    _, project = carry(root, new, None)
    persisted = {s.name for s in project.persisted}
    assert "b" in persisted, "a changed setting counts"
    assert "d" not in persisted, "the text itself counts more"
    assert dict(source(project, "b").annotation.tags) == {"only_dbt": ""}


# --------------------------------------------------------------------------- nothing is left out


@pytest.mark.proves("W8")
def test_properties_of_sources_below_config_count(tmp_path: Path, new: Path) -> None:
    files = {
        "dbt_project.yml": PROJECT + "sources: {shop: {crm: {+enabled: false}}}\n",
        "models/x.yml": """\
sources:
- name: raw
  config:
    tags: [a]
    meta: {owner: "team:x", team: y}
    freshness: {warn_after: {count: 1, period: day}}
  tables:
  - name: ev
    config:
      tags: [b]
      meta: {external_location: "data/ev", level: 1}
      loaded_at_field: ts
      event_time: ts
    columns:
    - {name: id, data_type: bigint, tags: [secret], config: {meta: {pii: true}}}
  - name: hidden
    config: {enabled: false}
    columns: [{name: id, data_tests: [unique]}]
  - name: plain
    config: {freshness: null}
    deprecated: x
- name: crm
  tables: [{name: acc}]
""",
        "models/b.sql": "SELECT id FROM {{ source('raw', 'hidden') }}",
    }
    imported, project = carry(dbt(tmp_path, files), new)
    annotation = source(project, "ev").annotation
    assert (set(dict(annotation.tags)), [*annotation.owners]) == ({"a", "b"}, ["team:x"])
    assert "LOCATION 'data/ev'" in (new / "sources" / "raw" / "ev.sql").read_text()
    assert places_of(imported) == {
        ("meta", "raw.team"): ("models/x.yml", 5),
        ("meta", "raw.ev.level"): ("models/x.yml", 8),
        ("freshness", "raw.ev"): ("models/x.yml", 6),
        ("loaded_at_field", "raw.ev"): ("models/x.yml", 12),
        ("column tags", "raw.ev.id.tags"): ("models/x.yml", 15),
        ("column meta", "raw.ev.id.meta"): ("models/x.yml", 15),
        ("source", "raw.hidden"): ("models/x.yml", 16),
        ("test", "unique_raw_hidden_id"): ("models/x.yml", 18),
        ("property", "raw.plain.deprecated"): ("models/x.yml", 21),
        ("source", "crm.acc"): ("models/x.yml", 23),
        ("model", "b"): ("models/b.sql", 1),
    }
    assert reasons_of(imported)["source", "crm.acc"] == "it is disabled"


@pytest.mark.proves("W8")
def test_versions_and_snapshots_in_yaml_are_listed_with_their_tests(
    tmp_path: Path, new: Path
) -> None:
    files = {
        "snapshots/s.yml": "snapshots:\n- name: s\n  relation: ref('a')\n  columns: [{name: id, tests: [unique]}]\n",
        "models/ver_v1.sql": "SELECT 1 AS id",
        "models/second.sql": "SELECT 1 AS id",
        "models/reader.sql": "SELECT * FROM {{ ref('ver') }}",
        "models/x.yml": """\
models:
- name: ver
  deprecation_date: 2025-01-01
  columns: [{name: id, tests: [not_null]}]
  versions:
  - {v: 1}
  - v: 2
    defined_in: second
    columns:
    - {name: z, tests: [unique]}
- name: a
  versions: []
  columns: [{name: id, meta: {pii: true}}]
""",
    }
    imported, project = carry(dbt(tmp_path, files), new)
    assert {s.name for s in project.sources} == {"people", "a"}
    assert places_of(imported) == {
        ("snapshot", "s"): ("snapshots/s.yml", 2),
        ("test", "unique_s_id"): ("snapshots/s.yml", 4),
        ("model", "ver_v1"): ("models/ver_v1.sql", 1),
        ("model", "second"): ("models/second.sql", 1),
        ("model", "reader"): ("models/reader.sql", 1),
        ("property", "ver.deprecation_date"): ("models/x.yml", 3),
        ("test", "not_null_ver_id"): ("models/x.yml", 4),
        ("test", "unique_ver_v2_z"): ("models/x.yml", 10),
        ("column meta", "a.id.meta"): ("models/x.yml", 13),
    }
    assert "versions of `ver`" in reasons_of(imported)["model", "reader"]


# ---------------------------------------------------------------------------------- invalid files


@pytest.mark.proves("W8")
@pytest.mark.parametrize(
    ("text", "kind", "name", "line"),
    [
        ("models:\n- name: a\n  columns:\n  - id\n", "property", "a.columns", 4),
        ("models:\n- name: a\n  columns: 3\n", "property", "a.columns", 3),
        ("models:\n- name: a\n  config: x\n", "property", "a.config", 3),
        ("models:\n- name: a\n  versions:\n  - 1\n", "property", "a.versions", 3),
        ("models:\n\n- a\n", "property", "x.yml.models", 3),
        ("models:\n- name: a\n  config:\n    meta: [1]\n", "meta", "a", 1),
        ("models:\n- name: a\n  tests:\n  - unique: [1]\n", "test", "unique_a", 4),
        ("models:\n- name: a\n  tests:\n  - unique: {config: [1]}\n", "test", "unique_a", 4),
        (
            "models:\n- name: a\n  group: g\ngroups:\n- name: g\n  owner: x\n",
            "property",
            "g.owner",
            6,
        ),
        ("sources:\n- name: r\n  tables:\n  - t\n", "property", "r.tables", 4),
        ("sources:\n- name: r\n  config: x\n  tables: [{name: t}]\n", "property", "r.t.config", 3),
        (
            "sources:\n- name: r\n  tables:\n  - name: t\n    external: s3://x\n",
            "property",
            "r.t.external",
            5,
        ),
        (
            "seeds:\n- name: people\n  config:\n    column_types: [a]\n",
            "config",
            "people.column_types",
            1,
        ),
        ("unit_tests:\n- name: u\n  model: a\n  given: [x]\n", "unit test", "u", 2),
        ("unit_tests:\n- name: u\n  model: a\n  expect: [{id: 1}]\n", "unit test", "u", 2),
        ("unit_tests:\n- name: u\n  model: a\n  expect: {rows: [1]}\n", "unit test", "u", 2),
        ("unit_tests:\n- name: u\n  model: a\n  overrides: [1]\n", "unit test", "u", 2),
        (
            'unit_tests:\n- name: u\n  model: a\n  expect: {format: csv, rows: "id\\n1,2"}\n',
            *("unit test", "u", 2),
        ),
        ("- a\n", "properties", "x.yml", 1),
    ],
)
def test_yaml_of_an_unexpected_form_is_listed_with_its_line(
    tmp_path: Path, new: Path, text: str, kind: str, name: str, line: int
) -> None:
    imported, project = carry(dbt(tmp_path, {"models/x.yml": text}), new)
    assert "a" in {s.name for s in project.sources}
    assert places_of(imported)[kind, name][1] == line
    assert len(imported.not_carried) == 1


@pytest.mark.proves("W8")
def test_constraints_and_empty_settings_of_an_unexpected_form(tmp_path: Path, new: Path) -> None:
    config = "{{ config(materialized='table', contract={'enforced': true}) }}"
    files = {
        "dbt_project.yml": PROJECT + "vars:\n- 1\nmodel-paths: models\n",
        "models/b.sql": config + " SELECT id FROM {{ ref('people') }}",
        "models/c.sql": config + " SELECT id FROM {{ ref('people') }}",
        "models/x.yml": """\
models:
- name: b
  config:
  columns: [{name: id, data_type: bigint, constraints: [not_null]}]
- name: c
sources:
- name: r
  config:
  tables: [{name: t, config: , freshness: }]
""",
    }
    imported, project = carry(dbt(tmp_path, files), new)
    assert {"b", "c"} <= {s.name for s in project.sources}
    assert [raw.name for raw in imported.to_fill_in] == ["t"]
    assert places_of(imported) == {
        ("property", "shop.vars"): ("dbt_project.yml", 3),
        ("property", "b.constraints"): ("models/x.yml", 4),
        ("contract", "c"): ("models/c.sql", 1),
    }


@pytest.mark.proves("W8")
@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("[]", {"manifest.json"}),
        ('{"nodes": null, "macros": [], "metadata": null}', {"nodes", "macros"}),
        ('{"nodes": {"a": [], "b": {"resource_type": "model", "compiled_code": "x"}}}', {"a"}),
        (
            '{"nodes": {"a": {"resource_type": "test", "test_metadata": [], "compiled_code": "x",'
            ' "package_name": "shop"}}, "sources": {"b": {"relation_name": "x"}}}',
            set(),
        ),
    ],
)
def test_a_manifest_of_an_unexpected_form_is_listed(
    tmp_path: Path, new: Path, text: str, names: set[str]
) -> None:
    imported, _ = carry(dbt(tmp_path, {"target/manifest.json": text}), new)
    assert places_of(imported) == {("manifest", n): ("target/manifest.json", 1) for n in names}


@pytest.mark.proves("W8")
def test_settings_of_an_unexpected_form_are_errors_with_a_place(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="has to be a mapping") as wrong:
        import_dbt(dbt(tmp_path, {"dbt_project.yml": "- a"}), "spark")
    assert str(wrong.value.location) == "dbt_project.yml:1:1"
    files = {"dbt_project.yml": PROJECT, "profiles.yml": "shop:\n  outputs: [a]\n"}
    with pytest.raises(SettingsError, match=r"shop\.outputs: it has to be a mapping") as wrong:
        import_dbt(dbt(tmp_path, files))
    assert str(wrong.value.location) == "profiles.yml:2:1"


# ------------------------------------------------------------------------------------ explanations


@pytest.mark.proves("W8")
def test_a_contract_that_does_not_hold_is_explained(tmp_path: Path, new: Path) -> None:
    config = "{{ config(materialized='table', contract={'enforced': true}) }}"
    files = {
        "models/b.sql": config + " SELECT 1 AS id",
        "models/x.yml": "models: [{name: b, columns: [{name: id, data_type: string}, {name: n, data_type: int}]}]",
    }
    imported, _ = carry(dbt(tmp_path, files), new)
    reason = reasons_of(imported)["model", "b"]
    assert reason.endswith("its contract: removed  n int; retyped  id string → int")


@pytest.mark.proves("W8")
def test_a_target_that_only_dbt_knows_is_listed(tmp_path: Path, new: Path) -> None:
    outputs = "  outputs: {dev: {type: duckdb}, prod: {type: snowflake}}\n"
    target = "shop:\n  target: \"{{ env_var('TARGET') }}\"\n"
    root = dbt(tmp_path, {"profiles.yml": target + outputs})
    drafts = import_dbt(root)
    assert (drafts.dialect, drafts.dialect_from) == ("duckdb", "output `dev` in profiles.yml")
    (entry,) = drafts.not_carried
    assert (entry.origin.kind, entry.origin.path, entry.origin.line) == (
        "target",
        "profiles.yml",
        2,
    )
    assert "the first one, `dev`" in entry.reason and "--dialect" in (entry.hint or "")
    drafts = import_dbt(root, "snowflake")
    assert (drafts.dialect_from, drafts.not_carried) == ("--dialect", [])
    (root / "profiles.yml").write_text("shop:\n  target: prod\n" + outputs)
    drafts = import_dbt(root)
    assert (drafts.dialect, drafts.not_carried) == ("snowflake", [])
    assert drafts.dialect_from == "output `prod` in profiles.yml"
