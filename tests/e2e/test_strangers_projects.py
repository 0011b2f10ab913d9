"""Commands in an untrusted project run none of its code and access nothing outside of it."""

from __future__ import annotations

import json
import os
import pickle
import socket
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from persist_assets.core.model.snapshots import Build, Snapshot
from persist_assets.ledger.builds import Publication
from persist_assets.ledger.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

COMMANDS = (("check",), ("plan", "--against", "far"), ("docs",), ("doctor", "--fix"))


class Listeners:
    """Ports on loopback: each connection is recorded and closed."""

    def __init__(self) -> None:
        self.heard: set[str] = set()
        self._sockets: dict[str, socket.socket] = {}

    def port(self, name: str) -> int:
        """Return the port of a name, and listen on it from then on."""
        if name not in self._sockets:
            listening = socket.create_server(("127.0.0.1", 0))
            self._sockets[name] = listening
            threading.Thread(target=self._listen, args=(name, listening), daemon=True).start()
        return self._sockets[name].getsockname()[1]

    def _listen(self, name: str, listening: socket.socket) -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            self.heard.add(name)
            connection.close()

    def close(self) -> None:
        for listening in self._sockets.values():
            listening.shutdown(socket.SHUT_RDWR)
            listening.close()


@pytest.fixture
def listeners() -> Iterator[Listeners]:
    made = Listeners()
    yield made
    made.close()


class Opened:
    """Runs a program when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.mark}",)


SETTINGS = """
{ledger}
{warehouse}
sources = "sources"
[store."s3://lake"]
endpoint = "http://127.0.0.1:{store}"
[upstream.other]
url = "http://127.0.0.1:{upstream}"
token_env = "PERSIST_TOKEN_OTHER"
[upstream.theirs]
dagster = "http://127.0.0.1:{upstream}"
[sla]
webhook = "http://127.0.0.1:{webhook}/hook"
[spark]
"spark.remote" = "sc://127.0.0.1:{connect}"
"spark.jars" = "evil.jar"
"spark.driver.extraJavaOptions" = "-XX:OnOutOfMemoryError='touch {marks}/java'"
"spark.pyspark.python" = "./python3"
[env.linked]
warehouse = "way-out/warehouse"
[env.far]
warehouse = "s3://lake/warehouse"
"""

SOURCES = {
    "raw.sql": """
CREATE TABLE t (a BIGINT) USING parquet LOCATION 'way-out/raw';
CREATE TABLE far USING delta LOCATION 's3://lake/far';
CREATE TABLE declared (a BIGINT) USING parquet LOCATION 's3://lake/declared';
CREATE TABLE cloned USING delta LOCATION 'clone';
CREATE EXTERNAL TABLE external (a BIGINT) WITH ('connectors' = '[{{"transport": {{
  "name": "delta_table_input", "config": {{"uri": "s3://elsewhere/t", "mode": "snapshot",
  "aws_endpoint": "http://127.0.0.1:{external}", "aws_access_key_id": "x",
  "aws_secret_access_key": "${{env:PERSIST_SECRET_KEY}}"}}}}}}]');
CREATE EXTERNAL TABLE berg (a BIGINT) WITH ('connectors' = '[{{"transport": {{
  "name": "iceberg_input", "config": {{"metadata_location": "s3://lake/b/metadata/v1.metadata.json",
  "mode": "snapshot"}}}}}}]');
""",
    "fine.sql": """
CREATE TABLE s (a BIGINT) USING parquet LOCATION 'way-out/raw';
--@ persist want {{ every=daily needs=["other:x"] }}
CREATE VIEW counted COMMENT '<script>touch()</script>' AS SELECT java_method('java.lang.Runtime', 'exec', 'touch {marks}/java') AS j, a FROM s;
""",
    "names.sql": "--@ persist\nCREATE VIEW `$(touch {marks}/name)` AS SELECT 1 AS one;",
    "$(touch executed);`touch executed`.sql": "--@ persist\nCREATE VIEW odd AS SELECT a FROM s;",
    "code.py": """
import os
os.system("touch {marks}/python")
from persist_assets import model
@model
def computed(s):
    os.system("touch {marks}/function")
    return s
""",
    "m.malloy": """##! experimental.persistence
#@ persist
source: totals is spark.table('s') -> {{ aggregate: n is count() }}
""",
}
BROKEN = ("raw.sql", "names.sql", "link.sql")
"""Without these files the others compile, so commands continue after compilation."""

SCRIPT = "#!/bin/sh\ntouch {marks}/script\nexit 1\n"
FILES = {
    ".env": "DAGSTER_HOME={marks}\nPERSIST_TRUST=*\n",
    "definitions.py": "open('{marks}/definitions', 'w')",
    "conftest.py": "open('{marks}/conftest', 'w')",
    "sitecustomize.py": "open('{marks}/sitecustomize', 'w')",
    "persist_assets.py": "open('{marks}/package', 'w')",
    "pyspark.py": "open('{marks}/pyspark', 'w')",
    "package.json": '{{"type": "module", "main": "evil.js"}}',
    "evil.js": "require('fs').writeFileSync('{marks}/node', '')",
    ".persist/dagster/dagster.yaml": "run_launcher: {{module: evil, class: Evil}}\n",
    ".persist/dagster/evil.py": "open('{marks}/dagster', 'w')",
    "spark/conf/spark-defaults.conf": "spark.plugins evil.Plugin\n",
}
SCRIPTS = ("java", "node", "git", "python3", "psql", ".git/hooks/post-index-change", "gradlew")

LEDGERS = {
    "a file outside": 'ledger = "sqlite:///../outside/victim.sqlite"',
    "a new file outside": 'ledger = "sqlite:///../outside/new/ledger.db"',
    "over a link": 'ledger = "sqlite:///way-out/victim.sqlite"',
    "a server": 'ledger = "postgresql://user:secret@127.0.0.1:{postgres}/x"',
    "a server by option": 'ledger = "postgresql:///x?host=127.0.0.1&port={postgres}"',
    "their own": "",
}
WAREHOUSES = ('warehouse = "{outside}/warehouse"', 'warehouse = "way-out/warehouse"', "")


def write(path: Path, text: str, *, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def made_outside(outside: Path) -> None:
    """Create files of the user that a malicious project could target."""
    outside.mkdir()
    with closing(sqlite3.connect(outside / "victim.sqlite")) as database, database:
        database.execute("CREATE TABLE alembic_version (version_num TEXT)")
        database.execute("INSERT INTO alembic_version VALUES ('a'), ('b')")
    with closing(sqlite3.connect(outside / "wal.sqlite")) as database:
        database.execute("PRAGMA journal_mode = WAL")
        with database:
            database.execute("CREATE TABLE alembic_version (version_num TEXT)")
            database.execute("INSERT INTO alembic_version VALUES ('a'), ('b')")
    write(outside / ".bashrc", "alias ls=ls\n")
    write(outside / "others.sql", "CREATE VIEW secret AS SELECT 1 AS one;")
    write(outside / "docs" / "index.html", "mine")
    (outside / "raw").mkdir()
    pq.write_table(pa.table({"a": pa.array([1, 2], pa.int64())}), outside / "raw" / "p.parquet")
    write_deltalake(outside / "warehouse" / "theirs-0123456789ab", pa.table({"a": [1]}))


def cloned(root: Path, outside: Path, ports: Mapping[str, int], ledger: str, warehouse: str, leave: tuple[str, ...]) -> None:  # fmt: skip
    """Write a malicious project."""
    marks = outside / "marks"
    marks.mkdir(exist_ok=True)
    values = {"marks": marks, "outside": outside, **ports}
    ledger, warehouse = ledger.format(**values), warehouse.format(**values)
    more = {"ledger": ledger, "warehouse": warehouse}
    write(root / "persist.toml", SETTINGS.format(**values, **more))
    for name, text in SOURCES.items():
        if name not in leave:
            write(root / "sources" / name, text.format(**values))
    for name, text in FILES.items():
        write(root / name, text.format(**values))
    for name in SCRIPTS:
        write(root / name, SCRIPT.format(marks=marks), mode=0o755)
    (root / "way-out").symlink_to(outside)
    (root / "sources" / "linked").symlink_to(outside)
    if not leave:
        (root / "sources" / "link.sql").symlink_to(outside / "others.sql")
    (root / ".persist" / "dagster" / "history").mkdir()
    for name in ("victim", "wal"):
        link = root / ".persist" / "dagster" / "history" / f"{name}.db"
        link.symlink_to(outside / f"{name}.sqlite")
    (root / ".persist" / "cache").mkdir()
    (root / ".persist" / "cache" / "dev.pickle").write_bytes(pickle.dumps(Opened(marks / "pickle")))
    (root / ".persist" / "docs").mkdir()
    for name in ("index.html", "persist-docs.json"):
        (root / ".persist" / "docs" / name).symlink_to(outside / "docs" / "index.html")
    # A table whose log names files in an object store.
    write_deltalake(root / "clone", pa.table({"a": pa.array([1], pa.int64())}))
    (log,) = (root / "clone" / "_delta_log").glob("*.json")
    (file,) = (root / "clone").glob("*.parquet")
    log.write_text(log.read_text().replace(file.name, f"s3://lake/clone/{file.name}"))
    if not ledger:  # the project's own ledger, which names the locations of tables
        now, theirs = datetime.now(UTC), Ledger(f"sqlite:///{root}/.persist/ledger.db")
        for number, table in enumerate(("s3://lake/table", str(outside / "warehouse" / "theirs"))):
            build = Build(f"u{number}", f"p{number}@sources/m.sql", f"{number}" * 64, "d", "dev", None, "started", "built", now)  # fmt: skip
            theirs.builds.record_started(build, table)
            snapshot = Snapshot(build.build_uid, build.source_id, build.build_id, table, 0, (), "c", 1, 1, now)  # fmt: skip
            theirs.builds.publish(Publication(build, snapshot, ()))
        theirs.close()


def state(directory: Path) -> dict[str, tuple[int, int, int, bytes]]:
    """Return the content and metadata of all files below a directory, except access times."""
    found: dict[str, tuple[int, int, int, bytes]] = {}
    for path in (directory, *sorted(directory.rglob("*"))):
        facts = path.lstat()
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        kept = (facts.st_mode, facts.st_mtime_ns, facts.st_ino, content)
        found[path.relative_to(directory).as_posix()] = kept
    return found


class Visitor:
    """Runs commands in a project, as a user whose environment contains secrets."""

    def __init__(self, tmp_path: Path, root: Path, **more: str) -> None:
        self.root = root
        aside = {name: str(tmp_path / "own" / name) for name in ("cache", "config")}
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "PERSIST_"))},
            "HOME": str(tmp_path / "outside"),
            "PERSIST_CACHE": aside["cache"],
            "XDG_CONFIG_HOME": aside["config"],
            "PERSIST_TOKEN_OTHER": "token",
            "PERSIST_SECRET_KEY": "secret",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_EC2_METADATA_DISABLED": "true",
            **more,
        }

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        persist = Path(sys.executable).with_name("persist")
        return subprocess.run(
            [persist, *command],
            cwd=self.root,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=300,
        )


NAMES = ("postgres", "store", "upstream", "webhook", "connect", "external")


@pytest.mark.slow
@pytest.mark.proves("S7", "S30")
@pytest.mark.parametrize(
    ("ledger", "leave"), [("a file outside", ()), *((name, BROKEN) for name in LEDGERS)]
)
def test_untrusted_projects_run_no_code_and_access_nothing_outside(
    tmp_path: Path, listeners: Listeners, ledger: str, leave: tuple[str, ...]
) -> None:
    outside, root = tmp_path / "outside", tmp_path / "clone"
    made_outside(outside)
    warehouse = WAREHOUSES[list(LEDGERS).index(ledger) % len(WAREHOUSES)]
    ports = {name: listeners.port(name) for name in NAMES}
    cloned(root, outside, ports, LEDGERS[ledger], warehouse, leave)
    visitor = Visitor(tmp_path, root)
    before = state(outside)
    for command in COMMANDS:
        done = visitor.run(*command)
        assert "Traceback" not in done.stderr, done.stderr
        assert "this is a bug" not in done.stderr, done.stderr
        assert not listeners.heard, command
        assert state(outside) == before, command
        assert ":secret@" not in done.stdout + done.stderr
        if command == ("check",):
            assert done.returncode == (0 if leave else 3), done.stderr
    told = visitor.run("doctor", "--json")
    codes = [p["code"] for p in json.loads(told.stdout)["problems"]]
    assert "untrusted" in codes
    assert not {p.name for p in root.rglob("executed")}
    for page in (root / ".persist" / "docs").rglob("*.html"):
        assert "<script>touch" not in page.read_text()


@pytest.mark.proves("S30")
@pytest.mark.parametrize(
    ("link", "command", "message"),
    [
        ("sources", ("check",), "outside the project"),
        (".persist", ("doctor", "--fix"), "is a symbolic link"),
        (".persist/ledger.db", ("plan",), "is a symbolic link"),
        (".persist/docs", ("docs",), "is a symbolic link"),
    ],
)
def test_symbolic_links_out_of_the_project_are_refused(
    tmp_path: Path, link: str, command: tuple[str, ...], message: str
) -> None:
    outside, root = tmp_path / "outside", tmp_path / "clone"
    made_outside(outside)
    write(root / "persist.toml", "")
    write(root / "sources" / "a.sql", "--@ persist\nCREATE VIEW a AS SELECT 1 AS one;")
    if link == "sources":
        (root / "sources" / "a.sql").unlink()
        (root / "sources").rmdir()
    (root / link).parent.mkdir(exist_ok=True)
    (root / link).symlink_to(outside)
    visitor, before = Visitor(tmp_path, root), state(outside)
    done = visitor.run(*command)
    assert message in done.stderr
    assert state(outside) == before


@pytest.mark.slow
@pytest.mark.proves("S30")
def test_commands_access_only_trusted_places(tmp_path: Path, listeners: Listeners) -> None:
    outside, root = tmp_path / "outside", tmp_path / "clone"
    made_outside(outside)
    ports = {name: listeners.port(name) for name in NAMES}
    cloned(root, outside, ports, LEDGERS["a new file outside"], WAREHOUSES[0], BROKEN)
    visitor = Visitor(tmp_path, root)
    listed = json.loads(visitor.run("trust", "--json").stdout)["places"]
    store, upstream = (f"http://127.0.0.1:{ports[n]}" for n in ("store", "upstream"))
    assert {p["place"]: p["named_by"] for p in listed} == {
        str(outside / "new" / "ledger.db"): ["ledger"],
        str(outside / "warehouse"): ["warehouse"],
        "s3://lake": ['[store."s3://lake"]', "warehouse"],
        store: ['[store."s3://lake"]'],
        upstream: ["[upstream.other]", "[upstream.theirs]"],
    }
    assert not any(p["trusted"] for p in listed)
    refused = visitor.run("plan")
    assert refused.returncode == 2
    assert f"{outside}/new/ledger.db is outside the project and not trusted" in refused.stderr
    # Trust one place, and everything below it.
    assert visitor.run("trust", str(outside / "new")).returncode == 0
    assert visitor.run("doctor").returncode == 1
    assert not (outside / "new").exists()
    visitor.run("plan")
    assert (outside / "new" / "ledger.db").exists()
    assert not listeners.heard
    # PERSIST_TRUST is enough for other places; the remaining ones are still refused.
    trusting = Visitor(tmp_path, root, PERSIST_TRUST=f"s3://lake/below {store}")
    problems = json.loads(trusting.run("doctor", "--json").stdout)["problems"]
    assert [p["message"].split()[0] for p in problems if p["code"] == "untrusted"] == [
        str(outside / "warehouse")
    ]
    assert listeners.heard == {"store"}
    # A changed place must be trusted separately.
    assert visitor.run("trust", "--all").returncode == 0
    assert all(p["trusted"] for p in json.loads(visitor.run("trust", "--json").stdout)["places"])
    settings = (root / "persist.toml").read_text()
    (root / "persist.toml").write_text(settings.replace("outside/new/", "outside/newer/"))
    assert visitor.run("plan").returncode == 2
    # Trust does not extend to another clone.
    other = tmp_path / "other"
    cloned(other, outside, ports, LEDGERS["a server"], WAREHOUSES[0], BROKEN)
    assert Visitor(tmp_path, other).run("docs").returncode == 2


@pytest.mark.slow
@pytest.mark.proves("S30")
def test_a_project_without_outside_places_needs_no_trust(tmp_path: Path) -> None:
    root = tmp_path / "own"
    write(root / "persist.toml", "")
    write(root / "sources" / "a.sql", "--@ persist\nCREATE VIEW a AS SELECT 1 AS one;")
    visitor = Visitor(tmp_path, root)
    (tmp_path / "outside").mkdir()
    for command in (("plan",), ("doctor",)):
        done = visitor.run(*command)
        assert done.returncode == 0, (command, done.stderr)
    assert "names no places outside" in visitor.run("trust").stdout
