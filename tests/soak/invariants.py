"""What must be true of two deployments whenever nothing runs and nothing is broken.

`check_quiet` looks after each while, `check_end` at the end, when also nothing is left over.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import sqlalchemy as sa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from soak.readers import READERS, options_of
from soak.world import ENVIRONMENTS, KEEP_S, Deployment

from persist_assets.building.observe import Observer
from persist_assets.core.model.snapshots import mixed
from persist_assets.ledger.projections import PROJECTIONS
from persist_assets.storage.delta_tables import is_whole

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa
    from soak.texts import Code
    from soak.world import World

    from persist_assets.core.model.snapshots import Snapshot
    from persist_assets.ledger.ledger import Ledger

PATIENCE_S = 240.0
"""So long a command may take when nothing is broken: leases of the dead end sooner."""
Rows = Counter[tuple[Any, ...]]


# --------------------------------------------------------------------------- commands that must work


def command(
    world: World, deployment: Deployment, *arguments: str, codes: Sequence[int] = (0,)
) -> Any:
    """Run a command that must succeed, and return its document."""
    began, words = time.monotonic(), f"{deployment.name}: {' '.join(arguments)}"
    stem = f"quiet-{world.quiet:03}-{deployment.name}-{'-'.join(arguments[:1])}"
    stem += f"-{arguments[arguments.index('--env') + 1]}" if "--env" in arguments else ""
    out = world.base / "logs" / f"{stem}.json"
    process = world.start(deployment, *arguments, "--json", log=f"{stem}.log", out=out)
    try:
        code = process.wait(PATIENCE_S)
    except Exception:  # what waits for processes raises one of its own
        process.kill()
        process.wait()
        world.violate(f"{words} does not end although nothing is broken (logs/{stem}.log)")
        return None
    world.say(f"quiet: {words}: {code} after {time.monotonic() - began:.1f} s")
    errors = (world.base / "logs" / f"{stem}.log").read_text(errors="replace")
    text = out.read_text()
    if code not in codes:
        world.violate(f"{words} ended with {code}: {text[-1500:]} {errors[-1500:]}")
    try:
        return json.loads(text)
    except ValueError:
        return None


def beside(*tasks: Any) -> None:
    """Do tasks beside each other; errors of ours are errors."""
    errors: list[BaseException] = []

    def run(task: Any) -> None:
        try:
            task()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(task,)) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


# ------------------------------------------------------------------------------- rows from scratch


def rows_of(table: pa.Table) -> Rows:
    """Return the rows of a table, with their columns in the order of their names."""
    names = sorted(table.column_names)
    return Counter(tuple(row[name] for name in names) for row in table.to_pylist())


def raw_table(world: World, deployment: Deployment, name: str, version: int | None) -> Any:
    """Return what DuckDB reads as a raw table."""
    if name == "clicks":
        return duckdb.read_parquet(f"{world.raw('clicks')}/*.parquet").to_arrow_table()
    place = Path(deployment.locations[name])
    return DeltaTable(str(deployment.root / place), version=version).to_pyarrow_table()


def computed(
    world: World, deployment: Deployment, code: Code, versions: Mapping[str, int] | None = None
) -> dict[str, Rows]:
    """Return the rows of all sources, computed by DuckDB from raw tables.

    Parameters
    ----------
    versions
        Of which raw tables which version; None: of all the newest. Sources that read others are
        left out.
    """
    names = [*deployment.texts.raws, *(["visits"] if deployment.texts.external else [])]
    tables: dict[str, Rows] = {}
    with duckdb.connect() as connection:
        for name in names:
            if versions is None or name in versions:
                version = None if versions is None else versions[name]
                connection.register(name, raw_table(world, deployment, name, version))
        for name, query in deployment.texts.queries(code).items():
            try:
                rows = connection.sql(query).to_arrow_table()
            except duckdb.CatalogException:
                continue
            connection.register(name, rows)
            tables[name] = rows_of(rows)
    return tables


def compare(actual: Rows, expected: Rows) -> str:
    """Return how rows differ, or nothing."""
    more, fewer = actual - expected, expected - actual
    if not (more or fewer):
        return ""
    return f"{more.total()} too many {[*more][:3]}, {fewer.total()} missing {[*fewer][:3]}"


class Looked:
    """Looks at one deployment when it is quiet."""

    def __init__(self, world: World, deployment: Deployment) -> None:
        self.world, self.deployment = world, deployment
        self.ledger: Ledger = world.ledger(deployment)

    def violate(self, text: str) -> None:
        self.world.violate(f"{self.deployment.name}: {text}")

    def rows(self, snapshot: Snapshot) -> Rows:
        root = self.deployment.settings().table_root(snapshot.table)
        return rows_of(DeltaTable(root, version=snapshot.version).to_pyarrow_table())

    def check_current(self, environment: str) -> None:
        """Everything was just built: plans reuse all, and rows are those of the data of now."""
        settings = self.deployment.settings(environment)
        project = self.deployment.project(environment)
        plan = Observer(settings, project, self.ledger).plan(s.source_id for s in project.persisted)
        for step in plan.steps:
            if step.action != "reuse":
                why = "; ".join(r.message for r in step.reasons)
                self.violate(f"{environment}: {step.source_id} is built, and the plan says {why}")
        expected = computed(self.world, self.deployment, self.deployment.code)
        manifest = self.ledger.manifests.fetch(*settings.environments)
        for source in project.persisted:
            snapshot = manifest.get(source.build_id)
            if snapshot is None:
                self.violate(f"{environment}: {source.name} has no table after a build of all")
                continue
            if wrong := compare(self.rows(snapshot), expected[source.name]):
                self.violate(
                    f"{environment}: {source.name} in {snapshot.table} v{snapshot.version}: {wrong}"
                )
            self.world.done["tables compared with data"] += 1

    def check_history(self) -> None:
        """Each entry has the rows of the text of its time over the raw versions that it names."""
        project = self.deployment.project()
        raws = {s.build_id: s.name for s in project.sources if s.raw is not None}
        names = {b: (n, codes) for (n, b), codes in self.deployment.meanings.items()}
        for environment in ENVIRONMENTS:
            settings = self.deployment.settings(environment)
            for build_id, snapshot in self.ledger.manifests.fetch(environment).items():
                if not is_whole(settings.table_root(snapshot.table), snapshot):
                    self.violate(f"{environment}: {snapshot.source_id} {snapshot.table} is damaged")
                elif build_id in names:
                    self._check_entry(environment, snapshot, *names[build_id], raws)

    def _check_entry(
        self,
        environment: str,
        snapshot: Snapshot,
        name: str,
        codes: set[Code],
        raws: Mapping[str, str],
    ) -> None:
        versions: dict[str, int] = {}
        for part in snapshot.as_of:
            kind, _, rest = part.version.partition(":")
            raw = raws.get(part.raw)
            if raw is None or kind != "delta" or raw == "visits":
                return  # of files there are no versions, and those of copies are their own
            versions[raw] = int(rest.split(":")[0])
        if mixed(snapshot.as_of):
            return
        for code in codes:
            try:
                expected = computed(self.world, self.deployment, code, versions)[name]
            except DeltaError as error:
                if self.deployment.name == "shop":
                    self.violate(f"{name} rests on {versions}, which cannot be read: {error}")
                return  # else a rollback has deleted a published table, and it was made anew
            if wrong := compare(self.rows(snapshot), expected):
                self.violate(
                    f"{environment}: {name} of {versions} in {snapshot.table} v{snapshot.version}"
                    f" by {dict(code)}: {wrong}"
                )
            self.world.done["tables compared with their versions"] += 1

    def check_published(self) -> None:
        """Tables under fixed names have the rows of the manifest, whoever reads them."""
        project = self.deployment.project("prod")
        manifest = self.ledger.manifests.fetch("prod")
        for source in project.persisted:
            place = f"{self.deployment.published}/{self.deployment.name}/{source.name}"
            expected = self.rows(manifest[source.build_id])
            for engine, read in READERS.items():
                try:
                    rows = read(place)
                except Exception as error:
                    self.violate(f"{engine} cannot read {place}: {str(error)[:300]}")
                    continue
                actual = Counter(tuple(row[k] for k in sorted(row)) for row in rows)
                if wrong := compare(actual, expected):
                    self.violate(f"{engine} reads of {place}: {wrong}")

    def check_nothing_hangs(self) -> None:
        """No build has started that nobody computes, no lease is left that is over."""
        for build, process, is_gone in self.ledger.builds.fetch_under_way():
            if is_gone:
                self.violate(f"{build.source_id} in {build.environment} is started by {process}")
        for lease, is_gone, has_expired in self.ledger.leases.fetch():
            if is_gone or has_expired:
                self.violate(f"the lease {lease.name} of {lease.holder} is over and left")

    def check_wants(self) -> None:
        """Wants have ended by their times, and late ones are recorded as missed."""
        now = datetime.now(UTC)
        for want in self.ledger.wants.fetch("prod"):
            about = f"the want {want.want_id} of {want.partition_ref}"
            expires = want.created_at + timedelta(seconds=want.ttl_s or 10**6)
            if want.ended_at is None and expires < now - timedelta(seconds=5):
                self.violate(f"{about} is {want.state} after it has expired")
            if want.state in ("requested", "building"):
                request = self.ledger.requests.find(want.request_id or "")
                if request is None or request.state not in ("requested", "started"):
                    self.violate(f"{about} is {want.state}, and its request is {request}")
            # Who looks for late wants looks every half a minute.
            seen_by = (want.ended_at or now) - timedelta(seconds=60)
            late = want.deadline is not None and want.deadline < seen_by
            miss = self.ledger.wants.find_miss(want.want_id)
            if late and want.state in ("satisfied", "expired") and miss is None:
                self.violate(f"{about} was late, and no miss is recorded")
            if miss is not None and want.state == "satisfied" and miss.delivered_at is None:
                self.violate(f"{about} was delivered, and its miss does not know")
            self.world.done[f"wants {want.state} in the end"] += 1

    def check_projections(self) -> None:
        """A rebuild from the events gives the same rows."""
        before = self._projected()
        self.ledger.events.rebuild_projections()
        after = self._projected()
        for name, rows in before.items():
            if rows != after[name]:
                differing = [*(rows - after[name]), *(after[name] - rows)][:4]
                self.violate(f"a rebuild gives other rows of {name}: {differing}")

    def _projected(self) -> dict[str, Counter[str]]:
        with self.ledger.events.database.read() as connection:
            return {
                table.name: Counter(repr(tuple(r)) for r in connection.execute(sa.select(table)))
                for table in PROJECTIONS
            }

    def check_left_over(self) -> None:
        """No file of a table is there that no manifest names."""
        settings = self.deployment.settings()
        named: set[Path] = set()
        for environment in ENVIRONMENTS:
            for snapshot in self.ledger.manifests.fetch(environment).values():
                root = Path(settings.table_root(snapshot.table))
                files = DeltaTable(root, version=snapshot.version).file_uris()
                uids = {Path(file).relative_to(root).parts[0] for file in files}
                named |= {root, *(root / uid for uid in uids)}
                # A table without rows has no files, and states lie beside them.
                named |= {root / uid for uid in (snapshot.build_uid, *snapshot.parts)}
        for table in sorted(p for p in self.deployment.warehouse().iterdir() if p.is_dir()):
            if table.name.startswith("."):
                continue
            if table not in named:
                self.violate(f"the table {table.name} is left over: {_files(table)}")
                continue
            for build in sorted(p for p in table.iterdir() if p.name != "_delta_log"):
                if build not in named:
                    self.violate(f"{table.name}/{build.name} is left over: {_files(build)}")

    def close(self) -> None:
        self.ledger.close()


def _files(directory: Path) -> list[str]:
    return sorted(str(p.relative_to(directory)) for p in directory.rglob("*") if p.is_file())[:4]


# ------------------------------------------------------------------------------------ all of them


def heal(world: World) -> None:
    """Let nothing be broken any more; the data passes its checks."""
    world.proxy.behave()
    world.postgres.start()
    world.next_generation(good=True)
    for deployment in world.deployments:
        world.serve(deployment)


def build_all(world: World, environments: Sequence[str] = ENVIRONMENTS) -> None:
    """Build everything, as its order is: each must succeed."""
    for deployment in world.deployments:
        for environment in sorted(environments, reverse=True):  # what prod has, dev reads
            document = command(world, deployment, "build", "--env", environment)
            for build in (document or {}).get("builds", ()):
                world.done[f"quiet: {build['action']}"] += 1


def verify_all(world: World, environments: Sequence[str]) -> None:
    """`persist verify` finds no difference."""

    def verify(deployment: Deployment, environment: str) -> None:
        document = command(world, deployment, "verify", "--env", environment)
        for one in (document or {}).get("sources", ()):
            world.done[f"verify: {one['status']}"] += 1
            if one["status"] in ("different", "failed"):
                world.violate(f"{deployment.name} {environment}: verify: {json.dumps(one)[:600]}")

    beside(
        *(
            lambda d=d: [verify(d, environment) for environment in environments]
            for d in world.deployments
        )
    )


def check_quiet(world: World, *, environments: Sequence[str] = ENVIRONMENTS) -> None:
    """Look at everything; no command of the soak runs, and nothing is broken."""
    world.quiet += 1
    world.say(f"quiet point {world.quiet}")
    heal(world)
    build_all(world, environments)
    for deployment in world.deployments:  # ends what the dead have begun, also of former meanings
        command(world, deployment, "gc", "--env", "prod")
    for deployment in world.deployments:
        looked = Looked(world, deployment)
        for environment in environments:
            looked.check_current(environment)
        looked.check_history()
        if "prod" in environments:
            looked.check_published()
        looked.check_nothing_hangs()
        looked.close()
    verify_all(world, environments)
    command(world, world.board, "evaluate", "--env", "prod")  # reads the events of shop again
    for deployment in world.deployments:
        document = command(world, deployment, "doctor", codes=(0, 1))
        for problem in (document or {"problems": [{"severity": "error", "code": "silent"}]})[
            "problems"
        ]:
            # What a killed process left is cleaned up by the next build of that source.
            if problem["severity"] != "note":
                world.violate(f"{deployment.name}: doctor: {problem}")


def check_end(world: World) -> None:
    """Look at what is left when everything has ended and what was kept may be deleted."""
    for deployment in world.deployments:
        command(
            world, deployment, "evaluate", "--build", "--force", "--env", "prod", codes=(0, 1, 4)
        )
    world.end_services()
    command(world, world.shop, "evaluate", "--env", "prod")
    command(world, world.board, "evaluate", "--env", "prod")
    build_all(world)
    threading.Event().wait(KEEP_S + 2)
    for deployment in world.deployments:
        for environment in ENVIRONMENTS:
            command(world, deployment, "gc", "--removed", "--env", environment)
        second = command(world, deployment, "gc", "--dry-run", "--env", "prod")
        if second and second["tables"]:
            world.violate(f"{deployment.name}: a second collection finds {second['tables'][:3]}")
    for deployment in world.deployments:
        looked = Looked(world, deployment)
        for environment in ENVIRONMENTS:
            looked.check_current(environment)
        looked.check_history()
        looked.check_published()
        looked.check_nothing_hangs()
        looked.check_wants()
        looked.check_projections()
        looked.check_left_over()
        looked.close()


def check_readers(world: World, seen: Path, digests: Mapping[str, Mapping[str, set[str]]]) -> None:
    """Readers of fixed names saw the rows of published versions, and no others.

    Parameters
    ----------
    digests
        By deployment and source the digests of all snapshots that were ever published.
    """
    generations, reported = 0, set[tuple[str, str]]()
    for line in seen.read_text().splitlines():
        one = json.loads(line)
        *_, group, name = one["place"].split("/")
        if "error" in one:
            is_far = bool(options_of(one["place"])) if one["place"].startswith("s3") else False
            gone = any(w in one["error"] for w in ("NotFound", "not found", "No such", "No files"))
            world.done[f"reads: {'far' if is_far else 'gone' if gone else 'failed'}"] += 1
            if not (is_far or gone):
                world.violate(f"{one['engine']} failed at {one['place']}: {one['error']}")
            continue
        world.done[f"reads: {one['engine']}"] += 1
        seen_rows = one["place"], one["digest"]
        if one["digest"] not in digests[group].get(name, set()) and seen_rows not in reported:
            reported.add(seen_rows)
            world.violate(f"{one['engine']} saw rows of no version: {one}")
        if "generations" in one:
            (generation, *others) = one["generations"]
            n = generation % 7 + 3
            generations += 1
            if others or one["numbers"] != [*range(n)] or generation % 5 == 4:
                world.violate(f"{one['engine']} saw a generation that was never whole: {one}")
    world.done["reads of whole generations"] = generations
