"""Passages: the lines of a file that define each source, as shown to readers."""

from __future__ import annotations

from persist_assets.web.site.excerpts import Place, passages
from persist_assets.web.site.graph_svg import draw, layers
from persist_assets.web.site.pages import page_name

SQL = """\
-- Of the whole file.

/* Raw,
   of others. */
CREATE TABLE t (a INT)
USING parquet LOCATION 't';
--@ persist
-- Sums; of all.
CREATE OR REPLACE
VIEW a AS
SELECT sum(a) AS s -- not the end;
FROM t;

CREATE VIEW nothing_of AS SELECT * FROM;
CREATE VIEW b AS SELECT 1 AS x; CREATE VIEW c AS SELECT 2 AS x;
"""
PYTHON = '''\
from persist_assets import table

TEXT = """
def late(a): pass
"""

#@ check { not_null=[n] }
# About it.
@table(
    owner="team:b",
)
def late(daily):
    return daily


def other(x):
    return x


@table
def last(late):
    return late
'''
MALLOY = """\
##! experimental.persistence
#@ persist
#" What it is.
source: a is t -> { group_by: b }

source:
  c is a extend { dimension: d is 1 }

query: q is c -> { select: * }
source: e is a
"""


def test_a_passage_of_sql_includes_comments_and_ends_with_its_statement() -> None:
    places = {
        "t": Place(5),
        "a": Place(10, "SELECT sum(a) AS s -- not the end;\nFROM t"),
        "b": Place(15, "SELECT 1 AS x"),
        "c": Place(15, "SELECT 2 AS x"),
    }
    found = passages(SQL, "sql", places)
    lines = SQL.splitlines()
    assert {k: (p.first, p.text.splitlines()) for k, p in found.items()} == {
        "t": (3, lines[2:6]),
        "a": (7, lines[6:12]),
        "b": (15, [lines[14]]),
        "c": (15, [lines[14]]),
    }


def test_a_passage_of_python_includes_decorators_and_comments() -> None:
    lines = PYTHON.splitlines()
    numbers = {text.split("(")[0]: n for n, text in enumerate(lines, 1) if n > 6}
    places = {"late": Place(numbers["def late"]), "last": Place(numbers["def last"])}
    found = passages(PYTHON, "python", places)
    assert (found["late"].first, found["late"].text.splitlines()) == (7, lines[6:13])
    assert found["last"].text.splitlines() == lines[-3:]
    broken = passages("def late(a:\n    return a\n", "python", {"late": Place(1)})
    assert broken["late"].text == "def late(a:\n    return a"


def test_a_passage_of_malloy_ends_where_the_next_statement_begins() -> None:
    places = {"a": Place(4), "c": Place(7), "e": Place(10)}
    found = passages(MALLOY, "malloy", places, others=[9])
    lines = MALLOY.splitlines()
    assert found["a"].text.splitlines() == lines[0:4]
    assert found["c"].text.splitlines() == lines[5:7]
    assert found["e"].text == lines[9]


def test_the_passage_of_a_missing_line_is_the_whole_text() -> None:
    for text in ("", "x", "\n\n"):
        for language in ("sql", "python", "malloy"):
            assert passages(text, language, {"a": Place(9)})["a"].text == text.strip()


def test_layers_follow_dependencies_and_nodes_fit_the_picture() -> None:
    reads = {"z": (), "a": (), "of_z": ("z",), "of_a": ("a", "gone"), "both": ("of_a", "z")}
    layered = layers(reads)
    assert layered == (("a", "z"), ("of_a", "of_z"), ("both",))
    picture = draw(layered, reads)
    assert [n.name for n in picture.nodes] == ["a", "z", "of_a", "of_z", "both"]
    assert len(picture.lines) == 4
    assert all(n.x + 200 <= picture.width and n.y + 28 <= picture.height for n in picture.nodes)
    assert layers({}) == ()


def test_page_names_are_unique_and_valid_on_every_system() -> None:
    names = [page_name(k) for k in (("a", "b"), ("a.b",), ("a_b",), ("a b",), ("é",), ("x" * 300,))]
    assert names[0] == "a.b.html"
    assert len({n.lower() for n in names}) == len(names)
    assert all(n.isascii() and len(n) < 150 and set(n) < {*map(chr, range(33, 127))} for n in names)
    assert not any(c in n for n in names for c in '/\\:*?"<>|%#')
