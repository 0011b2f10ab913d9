"""Digests of source texts, which ignore layout and comments."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from conftest import need_node

from persist_assets.compiler import texts
from persist_assets.compiler.load import load_project, require
from persist_assets.compiler.plain_texts import plain_malloy, plain_python, plain_sql
from persist_assets.core import digests
from persist_assets.core.settings.load import load_settings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Make = Callable[..., Path]

SQL = "SELECT a, 'x  y' AS `b  c` FROM t WHERE a <= 1 AND b = -1"


@pytest.mark.parametrize(
    "text",
    [
        "SELECT a,'x  y' AS `b  c` FROM t WHERE a<=1 AND b= -1",
        "SELECT a, -- one\n 'x  y' AS `b  c`\n\tFROM/* two */t WHERE a <= 1 AND b = -1",
    ],
)
@pytest.mark.proves("X2")
def test_layout_and_comments_of_sql_are_ignored(text: str) -> None:
    assert plain_sql(text) == plain_sql(SQL)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("'x  y'", "'x y'"),
        ("'-- x'", "'--x'"),
        ("`a  b`", "`a b`"),
        ("'a'", '"a"'),
        ("'a' 'b'", "'a''b'"),
        ("'it\\'s  a'", "'it\\'s a'"),
        ("a - -1", "a -1"),
        ("1 .5", "1.5"),
        ("1e -5", "1e-5"),
        ("r 'x'", "r'x'"),
        ("r'\\' -- a", "r'\\' -- b"),
        ("X '1F'", "X'1F'"),
        ("a < > b", "a <> b"),
        ("a b", "ab"),
        ("1.0", "1.00"),
        ("a", "A"),
        ("/*+ BROADCAST(a) */ a", "a"),
        ("/* a /* b */ c */ d", "/* a /* b */ e */ d"),
        ("a -- b\\\nc", "a -- b\\\nd"),
        ("$$a  b$$", "$$a b$$"),
        ("${a}", "$ {a}"),
        (": a", ":a"),
        ("1e- 5", "1e-5"),
        ("1e-/* a */5", "1e-5"),
        ("/*+ f('*/') */ 'a  b'", "/*+ f('*/') */ 'a b'"),
        ("/*+ f -- '*/ ' a '\n */ a", "/*+ f -- '*/ '  a '\n */ a"),
        ("a\u00a0b", "a \u00a0b"),
    ],
)
@pytest.mark.proves("X2")
def test_sql_texts_with_different_tokens_differ(one: str, other: str) -> None:
    assert plain_sql(f"SELECT {one}") != plain_sql(f"SELECT {other}")


@pytest.mark.proves("X2")
def test_layout_and_comments_of_malloy_are_ignored() -> None:
    text = "source: a is\n  x.table('t  u') -- one\n// two\n#@ persist\nsource: b is a"
    same = "source:   a is x.table('t  u')\n\n  /* three */#@ persist \n  source: b is a\n"
    assert plain_malloy(text) == plain_malloy(same).rstrip(" ")
    others = [
        text.replace("t  u", "t u"),
        text.replace("#@ persist", "#@ persist name=c"),
        text.replace("#@ persist", ""),
        text.replace("#@ persist\nsource", "#@ persist source"),
        text.replace("a is", 'a is x.sql("""a  b""") is'),
    ]
    assert len({plain_malloy(t) for t in (text, *others)}) == len(others) + 1
    nested = 'source: a is x.sql("""a %{ x.sql("""\'b  c\'""") -> { select: * } } """)'
    assert plain_malloy(nested) != plain_malloy(nested.replace("b  c", "b c"))
    escaped = 'source: a is x.sql("""a \\""" -- b\n """)'
    assert plain_malloy(escaped) != plain_malloy(escaped.replace("-- b", "-- c"))
    sql = 'source: a is x.sql("""a  -- b\n c""")'
    assert plain_malloy(sql) != plain_malloy(sql.replace("a  -- b\n c", "a c"))


@pytest.mark.proves("X2")
def test_layout_and_comments_of_python_are_ignored() -> None:
    text = "def f(a):\n    # one\n    if a:\n        return (a +\n 1)\n    return f'{a  }  {1}'\n"
    same = "def f(a):\n  if a:  # two\n\n    return (a + 1)\n  return f'{a  }  {1}'\n"
    assert plain_python(text) == plain_python(same)
    others = [
        text.replace("}  {", "} {"),
        text.replace("    return f", "        return f"),
        text.replace("a +", "a -"),
        text.replace("f'", "r'"),
    ]
    assert len({plain_python(t) for t in (text, *others)}) == len(others) + 1
    for lines in ("\f\n", "a = '\u2028'\n", "a = '\x1c'\n"):  # none of them ends a line of code
        after = f"{lines}b = f'c{{1}}'\n"
        assert plain_python(after) != plain_python(after.replace("'c{", "'d{"))
    spaces = "b = f'{a}'  +  f'{a}'\n"
    assert plain_python(spaces) == plain_python(spaces.replace("  +  ", "+"))


FILES = {
    "a.sql": "CREATE TABLE t (a INT, b INT) USING parquet LOCATION 'raw/t';\n"
    "CREATE VIEW v AS SELECT a, b FROM t;\n"
    "--@ persist\nCREATE VIEW s AS SELECT twice(a) AS a, less(b, least) AS b FROM v;\n"
    "--@ persist\nCREATE VIEW u AS SELECT a FROM s;\n"
    "--@ persist\nCREATE VIEW alone AS SELECT 1 AS one;\n",
    "f.sql": "CREATE FUNCTION twice(a INT) RETURNS INT RETURN a * 2;\n"
    "DECLARE VARIABLE least INT DEFAULT 1;\n",
    "g.py": "from persist_assets import udf\nfrom sources import h\n\n"
    '@udf(returns="int")\ndef less(a, b):\n    return a - b - h.MORE\n',
    "h.py": "MORE = 1\n",
    "p.py": "from persist_assets import table\n\n@table\ndef p(u):\n    return u\n",
    "c.malloy": "##! experimental.persistence\nimport 'd.malloy'\n#@ persist\n"
    "source: m is d -> { select: * }\n",
    "d.malloy": "source: d is spark.table('u')\n",
}


def text_digests(root: Path) -> dict[str, str]:
    project = require(load_project(load_settings(root, environ={})))
    digests = {s.name: project.text_of(s.source_id) for s in project.sources}
    assert all(len(digest) == 64 for digest in digests.values())
    return digests


EDITS = [
    ("a.sql", "SELECT a, b FROM t", "SELECT a,  b -- of t\n FROM t", ""),
    ("a.sql", "a INT", "a BIGINT", "t v s u p m d"),
    ("a.sql", "raw/t", "raw/u", "t v s u p m d"),
    ("a.sql", "USING parquet", "USING parquet OPTIONS (mergeSchema true)", "t v s u p m d"),
    ("a.sql", "SELECT a, b FROM t", "SELECT b, a FROM t", "v s u p m d"),
    ("a.sql", "VIEW u AS SELECT a", "VIEW u AS SELECT a + 0 AS a", "u p m d"),
    ("f.sql", "a * 2", "a  * 2", ""),
    ("f.sql", "a * 2", "a * 3", "s u p m d"),
    ("f.sql", "DEFAULT 1", "DEFAULT 2", "s u p m d"),
    ("h.py", "MORE = 1", "MORE = 2", "s u p m d"),
    ("h.py", "MORE = 1", "MORE  =  1  # more", ""),
    ("g.py", "a - b -", "b - a -", "s u p m d"),
    ("p.py", "return u", "return u.distinct()", "p"),
    ("c.malloy", "select: *", "select:   *", ""),
    ("c.malloy", "select: *", "select: a", "m"),
    ("d.malloy", "source: d", "source: e is spark.table('s')\nsource: d", "m d e"),
]
"""A file, a text in it, its replacement, and the sources whose digests change."""


@pytest.mark.proves("X2")
def test_an_edit_changes_the_text_digests_of_all_downstream_sources(make_project: Make) -> None:
    need_node()
    root = make_project(FILES)
    known = text_digests(root)
    for file, before, after, changed in EDITS:
        path = root / "sources" / file
        text = path.read_text()
        assert before in text
        path.write_text(text.replace(before, after))
        now = text_digests(root)
        path.write_text(text)
        differing = {n for n, d in now.items() if known.get(n) != d}
        assert differing == {*changed.split()} & now.keys(), (file, after)


@pytest.mark.proves("X2")
def test_text_digests_are_unknown_if_a_file_changed_after_compilation(make_project: Make) -> None:
    need_node()
    beside = {k: v.replace("d.malloy", "../d.malloy") for k, v in FILES.items() if k != "d.malloy"}
    root = make_project(beside | {"e.sql": "--@ persist\nCREATE VIEW e AS SELECT * FROM m;\n"})
    imported = root / "d.malloy"
    imported.write_text(FILES["d.malloy"])
    assert {"m", "e"} <= text_digests(root).keys()
    project = require(load_project(load_settings(root, environ={})))
    imported.write_text(f"{FILES['d.malloy']}\nsource: other is d\n")  # the texts are read only now
    known = {s.name: project.text_of(s.source_id) for s in project.sources}
    assert {name for name, digest in known.items() if not digest} == {"m", "e"}


@pytest.mark.proves("X1")
def test_a_new_fingerprint_version_changes_all_build_ids_but_no_text_digests(
    make_project: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_node()
    root = make_project(FILES)
    project, known = load_project(load_settings(root, environ={})), text_digests(root)
    monkeypatch.setattr(digests, "VERSION", "another")
    other = load_project(load_settings(root, environ={}))  # not from the compile cache
    assert {s.build_id for s in project.sources}.isdisjoint(s.build_id for s in other.sources)
    assert text_digests(root) == known
    assert project.software != other.software


@pytest.mark.proves("X2")
def test_settings_that_change_rows_change_the_text_digests(make_project: Make) -> None:
    need_node()
    known = text_digests(make_project(FILES))
    harmless = '[spark]\n"spark.sql.shuffle.partitions" = "2"\n'
    root = make_project(FILES, name="other")
    (root / "persist.toml").write_text(harmless)
    assert text_digests(root) == known
    (root / "persist.toml").write_text(harmless + '"spark.sql.ansi.enabled" = "false"\n')
    assert all(known[name] != digest for name, digest in text_digests(root).items())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('"spark.sql.catalog.lake.uri" = "a"', '"spark.sql.catalog.lake.uri" = "b"'),
        ('"spark.sql.defaultCatalog" = "a"', '"spark.sql.defaultCatalog" = "b"'),
        ("", '"spark.hadoop.hive.metastore.uris" = "thrift://b"'),
    ],
)
@pytest.mark.proves("X9", "X2")
def test_catalog_tables_at_different_locations_have_different_build_ids(
    one: str, other: str, make_project: Make
) -> None:
    """Their names are the same in all environments, which would otherwise share tables."""
    sql = (
        "CREATE TABLE t (a INT) USING catalog OPTIONS (table 'lake.db.t');\n"
        "CREATE TABLE d (a INT) USING catalog OPTIONS (table 'db.t');\n"
        "CREATE TABLE f (a INT) USING parquet LOCATION 'raw/f';\n"
    )
    settings = f"[env.dev.spark]\n{one}\n[env.prod.spark]\n{other}\n"
    shared = '[env.dev.spark]\n"spark.sql.catalog.lake.token" = "secret"\n'

    def identities(root: Path, environment: str) -> dict[str, tuple[str, str]]:
        settings = load_settings(root, environment=environment, environ={})
        project = require(load_project(settings))
        return {s.name: (s.build_id, project.text_of(s.source_id)) for s in project.sources}

    root = make_project({"a.sql": sql}, settings)
    dev, prod = identities(root, "dev"), identities(root, "prod")
    differing = {n for n in dev if not {*dev[n]} & {*prod[n]}}
    assert differing == ({"t"} if ".lake." in one else {"d"} if "default" in one else {"t", "d"})
    assert {n for n in dev if dev[n] == prod[n]} == {*dev} - differing
    with_token = identities(make_project({"a.sql": sql}, shared, name="token"), "dev")
    assert with_token == identities(make_project({"a.sql": sql}, name="plain"), "dev")


@pytest.mark.parametrize(
    ("kind", "changed"),
    [
        ("all", "t v s u alone p m d"),
        ("sql", "v s u alone p m d"),
        ("python", "p"),
        ("malloy", "m d"),
    ],
)
@pytest.mark.proves("X2")
def test_a_release_that_changes_rows_changes_the_text_digests(
    kind: str, changed: str, make_project: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_node()
    root = make_project(FILES)
    known = text_digests(root)
    monkeypatch.setattr(texts, "ROWS", {**texts.ROWS, kind: texts.ROWS[kind] + 1})
    now = text_digests(root)
    assert {n for n, d in now.items() if known[n] != d} == {*changed.split()} & now.keys()
