"""Functions that select first: only the selected columns affect their BuildIDs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from conftest import compiled

from persist_assets.compiler.load import load_project
from persist_assets.core.model.snapshots import Build
from persist_assets.core.settings.load import load_settings
from persist_assets.planning.diff import changed_inputs, recorded_reads

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from persist_assets.core.model.project import Project
    from persist_assets.core.model.sources import Source

RAW = (
    "CREATE TABLE raw (carrier STRING, delay DOUBLE, origin STRING, gate STRUCT<no: INT, pier: STRING>)"
    " USING parquet LOCATION 'r';\n"
    "CREATE TABLE other (carrier STRING, delay DOUBLE) USING parquet LOCATION 'o';\n"
)
IMPORTS = """
from persist_assets import model, source, table
from pyspark.sql import functions as F, Window
from pyspark.sql.functions import col, expr as sql
import narwhals as nw
import narwhals.stable.v1 as nw1
import sys, inspect
"""
COLUMNS = {
    "carrier": "upper(carrier)",
    "delay": "delay + 1",
    "origin": "lower(origin)",
    "gate": "named_struct('no', 1, 'pier', origin)",
}
MARK = "--@ persist\n"


def view(columns: dict[str, str] | None = None, rows: str = "", persist: bool = True) -> str:
    said = {c: c for c in COLUMNS} | (columns or {})
    listed = ", ".join(f"{e} AS {c}" for c, e in said.items() if e)
    return f"{MARK * persist}CREATE VIEW flights AS SELECT {listed} FROM raw {rows};\n"


def project(text: str, above: str, helper: str = "") -> Project:
    files = {
        "raw.sql": RAW + above,
        "d.py": IMPORTS + text,
        "/helper.py": helper,
        "/stars.py": "F = 1",
    }
    found = compiled(files)
    assert not found.errors, [str(p) for p in found.errors]
    return found


def made(text: str, above: str | None = None, helper: str = "") -> Source:
    return project(text, view() if above is None else above, helper).by_id["f@sources/d.py"]


def body(*lines: str, parameters: str = "flights", head: str = "") -> str:
    return f"{head}\n@table\ndef f({parameters}):\n" + "".join(f"    {line}\n" for line in lines)


def columns_of(source: Source, name: str = "flights") -> tuple[str, ...] | None:
    assert source.function is not None
    return next(p.columns for p in source.function.frames if p.name == name)


SELECTED = {
    '"carrier"': "carrier",
    '"carrier", "delay"': "carrier delay",
    '["carrier", "delay"]': "carrier delay",
    '("carrier", "delay")': "carrier delay",
    '"CARRIER"': "carrier",
    '"gate.no"': "gate",
    'F.col("gate").pier': "gate",
    'F.col("gate")["pier"]': "gate",
    'F.col("gate").getField("pier")': "gate",
    'F.col("carrier")': "carrier",
    'col("carrier")': "carrier",
    'F.col("carrier").alias("delay")': "carrier",
    'F.lit("origin").alias("x"), "delay"': "delay",
    'F.lit(F.col("origin")), "delay"': "delay origin",
    'F.upper("carrier")': "carrier",
    'F.upper(F.col("carrier")).alias("x"), (col("delay") * 2 + 1).cast("int").alias("y")': "carrier delay",
    'F.when(F.col("delay") > 15, "late").otherwise(F.col("carrier"))': "carrier delay",
    '1 - F.col("delay")': "delay",
    '-F.col("delay")': "delay",
    '~F.col("delay").isNull() & (F.col("carrier") == "UA")': "carrier delay",
    'F.round(F.col("delay"), -1)': "delay",
    'F.coalesce("carrier", F.col("origin"))': "carrier origin",
    'F.expr("delay + 1").alias("x")': "delay",
    'F.expr("origin AS undelay"), F.expr("origin AS delays")': "origin",
    'sql("CASE WHEN delay > 1 THEN carrier END")': "carrier delay",
    'nw.col("carrier", "delay")': "carrier delay",
    'nw.col("carrier").str.len_chars().alias("n")': "carrier",
    'x=nw.col("carrier"), y=nw.col("delay").sum().over("origin")': "carrier delay origin",
    'nw1.col("carrier")': "carrier",
    'nw.len(), nw.sum("delay")': "delay",
    'nw.when(nw.col("delay") > 1).then(nw.lit("carrier")).otherwise("origin")': "delay origin",
}  # fmt: skip
"""Arguments of `select`, and the columns that the function then reads."""

ELSEWHERE = {
    'return flights.selectExpr("delay * 2")': None,
    'return flights.selectExpr("delay + 2 AS x", "carrier")': "carrier delay",
    'x = flights.select("carrier")\nreturn x.filter(x.carrier > "A").orderBy("carrier")': "carrier",
    'a = flights.select("carrier")\nreturn a.join(flights.select("carrier", "delay"), "carrier")': "carrier delay",
    'return flights.select("carrier").select("*").drop("x")': "carrier",
    'if True:\n    return flights.select("delay")\nreturn flights.select("carrier")': "carrier delay",
    'return [flights.select("delay") for _ in range(2)][0]': "delay",
    'flights_ = other.flights = 1\nreturn flights.select("delay")': "delay",
    'from pyspark.sql import functions as F\nreturn flights.select(F.col("delay"))': "delay",
    'return g(flights=flights.select("delay"))': "delay",
    'def flat(x): return x\nreturn flat(flights.select("delay"))': "delay",
}  # fmt: skip
"""Bodies of functions, and the columns that they read; None for all columns."""


def accepted() -> list[tuple[str, tuple[str, ...]]]:
    found = {body(f"return flights.select({a})"): names for a, names in SELECTED.items()}
    found |= {body(*t.split("\n")): names for t, names in ELSEWHERE.items() if names}
    return [(text, tuple(names.split())) for text, names in found.items()]


ACCEPTED = pytest.mark.parametrize(("text", "reads"), accepted(), ids=lambda v: "")


@ACCEPTED
@pytest.mark.parametrize("persist", [True, False])
@pytest.mark.proves("K18")
def test_only_selected_columns_affect_the_build_id(
    text: str, reads: tuple[str, ...], persist: bool
) -> None:
    before = made(text, view(persist=persist))
    assert columns_of(before) == reads

    def after(columns: dict[str, str] | None = None, rows: str = "") -> str:
        return made(text, view(columns, rows, persist)).build_id

    for column, otherwise in COLUMNS.items():
        assert (after({column: otherwise}) != before.build_id) == (column in reads), column
    for column in set(COLUMNS) - set(reads):
        assert after({column: ""}) == before.build_id
    assert after({"more": "origin || carrier"}) == before.build_id
    reordered = made(text, view(persist=persist).replace("carrier AS carrier, ", "").replace(
        " FROM", ", carrier AS carrier FROM"))  # fmt: skip
    assert reordered.build_id == before.build_id
    for rows in ("WHERE delay > 1", "JOIN other USING (carrier)", "LIMIT 1"):
        assert after(rows=rows.replace("JOIN", "LEFT SEMI JOIN")) != before.build_id


@ACCEPTED
def test_types_of_read_columns_affect_the_build_id(text: str, reads: tuple[str, ...]) -> None:
    def of(origin: str, more: str) -> str:
        raw = RAW.replace("origin STRING, gate", f"origin {origin}, {more}gate")
        found = compiled(
            {"raw.sql": raw.replace("TABLE raw", "TABLE flights"), "d.py": IMPORTS + text}
        )
        return found.by_id["f@sources/d.py"].build_id

    assert (of("STRING", "") != of("BINARY", "")) == ("origin" in reads)
    assert of("STRING", "") == of("STRING", "more INT, ")


REFUSED = [
    *(
        body(f"return flights.select({arguments})")
        for arguments in (
            "",
            "'*'",
            "'carrier', '*'",
            "'gate.*'",
            "'`carrier`'",
            "*['carrier']",
            "*COLUMNS",
            "COLUMNS",
            "COLUMN",
            "F.col(COLUMN)",
            "**{'x': nw.col('carrier')}",
            "f'carrier'",
            "'car' + 'rier'",
            "'car' 'rier' + ''",
            "'%s' % 'carrier'",
            "'carrier'.lower()",
            "F.col('car' + 'rier')",
            "F.col(f'carrier')",
            "F.col('CARRIER'.lower())",
            "'carrier' if COLUMN else 'delay'",
            "(x := 'carrier')",
            "[c for c in ('carrier', 'delay')]",
            "*(c for c in ('carrier', 'delay'))",
            "flights.carrier",
            "flights['carrier']",
            "F.col('carrier'), flights.delay",
            "F.transform('carrier', lambda x: x)",
            "F.lit(flights.count())",
            "F.col('*')",
            "F.struct('*')",
            "F.expr('struct(*)')",
            "F.expr('`delay`')",
            "F.col('_metadata.file_name'), 'carrier'",
            "F.lit(1)",
            "helper.columns()",
            "helper.col('carrier')",
            "unknown.col('carrier')",
            "nw.all()",
            "nw.nth(0)",
            "nw.exclude('delay')",
            "nw.selectors.numeric()",
            "nw.col(*COLUMNS)",
            "Window.partitionBy('carrier')",
            "COLUMNS[0]",
            "F.udf('carrier')(other)",
        )
    ),
    *(
        body(*text.split("\n"))
        for text in (
            "return flights",
            "return flights.selectExpr('*')",
            "return flights.selectExpr('delay * 2')",
            "return flights.drop('delay')",
            "return flights.filter('delay > 1').select('carrier')",
            "return flights.select('carrier').join(flights, 'carrier')",
            "return flights.select('carrier').filter(flights.delay > 1)",
            "return flights.select('carrier').filter(flights['delay'] > 1)",
            "x = flights\nreturn x.select('carrier')",
            "x = flights.select\nreturn x('carrier')",
            "(x := flights)\nreturn x.select('carrier')",
            "x, y = flights, 1\nreturn flights.select('carrier')",
            "x = [flights]\nreturn flights.select('carrier')",
            "flights = flights.select('carrier')\nreturn flights.filter('delay > 1')",
            "flights = other()\nreturn flights.select('carrier')",
            "flights += 1\nreturn flights.select('carrier')",
            "(flights := other())\nreturn flights.select('carrier')",
            "for flights in other(): pass\nreturn flights.select('carrier')",
            "x = [flights for flights in other()]\nreturn flights.select('carrier')",
            "x = [flights.columns for _ in (1,)]\nreturn flights.select('carrier')",
            "with other() as flights: pass\nreturn flights.select('carrier')",
            "try: pass\nexcept E as flights: pass\nreturn flights.select('carrier')",
            "import flights\nreturn flights.select('carrier')",
            "import flights.x\nreturn flights.select('carrier')",
            "from x import y as flights\nreturn flights.select('carrier')",
            "del flights\nreturn flights.select('carrier')",
            "match other():\n    case flights: pass\nreturn flights.select('carrier')",
            "match other():\n    case [*flights]: pass\nreturn flights.select('carrier')",
            "match other():\n    case {**flights}: pass\nreturn flights.select('carrier')",
            "match flights:\n    case _: pass\nreturn flights.select('carrier')",
            "def flights(): pass\nreturn flights.select('carrier')",
            "class flights: pass\nreturn flights.select('carrier')",
            "def g():\n    nonlocal flights\n    flights = 1\nreturn flights.select('carrier')",
            "def g(): return flights.delay\nreturn flights.select('carrier')",
            "def g(): return flights.select('delay')\nreturn flights.select('carrier')",
            "def g(x=flights): return x\nreturn flights.select('carrier')",
            "def g(flights): return flights.select('delay')\nreturn flights.select('carrier')",
            "g = lambda: flights.delay\nreturn flights.select('carrier')",
            "g = lambda flights: flights\nreturn flights.select('carrier')",
            "class A: x = flights\nreturn flights.select('carrier')",
            "print(flights.columns)\nreturn flights.select('carrier')",
            "print(f'{flights}')\nreturn flights.select('carrier')",
            "helper.f(flights)\nreturn flights.select('carrier')",
            "helper.f(*[flights])\nreturn flights.select('carrier')",
            "helper.f(**{'x': flights})\nreturn flights.select('carrier')",
            "yields(flights)\nreturn flights.select('carrier')",
            "x: flights = 1\nreturn flights.select('carrier')",
            "return flights.select('carrier') if flights else 1",
            "return flights.select('carrier').transform(lambda x: x.join(flights))",
            "print(locals())\nreturn flights.select('carrier')",
            "print(vars())\nreturn flights.select('carrier')",
            "print(eval('flig' + 'hts'))\nreturn flights.select('carrier')",
            "exec('x = flig' + 'hts')\nreturn flights.select('carrier')",
            "sys._getframe().f_locals\nreturn flights.select('carrier')",
            "inspect.currentframe()\nreturn flights.select('carrier')",
            "helper.spies()\nreturn flights.select('carrier')",
            "return flights.select('carrier').filter('_metadata.file_size > 1')",
            "F = other()\nreturn flights.select(F.col('carrier'))",
            "from helper import F\nreturn flights.select(F.col('carrier'))",
            "return [flights.select(F.col('carrier')) for F in other()][0]",
        )
    ),
    body("return flights.select('carrier')", head="import functools\n@functools.cache"),
    body("return flights.select('carrier')", parameters="flights, x=flights"),
    body("return flights.select(F.col('carrier'))", head="F = 1"),
    body("return flights.select(F.col('carrier'))", head="def g():\n    import helper as F\n"),
    body("return flights.select('nowhere')"),
    body("x = 1", "return x + 1"),
]
"""Functions that may read any column, as far as the analysis can tell."""
HELPER = """
import inspect
COLUMN, COLUMNS = 'carrier', ['carrier']
F = 1
def columns(): return ['carrier']
def col(x): return x
def f(*x, **y): return x
def spies(): return inspect.currentframe().f_back.f_locals
"""


@pytest.mark.parametrize("text", REFUSED, ids=lambda v: "")
def test_all_columns_affect_the_build_id_if_the_selection_is_unknown(text: str) -> None:
    text = f"import helper\nCOLUMN, COLUMNS = 'carrier', ['carrier']\n{text}"
    before = made(text, helper=HELPER)
    assert columns_of(before) is None
    assert before.function is not None
    for column, otherwise in COLUMNS.items():
        assert made(text, view({column: otherwise}), HELPER).build_id != before.build_id, column
    assert made(text, view({"more": "origin"}), HELPER).build_id != before.build_id


def test_a_library_shadowed_by_a_module_of_the_project_is_not_recognized() -> None:
    text = body("return flights.select(nw.col('carrier'))")
    files = {"raw.sql": RAW + view(), "d.py": IMPORTS + text}
    assert columns_of(compiled(files).by_id["f@sources/d.py"]) == ("carrier",)
    own = compiled({**files, "/narwhals/__init__.py": "def col(x): return 'delay'"})
    assert columns_of(own.by_id["f@sources/d.py"]) is None


def test_a_name_that_a_star_import_may_rebind_is_not_recognized() -> None:
    text = body("return flights.select(F.col('carrier'))")
    files = {"raw.sql": RAW + view(), "/stars.py": "F = 1"}
    head = "from persist_assets import table\nfrom pyspark.sql import functions as F\n"
    plain = compiled({**files, "d.py": head + text})
    assert columns_of(plain.by_id["f@sources/d.py"]) == ("carrier",)
    starred = compiled({**files, "d.py": f"{head}from stars import *\n{text}"})
    assert columns_of(starred.by_id["f@sources/d.py"]) is None


def test_the_columns_of_a_long_expression_are_determined() -> None:
    text = " + ".join(["F.col('carrier')"] * 900 + ["F.col('delay')"])
    assert columns_of(made(body(f"return flights.select({text})"))) == ("carrier", "delay")


def test_each_parameter_is_analysed_separately() -> None:
    text = body(
        "return flights.select('carrier', 'origin').join(other, 'carrier')",
        parameters="flights, other",
    )
    before = made(text)
    assert (columns_of(before), columns_of(before, "other")) == (("carrier", "origin"), None)
    assert made(text, view({"delay": "1.0"})).build_id == before.build_id
    assert made(text, view({"origin": "carrier"})).build_id != before.build_id


def test_the_columns_of_another_functions_result_are_unknown() -> None:
    text = "@model\ndef flights(raw):\n    return raw\n" + body("return flights.select('carrier')")
    assert columns_of(made(text, "")) is None


def test_functions_that_read_different_columns_never_share_a_table() -> None:
    """Which columns a function reads depends on its code, or on the upstream source."""
    texts = [body(f"return flights.select({a})") for a in SELECTED]
    ids = [made(text).build_id for text in texts]
    assert len({*ids}) == len(texts)
    # The same text: a format, or a column as soon as there is one with that name.
    text = body('return flights.select(F.date_format("carrier", "more"))')
    with_more = made(text, view({"more": "origin"}))
    assert columns_of(with_more) == ("carrier", "more")
    assert made(text).build_id != with_more.build_id
    # The same text, and equal columns with different names.
    swapped = view({"carrier": "delay", "delay": "carrier"})
    assert made(texts[1]).build_id != made(texts[1], swapped).build_id
    respelled = view().replace("AS carrier", "AS Carrier")
    assert made(texts[0]).build_id != made(texts[0], respelled).build_id
    assert columns_of(made(texts[0], respelled)) == ("Carrier",)


def test_functions_with_equal_code_and_inputs_share_a_table() -> None:
    text = body('return flights.select("carrier")')
    twin = text.replace("def f(", "def g(")
    found = project(text + twin, view())
    assert found.by_id["f@sources/d.py"].build_id == found.by_id["g@sources/d.py"].build_id


def test_an_unread_nondeterministic_column_makes_a_function_nondeterministic() -> None:
    """The BuildIDs are equal, but only one of the functions is volatile."""
    text = body('return flights.select("carrier")').replace("@table", "@model")
    certain = made(text, view(persist=False))
    drawn = made(text, view({"delay": "rand()"}, persist=False))
    assert certain.build_id == drawn.build_id
    assert (certain.volatile, drawn.volatile) == (False, True)


def test_cached_readers_notice_nondeterministic_columns(make_project: Callable[..., Path]) -> None:
    text = IMPORTS + body('return flights.select("carrier")').replace("@table", "@model")
    reader = f"{MARK}CREATE VIEW reader AS SELECT * FROM f;\n"
    root = make_project({"raw.sql": RAW + view(persist=False) + reader, "d.py": text})

    def load() -> Source:
        return load_project(load_settings(root)).by_id["reader@sources/raw.sql"]

    before = load()
    drawn = RAW + view({"delay": "rand()"}, persist=False) + reader
    (root / "sources" / "raw.sql").write_text(drawn)
    after = load()
    assert before.build_id == after.build_id
    assert (before.volatile, after.volatile) == (False, True)


def why(text: str, before: str, after: str) -> dict[str, tuple[str, ...]]:
    """Return the columns that a plan would report as changed, by upstream source."""
    then = project(text, before)
    source = then.by_id["f@sources/d.py"]
    last = Build.__new__(Build)
    object.__setattr__(last, "reads", recorded_reads(then, source))
    now = project(text, after)
    found = changed_inputs(now, now.by_id["f@sources/d.py"], last)
    return {upstream.name: difference.columns for upstream, difference in found}


def test_only_selected_columns_are_reported_as_changed() -> None:
    both = body(
        "return flights.select('carrier').join(more, 'carrier')", parameters="flights, more"
    )
    more = f"{MARK}CREATE VIEW more AS SELECT carrier, delay FROM other;\n"
    changed = more.replace(" delay", " delay + 1 AS delay")
    two, unread = view({"carrier": "origin", "delay": "-delay"}), view({"delay": "-delay"})
    assert why(both, view() + more, two + more) == {"flights": ("carrier",)}
    assert why(both, view() + more, unread + changed) == {"more": ("delay",)}
    assert why(both, view() + more, two + changed) == {
        "flights": ("carrier",),
        "more": ("delay",),
    }
    inlined = f"CREATE VIEW flights AS SELECT carrier, delay FROM below;\n{more}"
    below = view().replace("VIEW flights", "VIEW below")
    assert why(both, inlined + below, inlined + two.replace("VIEW flights", "VIEW below")) == {
        "below": ("carrier",)
    }
