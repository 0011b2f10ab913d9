"""Two projects in one Dagster workspace, with a shared ledger and with separate ones."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import warm
from commands import document, persist, printed

if TYPE_CHECKING:
    from collections.abc import Callable

SOURCES = """
CREATE TABLE t (a BIGINT) USING parquet LOCATION '{place}';
--@ persist
CREATE VIEW p AS SELECT a + 1 AS a FROM t;
--@ persist
CREATE VIEW q AS SELECT {total}(a) AS s FROM p;
"""


LOADS = """
import json, sys
import dagster as dg
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import WorkspaceFileTarget

home, workspace, told = sys.argv[1:]
with (
    dg.DagsterInstance.local_temp(home) as instance,
    WorkspaceProcessContext(instance, WorkspaceFileTarget([workspace])) as process,
):
    context = process.create_request_context()
    wrong = [e.load_error for e in context.get_code_location_entries().values() if e.load_error]
    assert not wrong, wrong
    found = {
        name: [
            "/".join(key.path)
            for repository in context.get_code_location(name).get_repositories().values()
            for key in repository.asset_graph.get_all_asset_keys()
        ]
        for name in ("a", "b")
    }
    executable = len(context.asset_graph.executable_asset_keys)
with open(told, "w") as file:
    json.dump({"found": found, "executable": executable}, file)
"""


def actions(root: Path) -> dict[str, str]:
    built = document("build", cwd=root)["builds"]
    return {b["source_id"].partition("@")[0]: b["action"] for b in built}


def messages(root: Path) -> set[str]:
    return {r["message"] for s in document("plan", cwd=root)["steps"] for r in s["reasons"]}


def total(root: Path) -> int:
    """Return the published value of `q`, without Spark."""
    (entry,) = (e for e in document("manifest", cwd=root)["entries"].values() if e["rows"] == 1)
    (path,) = Path(entry["path"], entry["buildUid"]).glob("*.parquet")
    return pq.read_table(path).to_pylist()[0]["s"]


def write(path: Path, values: list[int]) -> None:
    path.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"a": pa.array(values, pa.int64())}), path / "part-0.parquet")


Pair = tuple[Path, Path]


@pytest.fixture
def pair(make_shared_project: Callable[..., Path]) -> Callable[..., Pair]:
    """Return a function that makes two projects whose files and sources have the same names."""

    def make(
        settings: str = "", totals: tuple[str, str] = ("sum", "max"), place: str = "raw/t"
    ) -> Pair:
        roots: list[Path] = []
        for name, function in zip("ab", totals, strict=True):
            said = settings.replace("NAME", name)
            text = SOURCES.format(place=place, total=function)
            roots.append(make_shared_project({"m.sql": text}, said, name=name))
            (roots[-1] / "definitions.py").write_text(
                "from persist_assets import load_sources\ndefs = load_sources('sources')\n"
            )
        write(roots[0] / "raw" / "t", [1, 2])
        write(roots[1] / "raw" / "t", [30, 40])
        return roots[0], roots[1]

    return make


def shared(root: Path, more: str = "") -> str:
    return f'ledger = "sqlite:///{root}/shared/ledger.db"\nenvironment = "NAME_dev"\n{more}'


@pytest.mark.slow
@pytest.mark.proves("K16")
@pytest.mark.parametrize("ledger", ["own", "shared"])
def test_two_projects_with_the_same_source_names_never_share_tables(
    pair: Callable[..., Pair], tmp_path: Path, ledger: str
) -> None:
    a, b = pair(shared(tmp_path) if ledger == "shared" else "")
    assert actions(a) == {"p": "built", "q": "built"}
    # The same SourceIDs, relative paths and table names, but different data.
    assert messages(b) == {"never built"}
    assert actions(b) == {"p": "built", "q": "built"}
    assert (total(a), total(b)) == (5, 41)
    assert messages(a) == messages(b) == set()
    for root in (a, b):
        assert document("doctor", cwd=root)["problems"] == []


# --------------------------------------------------------------------------------------- workspaces


def write_workspace(place: Path, *roots: Path) -> Path:
    lines = ["load_from:"]
    for root in roots:
        lines += [
            "  - python_file:",
            f"      relative_path: {root / 'definitions.py'}",
            f"      location_name: {root.name}",
            f"      working_directory: {root}",
        ]
    path = place / "workspace.yaml"
    path.write_text("\n".join(lines) + "\n")
    return path


READER = """
CREATE TABLE p (a BIGINT) USING delta LOCATION '{place}/m/p';
"""
TOTAL = "--@ persist\nCREATE VIEW total AS SELECT sum(a) AS s FROM p;\n"


@pytest.mark.slow
@pytest.mark.proves("K16", "U4")
def test_reading_another_projects_table_records_no_materialization_of_it(
    make_shared_project: Callable[..., Path], tmp_path: Path
) -> None:
    """Both projects share the asset in Dagster: one materializes it, the other one reads it."""
    place, home = tmp_path / "published", tmp_path / "home"
    published = f'environment = "dev"\n[env.dev.publish]\npath = "{place}"\n'
    text = SOURCES.format(place="raw/t", total="sum")
    a = make_shared_project({"m.sql": text}, published, name="a")
    write(a / "raw" / "t", [1, 2])
    files = {"m.sql": READER.format(place=place), "total.sql": TOTAL}
    b = make_shared_project(files, name="b")
    assert persist("build", cwd=a, env={"DAGSTER_HOME": str(home)}).returncode == 0

    def last() -> tuple[str, str | None]:
        with dg.DagsterInstance.from_config(str(home)) as instance:
            (record,) = instance.fetch_materializations(dg.AssetKey(["m", "p"]), limit=1).records
            event = record.asset_materialization
            return record.run_id, ((event and event.tags) or {}).get("dagster/data_version")

    before = last()
    assert before[0]
    done = persist("build", "--json", cwd=b, env={"DAGSTER_HOME": str(home)})
    assert [b["rows"] for b in printed(done)["builds"]] == [1]
    assert last() == before
    # So project a still has nothing to build.
    done = persist("build", "--json", cwd=a, env={"DAGSTER_HOME": str(home)})
    assert printed(done)["run_id"] is None


@pytest.mark.slow
@pytest.mark.proves("K16")
@pytest.mark.parametrize("ledger", ["own", "shared"])
def test_two_projects_load_as_code_locations_of_one_workspace(
    pair: Callable[..., Pair], tmp_path: Path, ledger: str
) -> None:
    keys = 'key_prefix = "team_NAME"\n'
    a, b = pair(shared(tmp_path, keys) if ledger == "shared" else keys)
    workspace = write_workspace(tmp_path, a, b)
    validated = warm.run(
        [sys.executable, "-m", "dagster", "definitions", "validate", "-w", str(workspace)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert validated.returncode == 0, validated.stderr
    # Dagster's code servers outlive the context that started them, so use another process.
    (tmp_path / "home").mkdir()
    loaded = subprocess.run(
        [
            *(sys.executable, "-c", LOADS),
            *(str(tmp_path / "home"), str(workspace), str(tmp_path / "told.json")),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert loaded.returncode == 0, loaded.stderr
    told = json.loads((tmp_path / "told.json").read_text())
    found = {name: {*keys} for name, keys in told["found"].items()}
    assert found == {
        name: {f"team_{name}/m/{source}" for source in ("t", "p", "q")} for name in "ab"
    }
    assert told["executable"] == 4
    # The command line uses the same asset keys as Dagster.
    assert {s["asset_key"] for s in document("check", cwd=a)["sources"]} == found["a"]
    steps = document("plan", "team_a/m/q", cwd=a)["steps"]
    assert [step["source_id"] for step in steps] == ["q@sources/m.sql"]
