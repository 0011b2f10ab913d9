"""Measure how many of Spark's own SQL tests the analysis understands.

`corpus.py DIR [--show KIND]` reads the results that Spark recorded for its tests: the files
`*.sql.out` of `sql/core/src/test/resources/sql-tests/results`. They are not in this repository.
Each query that Spark accepts is compiled as a source `CREATE VIEW q (c0, c1, …) AS …` over the
views, tables and functions that its file creates. It is then one of:

    columns           analysed for each column
    nondeterministic  the same, but its rows differ from build to build
    whole             any change of what it reads changes its BuildID
    refused           not compiled, or with an error

Files and queries that run under other settings than ours, and files that test other statements, are
left out. A schema is a file: ``mydb.t`` is the table ``t`` in ``sources/mydb.sql``.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from persist_assets.compiler.load import load_project
from persist_assets.core.settings.load import load_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from persist_assets.core.model.project import Project

LEFT_OUT = re.compile(
    r"nonansi|scripting|(?<!sql-)udf|udtf|timestampNTZ|legacy|double-quoted-identifiers-enabled|transform"
    r"|session-variable|execute-immediate|keywords-enforced|udaf|default-collation|\.java"
)
"""Paths of files with other settings, functions in Python or Java, scripts, or variables."""
QUERY = re.compile(r"\s*(\(\s*)*(SELECT|WITH|VALUES|FROM|TABLE|MAP|REDUCE)\b", re.I)
CREATE = re.compile(
    r"\s*CREATE\s+(?:OR\s+REPLACE\s+)?(?:GLOBAL\s+)?(?:TEMP(?:ORARY)?\s+)?(VIEW|TABLE|FUNCTION)\s+"
    r"(?:IF\s+NOT\s+EXISTS\s+)?(`[^`]+`|[\w.]+)\s*(.*)",
    re.I | re.S,
)
DROP = re.compile(
    r"\s*DROP\s+(?:TEMPORARY\s+)?(?:VIEW|TABLE|FUNCTION)\s+(?:IF\s+EXISTS\s+)?(`[^`]+`|[\w.]+)",
    re.I,
)
DECLARE = re.compile(
    r"\s*DECLARE\s+(?:OR\s+REPLACE\s+)?(?:VAR(?:IABLE)?\s+)?(\w+)\s+(.*)", re.I | re.S
)
NUMBERS = "two four ten twenty hundred thousand twothousand fivethous tenthous odd even".split()
ONEK = ", ".join(
    [f"{n} INT" for n in ("unique1", "unique2", *NUMBERS)]
    + [f"{n} STRING" for n in ("stringu1", "stringu2", "string4")]
)
TABLES = {
    "testdata": "key INT, value STRING",
    "arraydata": "arraycol ARRAY<INT>, nestedarraycol ARRAY<ARRAY<INT>>",
    "mapdata": "mapcol MAP<INT, STRING>",
    "aggtest": "a INT, b FLOAT",
    "onek": ONEK,
    "tenk1": ONEK,
}
"""The tables that Spark's tests have from the beginning."""


USE = re.compile(r"USE\s+(?:SCHEMA\s+|DATABASE\s+)?`?(\w+)`?$", re.I)
SETTING = re.compile(
    r"SET\s+spark\.sql\.(ansi\.enabled|groupByOrdinal|orderByOrdinal|groupByAliases)\s*=\s*(\w+)$",
    re.I,
)
"""Settings that are true here."""


@dataclass
class Epoch:
    """Definitions of a file that hold at the same time, and the queries over them.

    Attributes
    ----------
    definitions
        Statements, by schema and name.
    queries
        Sources, and the schemas in which they run, by name.
    """

    definitions: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    queries: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])


def records(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield each statement of a file of results with its schema and its output."""
    for record in re.split(r"^-- !query\n", text, flags=re.M)[1:]:
        parts = re.split(r"^-- !query (?:schema|output)\n", record, flags=re.M)
        if len(parts) == 3:
            yield parts[0].strip().rstrip(";"), parts[1].strip(), parts[2].strip()


def n_columns(schema: str) -> int:
    """Return the number of columns of `struct<a:int,b:array<int>>`.

    Examples
    --------
    >>> n_columns("struct<a:int,b:struct<c:int,d:decimal(5,2)>>")
    2
    """
    fields = re.sub(r"'[^']*'| [<>]|->|=>|<=|>=", "", schema.removeprefix("struct<")[:-1])
    depth, n = 0, 1
    for character in fields:
        depth += (character in "<([{") - (character in ">)]}")
        n += character == "," and depth == 0
    return n


def defined(statement: str) -> tuple[tuple[str, ...], str] | None:
    """Return the name, with its schema if it has one, and the text of what a statement creates."""
    variable = DECLARE.match(statement)
    if variable is not None:
        return (variable[1].lower(),), f"DECLARE VARIABLE {variable[1]} {variable[2]}"
    match = CREATE.match(re.sub(r"\bIDENTIFIER\s*\('(\w+)'\)", r"\1", statement, flags=re.I))
    if match is None:
        return None
    kind, written, rest = match[1].upper(), match[2], match[3]
    key = _parts(written)
    if re.match(r"\s*CREATE\s+(OR\s+REPLACE\s+)?GLOBAL\b", statement, re.I):
        key = "global_temp", key[-1]
    name = written if written.startswith("`") else written.split(".")[-1]
    if kind == "FUNCTION":
        return (key, f"CREATE FUNCTION {name}{rest}") if "RETURN" in rest.upper() else None
    if kind == "VIEW":
        return key, f"CREATE VIEW {name} {rest}"
    query = re.search(r"\bAS\s+((?:SELECT|WITH|VALUES|FROM|TABLE)\b.*)", rest, re.I | re.S)
    if query is not None:
        return key, f"CREATE VIEW {name} AS {query[1]}"
    columns = _parenthesised(rest)
    if re.search(r"\bCOLLATE\b", columns, re.I):  # no raw table has collations
        items = ", ".join(
            f"CAST(NULL AS {kind}) AS {column}"
            for column, kind in re.findall(r"(\w+) ((?:\w|\([^)]*\)| )+)", columns[1:-1])
        )
        return key, f"CREATE VIEW {name} AS SELECT {items}"
    return key, f"CREATE TABLE {name} {columns} USING parquet LOCATION 'data/{key[-1]}'"


def _parts(name: str) -> tuple[str, ...]:
    return (name.strip("`").lower(),) if name.startswith("`") else (*name.lower().split("."),)


def _parenthesised(text: str) -> str:
    """Return the text up to the parenthesis that closes the first one."""
    depth = 0
    for n, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if character == ")" and depth == 0:
            return text[: n + 1]
    return text


def epochs(path: Path) -> list[Epoch]:
    """Return the definitions and queries of a file; another definition of a name begins anew."""
    all_of, schema, others = [Epoch()], "default", set[str]()
    for number, (statement, struct, output) in enumerate(records(path.read_text())):
        setting, use = SETTING.match(statement), USE.match(statement)
        if setting is not None:
            change = others.discard if setting[2].lower() == "true" else others.add
            change(setting[1].lower())
        if QUERY.match(statement) and struct != "struct<>" and not others:
            view = _view(f"q{number}", statement, n_columns(struct))
            all_of[-1].queries[f"q{number}"] = schema, view
        elif output.startswith("org.apache.spark"):
            continue
        schema = use[1].lower() if use is not None else schema
        dropped, created = DROP.match(statement), defined(statement)
        name = _parts(dropped[1]) if dropped else created[0] if created else ()
        key = name[-2] if len(name) > 1 else schema, name[-1] if name else ""
        definitions = all_of[-1].definitions
        if name and key in definitions:
            all_of.append(Epoch({k: text for k, text in definitions.items() if k != key}))
        if created:
            all_of[-1].definitions[key] = created[1]
    return [e for e in all_of if e.queries]


def _view(name: str, query: str, n: int) -> str:
    columns = ", ".join(f"c{i}" for i in range(n))
    return f"--@ persist\nCREATE VIEW {name} ({columns}) AS\n{query}\n"


def compiled(epoch: Epoch) -> Project:
    """Return the project of an epoch."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        (root / "persist.toml").write_text("")
        sources = root / "sources"
        sources.mkdir()
        tables = {
            ("default", n): f"CREATE TABLE {n} ({c}) USING parquet LOCATION 'data/{n}'"
            for n, c in TABLES.items()
        }
        schemas = {schema for schema, _ in epoch.definitions} | {
            s for s, _ in epoch.queries.values()
        }
        definitions = (tables | epoch.definitions).items()
        every = {f"d{n}": (schema, text) for n, ((schema, _), text) in enumerate(definitions)}
        for name, (schema, text) in (every | epoch.queries).items():
            file = sources / f"{schema if len(schemas) > 1 else name}.sql"
            with file.open("a") as stream:
                stream.write(text.rstrip() + ";\n")
        return load_project(load_settings(root, environ={}))


def judged(epoch: Epoch) -> Iterator[tuple[str, str, str]]:
    """Yield the name of each query, what it is, and the reason."""
    project = compiled(epoch)
    sources = {s.name: s for s in project.persisted}
    for name in epoch.queries:
        source = sources.get(name)
        if source is None:
            schema, _ = epoch.queries[name]
            files = f"sources/{name}.sql", f"sources/{schema}.sql"
            why = [p.message for p in project.problems if p.location.path in files]
            yield name, "refused", why[0] if why else "reads a definition that is not compiled"
            continue
        whole = [n for n in source.notes if n.startswith("treated as a whole")]
        if whole:
            yield name, "whole", whole[0].partition("because ")[2]
        else:
            yield name, "nondeterministic" if source.volatile else "columns", ""


def main() -> None:
    """Print how many queries are of each kind, and those of the kinds asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path, help="the files *.sql.out")
    parser.add_argument("--files", default="", help="only files whose paths match this pattern")
    parser.add_argument("--show", default="", help="list the queries of these kinds: whole,refused")
    options = parser.parse_args()
    shown = options.show.split(",")
    counts: Counter[str] = Counter()
    for path in sorted(options.directory.rglob("*.sql.out")):
        name = str(path.relative_to(options.directory))
        if LEFT_OUT.search(name) or not re.search(options.files, name):
            continue
        for epoch in epochs(path):
            for query, kind, why in judged(epoch):
                counts[kind] += 1
                if kind in shown:
                    row = {"file": name, "kind": kind, "why": why, "sql": epoch.queries[query][1]}
                    print(json.dumps(row), flush=True)
    total = counts.total() or 1
    print(json.dumps({kind: [n, round(100 * n / total, 2)] for kind, n in counts.items()}))


if __name__ == "__main__":
    main()
