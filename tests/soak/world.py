"""Two deployments on one PostgreSQL, with all that they need: everything that a soak works on.

    raw tables ─► shop ─► ledger `shop`, tables under fixed names on disk ─► board ─► … in a bucket

Both share one Spark server. The bucket is on an S3-compatible server behind a proxy that can be
slow and fail: it holds the tables that `board` publishes, and the archives of events.
"""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import warm
from buckets import Proxy, serving
from conftest import SPARK_TOML
from deltalake import DeltaTable, write_deltalake
from jvm import quicken
from postgres import Postgres
from soak.texts import BAD, BOARD, DAYS, SHOP, Code, Texts, write
from test_ledger_versions import make_old

from persist_assets.compiler.load import load_project, require
from persist_assets.core.object_stores import PATIENCE
from persist_assets.core.settings.load import load_settings
from persist_assets.ledger.ledger import Ledger
from persist_assets.ledger.migrations import VERSION
from persist_assets.storage.files import know_stores

if TYPE_CHECKING:
    from persist_assets.core.model.project import Project
    from persist_assets.core.settings.values import Settings

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENTS = ("dev", "prod")
KEEP_S = 60
STORE = 'store_timeout = "5s"\nstore_retry = "15s"\n'
"""How long stores are waited for: a proxy that is silent holds nothing up for a minute."""


@dataclass
class Deployment:
    """A project, its ledger and its service."""

    name: str
    root: Path
    texts: Texts
    ledger_url: str
    published: str
    archive: str
    locations: dict[str, str]
    port: int
    code: Code = ()
    service: subprocess.Popen[Any] | None = None
    meanings: dict[tuple[str, str], set[Code]] = field(default_factory=dict)
    """By name and BuildID the codes that had it."""

    def settings(self, environment: str = "prod") -> Settings:
        return load_settings(self.root, environment=environment)

    def project(self, environment: str = "prod") -> Project:
        return require(load_project(self.settings(environment)))

    def edit(self, code: Code) -> None:
        """Write the sources, and remember what each BuildID means."""
        write(self.root / "sources" / f"{self.name}.sql", self.texts.text(code, self.locations))
        self.code = code
        for source in self.project().persisted:
            self.meanings.setdefault((source.name, source.build_id), set()).add(code)

    def warehouse(self) -> Path:
        return self.root / ".persist" / "warehouse"


class World:
    """All that a soak works on, made from a seed.

    Attributes
    ----------
    base
        A directory of its own, which may be deleted afterwards.
    done, kills, faults
        What was done, killed and made wrong, how often.
    violations
        What is wrong that never may be.
    """

    def __init__(self, base: Path, seed: int) -> None:
        self.base, self.seed, self.chance = base, seed, random.Random(seed)
        self.done, self.kills, self.faults = Counter[str](), Counter[str](), Counter[str]()
        self.violations: list[str] = []
        self.began = time.monotonic()
        self.quiet = 0
        self._n, self._lock = 0, threading.Lock()
        self._stack = ExitStack()
        self.deployments: tuple[Deployment, ...] = ()
        self._environ = dict(os.environ)
        (base / "logs").mkdir(parents=True, exist_ok=True)
        self._log = self._stack.enter_context((base / "steps.log").open("a", buffering=1))
        os.environ |= {
            "PERSIST_TRUST": "*",
            "PERSIST_CACHE": str(base / "cache"),
            "PERSIST_SPARK_HOME": str(base / "spark-home"),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        for name in ("PERSIST_ENV", "DAGSTER_HOME"):
            os.environ.pop(name, None)
        quicken(os.environ)
        self.generation = self.next_id = self.n_clicks = 0
        try:
            self._start_servers()
            self.shop = self._make_shop()
            self.board = self._make_board()
        except BaseException:
            self.close()
            raise
        self.deployments = (self.shop, self.board)

    def _start_servers(self) -> None:
        self.postgres = Postgres()
        self._stack.callback(self.postgres.close)
        inner = self._stack.enter_context(serving("s3_server.py"))
        proxied = serving("s3_proxy.py", inner.rpartition(":")[2])
        self.proxy = Proxy(self._stack.enter_context(proxied))
        self.bucket = self.proxy.new_bucket()

    # ------------------------------------------------------------------------------- the log of steps

    def say(self, text: str) -> None:
        """Log a step."""
        with self._lock:
            self._n += 1
            self._log.write(f"{time.monotonic() - self.began:8.1f} s  #{self._n:<5} {text}\n")

    def violate(self, text: str) -> None:
        """Record something that must not be."""
        self.say(f"VIOLATION {text}")
        with self._lock:
            if len(self.violations) < 200:
                self.violations.append(text)

    # ------------------------------------------------------------------------------- what is made

    def _make_shop(self) -> Deployment:
        root, lake = self.base / "shop", self.base / "lake"
        names = (*SHOP.raws, "visits")
        url = self.postgres.schema("shop")
        version = self.chance.randrange(1, VERSION)
        make_old(url, version)
        self._forget_sample(url)
        self.say(f"the ledger of shop begins as one of version {version} of {VERSION}")
        made = Deployment(
            "shop",
            root,
            SHOP,
            url,
            str(lake),
            str(self.base / "archive"),
            {n: f"raw/{n}" for n in names},
            _free_port(),
        )
        self._settle(made, f'[env.prod.publish]\npath = "{lake}"\n')
        self._append("orders", self.orders(40))
        customers = [{"customer": n, "name": f"n{n}"} for n in range(8)]
        self._append("customers", pa.Table.from_pylist(customers))
        self._append("visits", self.visits(20))
        self.add_clicks()
        self.next_generation(good=True)
        return made

    def _make_board(self) -> Deployment:
        root, lake = self.base / "board", self.base / "lake"
        place = f"{self.bucket}/board"
        locations = {n: f"{lake}/shop/{n}" for n in ("report", "stamp")}
        made = Deployment(
            "board",
            root,
            BOARD,
            self.postgres.schema("board"),
            place,
            f"{self.bucket}/archive",
            {**locations, "targets": "raw/targets"},
            _free_port(),
        )
        store = f'[store."{self.bucket}"]\nendpoint = "{self.proxy.url}"\nregion = "eu-central-1"\n'
        upstream = (
            f'[upstream.shop]\nurl = "http://127.0.0.1:{self.shop.port}"\npatterns = ["shop/**"]\n'
        )
        self._settle(made, f'[env.prod.publish]\npath = "{place}"\n{store}{upstream}')
        targets = [{"customer": n, "target": n * 3} for n in range(8)]
        write_deltalake(str(root / "raw" / "targets"), pa.Table.from_pylist(targets))
        return made

    def _settle(self, made: Deployment, more: str) -> None:
        head = f'ledger = "{made.ledger_url}"\nkeep = "{KEEP_S}s"\nparallel = 2\n{STORE}'
        environments = '[env.prod]\n[env.dev]\nreads = "prod"\n'
        alert = f'[retention]\nevents = "2h"\narchive = "{made.archive}"\n'
        write(made.root / "persist.toml", head + environments + more + alert + self.spark_toml())
        made.edit(made.texts.first())

    def spark_toml(self) -> str:
        return f'{SPARK_TOML}shared = true\nshared_idle = "10m"\n'

    def _forget_sample(self, url: str) -> None:
        """Take out of an old ledger what its fixture has: tables that are nowhere."""
        import sqlalchemy as sa

        engine = sa.create_engine(url)
        with engine.begin() as connection:
            for table in ("manifest_entries", "builds"):
                connection.exec_driver_sql(f"DELETE FROM {table}")
        engine.dispose()

    def ledger(self, deployment: Deployment) -> Ledger:
        """Open the ledger of a deployment in this process."""
        return Ledger(deployment.ledger_url)

    # ---------------------------------------------------------------------------------- raw tables

    def raw(self, name: str) -> str:
        root = self.board.root if name == "targets" else self.base / "shop"
        return str(root / "raw" / name)

    def orders(self, n: int) -> pa.Table:
        import datetime as dt

        rows = []
        for _ in range(n):
            self.next_id += 1
            rows.append(
                {
                    "id": self.next_id,
                    "customer": self.chance.randrange(8),
                    "day": dt.date(2024, 1, 1 + self.chance.randrange(DAYS)),
                    "amount": self.chance.randrange(10),
                    "kind": self.chance.choice("abc"),
                }
            )
        return pa.Table.from_pylist(rows)

    def visits(self, n: int) -> pa.Table:
        rows = []
        for _ in range(n):
            self.next_id += 1
            customer, number = self.chance.randrange(8), self.chance.randrange(6)
            rows.append({"id": self.next_id, "customer": customer, "n": number})
        return pa.Table.from_pylist(rows)

    def _append(self, name: str, rows: pa.Table) -> None:
        write_deltalake(self.raw(name), rows, mode="append")

    def write_raw(self) -> str:
        """Let something happen to a raw or external table, and return what."""
        act = self.chance.choice(
            "append append append update delete compact clicks generation generation overwrite".split()
        )
        name = self.chance.choice(("orders", "orders", "visits", "customers", "targets"))
        customer = self.chance.randrange(8)
        if act == "clicks":
            self.add_clicks()
            return "append clicks"
        if act == "generation":
            self.next_generation()
            return f"overwrite gen with {self.generation}"
        table = DeltaTable(self.raw(name))
        if act == "compact":
            table.optimize.compact()
        elif name in ("customers", "targets"):
            act = "update"
            column, value = ("name", f"'m{self.chance.randrange(99)}'")
            if name == "targets":
                column, value = "target", str(self.chance.randrange(9))
            table.update({column: value}, predicate=f"customer = {customer}")
        elif act == "update":
            column = "amount" if name == "orders" else "n"
            table.update({column: f"{column} + 1"}, predicate=f"customer = {customer}")
        elif act == "delete":
            table.delete(f"customer = {customer} AND id % 3 = 0")
        else:
            rows = self.orders if name == "orders" else self.visits
            mode = "overwrite" if act == "overwrite" else "append"
            n = 25 if act == "overwrite" else self.chance.randrange(1, 6)
            write_deltalake(self.raw(name), rows(n), mode=mode)  # type: ignore[arg-type]
        return f"{act} {name}"

    def add_clicks(self) -> None:
        directory = Path(self.raw("clicks"))
        directory.mkdir(parents=True, exist_ok=True)
        first, self.n_clicks = self.n_clicks * 5, self.n_clicks + 1
        numbers = pa.array(range(first, first + 5), pa.int64())
        customers = pa.array([n % 8 for n in range(first, first + 5)], pa.int64())
        new = directory / f"_{self.n_clicks}"
        pq.write_table(pa.table({"n": numbers, "customer": customers}), new)
        new.rename(directory / f"{self.n_clicks}.parquet")

    def next_generation(self, *, good: bool = False) -> None:
        """Replace all rows of `gen` by those of the next generation, which tell it."""
        self.generation += 1
        while good and self.generation % 5 == BAD:
            self.generation += 1
        n = self.generation % 7 + 3
        rows = {"g": pa.array([self.generation] * n, pa.int64()), "i": pa.array(range(n))}
        write_deltalake(self.raw("gen"), pa.table(rows), mode="overwrite")

    # ----------------------------------------------------------------------------------- processes

    def start(
        self, deployment: Deployment, *arguments: str, log: str, out: Path | None = None
    ) -> subprocess.Popen[Any]:
        """Start a command of a project, whose output goes to a file, or to two."""
        path = self.base / "logs" / log
        with path.open("ab") as file, (out or path).open("wb" if out else "ab") as output:
            return warm.Popen(
                [sys.executable, "-m", "persist_assets.cli", *arguments],
                cwd=deployment.root,
                env=dict(os.environ),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=file,
                start_new_session=True,
            )

    def serve(self, deployment: Deployment) -> None:
        """Start the service of a deployment, if it does not run."""
        if deployment.service is None or deployment.service.poll() is not None:
            deployment.service = self.start(
                deployment,
                *("serve", "--build", "--env", "prod", "--port", str(deployment.port)),
                log=f"serve-{deployment.name}.log",
            )

    def end_services(self) -> None:
        for deployment in self.deployments:
            if deployment.service is not None and deployment.service.poll() is None:
                deployment.service.terminate()
                try:
                    deployment.service.wait(30)
                except subprocess.TimeoutExpired:
                    deployment.service.kill()
                    deployment.service.wait()
            deployment.service = None

    def backends(self) -> list[int]:
        """Return the processes of PostgreSQL that serve clients, but for the one that asks."""
        import psycopg

        query = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'"
        try:
            with psycopg.connect(host=str(self.postgres.root), user="postgres") as connection:
                pids = [row[0] for row in connection.execute(query)]
                own = connection.info.backend_pid
        except psycopg.OperationalError:
            return []
        return sorted({*pids} - {own})

    def crash_postgres(self, away_s: float, *, is_kill: bool) -> None:
        """End PostgreSQL without a checkpoint, and start it after so many seconds."""
        self.postgres.kill() if is_kill else self.postgres.stop_at_once()
        threading.Event().wait(away_s)
        self.postgres.start()

    def spark_processes(self) -> dict[str, int]:
        """Return the process IDs of the Spark server: `supervisor` and `jvm`, as far as they run."""
        import json

        pids: dict[str, int] = {}
        for path in (self.base / "spark-home").glob("spark/*/processes.json"):
            with suppress(OSError, ValueError):
                names = ("supervisor", "jvm")
                pids |= {
                    n: p for n, p in zip(names, json.loads(path.read_text()), strict=True) if p
                }
        return pids

    def close(self) -> None:
        """End everything."""
        from persist_assets.engine.server import stop_server

        self.end_services()
        for state in (self.base / "spark-home").glob("spark/*"):
            stop_server(state)
        self._stack.close()
        know_stores([], PATIENCE)
        os.environ.clear()
        os.environ |= self._environ


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
