"""Names that differ only in spelling are rejected, or stay distinct everywhere."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import dagster as dg
import pytest
from conftest import compiled

from persist_assets import load_sources
from persist_assets.compiler.load import load_project
from persist_assets.core.errors import SettingsError
from persist_assets.core.settings.load import load_settings
from persist_assets.plugin.assets import op_name

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from persist_assets.core.model.sources import Source

T = "CREATE TABLE t (a BIGINT) USING parquet LOCATION 'raw/t';\n"


def view(name: str, query: str = "SELECT a FROM t") -> str:
    return f"--@ persist\nCREATE VIEW {name} AS {query};\n"


def problems(files: dict[str, str]) -> list[str]:
    return [str(p).partition("\n")[0] for p in compiled({"t.sql": T, **files}).problems]


@pytest.mark.parametrize(
    ("files", "says"),
    [
        (
            {"m.sql": view("p") + view("P")},
            "sources/m.sql:4:13: error: `P` is already defined at sources/m.sql:2:13",
        ),
        (
            {"M.sql": view("p"), "m.sql": view("P")},
            "sources/m.sql:2:13: error: `P` is already defined at sources/M.sql:2:13",
        ),
        (  # one é is a single character, the other an e and an accent
            {"m.sql": view("caf\u00e9") + view("`cafe\u0301`")},
            "sources/m.sql:4:13: error: invalid source name `cafe\u0301`",
        ),
        (
            {"caf\u00e9.sql": view("p"), "cafe\u0301.sql": view("p")},
            "sources/caf\u00e9.sql:2:13: error: `p` is already defined at sources/cafe\u0301.sql:2:13",
        ),
        (
            {
                "a.sql": view("p").replace("persist", "persist name=x"),
                "b.sql": view("q", "SELECT 2 AS a FROM t").replace("persist", "persist name=X"),
            },
            "sources/b.sql:1:13: error: the table name `x` is already taken by `a/p` "
            "at sources/a.sql:2:13",
        ),
        ({"m.sql": view("`a/b`")}, "invalid source name `a/b`"),
        ({"m.sql": view("`..`")}, "invalid source name `..`"),
    ],
)
def test_names_that_could_collide_in_storage_are_rejected_with_locations(
    files: dict[str, str], says: str
) -> None:
    (problem,) = problems(files)
    assert says in problem


ALIKE = {
    "a_.sql": view("b", "SELECT a + 1 AS a FROM t"),
    "a.sql": view("_b", "SELECT a + 2 AS a FROM t"),
    "a-b/c.sql": view("p", "SELECT a + 3 AS a FROM t"),
    "a_b/c.sql": view("p", "SELECT a + 4 AS a FROM t"),
    "a b/c.sql": view("p", "SELECT a + 5 AS a FROM t"),
    "ä/c.sql": view("p", "SELECT a + 6 AS a FROM t"),
    "ö/c.sql": view("p", "SELECT a + 7 AS a FROM t"),
    "x/y.sql": view("z__z", "SELECT a + 8 AS a FROM t"),
    "x/y/z.sql": view("z", "SELECT a + 9 AS a FROM t"),
}


def test_similar_names_stay_distinct_after_cleaning(make_project: Callable[..., Path]) -> None:
    root = make_project({"t.sql": T, **ALIKE})
    loaded = load_sources(root / "sources")
    graph = loaded.resolve_asset_graph()
    persisted = load_project(load_settings(root)).persisted
    assert graph.executable_asset_keys == {dg.AssetKey(s.asset_key) for s in persisted}
    assert len({op_name(s) for s in persisted}) == len(ALIKE)
    assert len({s.table.lower() for s in persisted}) == len(ALIKE)
    # Dagster accepts the names of ops and groups.
    job = loaded.resolve_implicit_global_asset_job_def()
    assert {n.name for n in job.nodes} == {op_name(s) for s in persisted}
    assert {s.group for s in persisted} == {"a_", "a", "a_b_c", "__c", "x_y", "x_y_z"}


def keyed(*parts: str) -> Source:
    (made,) = compiled({"m.sql": "CREATE VIEW v AS SELECT 1 AS a"}).sources
    return replace(made, asset_key=parts)


def test_cleaned_op_names_never_collide_with_plain_ones() -> None:
    assert op_name(keyed("daily", "daily_delays")) == "daily__daily_delays"
    others = [("a_", "b"), ("a", "_b"), ("a__b",), ("a-b",), ("a", "b_"), ("_", "a"), ("ä",)]
    names = [op_name(keyed(*parts)) for parts in others]
    assert all("___" in name and name.isascii() for name in names)
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", ["Prod", "PROD", "prüfung", "a/b", "..", "-x", "1st", "x" * 65])
def test_invalid_environment_names_are_rejected(
    make_project: Callable[..., Path], name: str
) -> None:
    root = make_project({"t.sql": T})
    with pytest.raises(SettingsError, match="invalid environment name"):
        load_settings(root, environment=name)
    (root / "persist.toml").write_text(f'[env."{name}"]\n')
    with pytest.raises(SettingsError, match="invalid environment name"):
        load_settings(root)


def test_environments_with_dashes_and_underscores_have_files_of_their_own(
    make_project: Callable[..., Path],
) -> None:
    root = make_project({"t.sql": T}, "[env.prod-eu]\n[env.prod_eu]\n")
    paths = [load_settings(root, environment=n).manifest_path for n in ("prod-eu", "prod_eu")]
    assert [p.name for p in paths] == ["prod-eu.json", "prod_eu.json"]


def test_a_key_prefix_applies_to_all_asset_keys(make_project: Callable[..., Path]) -> None:
    root = make_project(
        {"t.sql": T, "m.sql": view("p") + view("q", "SELECT a + 1 AS b FROM p")},
        'key_prefix = "lake/team_a"\n',
    )
    project = load_project(load_settings(root))
    assert [s.key for s in project.sources] == [
        "lake/team_a/t/t",
        "lake/team_a/m/p",
        "lake/team_a/m/q",
    ]
    graph = load_sources(root / "sources").resolve_asset_graph()
    p, q = (dg.AssetKey(["lake", "team_a", "m", n]) for n in ("p", "q"))
    assert graph.executable_asset_keys == {p, q}
    assert graph.get(q).parent_keys == {p}
    # The prefix changes no BuildID.
    toml = (root / "persist.toml").read_text()
    (root / "persist.toml").write_text(toml.partition("\n")[2])
    bare = load_project(load_settings(root))
    assert [(s.source_id, s.build_id) for s in bare.sources if s.persisted] == [
        (s.source_id, s.build_id) for s in project.sources if s.persisted
    ]


@pytest.mark.parametrize("prefix", ["a//b", "/a", "a/", "a-b", "ä", "a b"])
def test_an_invalid_key_prefix_is_rejected(make_project: Callable[..., Path], prefix: str) -> None:
    root = make_project({"t.sql": T}, f'key_prefix = "{prefix}"\n')
    with pytest.raises(SettingsError, match="is not a valid asset key prefix"):
        load_settings(root)
