"""Malloy's own runtime, from its npm package, reads exported manifests of real builds."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import ROOT, need, need_node
from typer.testing import CliRunner

from persist_assets.cli import app
from persist_assets.compiler.malloy.bridge import PROGRAM
from persist_assets.core.errors import SettingsError
from persist_assets.core.settings.load import load_settings
from persist_assets.operations.environments import promote, roll_back
from persist_assets.operations.manifest_imports import import_manifest

if TYPE_CHECKING:
    from collections.abc import Callable

    from persist_assets.building.builder import Builder
    from persist_assets.core.model.sources import Source

RAW = """
CREATE TABLE flights (carrier STRING, origin STRING, distance BIGINT)
USING parquet LOCATION 'raw/flights';
CREATE VIEW flown AS SELECT carrier, distance FROM flights WHERE distance > 0;
"""
MODEL = '''##! experimental.persistence
#@ persist
source: origins is spark.table('flights') -> { group_by: origin; aggregate: n is count() }
#@ persist
source: carriers is spark.table('flown') -> {
  group_by: carrier; aggregate: n is count(), longest is distance.max()
}
#@ persist
source: far is carriers -> { where: longest > 100; select: carrier, n }
#@ persist
source: texts is spark.sql("""SELECT carrier, n FROM %{ far } AS f WHERE n > 1""")
#@ persist
source: nested is spark.sql("""SELECT carrier, n FROM %{ far -> { select: carrier, n } } AS f WHERE n > 0""")
'''
NAMES = ("origins", "carriers", "far", "texts", "nested")
READS = '[env.prod]\n[env.dev]\nreads = "prod"\n'
TABLES = {
    "flights": [("carrier", "string"), ("origin", "string"), ("distance", "bigint")],
    "flown": [("carrier", "string"), ("distance", "bigint")],
    "": [("carrier", "string"), ("n", "bigint")],
}
FLIGHTS = [("AA", "JFK", 200), ("AA", "LGA", 90), ("BB", "JFK", 50), ("CC", "JFK", 0)]


@pytest.fixture
def root(make_project: Callable[..., Path]) -> Path:
    need("it" if PROGRAM.exists() else None, "bundle Malloy's compiler: make bridge")
    made = make_project({"raw.sql": RAW, "m.malloy": MODEL}, READS)
    path = made / "raw" / "flights" / "part-0.parquet"
    path.parent.mkdir(parents=True)
    columns = zip(*FLIGHTS, strict=True)
    names = [name for name, _ in TABLES["flights"]]
    pq.write_table(pa.table(dict(zip(names, columns, strict=True))), path)
    return made


@pytest.fixture
def enter(enter: Callable[..., Builder]) -> Callable[..., Builder]:
    return lambda root, environment="prod": enter(root, environment)


@pytest.fixture
def runtime(root: Path) -> Callable[..., Any]:
    """Return a function that compiles queries of the model with Malloy's runtime and a manifest."""
    node = need_node()
    scripts = ROOT / "tests" / "node"

    def ask(
        *queries: str,
        strict: bool | None = None,
        digest: str | None = None,
        stock: dict[str, str] | None = None,
    ) -> Any:
        manifest = load_settings(root, environment="prod").manifest_path.read_text()
        asked = {
            "files": {"sources/m.malloy": (root / "sources" / "m.malloy").read_text()},
            "model": "sources/m.malloy",
            "tables": TABLES,
            "digest": digest or json.loads(manifest)["connections"]["spark"],
            "stock": stock,
            "manifest": manifest,
            "strict": strict,
            "queries": queries,
        }
        done = subprocess.run(
            [node, str(scripts / "runtime.js")],
            input=json.dumps(asked),
            capture_output=True,
            text=True,
            check=True,
        )
        return json.loads(done.stdout)

    return ask


def named(builder: Builder, name: str) -> Source:
    return builder.project.by_id[f"{name}@sources/m.malloy"]


def build(builder: Builder, *names: str) -> list[str]:
    """Build Malloy sources, and return the action of each."""
    return [builder.build(named(builder, n)).action for n in names]


def exported(builder: Builder) -> dict[str, Any]:
    return json.loads(builder.settings.manifest_path.read_text())["entries"]


def malloy_table(builder: Builder, name: str) -> str | None:
    """Return the table that Malloy's own tools find for a source."""
    entry = exported(builder).get(named(builder, name).malloy_ids[0])
    return entry and entry["tableName"]


def own(builder: Builder, name: str) -> str:
    """Return the published table of a source."""
    return exported(builder)[named(builder, name).build_id]["tableName"]


def edit(root: Path, file: str, before: str, after: str) -> None:
    path = root / "sources" / file
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))


@pytest.mark.slow
@pytest.mark.proves("M6", "M15")
def test_malloys_runtime_compiles_queries_to_tables_of_the_exported_manifest(
    root: Path, enter: Callable[..., Builder], runtime: Callable[..., Any]
) -> None:
    prod = enter(root)
    # After a partial build, existing tables are read, and other sources are inlined.
    assert build(prod, "carriers") == ["built"]
    part = runtime("run: texts -> { select: * }", "run: origins -> { select: * }")
    (texts, origins) = [q["sql"] for q in part["queries"]]
    assert own(prod, "carriers") in texts
    assert "flown" not in texts
    assert "flights" in origins
    (refused,) = runtime("run: far -> { select: * }", strict=True)["queries"]
    assert "far" in refused["error"]

    assert build(prod, *NAMES) == ["built", "reused", "built", "built", "built"]
    queries = [f"run: {name} -> {{ select: * }}" for name in NAMES]
    for strict in (None, True):
        printed_by = runtime(*queries, strict=strict)
        for name, query in zip(NAMES, printed_by["queries"], strict=True):
            assert f"FROM {own(prod, name)} as base" in query["sql"], name
            assert "flown" not in query["sql"] and "flights as" not in query["sql"]
    # The entries have the BuildIDs that Malloy itself computes.
    sources = [named(prod, name) for name in NAMES]
    assert printed_by["builds"] == {s.source_id: s.malloy_ids[0] for s in sources}
    assert {b: exported(prod)[b]["buildId"] for b in printed_by["builds"].values()} == {
        s.malloy_ids[0]: s.build_id for s in sources
    }
    assert [len(s.malloy_ids) for s in sources] == [1, 1, 1, 1, 2], "Malloy looks for another one"
    assert not {s.malloy_ids[0] for s in sources} & {s.build_id for s in sources}
    # A connection with another digest may have other rows, so it reads no tables.
    (inlined,) = runtime(queries[2], digest="another")["queries"]
    assert "flown" in inlined["sql"] and "delta" not in inlined["sql"]


@pytest.mark.slow
@pytest.mark.proves("X7")
def test_malloys_databricks_connection_reads_tables_of_the_manifest(
    root: Path, enter: Callable[..., Builder], runtime: Callable[..., Any]
) -> None:
    prod = enter(root)
    ids = {s.source_id: s.build_id for s in prod.project.persisted}
    stock = {"host": "dbc-1.example.com", "path": "/sql/1.0/x", "defaultSchema": "größe 𝄞"}
    query = "run: carriers -> { select: * }"
    settings = "".join(
        f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in stock.items()
    )
    toml = root / "persist.toml"
    toml.write_text(f"[env.prod.malloy.databricks]\n{settings}{toml.read_text()}")
    stocked = enter(root)
    assert {s.source_id: s.build_id for s in stocked.project.persisted} == ids
    assert build(stocked, "carriers") == ["built"]
    (read,) = runtime(query, stock=stock)["queries"]
    assert f"FROM {own(stocked, 'carriers')} as base" in read["sql"]
    # Another connection may have other rows, so it reads no tables.
    for other in ({**stock, "host": "dbc-2.example.com"}, {**stock, "setupSQL": "SET x = 1"}):
        (inlined,) = runtime(query, stock=other)["queries"]
        assert "flown" in inlined["sql"] and "delta" not in inlined["sql"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ('path = "/sql"', "needs `host`"),
        ("host = 1", "must be a string"),
        ('host = "x"\ntoken = "secret"', "unknown key"),
    ],
)
def test_an_invalid_databricks_connection_is_rejected(
    tmp_path: Path, settings: str, message: str
) -> None:
    (tmp_path / "persist.toml").write_text(f"[malloy.databricks]\n{settings}\n")
    with pytest.raises(SettingsError, match=message) as caught:
        load_settings(tmp_path)
    assert caught.value.location is not None


@pytest.mark.slow
def test_malloys_runtime_rejects_unbuilt_sources_in_a_strict_environment(
    root: Path, enter: Callable[..., Builder], runtime: Callable[..., Any]
) -> None:
    edit(root, "../persist.toml", "[env.prod]", "[env.prod]\nstrict = true")
    prod = enter(root)
    build(prod, "carriers")
    (far, carriers) = runtime("run: far -> { select: * }", "run: carriers -> { select: * }")[
        "queries"
    ]
    assert "far" in far["error"]
    assert own(prod, "carriers") in carriers["sql"]


@pytest.mark.slow
@pytest.mark.proves("M15")
def test_malloy_never_reads_an_outdated_table_of_a_changed_source(
    root: Path, enter: Callable[..., Builder], runtime: Callable[..., Any]
) -> None:
    prod = enter(root)
    build(prod, "origins", "carriers")
    before, old = named(prod, "carriers"), own(prod, "carriers")
    assert malloy_table(prod, "carriers") == old
    edit(root, "raw.sql", "distance > 0", "distance > 60")
    prod = enter(root)
    after = named(prod, "carriers")
    assert after.malloy_ids[0] == before.malloy_ids[0]
    assert after.build_id != before.build_id
    # The next build of any source removes the entry; a build of `carriers` replaces it.
    assert build(prod, "origins") == ["reused"]
    assert malloy_table(prod, "carriers") is None
    assert own(prod, "origins") == malloy_table(prod, "origins")
    (inlined,) = runtime("run: carriers -> { select: * }")["queries"]
    assert "FROM flown as base" in inlined["sql"]
    build(prod, "carriers")
    assert malloy_table(prod, "carriers") == own(prod, "carriers") != old
    assert exported(prod)[before.build_id]["tableName"] == old
    (read,) = runtime("run: carriers -> { select: * }")["queries"]
    assert f"FROM {own(prod, 'carriers')} as base" in read["sql"]
    rows = prod.read(after).collect()
    assert sorted(tuple(row) for row in rows) == [("AA", 2, 200)]

    # Rollbacks restore the entries of their target, in both directions.
    last = prod.ledger.manifests.fetch_history("prod")[0].change_id
    roll_back(prod.settings, prod.ledger)
    assert malloy_table(prod, "carriers") is None
    roll_back(
        prod.settings, prod.ledger, to=prod.ledger.manifests.fetch_history("prod")[-1].change_id
    )
    assert malloy_table(prod, "carriers") is None
    roll_back(
        prod.settings, prod.ledger, to=prod.ledger.manifests.fetch_history("prod")[-2].change_id
    )
    assert malloy_table(prod, "carriers") == old
    roll_back(prod.settings, prod.ledger, to=last)
    assert malloy_table(prod, "carriers") == own(prod, "carriers")
    # If the edit is undone, the older table becomes current.
    edit(root, "raw.sql", "distance > 60", "distance > 0")
    prod = enter(root)
    assert build(prod, "carriers") == ["reused"]
    assert malloy_table(prod, "carriers") == own(prod, "carriers") == old


@pytest.mark.slow
@pytest.mark.proves("M15")
def test_each_environment_exports_the_malloy_tables_of_its_own_builds(
    root: Path, enter: Callable[..., Builder]
) -> None:
    prod = enter(root)
    build(prod, "carriers")
    edit(root, "raw.sql", "distance > 0", "distance > 60")
    dev = enter(root, "dev")
    assert build(dev, "carriers") == ["built"]
    assert malloy_table(dev, "carriers") == own(dev, "carriers") != malloy_table(prod, "carriers")
    # A table of another environment is exported once a build of this one reuses it.
    edit(root, "raw.sql", "distance > 60", "distance > 0")
    dev = enter(root, "dev")
    assert malloy_table(enter(root), "carriers") == own(prod, "carriers")
    assert build(dev, "carriers") == ["reused"]
    assert dev.ledger.manifests.fetch_history("dev", limit=1)[0].run_id == "run"
    assert malloy_table(dev, "carriers") == malloy_table(prod, "carriers")
    # A promotion exports the entries of the promoted sources.
    edit(root, "raw.sql", "distance > 0", "distance > 60")
    dev = enter(root, "dev")
    build(dev, "carriers")
    promote(dev, "prod", [named(dev, "carriers").source_id])
    assert malloy_table(prod, "carriers") == malloy_table(dev, "carriers") == own(dev, "carriers")


@pytest.mark.slow
def test_a_rewritten_malloy_source_with_the_same_meaning_keeps_its_table(
    root: Path, enter: Callable[..., Builder]
) -> None:
    prod = enter(root)
    build(prod, "carriers", "far")
    before, table = named(prod, "far"), own(prod, "far")
    edit(root, "m.malloy", "longest > 100", "100 < longest")
    prod = enter(root)
    after = named(prod, "far")
    assert (after.build_id, after.malloy_ids[0]) != (before.build_id, before.malloy_ids[0])
    assert after.build_id == before.build_id
    assert malloy_table(prod, "far") is None
    assert build(prod, "far") == ["reused"]
    assert malloy_table(prod, "far") == table
    assert before.malloy_ids[0] not in exported(prod), "no source of the project is written so"


@pytest.mark.slow
def test_the_exported_manifest_omits_views(root: Path, enter: Callable[..., Builder]) -> None:
    text = "#@ persist\nsource: carriers"
    edit(root, "m.malloy", text, text.replace("persist", "persist materialized=view"))
    prod = enter(root)
    build(prod, "carriers", "far")
    assert malloy_table(prod, "carriers") is None
    assert set(exported(prod)) == {named(prod, "far").build_id, named(prod, "far").malloy_ids[0]}


@pytest.mark.slow
@pytest.mark.proves("M15")
def test_importing_a_manifest_into_another_ledger_restores_malloy_entries(
    root: Path, enter: Callable[..., Builder]
) -> None:
    prod = enter(root)
    build(prod, *NAMES)
    file = Path(shutil.copy(prod.settings.manifest_path, root / "saved.json"))
    saved = json.loads(file.read_text())
    assert import_manifest(prod.settings, prod.ledger, file).n_same == len(NAMES)
    toml = root / "persist.toml"
    toml.write_text('ledger = "sqlite:///.persist/other.db"\n' + toml.read_text())
    other = enter(root)
    done = import_manifest(other.settings, other.ledger, file)
    assert (done.refused, len(done.moved)) == ((), len(NAMES))
    assert json.loads(other.settings.manifest_path.read_text()) == saved
    assert build(other, *NAMES) == ["reused"] * len(NAMES)
    assert exported(other).keys() == saved["entries"].keys()
    # An entry that was changed after it was written is refused.
    (origins, far) = (named(other, n).malloy_ids[0] for n in ("origins", "far"))
    saved["entries"][origins] = saved["entries"][far]
    file.write_text(json.dumps(saved))
    (refused,) = import_manifest(other.settings, other.ledger, file).refused
    assert (refused.build_id, refused.reason) == (
        origins,
        "it has been changed since it was written",
    )
    assert malloy_table(other, "origins") == own(other, "origins")


@pytest.mark.slow
def test_show_and_manifest_print_malloys_build_ids_and_doctor_checks_the_file(
    root: Path, enter: Callable[..., Builder]
) -> None:
    prod = enter(root)
    build(prod, *NAMES)

    def printed_by(*arguments: str) -> Any:
        done = CliRunner().invoke(app, ["--project", str(root), "--env", "prod", *arguments])
        assert done.exit_code == 0, done.output
        return done.stdout

    far = named(prod, "far")
    assert json.loads(printed_by("show", "far", "--json"))["malloy_build_id"] == far.malloy_ids[0]
    assert json.loads(printed_by("show", "flights", "--json"))["malloy_build_id"] is None
    document = json.loads(printed_by("manifest", "--json"))
    assert document == json.loads(prod.settings.manifest_path.read_text())
    assert document["entries"][far.malloy_ids[0]].keys() == {
        *("tableName", "version", "buildId", "digest")
    }
    table = printed_by("manifest")
    assert table.count("@sources/m.malloy") == len(NAMES)
    problems = json.loads(printed_by("doctor", "--json"))["problems"]
    assert [p for p in problems if p["code"] == "manifest-file"] == []
    prod.ledger.manifests.promote(("prod",), "prod", prod.ledger.manifests.fetch("prod"), malloy={})
    done = CliRunner().invoke(app, ["--project", str(root), "doctor", "--json"])
    codes = [(p["code"], p["environment"]) for p in json.loads(done.stdout)["problems"]]
    assert ("manifest-file", "prod") in codes
