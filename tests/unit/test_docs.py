"""The docs are complete and up to date."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest
from conftest import ROOT

from persist_assets.cli import EXIT_CODES, app
from persist_assets.compiler.frontends.annotated_checks import _CHECKS
from persist_assets.core.object_stores import SCHEMES, SPARK_PACKAGES
from persist_assets.ledger.log import KINDS
from persist_assets.operations.documents.alerts import AlertDocument
from persist_assets.operations.documents.base import Document
from persist_assets.operations.documents.builds import BuildDocument, RunDocument
from persist_assets.operations.documents.costs import CostsDocument, SpentOnDocument
from persist_assets.operations.documents.events import EventDocument
from persist_assets.operations.documents.explanations import (
    NodeDocument,
    RulesDocument,
    TableDocument,
    WayDocument,
)
from persist_assets.operations.documents.plans import (
    ExpectedDocument,
    ExternalDocument,
    PlanDocument,
    StepDocument,
    VolumeDocument,
)
from persist_assets.operations.documents.verifications import (
    VerificationDocument,
    VerificationsDocument,
)
from persist_assets.operations.documents.wants import (
    EvaluationDocument,
    MissDocument,
    WantDocument,
)

DOCS = ROOT / "docs"


@pytest.mark.parametrize(
    "command",
    [
        *(c.name for c in app.registered_commands),
        *(
            f"{g.name} {c.name}"
            for g in app.registered_groups
            for c in g.typer_instance.registered_commands
        ),
    ],
)
def test_every_command_is_in_the_docs(command: str) -> None:
    assert f"| `{command}" in (DOCS / "cli.md").read_text()


@pytest.mark.parametrize(
    ("section", "model"),
    [
        ("plan", PlanDocument),
        ("plan", StepDocument),
        ("plan", VolumeDocument),
        ("plan", ExpectedDocument),
        ("plan", ExternalDocument),
        ("build, follow", RunDocument),
        ("build, follow", BuildDocument),
        ("explain", RulesDocument),
        ("explain", NodeDocument),
        ("explain", TableDocument),
        ("explain", WayDocument),
        ("verify", VerificationsDocument),
        ("verify", VerificationDocument),
        ("want add, want show, want cancel, want list", WantDocument),
        ("evaluate", EvaluationDocument),
        ("sla", MissDocument),
        ("events", EventDocument),
        ("alerts list, alerts send, alerts test", AlertDocument),
        ("cost", CostsDocument),
        ("cost", SpentOnDocument),
    ],
)
def test_every_key_of_a_document_is_in_the_docs_in_its_order(
    section: str, model: type[Document]
) -> None:
    text = (DOCS / "cli.md").read_text().split(f"\n### {section}\n")[1].split("\n### ")[0]
    keys = re.findall(r'"(\w+)"', text)
    for name in model.model_fields:
        keys = keys[keys.index(name) + 1 :]


@pytest.mark.parametrize("code", sorted({code for _, code in EXIT_CODES}))
def test_every_exit_code_is_in_the_docs(code: int) -> None:
    assert f"| {code} |" in (DOCS / "cli.md").read_text()


@pytest.mark.proves("H8")
def test_the_reference_is_generated_from_the_current_code() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "reference.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_declared_event_kinds_are_exactly_those_in_the_ledgers_code() -> None:
    texts = Counter[str]()
    for path in (ROOT / "persist_assets" / "ledger").glob("*.py"):
        texts.update(
            node.value
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        )
    assert {kind for kind in KINDS if texts[kind] < 2} == set(), "kinds that nothing records"
    hyphenated = {text for text in texts if re.fullmatch(r"[a-z]+(-[a-z]+)+", text)}
    assert hyphenated - {"read-only"} <= KINDS.keys()
    reference = (DOCS / "reference" / "events.md").read_text()
    assert re.findall(r"^\| `(.+?)` \|", reference, re.MULTILINE) == [*KINDS]


@pytest.mark.parametrize("word", [*(f"`{s}://" for s in SCHEMES), *SPARK_PACKAGES.values()])
def test_every_kind_of_store_is_in_the_docs(word: str) -> None:
    assert word in (DOCS / "settings.md").read_text()


def test_the_docs_name_the_hadoop_version_that_spark_includes() -> None:
    import pyspark

    (jar,) = (Path(pyspark.__file__).parent / "jars").glob("hadoop-client-api-*.jar")
    version = jar.stem.rpartition("-")[2]
    text = (DOCS / "settings.md").read_text()
    assert set(re.findall(r"hadoop-(?:aws|azure):([\d.]+)", text)) == {version}


_OF_EACH = ("accepted_values", "range", "relationship", "row_count", "freshness")


@pytest.mark.parametrize(
    "key",
    [f"{kind} {{" if kind in _OF_EACH else f"{kind}=" for kind in _CHECKS],
)
def test_every_check_is_in_the_docs(key: str) -> None:
    text = (DOCS / "annotations.md").read_text()
    assert f"| `{key}" in text


def test_the_acceptance_table_is_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "acceptance.py"), "--check"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.proves("S20", "S28")
def test_ci_runs_only_commands_that_the_docs_name() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    commands = re.findall(r"^make -s (.+?)(?: 2>&1.*)?$", script, re.MULTILINE)
    assert {"test", 'test-slow MINUTES="$minutes"', "bench OPTIONS=--small"} <= {*commands}
    guides = (ROOT / "README.md").read_text() + (ROOT / "CONTRIBUTING.md").read_text()
    for command in commands:
        assert f"make {command}" in guides, command


@pytest.mark.proves("S28")
def test_no_test_is_skipped_in_the_default_run() -> None:
    for path in (ROOT / "tests").rglob("test_*.py"):
        text = path.read_text()
        if path.parent.name == "nightly" or path == Path(__file__):
            continue
        assert "pytest.skip(" not in text, path
        for condition in re.findall(r"skipif\(\s*(.+?),\s*reason", text, re.DOTALL):
            assert "PERSIST_TEST_SPARK" in condition, path


def test_links_within_the_docs_point_to_existing_files() -> None:
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text()):
            if not target.startswith("http"):
                assert (path.parent / target).exists(), f"{path.relative_to(ROOT)}: {target}"


def mkdocs(config: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    return subprocess.run(
        [*command, "--config-file", str(config), "--site-dir", str(site)],
        capture_output=True,
        text=True,
    )


class Page(HTMLParser):
    """The URLs that a browser loads for a page by itself, without the links that people click."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.asked: set[str] = set()
        self.classes: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.classes |= set(given.get("class", "").split())
        names = ["src", "srcset", "poster", "data", "style"]
        names += ["href", "xlink:href"] if tag not in ("a", "area") else []
        self.asked |= {given[name] for name in names if name in given}

    def handle_data(self, data: str) -> None:
        if self.lasttag == "style":
            self.asked.add(data)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("docs") / "site"
    done = mkdocs(ROOT / "mkdocs.yml", target)
    assert done.returncode == 0, done.stdout + done.stderr
    return target


@pytest.mark.proves("H7")
def test_the_docs_site_loads_nothing_from_other_hosts(site: Path) -> None:
    pages = {path: Page(path) for path in site.rglob("*.html")}
    assert len(pages) > len([*DOCS.rglob("*.md")])  # and the 404 page
    for path, page in pages.items():
        elsewhere = {a for a in page.asked if re.search(r"(?<![\w:])(https?:)?//\w", a)}
        assert not elsewhere, path
        assert "mermaid" not in page.classes, path  # drawing it would load a script
    for path in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*[\"']?(https?:)?//", path.read_text()), path


def test_the_site_has_the_files_that_pages_link_to(site: Path) -> None:
    assert (site / "files" / "tests" / "unit" / "test_docs.py.txt").read_text() == (
        Path(__file__).read_text()
    )
    assert "<code>query SQL [--limit N] [--format table|json|csv]" in (
        (site / "cli" / "index.html").read_text()
    )


@pytest.mark.proves("H7")
def test_broken_links_fail_the_build_of_the_docs_site(tmp_path: Path) -> None:
    targets = ["a.md", "other.md#b", "#c", "../tests/d.py", "images/e.png", "../../f.md", "/g.md"]
    links = "\n".join(f"![to nothing]({t})" if "png" in t else f"[to]({t})" for t in targets)
    pages = {"index.md": f"# Start\n\n{links}\n", "other.md": "# Other\n", "alone.md": "# Alone\n"}
    (tmp_path / "docs").mkdir()
    for name, text in pages.items():
        (tmp_path / "docs" / name).write_text(text)
    nav = "nav: [index.md, other.md]\n"
    config = re.sub(r"^nav:\n(  .*\n)+", nav, (ROOT / "mkdocs.yml").read_text(), flags=re.M)
    (tmp_path / "mkdocs.yml").write_text(config)
    (tmp_path / "scripts").symlink_to(ROOT / "scripts")
    done = mkdocs(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert done.returncode == 1
    warnings = [line for line in done.stderr.splitlines() if line.startswith("WARNING")]
    for target in targets:
        assert any(f"'{target}'" in line for line in warnings), (target, warnings)
    assert any("alone.md" in line or "nav" in line for line in warnings), warnings
