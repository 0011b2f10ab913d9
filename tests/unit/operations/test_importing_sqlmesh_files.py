"""Importing SQLMesh projects whose files have another form: each is listed, or a clear error."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from importing import carried

from persist_assets.core.errors import SettingsError
from persist_assets.operations.importing.sqlmesh import import_sqlmesh

if TYPE_CHECKING:
    from pathlib import Path

    from persist_assets.operations.importing.drafts import NotCarried

CONFIG = "model_defaults: {dialect: duckdb}\n"


def project(tmp_path: Path, files: dict[str, str]) -> Path:
    """Write a project with a model `x.a` that reads `raw.people`."""
    base = {
        "config.yaml": CONFIG,
        "external_models.yaml": "- {name: raw.people, columns: {id: INT}}\n",
        "models/a.sql": "MODEL (name x.a, kind FULL);\nSELECT id FROM raw.people;\n",
    }
    for path, text in {**base, **files}.items():
        (tmp_path / "mesh" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mesh" / path).write_text(text)
    return tmp_path / "mesh"


def only_left(tmp_path: Path, files: dict[str, str]) -> NotCarried:
    """Return the only thing that is not converted; `x.a` is."""
    imported, _ = carried(import_sqlmesh(project(tmp_path, files)), tmp_path / "new")
    assert "x.a" in {entry.origin.name for entry in imported.carried}
    (entry,) = imported.not_carried
    return entry


@pytest.mark.proves("W9")
@pytest.mark.parametrize("text", ["", "\n-- later\n", "SELECT 1 AS a;\n", "{% set a = 1 %}\n"])
@pytest.mark.parametrize("directory", ["models", "audits"])
def test_a_file_without_a_header_is_listed(tmp_path: Path, directory: str, text: str) -> None:
    entry = only_left(tmp_path, {f"{directory}/draft.sql": text})
    assert entry.reason == f"it has no {directory[:-1].upper()} (…)"
    assert (entry.origin.name, entry.origin.path) == ("draft", f"{directory}/draft.sql")


@pytest.mark.proves("W9")
def test_a_standalone_audit_is_listed_as_one(tmp_path: Path) -> None:
    audit = "AUDIT (name own, standalone true);\nSELECT * FROM x.a WHERE id < 0;\n"
    entry = only_left(tmp_path, {"audits/own.sql": audit})
    assert entry.reason == "it is a standalone audit: persist has no counterpart"
    assert "row_count { max=0 }" in str(entry.hint)


@pytest.mark.proves("W9")
@pytest.mark.parametrize("kind", ["SCD_TYPE_2", "SCD_TYPE_2_BY_TIME", "SCD_TYPE_2_BY_COLUMN"])
def test_versions_of_rows_are_listed_with_their_counterpart(tmp_path: Path, kind: str) -> None:
    text = f"MODEL (name x.s, kind {kind} (unique_key id));\nSELECT id FROM raw.people;\n"
    entry = only_left(tmp_path, {"models/s.sql": text})
    assert entry.origin.name == "x.s"
    assert "refresh=snapshot" in str(entry.hint)


@pytest.mark.proves("W9")
@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("- a\n", r"config\.yaml:1:1: the configuration is not a mapping"),
        ("\nmodel_defaults: x\n", r"config\.yaml:2:1: `model_defaults` is not a mapping"),
        ("gateways: [a]\n", r"config\.yaml:1:1: `gateways` is not a mapping"),
        ("gateways:\n  a: b\n", r"config\.yaml:2:1: `a` is not a mapping"),
        ("gateways: {a: {\n  connection: [b]}}\n", r"config\.yaml:2:1: `connection` is not a"),
        ("default_gateway: [a]\ngateways: {a: }\n", "config.yaml sets none"),
    ],
)
def test_a_configuration_of_another_form_is_an_error(
    tmp_path: Path, config: str, message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        import_sqlmesh(project(tmp_path, {"config.yaml": config}))


@pytest.mark.proves("W9")
@pytest.mark.parametrize(
    ("text", "kind", "name", "line", "reason"),
    [
        ("- name: raw.people\n  columns:\n  - id\n", "property", "raw.people.columns", 2,
         "not a mapping of columns"),
        ("- {name: raw.people}\n- {columns: {}}\n", "external model", "external_models.yaml", 2,
         "without a name"),
        ("name: raw.people\n", "external model", "external_models.yaml", 1,
         "not a list of external models"),
        ("5\n", "external model", "external_models.yaml", 1, "not a list of external models"),
    ],
)  # fmt: skip
def test_external_models_of_another_form_are_listed(
    tmp_path: Path, text: str, kind: str, name: str, line: int, reason: str
) -> None:
    entry = only_left(tmp_path, {"external_models.yaml": text})
    assert (entry.origin.kind, entry.origin.name, entry.origin.line) == (kind, name, line)
    assert reason in entry.reason


@pytest.mark.proves("W9")
@pytest.mark.parametrize(
    ("text", "name", "reason"),
    [
        ("\n- a\n", "tests/test_a.yaml", "not a mapping of tests"),
        ("\ntest_a: [a]\n", "test_a", "it is not a mapping"),
        ("\ntest_a: {inputs: {}}\n", "test_a", "`None` is not imported"),
        ("\ntest_a: {model: x.a, inputs: [raw.people]}\n", "test_a", "`inputs` is not a mapping"),
        ("\ntest_a: {model: x.a, outputs: [a]}\n", "test_a", "`outputs` is not a mapping"),
        ("\ntest_a: {model: x.a, outputs: {ctes: [a]}}\n", "test_a", "`ctes` is not a mapping"),
        ("\ntest_a: {model: x.a, outputs: {query: []}, vars: [a]}\n", "test_a", "`vars` is not a"),
        ("\ntest_a: {model: x.a, outputs: {query: 5}}\n", "test_a", "its rows have a form"),
        ("\ntest_a: {model: x.a, outputs: {query: [5]}}\n", "test_a", "its rows have a form"),
        ("\ntest_a: {model: x.a, outputs: {query: {rows: [], columns: [id]}}}\n", "test_a",
         "its rows have a form"),
        ("\ntest_a: {model: x.a, outputs: {rows: []}}\n", "test_a", "`rows` has no counterpart"),
        ("\ntest_a: {model: x.a}\n", "test_a", "it expects no rows"),
    ],
)  # fmt: skip
def test_tests_of_another_form_are_listed(
    tmp_path: Path, text: str, name: str, reason: str
) -> None:
    entry = only_left(tmp_path, {"tests/test_a.yaml": text})
    assert (entry.origin.kind, entry.origin.name) == ("unit test", name)
    assert entry.origin.line == (2 if name == "test_a" else 1)
    assert reason in entry.reason
