"""Malloy files in a project: declarations, references across languages, rejected models."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import has_taken, need
from malloy import there

import persist_assets.compiler.malloy.bridge
import persist_assets.compiler.malloy.project
from persist_assets.compiler.load import load as load_whole
from persist_assets.compiler.load import load_project, require
from persist_assets.compiler.malloy.bridge import Session
from persist_assets.core.errors import SettingsError, SourcesError
from persist_assets.core.model.project import Project
from persist_assets.core.settings.load import load_settings
from persist_assets.operations.revisions import find_commit, load_revision

FLAG = "##! experimental.persistence\n"
RAW = (
    "CREATE TABLE flights (id BIGINT, carrier STRING, origin STRING, distance DOUBLE) "
    "USING parquet LOCATION 'raw/flights';\n"
)
BASE = f"""{FLAG}
source: flights is spark.table('flights') extend {{ measure: n is count() }}
#" How many flights a carrier has.
#@ persist
source: by_carrier is flights -> {{ group_by: carrier; aggregate: n, far is distance.max() }}
"""

Make = Callable[..., Project]


@pytest.fixture
def load(make_project: Callable[..., Path]) -> Make:
    """Return a function that loads a project of files, with a raw table `flights`."""
    need(there(), "bundle Malloy's compiler: make bridge")

    def made(files: dict[str, str], settings: str = "", environment: str = "dev") -> Project:
        shutil.rmtree(make_project({}) / "sources")
        root = make_project({"raw.sql": RAW, **files}, settings)
        return load_project(load_settings(root, environment=environment, environ={}))

    return made


def by_name(project: Project) -> dict[str, Any]:
    require(project)
    return {s.name: s for s in project.sources}


def problems_of(project: Project) -> list[str]:
    return [f"{p.location}: {p.severity}: {p.message} [{p.code}]" for p in project.problems]


# --------------------------------------------------------------------------- across languages


def test_sources_in_different_languages_can_read_each_other(load: Make) -> None:
    project = load(
        {
            "base.malloy": BASE,
            "middle.sql": "--@ persist\nCREATE VIEW big AS SELECT carrier, n FROM by_carrier WHERE n > 1;",
            "last.malloy": f"""{FLAG}
            #@ persist
            source: total is spark.table('middle.big') -> {{ aggregate: all_n is n.sum() }}
            """,
            "report.sql": "CREATE VIEW report AS SELECT all_n + 1 AS x FROM total;",
        }
    )
    found = by_name(project)
    assert {name: (s.key, s.language, s.persisted, s.reads) for name, s in found.items()} == {
        "flights": ("raw/flights", "sql", False, ()),
        "by_carrier": ("base/by_carrier", "malloy", True, ("flights@sources/raw.sql",)),
        "big": ("middle/big", "sql", True, ("by_carrier@sources/base.malloy",)),
        "total": ("last/total", "malloy", True, ("big@sources/middle.sql",)),
        "report": ("report/report", "sql", False, ("total@sources/last.malloy",)),
    }
    assert found["by_carrier"].description == "How many flights a carrier has."
    assert [(c.name, c.type) for c in found["by_carrier"].columns] == [
        ("carrier", "string"), ("n", "bigint"), ("far", "double"),
    ]  # fmt: skip
    edges = {(str(e.upstream.column), e.column) for e in found["by_carrier"].lineage}
    assert ("distance", "far") in edges


@pytest.mark.proves("M7")
def test_source_ids_depend_on_name_and_path_but_build_ids_on_meaning(
    load: Make, make_project: Callable[..., Path], tmp_path: Path
) -> None:
    again = BASE.replace("by_carrier", "twin")
    before = by_name(load({"base.malloy": BASE, "other.malloy": again}))
    assert before["by_carrier"].source_id == "by_carrier@sources/base.malloy"
    assert before["twin"].build_id == before["by_carrier"].build_id
    assert before["twin"].malloy_ids == before["by_carrier"].malloy_ids
    moved = shutil.move(tmp_path / "project", tmp_path / "elsewhere")
    after = by_name(load_project(load_settings(Path(moved), environ={})))
    assert {s.source_id: s.build_id for s in after.values()} == {
        s.source_id: s.build_id for s in before.values()
    }


def test_the_build_id_of_a_malloy_source_depends_on_the_columns_it_reads(load: Make) -> None:
    """The text of the model and Malloy's own BuildID do not change."""
    reader = f"""{FLAG}
    #@ persist
    source: reader is spark.table('seen') -> {{ aggregate: far is distance.max() }}
    """
    found = [
        by_name(load({"seen.sql": f"CREATE VIEW seen AS SELECT {what} FROM flights;", "r.malloy": reader}))["reader"]
        for what in (
            "carrier, distance",
            "upper(carrier) AS carrier, distance",  # a column it does not read
            "carrier, distance + 1 AS distance",
        )
    ]  # fmt: skip
    first, unused, used = found
    assert first.malloy_ids[0] == unused.malloy_ids[0] == used.malloy_ids[0]
    assert first.build_id == unused.build_id != used.build_id


def test_an_added_column_does_not_rebuild_downstream_sources(load: Make) -> None:
    reader = "#@ persist\nsource: top is by_carrier -> { group_by: carrier; where: n > 5 }\n"
    before = by_name(load({"base.malloy": BASE + reader}))
    more = BASE.replace("distance.max()", "distance.max(), near is distance.min()")
    after = by_name(load({"base.malloy": more + reader}))
    assert before["by_carrier"].build_id != after["by_carrier"].build_id
    assert before["top"].build_id == after["top"].build_id
    assert before["top"].malloy_ids != after["top"].malloy_ids, "as Malloy's own builder has it"


def test_a_malloy_source_can_read_a_table_of_the_same_name(load: Make) -> None:
    """Models often name their sources like the tables that these read."""
    text = f"""{FLAG}
    #@ persist
    source: daily is spark.table('daily') -> {{ group_by: carrier }}
    """
    project = load({"daily.sql": "CREATE VIEW daily AS SELECT * FROM flights;", "m.malloy": text})
    assert not project.problems
    reads = {s.key: s.reads for s in project.sources}
    assert reads["m/daily"] == ("daily@sources/daily.sql",)
    both = load(
        {
            "daily.sql": "CREATE VIEW daily AS SELECT * FROM flights;",
            "m.malloy": text,
            "x.sql": "CREATE VIEW x AS SELECT * FROM daily;",
        }
    )
    assert problems_of(both) == [
        "sources/x.sql:1:32: error: `daily` is ambiguous: daily.daily, m.daily [ambiguous-name]"
    ]


def test_quoted_and_non_ascii_names_are_supported_or_reported(load: Make) -> None:
    text = f"""{FLAG}
    #@ persist
    source: größe is spark.table('flights') -> {{ group_by: `der carrier` is carrier; aggregate: n is count() }}
    source: `in two words` is spark.table('flights') -> {{ group_by: carrier }}
    #@ persist
    source: weiter is größe -> {{ aggregate: m is n.max() }}
    """
    project = load({"straße.malloy": text, "x.sql": "CREATE VIEW x AS SELECT n FROM größe;"})
    assert problems_of(project) == [
        "sources/straße.malloy:4:13: error: `der carrier` is not a valid column name for a table [column-name]"
    ]
    project = load({"straße.malloy": text.replace("`der carrier`", "träger")})
    found = by_name(project)
    assert found["weiter"].reads == ("größe@sources/straße.malloy",)
    assert "in two words" not in found, "nobody can name it outside of Malloy"
    wrong = load({"straße.malloy": text.replace("source: `in", "#@ persist\nsource: `in")})
    assert [p.code for p in wrong.errors] == ["column-name", "malloy-persist"]


# ------------------------------------------------------------------------------- annotations


@pytest.mark.proves("M4")
@pytest.mark.parametrize(
    "line",
    [
        "persist",
        "persist name=lake.daily",
        "persist materialized=temporary",
        "persist materialized=view check { not_null=[carrier] unique=[carrier] }",
        'persist owner="team:flights" group=g tags=[nightly] tags.tier=gold',
        'persist freshness.window="24h" freshness.warn="12h" freshness.fallback=live',
        "persist time_column=carrier",
        'persist check { accepted_values { carrier=[AA, UA] } expr.some="n > 0" severity=warn }',
        'persist columns { carrier=string n="bigint not null" } on_schema_change=append',
        "persist columns { carrier=int `*` }",
        'persist check { range { n.min=1 } relationship { carrier="flights.carrier" } }',
        "persist check { row_count.min=1 severity=warn }",
        'persist check { relationship { carrier="flight.carrier" } function=plausible }',
        "-persist",
        "group=g",
        *(f"persist watermark=carrier refresh={r}" for r in ("auto", "incremental", "strict")),
        *(f"persist refresh={r}" for r in ("whole", "full", "strikt", "strict", "snapshot")),
        "persist nme=x",
        'persist freshness.window="soon"',
        "group=g materialized=view",
    ],
)
def test_annotations_mean_the_same_in_malloy_and_sql(load: Make, line: str) -> None:
    sql = f"--@ {line}\nCREATE VIEW s AS SELECT carrier, count(*) AS n FROM flights GROUP BY 1;"
    malloy = f"""{FLAG}
    #@ {line}
    source: m is spark.table('flights') -> {{ group_by: carrier; aggregate: n is count() }}
    """
    project = load({"s.sql": sql, "m.malloy": malloy})
    told: dict[str, list[tuple[str, str, str | None]]] = {"sql": [], "malloy": []}
    for p in project.problems:
        column = p.location.column - (4 if p.location.path.endswith("sql") else 7)
        message = p.message.replace("`m`", "`s`")
        told[p.location.path.rpartition(".")[2]].append((p.code, f"{column} {message}", p.hint))
    assert told["malloy"] == told["sql"]
    found = {s.name: s for s in project.sources}
    if not project.errors:
        assert found["m"].annotation == found["s"].annotation
        assert (found["m"].persisted, found["m"].temporary) == (
            found["s"].persisted, found["s"].temporary,
        )  # fmt: skip


@pytest.mark.proves("M16")
def test_an_extending_source_inherits_persist_and_can_remove_it(load: Make) -> None:
    more = """
    source: longer is by_carrier extend { dimension: twice is n * 2 }
    #@ -persist
    source: apart is by_carrier extend { dimension: twice is n * 2 }
    #@ name=other
    source: renamed is by_carrier extend {}
    """
    found = by_name(load({"base.malloy": BASE + more.replace("#@ name=other\n", "")}))
    assert {n: s.persisted for n, s in found.items() if s.language == "malloy"} == {
        "by_carrier": True, "longer": True, "apart": False, "renamed": True,
    }  # fmt: skip
    assert found["longer"].build_id == found["by_carrier"].build_id
    two = load({"base.malloy": BASE.replace("#@ persist", "#@ persist name=one") + more})
    assert [p.code for p in two.errors] == ["table-name"]
    assert "shares its table" in two.errors[0].message


@pytest.mark.proves("M1")
def test_persist_without_the_experimental_flag_is_an_error(load: Make) -> None:
    text = BASE.replace(FLAG, "\n")
    project = load({"base.malloy": text, "x.sql": "CREATE VIEW x AS SELECT n FROM by_carrier;"})
    (problem,) = project.problems
    assert (problem.code, str(problem.location)) == ("malloy-persist", "sources/base.malloy:5:4")
    assert problem.hint == "begin it with ##! experimental.persistence"
    reader = 'import "base.malloy"\n#@ persist\nsource: x is by_carrier -> { group_by: carrier }\n'
    found = by_name(load({"base.malloy": BASE, "reader.malloy": reader}))
    assert found["x"].reads == ("by_carrier@sources/base.malloy",), "what it imports says so"


REFUSED = {
    "a table": "source: x is spark.table('flights')",
    "a table, extended": "source: x is flights extend { where: distance > 1 }",
    "compose": "source: x is compose(by_carrier, flights)",
    "parameters": "source: x(p::number is 1) is flights -> { group_by: carrier }",
    "a query": "query: x is flights -> { group_by: carrier }",
    "a filter": "source: x is by_carrier extend { where: n > 1 }",
    "not a name": "source: `a b` is flights -> { group_by: carrier }",
}


@pytest.mark.proves("M3")
@pytest.mark.parametrize("what", REFUSED)
def test_sources_that_malloy_cannot_persist_are_errors(load: Make, what: str) -> None:
    flag = "##! experimental { persistence parameters composite_sources }\n"
    text = BASE.replace(FLAG, flag) + "#@ persist\n" + REFUSED[what] + "\n"
    project = load({"base.malloy": text, "fine.malloy": BASE.replace("by_carrier", "fine")})
    (problem,) = project.errors
    assert problem.code in ("malloy-persist", "parameterized-source-persist")
    assert problem.location.path == "sources/base.malloy"
    # At the annotation or the source that inherits it; annotations of queries do not count.
    assert problem.location.line == 7 + (what == "a query"), str(problem)
    assert problem.hint
    assert {s.name for s in project.sources} >= {"by_carrier", "fine"}


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("#@ persist name=a.b", "annotation-syntax"),
        ("#@ persist name='a b'", "annotation-value"),
        ("#@persist", "malformed-route"),
        ("# persist", "annotation-almost"),
        ("#@ persist -persist persist", "annotation-value"),
    ],
)
def test_malformed_annotations_are_reported_at_their_line(load: Make, line: str, code: str) -> None:
    project = load({"base.malloy": BASE.replace("#@ persist", line)})
    assert [p.code for p in project.problems] == [code], problems_of(project)
    assert project.problems[0].location.line == 5, problems_of(project)


def test_conflicting_table_names_are_errors(load: Make) -> None:
    one = "#@ persist name=same\nsource: a is flights -> { group_by: carrier }\n"
    two = "#@ persist name=same\nsource: b is flights -> { group_by: origin }\n"
    project = load({"base.malloy": BASE + one + two})
    assert [p.code for p in project.errors] == ["table-name"]
    twin = one.replace("=same", "=other").replace("source: a", "source: c")
    project = load({"base.malloy": BASE + one + twin})
    assert [p.code for p in project.errors] == ["table-name"]


# -------------------------------------------------------------------------------- broken files


@pytest.mark.proves("M17")
def test_broken_files_do_not_affect_other_files(load: Make) -> None:
    files = {f"f{i}.malloy": BASE.replace("by_carrier", f"s{i}") for i in range(20)}
    files["f7.malloy"] = files["f7.malloy"].replace("distance.max()", "nowhere.max()")
    files["f8.malloy"] = files["f8.malloy"].replace("group_by:", "group by:")
    files["x.sql"] = "CREATE VIEW x AS SELECT s7.n FROM s7 JOIN s9 USING (carrier);"
    files["y.sql"] = "CREATE VIEW y AS SELECT n FROM s9;"
    project = load(files)
    assert problems_of(project) == [
        "sources/f7.malloy:6:58: error: 'nowhere' is not defined [field-not-found]",
        "sources/f8.malloy:6:29: error: extraneous input 'group' expecting {'}' } [syntax-error]",
    ] or [p.location.path for p in project.problems] == ["sources/f7.malloy", "sources/f8.malloy"]
    assert {s.name for s in project.sources} == {
        "flights", "y", *(f"s{i}" for i in range(20) if i not in (7, 8)),
    }  # fmt: skip


def test_import_cycles_and_imports_from_outside_the_project_are_errors(load: Make) -> None:
    project = load(
        {
            "a.malloy": 'import "b.malloy"\nsource: a is b extend {}',
            "b.malloy": 'import "a.malloy"\nsource: b is a extend {}',
            "c.malloy": 'import "../../c.malloy"\n',
            "d.malloy": 'import "missing.malloy"\n',
            "fine.malloy": BASE,
        }
    )
    codes = {p.location.path.removeprefix("sources/"): p.code for p in project.errors}
    assert codes["a.malloy"] == codes.get("b.malloy", "import-cycle") == "import-cycle"
    assert codes["c.malloy"] == "import-outside"
    assert codes["d.malloy"] == "import-error"
    assert "by_carrier" in {s.name for s in project.sources}


def test_cyclic_reads_between_files_are_errors(load: Make) -> None:
    def reads(name: str, table: str) -> str:
        return f"{FLAG}#@ persist\nsource: {name} is spark.table('{table}') -> {{ group_by: carrier }}\n"

    project = load(
        {
            "a.malloy": reads("a", "middle"),
            "b.malloy": reads("b", "a"),
            "m.sql": "CREATE VIEW middle AS SELECT carrier FROM b;",
        }
    )
    assert {p.location.path for p in project.errors} == {"sources/a.malloy", "sources/b.malloy"}
    assert not any(s.name in ("a", "b", "middle") for s in project.sources)
    own = load({"a.malloy": reads("a", "a")})
    assert [p.location.path for p in own.errors] == ["sources/a.malloy"]


@pytest.mark.slow
def test_unknown_tables_and_columns_of_uncertain_type_are_reported(load: Make) -> None:
    text = f"{FLAG}source: s is spark.table('flihgts') -> {{ group_by: carrier }}\n"
    (problem,) = load({"a.malloy": text}).errors
    assert "did you mean `flights`" in problem.message
    assert problem.location.line == 2
    unsure = "CREATE VIEW odd AS SELECT aes_encrypt(carrier, 'k') AS secret, carrier FROM flights;"
    odd = text.replace("flihgts", "odd")
    require(load({"o.sql": unsure, "a.malloy": odd}))
    (problem,) = load(
        {"o.sql": unsure, "a.malloy": odd.replace("by: carrier", "by: x is secret + 1")}
    ).errors
    assert problem.location.line == 2
    wrong = f'{FLAG}source: s is spark.sql("""SELECT carier FROM flights""") extend {{}}\n'
    (problem,) = load({"a.malloy": wrong}).errors
    assert "`carier`" in problem.message
    assert problem.location.path == "sources/a.malloy"


def test_files_outside_the_sources_can_be_imported_but_not_persisted(
    load: Make, make_project: Callable[..., Path]
) -> None:
    root = make_project({"raw.sql": RAW})
    (root / "lib").mkdir()
    (root / "lib" / "common.malloy").write_text(
        FLAG + "source: base is spark.table('flights') extend { measure: n is count() }\n"
        "#@ persist\nsource: kept is base -> { group_by: carrier }\n"
    )
    reader = f'{FLAG}import "../lib/common.malloy"\n#@ persist\nsource: x is base -> {{ aggregate: n }}\n'
    (root / "sources" / "x.malloy").write_text(reader)
    project = load_project(load_settings(root, environ={}))
    assert not project.problems, problems_of(project)
    (root / "sources" / "x.malloy").write_text(
        reader.replace("base ->", "kept ->").replace("n }", "n is count() }")
    )
    (problem,) = load_project(load_settings(root, environ={})).errors
    assert "kept@lib/common.malloy" in problem.message
    assert problem.hint == "move lib/common.malloy into the sources directory"


# --------------------------------------------------------------- values, virtual sources, time


@pytest.mark.slow
def test_givens_and_virtual_sources_have_the_values_of_their_environment(
    make_project: Callable[..., Path],
) -> None:
    need(there(), "bundle Malloy's compiler: make bridge")
    text = """##! experimental { persistence givens virtual_source }
    given: LOWEST :: number is 1
    given: MISSING :: string
    type: shape is { carrier :: string, distance :: number }
    source: v is spark.virtual('some_flights')::shape
    #@ persist
    source: by_given is spark.table('flights') -> { group_by: carrier; where: distance > $LOWEST }
    #@ persist
    source: by_virtual is v -> { group_by: carrier }
    #@ persist
    source: plain is spark.table('flights') -> { group_by: carrier }
    """
    wanting = "\nsource: wanting is spark.table('flights') -> { group_by: carrier; where: carrier = $MISSING }\n"
    settings = """
[malloy.virtual]
some_flights = "flights"
[env.prod.malloy.givens]
LOWEST = 7
[env.dev.malloy.virtual]
some_flights = "fewer"
[env.test]
"""
    fewer = "CREATE VIEW fewer AS SELECT * FROM flights WHERE distance > 3;"
    root = make_project({"raw.sql": RAW, "fewer.sql": fewer, "g.malloy": text}, settings)
    found = {
        name: by_name(load_project(load_settings(root, environment=name, environ={})))
        for name in ("prod", "dev", "test")
    }
    ids = {k: {n: s.build_id for n, s in v.items()} for k, v in found.items()}
    assert ids["dev"]["plain"] == ids["prod"]["plain"] == ids["test"]["plain"]
    assert ids["dev"]["by_given"] == ids["test"]["by_given"] != ids["prod"]["by_given"]
    assert ids["prod"]["by_virtual"] == ids["test"]["by_virtual"] != ids["dev"]["by_virtual"]
    assert found["prod"]["by_given"].malloy_ids == ()
    (root / "sources" / "g.malloy").write_text(text + wanting)
    project = load_project(load_settings(root, environment="test", environ={}))
    assert [p.location.line for p in project.errors] == [13]
    assert "MISSING" in project.errors[0].message
    assert "by_given" in {s.name for s in project.sources}, "an error of that source alone"


def test_malloy_requires_a_session_in_utc(load: Make) -> None:
    """In a session with another time zone, its SQL would shift times twice."""
    files = {"base.malloy": BASE, "x.sql": "CREATE VIEW x AS SELECT n FROM by_carrier;"}
    (problem,) = load(files, 'timezone = "Europe/Berlin"\n').problems
    assert (problem.code, problem.location.path) == ("malloy-timezone", "sources/base.malloy")
    require(load(files, 'timezone = "Etc/UTC"\n'))


def test_cached_models_need_no_compiler_until_they_change(
    load: Make, make_project: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[object] = []

    class Counted(Session):
        def __init__(self, *arguments: Any, **more: Any) -> None:
            started.append(arguments)
            super().__init__(*arguments, **more)

    monkeypatch.setattr(persist_assets.compiler.malloy.project, "Session", Counted)
    files = {
        "lib/shapes.malloy": "source: shapes is spark.table('seen') extend { measure: n is count() }",
        "seen.sql": "CREATE VIEW seen AS SELECT carrier, distance FROM flights;",
        "m.malloy": f"""{FLAG}import "lib/shapes.malloy"
        #@ persist
        source: m is shapes -> {{ group_by: carrier; aggregate: n }}
        source: s is spark.sql(\"\"\"SELECT carrier AS c FROM seen\"\"\") extend {{}}
        """,
    }

    def loads(**changed: str) -> tuple[int, Project]:
        started.clear()
        project = load({**files, **{k.replace("__", "."): v for k, v in changed.items()}})
        require(project)
        return len(started), project

    cold, first = loads()
    assert cold == 1
    warm, again = loads()
    assert (warm, again) == (0, first)
    assert loads(seen__sql=files["seen.sql"] + "\n-- a remark")[0] == 0
    more = "CREATE VIEW seen AS SELECT carrier, distance, 1 AS one FROM flights;"
    assert loads(seen__sql=more)[0] == 1, "other columns"
    assert loads(seen__sql=more)[0] == 0
    other = files["lib/shapes.malloy"].replace("count()", "count() + 1")
    changed = load({**files, "seen.sql": more, "lib/shapes.malloy": other})
    assert by_name(changed)["m"].build_id != by_name(first)["m"].build_id


@pytest.mark.slow
def test_a_warm_load_with_malloy_is_as_fast_as_with_sql(
    load: Make, make_project: Callable[..., Path]
) -> None:
    def cpu(make: Callable[[int], tuple[str, str]]) -> float:
        require(load(dict(make(i) for i in range(100))))
        settings = load_settings(make_project({}), environ={})
        taken: list[float] = []
        for _ in range(3):
            started = time.process_time()
            load_project(settings)
            taken.append(time.process_time() - started)
        return min(taken)

    sql = cpu(
        lambda i: (
            f"m{i}.sql",
            f"--@ persist\nCREATE VIEW s{i} AS SELECT carrier, count(*) + {i} AS n FROM flights GROUP BY 1;",
        )
    )
    malloy = cpu(
        lambda i: (
            f"m{i}.malloy",
            BASE.replace("by_carrier", f"s{i}").replace("n,", f"n, more is n + {i},"),
        )
    )
    has_taken(malloy - sql, within_s=0.05)


def test_a_revision_imports_the_files_of_its_commit(
    load: Make, make_project: Callable[..., Path]
) -> None:
    git = need(shutil.which("git"), "install git")
    root = make_project({"raw.sql": RAW})
    lib = root / "lib.malloy"
    lib.write_text("source: base is spark.table('flights') extend { measure: n is count() }\n")
    text = f'{FLAG}import "../lib.malloy"\n#@ persist\nsource: x is base -> {{ aggregate: n }}\n'
    (root / "sources" / "x.malloy").write_text(text)

    def run(*arguments: str) -> None:
        command = [git, "-c", "user.name=a", "-c", "user.email=a@b.c", *arguments]
        subprocess.run(command, cwd=root, check=True, capture_output=True)

    run("init", "-q")
    run("add", "-A")
    run("commit", "-q", "-m", "one")
    lib.write_text(lib.read_text().replace("count()", "count() + 1"))
    settings = load_settings(root, environ={})
    commit = find_commit(settings, "HEAD") or ""
    then, now = load_revision(settings, "HEAD", commit), load_project(settings)
    assert by_name(then)["x"].build_id != by_name(now)["x"].build_id
    lib.unlink()
    assert by_name(load_revision(settings, "HEAD", commit))["x"] == by_name(then)["x"]


def test_a_missing_malloy_compiler_is_reported_with_instructions(
    make_project: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(persist_assets.compiler.malloy.bridge, "PROGRAM", tmp_path / "bridge.cjs")
    root = make_project({"raw.sql": RAW, "base.malloy": BASE})
    with pytest.raises(SettingsError) as caught:
        load_project(load_settings(root, environ={}))
    assert "make bridge" in (caught.value.hint or "")


DYING = """
const parse = JSON.parse;
JSON.parse = (text, ...more) => {
  const request = parse(text, ...more);
  if (request?.do === 'model' && request.path === 'sources/bad.malloy') {
    console.error('no more');
    process.exit(3);
  }
  return request;
};
"""


def test_a_compiler_crash_is_reported_for_the_file_that_caused_it(
    load: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    dying = tmp_path / "bridge.cjs"
    dying.write_text(DYING + persist_assets.compiler.malloy.bridge.PROGRAM.read_text())
    monkeypatch.setattr(persist_assets.compiler.malloy.bridge, "PROGRAM", dying)
    project = load({"bad.malloy": BASE.replace("by_carrier", "bad"), "good.malloy": BASE})
    (problem,) = project.errors
    assert (problem.location.path, problem.code) == ("sources/bad.malloy", "malloy-bridge")
    assert "no more" in problem.message
    assert "by_carrier" in {s.name for s in project.sources}


@pytest.mark.slow
def test_a_query_that_does_not_compile_is_reported_with_its_location(
    make_project: Callable[..., Path],
) -> None:
    need(there(), "bundle Malloy's compiler: make bridge")
    root = make_project({"raw.sql": RAW, "base.malloy": BASE})
    settings = load_settings(root, environ={})
    for text, place in {
        "run: by_carrier -> { group_by: no }": "query:1:32",
        "run": "query:1:1",
        "\nrun: nothing -> { select: * }": "query:2:6",
    }.items():
        with pytest.raises(SourcesError) as wrong:
            load_whole(settings).query("sources/base.malloy", text=text)
        assert str(wrong.value.problems[0].location) == place
    with pytest.raises(SourcesError) as wrong:
        load_whole(settings).query("sources/base.malloy", name="none")
    assert wrong.value.problems[0].code == "unknown-query"
    text = "run: by_carrier -> { aggregate: m is n.max() }"
    loaded = load_whole(settings)
    project, query = loaded.project, loaded.query("sources/base.malloy", text=text)
    assert [r.parts for r in query.references] == [("by_carrier@sources/base.malloy",)]
    assert "by_carrier@sources/base.malloy" in project.by_id
