"""Malloy sources mean the same to readers in Malloy, to those in other languages, and cached."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from conftest import need
from malloy import there

from persist_assets.compiler.load import load_project, require
from persist_assets.core.model.project import Project
from persist_assets.core.settings.load import load_settings

if TYPE_CHECKING:
    from pathlib import Path

FLAG = "##! experimental { persistence givens composite_sources access_modifiers }\n"
RAW = """
CREATE TABLE flights (id BIGINT, carrier STRING, origin STRING, distance DOUBLE)
    USING parquet LOCATION 'raw/flights';
CREATE TABLE planes (carrier STRING, plane STRING) USING parquet LOCATION 'raw/planes';
"""

Load = Callable[..., Project]


@pytest.fixture
def load(make_project: Callable[..., Path]) -> Load:
    """Return a function that loads a project of some files; names may point outside `sources`."""
    need(there(), "bundle Malloy's compiler: make bridge")

    def made(files: dict[str, str], settings: str = "") -> Project:
        root = make_project({"raw.sql": RAW}, settings)
        for path in ("sources", "lib"):
            shutil.rmtree(root / path, ignore_errors=True)
        for name, text in {"raw.sql": RAW, **files}.items():
            path = root / "sources" / name
            path.resolve().parent.mkdir(parents=True, exist_ok=True)
            path.resolve().write_text(text)
        return load_project(load_settings(root, environ={}))

    return made


def by_name(project: Project) -> dict[str, Any]:
    require(project)
    return {s.name: s for s in project.sources}


# -------------------------------------------------------------------------------------- givens

ABOVE = "#@ persist\nsource: {} is spark.table('flights') -> {{ group_by: carrier; where: distance > {} }}\n"
LEVELS = """
given: LOW :: number is 1
given: HIGH :: number is 1
"""


@pytest.mark.parametrize(
    ("way", "other"),
    [("here", "$LOW"), ("here", "1"), ("imported", "$LOW"), ("composed", "1"), ("joined", "1")],
)
def test_sources_that_differ_only_in_the_values_of_givens_are_distinguished(
    load: Load, way: str, other: str
) -> None:
    """Malloy's compiler looks both up by the same BuildID, which does not include the values."""
    far, low = ABOVE.format("far", "$HIGH"), ABOVE.format("low", other)
    lib = f"""{FLAG}{LEVELS}{low}
    source: composed is compose(low, low extend {{ dimension: k is 1 }})
    source: joined is spark.table('flights') extend {{
      join_one: low is low extend {{ where: carrier = 'AA' }} on carrier = low.carrier }}
    """
    name = "low" if way in ("here", "imported") else way
    files = {"lib.malloy": lib}
    model = f"{FLAG}{LEVELS}{far}"
    if way == "here":
        files, model = {}, model + low
    else:
        model = model.replace(LEVELS, LEVELS.replace("given: LOW :: number is 1", ""))
        model += f'import {{ {name} }} from "lib.malloy"\n'
    what = "low.carrier" if way == "joined" else "carrier"
    reader = f"source: reader is {name} -> {{ group_by: {what} }}\nsource: apart is far -> {{ group_by: carrier }}\n"
    given = "[malloy.givens]\nHIGH = 7\n"
    found = by_name(load({**files, "m.malloy": model + reader}, given))
    again = model.replace("far", "again").replace("$HIGH", "9") + reader.replace("far", "again")
    alone = by_name(load({**files, "m.malloy": again}, given))
    assert "far@sources/m.malloy" not in found["reader"].reads
    assert found["reader"].build_id == alone["reader"].build_id
    assert found["apart"].build_id != found["reader"].build_id
    assert alone["apart"].reads == ("again@sources/m.malloy",), "what is told apart is a table"


def test_a_given_may_get_its_only_value_from_the_settings(load: Load) -> None:
    model = f"{FLAG}given: LEAST :: number\n" + ABOVE.format("far", "$LEAST").replace(
        "#@ persist\n", ""
    )
    found = by_name(load({"m.malloy": model}, "[malloy.givens]\nLEAST = 7\n"))
    assert ">7" in found["far"].query.text


def test_a_given_value_of_the_wrong_type_is_an_error_of_the_sources_that_use_it(load: Load) -> None:
    model = FLAG + LEVELS + ABOVE.format("far", "$HIGH")
    project = load({"m.malloy": model}, "[malloy.givens]\nHIGH = 'seven'\n")
    assert {(p.location.path, p.code) for p in project.errors} == {
        ("sources/m.malloy", "runtime-given-bad-value")
    }
    assert all("HIGH" in p.message for p in project.errors)


def test_a_reader_of_a_composite_source_reads_the_table_of_its_input(load: Load) -> None:
    low = ABOVE.format("low", "1")
    lib = f"{FLAG}{low}source: both is compose(low, low extend {{ dimension: k is 1 }})\n"
    reader = f'{FLAG}import {{ both }} from "lib.malloy"\nsource: r is both -> {{ group_by: k }}\n'
    found = by_name(load({"lib.malloy": lib, "r.malloy": reader}))
    assert found["r"].reads == ("low@sources/lib.malloy",)


# --------------------------------------------------------------------------------------- names

COUNTED = """
{}source: counted is spark.table('flights') -> {{ group_by: carrier; aggregate: n is count() }}
"""
ANEW = {
    "renamed": "extend { rename: old_n is n  dimension: n is old_n * 2 }",
    "excepted": "extend { except: n  dimension: n is 1 }",
    "swapped": "extend { rename: old_n is n, n is carrier }",
}


@pytest.mark.parametrize("how", ANEW)
def test_a_source_that_redefines_a_column_name_is_visible_only_in_malloy(
    load: Load, how: str
) -> None:
    model = FLAG + COUNTED.format("") + f"source: anew is counted {ANEW[how]}\n"
    model += "source: reader is anew -> { group_by: n }\n"
    found = by_name(load({"m.malloy": model}))
    assert "anew" not in found, "its SQL still has the old column"
    assert {"counted", "reader"} <= found.keys()
    (problem,) = load({"m.malloy": model, "x.sql": "CREATE VIEW x AS SELECT n FROM anew;"}).errors
    assert (problem.code, problem.location.path) == ("unknown-name", "sources/x.sql")
    kept = model.replace("source: counted", "#@ persist\nsource: counted")
    (problem,) = load({"m.malloy": kept}).errors
    assert (problem.code, problem.location.line) == ("malloy-persist", 5)
    assert "`n`" in problem.message
    apart = kept.replace("source: anew", "#@ -persist\nsource: anew")
    assert {"counted", "reader"} <= by_name(load({"m.malloy": apart})).keys()


def test_additional_names_do_not_change_the_build_id(load: Load) -> None:
    more = "extend { dimension: twice is n * 2  measure: all_n is n.sum()  rename: c is carrier }"
    model = FLAG + COUNTED.format("#@ persist\n") + f"source: more is counted {more}\n"
    found = by_name(load({"m.malloy": model}))
    assert found["more"].build_id == found["counted"].build_id


@pytest.mark.parametrize(
    "way", ["spark.table('__stage0')", 'spark.sql("""SELECT * FROM __STAGE0""")']
)
def test_a_source_named_like_a_common_table_expression_of_malloy_is_rejected(
    load: Load, way: str
) -> None:
    """In Malloy's SQL, that name refers to a common table expression with other rows."""
    view = "CREATE VIEW __stage0 AS SELECT carrier FROM planes;"
    model = f"""{FLAG}
    source: some is spark.table('flights') -> {{ group_by: carrier }}
    source: wrong is some extend {{ join_many: s is {way} on carrier != s.carrier }} -> {{ group_by: s.carrier }}
    """
    project = load({"v.sql": view, "m.malloy": model})
    assert any("rename that source" in p.message for p in project.errors)
    assert "wrong" not in {s.name for s in project.sources}


def test_an_invalid_select_reports_the_unknown_column(load: Load) -> None:
    ask = 'source: s is spark.sql("""SELECT nope AS k FROM flights""") -> { group_by: k }\n'
    (problem,) = load({"m.malloy": FLAG + ask}).errors
    assert "`nope`" in problem.message


# ----------------------------------------------------------------------------------------- cache

LIBRARY = '''
source: used is spark.table('flights') extend { measure: n is count() }
source: unused is spark.table('seen') -> { group_by: plane }
source: unused_too is spark.sql("""SELECT plane AS p FROM seen""") extend {}
'''
SEEN = "CREATE VIEW seen AS SELECT carrier, plane FROM planes;"


@pytest.mark.slow
@pytest.mark.parametrize("exported", ["", "export { used }\n"])
def test_a_cached_result_is_not_used_once_an_imported_file_has_errors(
    load: Load, exported: str
) -> None:
    reader = (
        f'{FLAG}import "../lib/b.malloy"\n#@ persist\nsource: x is through -> {{ aggregate: n }}\n'
    )
    files = {
        "../lib/a.malloy": LIBRARY + exported,
        "../lib/b.malloy": 'import "a.malloy"\nsource: through is used extend {}\n',
        "x.malloy": reader,
        "seen.sql": SEEN,
    }
    assert "x" in by_name(load(files))
    files["seen.sql"] = SEEN.replace(", plane", "")
    warm = load(files)
    cold = load(files, "[malloy.givens]\nOTHER = 1\n")
    assert warm.errors == cold.errors
    assert "plane" in " ".join(p.message for p in warm.errors)
