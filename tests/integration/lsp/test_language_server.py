"""The language server in a separate process, over the protocol that editors use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from editor import Editor, editing

from persist_assets.compiler.load import load_project
from persist_assets.core.settings.load import load_settings

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


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("edited")


@pytest.fixture(scope="module")
def one_editor(root: Path) -> Iterator[Editor]:
    write(root, FILES)
    with editing(root) as editor:
        yield editor


@pytest.fixture
def editor(one_editor: Editor, root: Path) -> Iterator[Editor]:
    """The editor; changes of a test to its files are undone, and all files are valid afterwards."""
    yield one_editor
    one_editor.close_all()
    for path in (root / "sources").iterdir():
        path.unlink()
    mark = "sources/mark.sql"
    write(root, {**FILES, mark: "-- nothing\n"})
    one_editor.notify("workspace/didChangeWatchedFiles", {"changes": []})
    one_editor.wait_until(mark, lambda messages: messages != [])  # earlier messages have arrived
    (root / mark).unlink()
    one_editor.notify("workspace/didChangeWatchedFiles", {"changes": []})
    one_editor.wait_until(mark, lambda messages: messages == [])
    assert not any(one_editor.diagnostics.values()), one_editor.diagnostics


@pytest.mark.slow
@pytest.mark.proves("W14")
def test_diagnostics_follow_edits_and_disappear_once_errors_are_fixed(editor: Editor) -> None:
    path, reader = "sources/miles.sql", "sources/report.sql"
    text = editor.open(path)
    editor.change(path, text.replace("origin FROM", "orign FROM"))
    (wrong,) = editor.wait_until(path, lambda messages: len(messages) == 1)
    message = "`orign` is not a column of the tables in this query\nhint: did you mean `origin`?"
    assert wrong["message"] == message
    assert (wrong["severity"], wrong["code"]) == (1, "unknown-column")
    # 𝒳 is one character in Python, and two in the protocol.
    column = text.splitlines()[3].index("origin FROM") + 1
    assert wrong["range"] == {
        "start": {"line": 3, "character": column},
        "end": {"line": 3, "character": column + len("orign")},
    }
    editor.change(path, text.replace("AS total", "AS miles"))
    editor.wait_until(path, lambda messages: messages == [])
    wrong = editor.wait_until(reader, lambda messages: messages != [])  # the file is not open
    assert any("`total` is not a column" in d["message"] for d in wrong)
    editor.change(path, text)
    editor.wait_until(reader, lambda messages: messages == [])


@pytest.mark.proves("W14")
def test_closing_a_text_discards_its_edits_and_changed_files_are_reloaded(
    editor: Editor, root: Path
) -> None:
    path = "sources/miles.sql"
    text = editor.open(path)
    editor.change(path, text.replace("FROM flights", "FROM flight"))
    editor.wait_until(path, lambda messages: any("unknown source" in m for m in messages))
    editor.close(path)
    editor.wait_until(path, lambda messages: messages == [])
    (root / path).write_text(text.replace("FROM flights", "FROM planes"))
    editor.notify("workspace/didChangeWatchedFiles", {"changes": []})
    editor.wait_until(path, lambda messages: any("`planes`" in m for m in messages))
    (root / "persist.toml").write_text("sourcez = 'x'\n")
    editor.notify("workspace/didChangeWatchedFiles", {"changes": []})
    editor.wait_until("persist.toml", lambda messages: any("sourcez" in m for m in messages))


@pytest.mark.proves("W14")
def test_the_editor_shows_warnings_and_notes_of_check(editor: Editor, root: Path) -> None:
    path = "sources/miles.sql"
    text = editor.open(path)
    editor.change(path, text.replace("sum(distance)", "sum(distance) + rand()"))
    (note,) = editor.wait_until(path, lambda messages: len(messages) == 1)
    assert (note["severity"], note["code"]) == (3, "note")
    (root / "sources/empty.sql").write_text("-- nothing\n")
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
def test_go_to_definition_finds_the_declaration_of_a_source(editor: Editor) -> None:
    path = "sources/report.sql"
    editor.open(path)
    place = editor.place(path, "miles AS m", 2)
    answer = editor.request("textDocument/definition", place)
    assert places(editor, answer) == [("sources/miles.sql", 3, 13)]
    assert editor.request("textDocument/definition", editor.place(path, "SELECT")) is None


def labels(editor: Editor, place: object) -> list[str]:
    items = editor.request("textDocument/completion", place)
    return [item["label"] for item in items]


@pytest.mark.proves("W14")
def test_sources_columns_and_annotations_are_completed(editor: Editor) -> None:
    path = "sources/report.sql"
    text = editor.open(path)
    editor.request("textDocument/definition", editor.place(path, "SELECT"))  # it compiles
    editor.change(
        path, f"{text}\n--@ pers\nCREATE VIEW more AS SELECT x. , y FROM miles AS x JOIN ;"
    )
    assert labels(editor, editor.place(path, "JOIN ;", 5)) == ["flights", "miles", "report"]
    assert labels(editor, editor.place(path, "x. ,", 2)) == ["carrier", "total", "x", "origin"]
    bare = labels(editor, editor.place(path, ", y FROM", 3))
    assert bare[:4] == ["carrier", "total", "x", "origin"]
    assert "date_trunc" in bare
    assert {"persist", "refresh"} <= {*labels(editor, editor.place(path, "--@ pers\n", 8))}
    # Columns of a common table expression are known without compiling it.
    assert labels(editor, editor.place(path, "f.n", 2)) == ["carrier", "n"]
    assert labels(editor, editor.place(path, "FROM far", 5)) == [
        "far",
        "flights",
        "miles",
        "report",
    ]
    # Completion in a text with an unclosed quote returns an empty list, not an error.
    editor.change(path, f"CREATE VIEW a AS SELECT m. FROM miles AS m WHERE 'x\n{text}")
    assert labels(editor, editor.place(path, "m. FROM", 2)) == []
    editor.change(path, text.replace("f.n, m.origin", "f.n, m."))
    assert labels(editor, editor.place(path, "m. FROM", 2)) == ["carrier", "total", "x", "origin"]


def hover(editor: Editor, path: str, mark: str, into: int = 0) -> str:
    answer = editor.request("textDocument/hover", editor.place(path, mark, into))
    return answer["contents"]["value"] if answer else ""


@pytest.mark.proves("W14")
def test_hover_explains_sources_and_columns(editor: Editor) -> None:
    path = "sources/report.sql"
    editor.open(path)
    told = hover(editor, path, "miles AS m", 2)
    assert told.startswith("**miles/miles** · persisted source\n\nMiles by carrier.")
    assert "| `total` | bigint | |" in told.replace("|  |", "| |")
    assert "reads: raw/flights" in told
    assert "read by: report/report" in told
    assert told.endswith("An edit here rebuilds up to 2 tables: miles/miles, report/report")
    column = hover(editor, path, "m.origin", 3)
    assert column == (
        "`origin` string · column of **miles/miles**\n\ncomputed from: raw/flights.origin"
    )
    # Through a common table expression, and where a source names its own column.
    assert hover(editor, path, "f.n", 2).startswith("`n` bigint · column of **miles/miles**")
    editor.open("sources/miles.sql")
    own = hover(editor, "sources/miles.sql", "total")
    assert own.startswith("`total` bigint · column of **miles/miles**")
    assert own.endswith("computed from: raw/flights.distance")
    assert hover(editor, path, "WHERE") == ""


@pytest.mark.proves("W14")
def test_go_to_definition_finds_where_a_query_names_a_column(editor: Editor) -> None:
    path = "sources/report.sql"
    editor.open(path)
    editor.open("sources/miles.sql")

    def defined(path: str, mark: str, into: int = 0) -> list[tuple[str, int, int]]:
        place = editor.place(path, mark, into)
        return places(editor, editor.request("textDocument/definition", place))

    assert defined(path, "m.origin", 3) == [("sources/miles.sql", 4, 52)]
    assert defined(path, "f.n", 2) == [("sources/report.sql", 3, 39)]
    assert defined(path, "total AS n") == [("sources/miles.sql", 4, 34)]
    assert defined("sources/miles.sql", "distance") == [("sources/raw.sql", 3, 54)]
    assert defined(path, "far AS f") == [("sources/report.sql", 3, 6)]


RENAMED = {
    "sources/raw.sql": RAW,
    "sources/miles.sql": MILES,
    "sources/report.sql": REPORT
    + """
--@ persist
--@ check { relationship { carrier="miles.carrier" } }
CREATE VIEW origins AS SELECT carrier, miles.origin FROM miles;
--@ persist
--@ check { relationship { miles="miles.carrier" } }
CREATE VIEW named AS SELECT carrier AS miles FROM miles;
""",
    "sources/late.py": '''
from persist_assets import model, table

@table(owner="team:a")
def late(miles):
    """Where miles are."""
    return miles.filter("total > 1")

@model
def later(miles):
    return miles

@table(inputs={"m": "miles/miles"})
def latest(m):
    return m
''',
    "sources/shown.malloy": """##! experimental.persistence
// miles in a comment stay
#@ persist
source: shown is spark.table('miles') -> { group_by: carrier, total }
""",
    "tests/miles.yml": "m:\n  source: miles\n",
}


@pytest.mark.slow
@pytest.mark.proves("W14")
def test_a_source_is_renamed_in_all_files(tmp_path: Path) -> None:
    write(tmp_path, RENAMED)
    before = {s.name: s.build_id for s in load_project(load_settings(tmp_path)).sources}
    with editing(tmp_path) as editor:
        path = "sources/miles.sql"
        editor.open(path)
        place = editor.place(path, "miles AS")
        prepared = editor.request("textDocument/prepareRename", place)
        assert prepared["placeholder"] == "miles"
        edit = editor.request("textDocument/rename", {**place, "newName": "distances"})
        (message,) = editor.messages
        assert "`miles/miles` becomes `miles/distances`" in message
        assert message.endswith("Still named `miles`: tests/miles.yml:2")
        for uri, edits in edit["changes"].items():
            file = tmp_path / editor.path(uri)
            file.write_text(with_edits(file.read_text(), edits))
    report = (tmp_path / "sources/report.sql").read_text()
    assert "FROM distances AS miles;" in report
    assert '{ miles="distances.carrier" }' in report, "a column has the source's name"
    assert (
        '(owner="team:a", inputs={"miles": "distances"})'
        in (tmp_path / "sources/late.py").read_text()
    )
    project = load_project(load_settings(tmp_path))
    assert not project.errors
    after = {s.name: s.build_id for s in project.sources}
    assert after == {{"miles": "distances"}.get(name, name): b for name, b in before.items()}


@pytest.mark.proves("W14")
def test_a_rename_right_after_an_edit_is_of_the_edited_text(tmp_path: Path) -> None:
    write(tmp_path, FILES)
    with editing(tmp_path, versioned=True) as editor:
        path, report = editor.uri("sources/miles.sql"), editor.uri("sources/report.sql")
        text = editor.open("sources/miles.sql")
        for n in range(3):
            editor.change("sources/miles.sql", text)
            editor.request("textDocument/hover", editor.place("sources/miles.sql", "miles AS"))
            edited = f"-- {'x' * n}\n{text}".replace("CREATE VIEW", "CREATE  VIEW" + " " * n)
            version = editor.change("sources/miles.sql", edited)
            place = editor.place("sources/miles.sql", "miles AS")
            answer = editor.request("textDocument/rename", {**place, "newName": "distances"})
            of = {d["textDocument"]["uri"]: d for d in answer["documentChanges"]}
            assert {u: d["textDocument"].get("version") for u, d in of.items()} == {
                path: version,
                report: None,  # it is not open
            }
            changed = with_edits(edited, of[path]["edits"])
            assert changed == edited.replace("miles AS", "distances AS")


def with_edits(text: str, edits: list[dict[str, Any]]) -> str:
    """Return a text as an editor would edit it; the texts here are ASCII where they are edited."""
    lines = text.split("\n")
    for edit in sorted(edits, key=lambda e: tuple(e["range"]["start"].values()), reverse=True):
        start, end = edit["range"]["start"], edit["range"]["end"]
        assert start["line"] == end["line"]
        line = lines[start["line"]]
        lines[start["line"]] = (
            line[: start["character"]] + edit["newText"] + line[end["character"] :]
        )
    return "\n".join(lines)


@pytest.fixture(scope="module")
def renaming(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Editor]:
    root = tmp_path_factory.mktemp("renamed")
    write(root, {**RENAMED, "persist.toml": "[env.dev.raw]\nflights = 'data/other'\n"})
    with editing(root) as editor:
        yield editor


@pytest.mark.proves("W14")
@pytest.mark.parametrize(
    ("path", "mark", "name", "reason"),
    [
        ("sources/miles.sql", "miles AS", "report", "would have errors"),
        ("sources/miles.sql", "miles AS", "a-b", "not a valid name"),
        ("sources/miles.sql", "flights", "flown", "`[env.dev.raw] flights` is not a raw table"),
        ("sources/report.sql", "origins AS", "miles", "`miles` is ambiguous"),
        ("sources/shown.malloy", "shown is", "seen", "only Malloy knows"),
    ],
)
def test_an_uncertain_rename_is_refused(
    renaming: Editor, path: str, mark: str, name: str, reason: str
) -> None:
    renaming.open(path)
    place = renaming.place(path, mark)
    answer = renaming.answer("textDocument/rename", {**place, "newName": name})
    renaming.close(path)
    assert reason in answer["error"]["message"], answer
