"""`persist docs`: the content of pages, escaping, and atomic replacement."""

from __future__ import annotations

import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urldefrag

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.duckdb_engine import MakeEngine, engine_of
from typer.testing import CliRunner

from persist_assets.cli import app
from persist_assets.core.errors import ConflictError, StorageError
from persist_assets.web.site.directory import LISTING, write_site

if TYPE_CHECKING:
    from collections.abc import Callable

    from persist_assets.building.builder import Builder
    from persist_assets.core.model.snapshots import Snapshot

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
SOURCES = f"""
-- {EVIL}
CREATE TABLE t (a BIGINT COMMENT 'the "a" & {EVIL}', b STRING) USING parquet LOCATION 'raw/t';
--@ persist owner="team:flights" tags=[nightly] watermark=a refresh=incremental
--@ check {{ not_null=[a] range {{ a {{ min=2 }} severity=warn }} }}
-- Cleaned.
CREATE VIEW p AS SELECT a, b FROM t WHERE a > 0;
CREATE VIEW v AS SELECT a + 1 AS c, b FROM p;
--@ persist group=sums
CREATE VIEW q AS SELECT b, sum(c) AS s FROM v WHERE b <> '{EVIL}' GROUP BY b;
CREATE TABLE j (n INT) USING jdbc OPTIONS (url 'jdbc:x:y', dbtable 'n', password 'hunter2');
"""
PYTHON = '''
from persist_assets import model

@model
def doubled(q):
    """Twice <b>.</b>"""
    return q.selectExpr("s * 2 AS s")
'''


class Page(HTMLParser):
    """The links, tags and text of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.tags: list[str] = []
        self.said: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [v for k, v in attrs if k in ("href", "src") and v]
        assert not any(k.startswith("on") for k, _ in attrs)

    def handle_data(self, data: str) -> None:
        self.said.append(data)

    @property
    def text(self) -> str:
        """Its words, with one space between them."""
        return " ".join(" ".join(self.said).split())


@pytest.fixture
def make_engine(request: pytest.FixtureRequest) -> MakeEngine:
    return engine_of(request)


@pytest.fixture
def root(make_project: Callable[..., Path]) -> Path:
    made = make_project({"m.sql": SOURCES, "py.py": PYTHON})
    (made / "raw" / "t").mkdir(parents=True)
    table = pa.table({"a": pa.array([1, 2, -1], pa.int64()), "b": ["x", "y", "z"]})
    pq.write_table(table, made / "raw" / "t" / "p.parquet")
    return made


def build(builder: Builder) -> Snapshot:
    """Build the source p."""
    made = builder.build(builder.project.by_id["p@sources/m.sql"]).snapshot
    assert made is not None
    return made


def docs(root: Path, *arguments: str, code: int = 0) -> dict[str, object]:
    """Run `persist docs --json`, and check its exit code."""
    done = CliRunner().invoke(app, ["--project", str(root), "docs", *arguments, "--json"])
    assert done.exit_code == code, done.output
    document, _ = json.JSONDecoder().raw_decode(done.stdout)
    return document


def read(site: Path) -> dict[str, bytes]:
    files = (p for p in site.rglob("*") if p.is_file())
    return {p.relative_to(site).as_posix(): p.read_bytes() for p in files}


@pytest.mark.proves("P30", "T12")
def test_pages_show_all_known_facts_and_link_to_each_other(
    root: Path, enter: Callable[..., Builder]
) -> None:
    built = build(enter(root, "prod"))
    build(enter(root))
    site = root / ".persist" / "docs"
    assert docs(root) == {"directory": str(site), "pages": 9}
    pages = {p.relative_to(site).as_posix(): Page(p) for p in site.rglob("*.html")}

    p = pages["sources/m.p.html"].text
    for said in (
        "Cleaned.",
        "team:flights",
        "watermark a",
        "refresh incremental",
        "last build whole",
        "a bigint m/t .a m/q .s",
        "not_null_a a not null blocks publication passed",
        "a at least 2 warns failed : 1 rows",
        "--@ persist owner=",
        "CREATE VIEW p AS SELECT a, b FROM t WHERE a > 0;",
        "sources/m.sql:7:13",
        built.table,
    ):
        assert said in p, (said, p)
    for environment in ("dev", "prod"):
        assert re.search(rf"{environment} p-\w+ \d+ 2 [\d,]+ 20[\d-]+ [\d:]+Z 2 this one", p)
    q = pages["sources/m.q.html"].text
    assert "It is not built yet." in q and "Group sums" in q and "Reads m/v" in q
    assert "refresh auto" in q and "last build" not in q
    assert "m/p .a, " not in q and "s bigint m/p .a" in q
    assert "Read by py/doubled" in q
    doubled = pages["sources/py.doubled.html"].text
    assert "Twice <b>.</b>" in doubled and "def doubled(q):" in doubled

    assert "effort" not in p
    more = pa.table({"a": pa.array([5], pa.int64()), "b": ["x"]})
    pq.write_table(more, root / "raw" / "t" / "q.parquet")
    build(enter(root))
    docs(root)
    p = Page(site / "sources" / "m.p.html").text
    assert (
        "last build append effort rows in changed files: 1, files rewritten: 0, files kept: " in p
    )

    assert "m/p SQL, table Cleaned. 2 " in pages["index.html"].text
    for path, page in pages.items():
        assert {"img", "iframe"}.isdisjoint(page.tags)
        assert page.tags.count("script") == (2 if path == "index.html" else 0), path
        for link in page.links:
            if link not in ("data:,", "#main"):
                assert "://" not in link
                there = (site / path).parent / urldefrag(link)[0]
                assert there.is_file(), (path, link)


@pytest.mark.proves("P30")
def test_docs_are_deterministic_and_escape_text_from_sources(root: Path) -> None:
    docs(root)
    first = read(root / ".persist" / "docs")
    docs(root, str(root / "elsewhere" / "site"))
    assert read(root / "elsewhere" / "site") == first
    docs(root)
    assert read(root / ".persist" / "docs") == first
    everything = b"".join(first.values())
    assert b"<img" not in everything and b"<script>alert" not in everything
    assert b"hunter2" not in everything
    index = first["index.html"].decode()
    (embedded,) = re.findall(r'id="searched">(.*?)</script>', index)
    searched = json.loads(embedded)
    assert EVIL.lower() in " ".join(s["text"] for s in searched)
    assert [s for s in searched if "s" in s["columns"]] != []


@pytest.mark.proves("P30")
def test_invalid_sources_are_shown_with_their_errors(
    root: Path, enter: Callable[..., Builder]
) -> None:
    build(enter(root))
    file = root / "sources" / "m.sql"
    file.write_text(SOURCES.replace("SELECT a, b FROM t", "SELECT a, nope FROM t"))
    (root / "sources" / "no.py").write_text("def broken(:\n")
    docs(root, code=3)
    site = root / ".persist" / "docs"
    p, v = (Page(site / "sources" / f"m.{name}.html").text for name in "pv")
    assert "`nope` is not a column" in p and "SELECT a, nope FROM t" in p
    assert re.search(r"dev p-\w+ .* another one", p)  # readers still use this table
    assert "because of errors in its file or its inputs" in v and "Reads m/p" in v
    problems = Page(site / "problems.html").text
    assert "sources/no.py:1" in problems and "sources/m.sql:7" in problems
    assert "m/p SQL, with errors" in Page(site / "index.html").text


@pytest.mark.proves("P30")
def test_write_site_never_deletes_files_that_it_did_not_write(tmp_path: Path) -> None:
    files = {"index.html": "1", "a/b.html": "2"}
    site = tmp_path / "deep" / "site"
    assert write_site(site, files) == site
    write_site(site, {"index.html": "3"})
    assert {*read(site)} == {"index.html", LISTING}
    assert os.listdir(site.parent) == ["site"]
    assert site.stat().st_mode & 0o055 == 0o055 & ~_umask()

    (site / "CNAME").write_text("mine")
    with pytest.raises(ConflictError, match="did not write: CNAME"):
        write_site(site, files)
    (site / "CNAME").unlink()
    (site / "empty").mkdir()
    with pytest.raises(ConflictError, match="did not write: empty"):
        write_site(site, files)
    (site / "empty").rmdir()
    write_site(site, files)
    assert {*read(site)} == {*files, LISTING}

    others = tmp_path / "others"
    others.mkdir()
    write_site(others, files)
    for made in (tmp_path / "there", tmp_path / "listed"):
        made.mkdir()
        (made / "x.txt").write_text("mine")
        (tmp_path / "listed" / LISTING).write_text("{") if made.name == "listed" else None
        with pytest.raises(ConflictError, match="is not empty") as refused:
            write_site(made, files)
        assert "another directory" in (refused.value.hint or "")
        assert (made / "x.txt").read_text() == "mine"
    with pytest.raises(ConflictError, match="not a directory"):
        write_site(tmp_path / "there" / "x.txt", files)
    with pytest.raises(StorageError, match="cannot write"):
        write_site(tmp_path / "there" / "x.txt" / "site", files)
    link = tmp_path / "link"
    link.symlink_to(site)
    assert write_site(link, {"index.html": "4"}) == site
    assert link.is_symlink() and (link / "index.html").read_text() == "4"


def _umask() -> int:
    now = os.umask(0)
    os.umask(now)
    return now


@pytest.mark.proves("P30")
def test_a_site_is_replaced_atomically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"
    write_site(site, {"index.html": "old", "a.html": "old"})
    rename = Path.rename

    def full(path: Path, target: Path) -> Path:
        if target == site and path.name == "site":
            raise OSError(28, "No space left on device")
        return rename(path, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", full)
        with pytest.raises(StorageError, match="No space"):
            write_site(site, {"index.html": "new"})
    assert read(site)["index.html"] == b"old" and os.listdir(tmp_path) == ["site"]

    def meanwhile(path: Path, target: Path) -> Path:
        done = rename(path, target)
        if path == site and not (tmp_path / "once").exists():
            (tmp_path / "once").touch()
            write_site(site, {"index.html": "another process"})
        return done

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", meanwhile)
        write_site(site, {"index.html": "new"})
    assert read(site)["index.html"] == b"new"
    assert sorted(os.listdir(tmp_path)) == ["once", "site"]
