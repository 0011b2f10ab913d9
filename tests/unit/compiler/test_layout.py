"""Asset keys with one model per file are short and unambiguous, and change no identity."""

from __future__ import annotations

from typing import TYPE_CHECKING

import dagster as dg
import pytest

from persist_assets.compiler.frontends.sql import parse_query
from persist_assets.compiler.load import load, load_project, require
from persist_assets.core.errors import ConflictError, SettingsError, SourcesError
from persist_assets.core.settings.load import load_settings
from persist_assets.planning.selection import find_source, select
from persist_assets.plugin.assets import load_sources

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from persist_assets.core.model.project import Project

    MakeProject = Callable[..., Path]

LAYOUT = 'layout = "model-per-file"\n'
RAW = "CREATE TABLE t (a INT, b INT) USING delta LOCATION 't';\n"
MODELS = {
    "raw.sql": RAW,
    "staging/stg_orders.sql": "--@ persist\nCREATE VIEW stg_orders AS SELECT a, b FROM t;\n"
    "--@ persist\nCREATE VIEW stg_items AS SELECT a FROM stg_orders;\n",
    "staging/python_orders.py": "from persist_assets import table\n"
    "@table\ndef python_orders(stg_orders): return stg_orders\n",
    "marts/history.sql": "--@ persist refresh=snapshot key=a\n"
    "CREATE VIEW history AS SELECT a, b FROM stg_orders;\n",
    "revenue.sql": "--@ persist\nCREATE VIEW Revenue AS SELECT sum(b) AS n FROM stg_orders;\n",
}
MALLOY = {
    "staging/malloy_orders.malloy": "##! experimental.persistence\n#@ persist\n"
    "source: malloy_orders is spark.table('staging.stg_orders.stg_orders') -> { select: a }\n"
}


def loaded(root: Path) -> Project:
    return require(load_project(load_settings(root)))


def keys(project: Project) -> dict[str, str]:
    return {s.name: s.key for s in project.sources}


@pytest.mark.proves("W10")
def test_a_source_with_the_name_of_its_file_has_the_files_path_as_its_key(
    make_project: MakeProject,
) -> None:
    root = make_project({**MODELS, **MALLOY}, LAYOUT)
    project = loaded(root)
    assert keys(project) == {
        "t": "raw/t",
        "stg_orders": "staging/stg_orders",
        "stg_items": "staging/stg_orders/stg_items",
        "python_orders": "staging/python_orders",
        "malloy_orders": "staging/malloy_orders",
        "history": "marts/history",
        "Revenue": "Revenue",
    }
    graph = load_sources(root / "sources").resolve_asset_graph()
    groups = {"/".join(k.path): graph.get(k).group_name for k in graph.executable_asset_keys}
    assert groups == {
        "staging/stg_orders": "staging",
        "staging/stg_orders/stg_items": "staging_stg_orders",
        "staging/python_orders": "staging",
        "staging/malloy_orders": "staging",
        "marts/history": "marts",
        "Revenue": "default",
    }
    parents = graph.get(dg.AssetKey(["marts", "history"])).parent_keys
    assert parents == {dg.AssetKey(["staging", "stg_orders"])}


@pytest.mark.proves("W10")
def test_the_layout_changes_keys_and_nothing_else(make_project: MakeProject) -> None:
    before = loaded(make_project({**MODELS, **MALLOY}))
    after = loaded(make_project({**MODELS, **MALLOY}, LAYOUT))
    assert keys(before)["stg_orders"] == "staging/stg_orders/stg_orders"
    assert keys(before)["Revenue"] == "revenue/Revenue"

    def known(project: Project) -> Mapping[str, object]:
        """Return what identifies sources in ledgers, and what plans compare."""
        return {
            s.source_id: (s.build_id, s.definition, s.table, s.marks, s.malloy_ids)
            for s in project.sources
        }

    assert known(before) == known(after)


@pytest.mark.proves("W10")
@pytest.mark.parametrize(
    ("first", "second", "shared"),
    [
        ("a.sql", "a/b.sql", "a/b"),  # by its file and its name; by its path
        ("a/b.sql", "a/b/b.sql", "a/b/b"),  # by its full key; by its path
    ],
)
def test_two_sources_with_the_same_key_are_an_error(
    make_project: MakeProject, first: str, second: str, shared: str
) -> None:
    view = "CREATE VIEW b AS SELECT a FROM t;\n"
    files = {"raw.sql": RAW, first: view, second: view}
    loaded(make_project(files))
    settings = load_settings(make_project(files, LAYOUT))
    (problem,) = load_project(settings).errors
    assert str(problem.location) == f"sources/{second}:1:13"
    place = f"sources/{first}:1:13"
    assert problem.message == f"the key `{shared}` means both this `b` and `b` at {place}"
    assert problem.hint == "rename one of the sources, or the file or directory of one of them"


@pytest.mark.proves("W10")
@pytest.mark.parametrize("name", ["orders", "orders.orders"])
def test_a_name_that_cannot_be_qualified_can_be_written_as_a_source_id(
    make_project: MakeProject, name: str
) -> None:
    view = "--@ persist\nCREATE VIEW orders AS SELECT a FROM t;\n"
    reader = "--@ persist\nCREATE VIEW r AS SELECT a FROM {};\n"
    files = {"raw.sql": RAW, "orders.sql": view, "sub/orders.sql": view.replace("a F", "b AS a F")}
    root = make_project({**files, "sub/r.sql": reader.format(name)}, LAYOUT)
    (problem,) = load(load_settings(root)).project.errors
    assert problem.hint == "qualify the name, or write `orders@sources/orders.sql`"
    root = make_project(
        {**files, "sub/r.sql": reader.format("`orders@sources/orders.sql`")}, LAYOUT
    )
    project = loaded(root)
    assert project.by_id["r@sources/sub/r.sql"].reads == ("orders@sources/orders.sql",)
    with pytest.raises(ConflictError) as error:
        find_source(project, name)
    assert error.value.hint == "qualify the name, or use orders@sources/orders.sql"
    assert find_source(project, "orders@sources/orders.sql").key == "orders"
    assert find_source(project, "sub/orders").key == "sub/orders"


@pytest.mark.proves("W10")
def test_a_full_key_still_refers_to_its_source(make_project: MakeProject) -> None:
    full = "staging/stg_orders/stg_orders"
    more = "CREATE VIEW reader AS SELECT o.a FROM staging.stg_orders.stg_orders o"
    short = "CREATE VIEW other AS SELECT o.a FROM staging.stg_orders AS o"
    root = make_project({**MODELS, "reader.sql": more, "other.sql": short}, LAYOUT)
    settings = load_settings(root)
    project = loaded(root)
    read = {s.name: s.reads for s in project.sources}
    assert read["reader"] == read["other"] == ("stg_orders@sources/staging/stg_orders.sql",)
    assert len({s.build_id for s in project.sources if s.name in ("reader", "other")}) == 1
    for name in (full, "staging/stg_orders", "stg_orders", "staging.stg_orders"):
        assert find_source(project, name).key == "staging/stg_orders"
    assert len(select(project, ["+staging/stg_orders+"])) == 5
    for ref in (f"{full}/2024-01-01", "staging/stg_orders/2024-01-01"):
        named = project.find_named(ref)
        assert named is not None
        assert (named[0].name, named[1]) == ("stg_orders", "2024-01-01")
    (root / "sources" / "staging" / "stg_orders.sql").write_text("CREATE VIEW stg_orders AS SELEC")
    broken = load(settings)
    assert "staging/stg_orders" in [b.key for b in broken.project.broken]
    with pytest.raises(SourcesError, match="SELEC"):
        broken.bind(parse_query("SELECT a FROM staging.stg_orders.stg_orders"))


@pytest.mark.proves("W10")
def test_raw_table_settings_accept_names_and_short_or_full_keys(make_project: MakeProject) -> None:
    raw = {"in/t.sql": RAW}
    places: set[str | None] = set()
    for name in ("t", "in/t", "in/t/t"):
        root = make_project(raw, f'{LAYOUT}[env.dev.raw]\n"{name}" = "elsewhere"\n')
        (source,) = load_project(load_settings(root)).sources
        assert source.key == "in/t"
        places.add(source.raw.location if source.raw else None)
    assert places == {"elsewhere"}


def test_an_unreadable_file_makes_a_matching_key_ambiguous(
    make_project: MakeProject,
) -> None:
    view = "--@ persist\nCREATE VIEW o AS SELECT a FROM raw.t;\n"
    root = make_project({"raw.sql": RAW, "x/staging/o.sql": view}, LAYOUT)
    assert find_source(load_project(load_settings(root)), "staging/o").key == "x/staging/o"
    (root / "sources" / "staging").mkdir()
    (root / "sources" / "staging" / "o.sql").symlink_to(root / "missing.sql")
    with pytest.raises(ConflictError, match="`staging/o` is ambiguous"):
        find_source(load_project(load_settings(root)), "staging/o")


@pytest.mark.proves("W10")
def test_an_unknown_layout_is_refused(make_project: MakeProject) -> None:
    root = make_project({"raw.sql": RAW}, '\nlayout = "model-per-fil"\n')
    with pytest.raises(SettingsError) as caught:
        load_settings(root)
    assert str(caught.value).startswith("persist.toml:2:1: unknown layout `model-per-fil`")
    assert caught.value.hint == "did you mean `model-per-file`?"
