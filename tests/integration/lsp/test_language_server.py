"""The language server, as an editor sees it: over the protocol, with a process of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from editor import Editor, editing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RAW = """
-- Who flew where.
CREATE TABLE flights (carrier STRING, origin STRING, distance INT, flown_on DATE)
USING parquet LOCATION 'data/flights';
"""
MILES = """--@ persist
-- Miles by carrier.
CREATE VIEW miles AS
SELECT carrier, sum(distance) AS total, '𝒳' AS x, origin FROM flights GROUP BY carrier, origin;
"""
REPORT = """--@ persist
CREATE VIEW report AS
WITH far AS (SELECT carrier, total AS n FROM miles WHERE total > 1000)
SELECT f.carrier, f.n, m.origin FROM far AS f JOIN miles AS m ON m.carrier = f.carrier;
"""


def write(root: Path, files: dict[str, str]) -> None:
    for path, text in {"persist.toml": "", **files}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


FILES = {"sources/raw.sql": RAW, "sources/miles.sql": MILES, "sources/report.sql": REPORT}


@pytest.fixture
def editor(tmp_path: Path) -> Iterator[Editor]:
    write(tmp_path, FILES)
    with editing(tmp_path) as editor:
        yield editor


@pytest.mark.proves("W14")
def test_diagnostics_follow_the_text_and_vanish_when_it_is_mended(editor: Editor) -> None:
    path, reader = "sources/miles.sql", "sources/report.sql"
    text = editor.open(path)
    editor.change(path, text.replace("origin FROM", "orign FROM"))
    (wrong,) = editor.wait_until(path, lambda messages: len(messages) == 1)
    message = "`orign` is not a column of the tables in this query\nhint: did you mean `origin`?"
    assert wrong["message"] == message
    assert (wrong["severity"], wrong["code"]) == (1, "unknown-column")
    # 𝒳 is one character for us, and two for the protocol.
    column = text.splitlines()[3].index("origin FROM") + 1
    assert wrong["range"] == {
        "start": {"line": 3, "character": column},
        "end": {"line": 3, "character": column + len("orign")},
    }
    editor.change(path, text.replace("AS total", "AS miles"))
    editor.wait_until(path, lambda messages: messages == [])
    wrong = editor.wait_until(reader, lambda messages: messages != [])  # it is not open
    assert any("`total` is not a column" in d["message"] for d in wrong)
    editor.change(path, text)
    editor.wait_until(reader, lambda messages: messages == [])


@pytest.mark.proves("W14")
def test_a_closed_text_counts_no_more_and_files_are_read_again(
    editor: Editor, tmp_path: Path
) -> None:
    path = "sources/miles.sql"
    text = editor.open(path)
    editor.change(path, text.replace("FROM flights", "FROM flight"))
    editor.wait_until(path, lambda messages: any("unknown source" in m for m in messages))
    editor.close(path)
    editor.wait_until(path, lambda messages: messages == [])
    (tmp_path / path).write_text(text.replace("FROM flights", "FROM planes"))
    editor.notify("workspace/didChangeWatchedFiles", {"changes": []})
    editor.wait_until(path, lambda messages: any("`planes`" in m for m in messages))
    (tmp_path / "persist.toml").write_text("sourcez = 'x'\n")
    editor.notify("workspace/didChangeWatchedFiles", {"changes": []})
    editor.wait_until("persist.toml", lambda messages: any("sourcez" in m for m in messages))


@pytest.mark.proves("W14")
def test_warnings_and_remarks_are_those_of_check(editor: Editor, tmp_path: Path) -> None:
    path = "sources/miles.sql"
    text = editor.open(path)
    editor.change(path, text.replace("sum(distance)", "sum(distance) + rand()"))
    (note,) = editor.wait_until(path, lambda messages: len(messages) == 1)
    assert (note["severity"], note["code"]) == (3, "note")
    (tmp_path / "sources/empty.sql").write_text("-- nothing\n")
    editor.notify("workspace/didChangeWatchedFiles", {"changes": []})
    editor.wait_until(
        "sources/empty.sql", lambda messages: "this file defines no source" in messages
    )


def places(editor: Editor, answer: object) -> list[tuple[str, int, int]]:
    """Return the paths, lines and columns of locations."""
    found = answer if isinstance(answer, list) else [answer]
    starts = [(editor.path(p["uri"]), p["range"]["start"]) for p in found]
    return [(path, start["line"] + 1, start["character"] + 1) for path, start in starts]


@pytest.mark.proves("W14")
def test_the_definition_of_a_source_is_where_it_is_declared(editor: Editor) -> None:
    path = "sources/report.sql"
    editor.open(path)
    place = editor.place(path, "miles AS m", 2)
    answer = editor.request("textDocument/definition", place)
    assert places(editor, answer) == [("sources/miles.sql", 3, 13)]
    assert editor.request("textDocument/definition", editor.place(path, "SELECT")) is None
