"""Checks of a project, its ledger and its tables, which report problems.

Spark is started only on request. The invariant: nothing is changed without `fix`; with it, only
exported manifests, databases of Dagster that cannot be opened, and a lost ledger are.
"""

from __future__ import annotations

import json
import os
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from persist_assets.compiler.load import find_former_build_ids, load_project, require
from persist_assets.core.errors import (
    PersistError,
    SettingsError,
    SourcesError,
    StorageError,
    UntrustedError,
)
from persist_assets.core.model.snapshots import RawVersion
from persist_assets.core.object_stores import is_local
from persist_assets.core.settings.load import environments_of, load_settings
from persist_assets.core.trust import permit
from persist_assets.engine.class_archive import find_archive
from persist_assets.engine.java import use_java
from persist_assets.ledger.ledger import Ledger
from persist_assets.ledger.manifest_file import export_manifest, fetch_document
from persist_assets.ledger.migrations import VERSION
from persist_assets.operations.home import find_home, find_split_databases, repair_databases
from persist_assets.operations.recovery import HINT, find_lost, restore
from persist_assets.planning.inputs import beneath
from persist_assets.storage.delta_tables import read_snapshot
from persist_assets.storage.files import know_stores, reached
from persist_assets.wants.requests import TAKERS, find_untaken
from persist_assets.wants.upstreams import began_anew

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from persist_assets.core.errors import Severity
    from persist_assets.core.model.queries import BuildID
    from persist_assets.core.model.snapshots import Build, Snapshot
    from persist_assets.core.settings.values import Settings


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem, or a note.

    Attributes
    ----------
    code
        Stable, kebab-case.
    environment, source_id
        The environment and source that it is about, if any.
    """

    code: str
    severity: Severity
    message: str
    hint: str | None = None
    environment: str | None = None
    source_id: str | None = None


@dataclass(slots=True)
class Report:
    """The checks that were made and their findings. Notes are not problems."""

    findings: list[Finding] = field(default_factory=list[Finding])
    checked: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def well(self) -> bool:
        """Whether there is no problem."""
        return all(f.severity == "note" for f in self.findings)

    def add(self, code: str, message: str, hint: str | None = None, **more: Any) -> None:
        """Add a finding; its severity is "error" by default."""
        self.findings.append(Finding(code, more.pop("severity", "error"), message, hint, **more))

    def add_error(self, code: str, error: PersistError, environment: str | None = None) -> None:
        """Add a finding for one of our own errors."""
        where = f"{error.location}: " if error.location else ""
        if isinstance(error, UntrustedError):
            code, environment = "untrusted", None
        finding = Finding(code, "error", where + error.message, error.hint, environment)
        if finding not in self.findings:
            self.findings.append(finding)


def examine(
    root: Path, *, environment: str | None = None, spark: bool = False, fix: bool = False
) -> Report:
    """Check everything that a project needs and has, in all of its environments.

    Parameters
    ----------
    environment
        A further environment, which `persist.toml` need not declare.
    spark
        Start Spark too.
    fix
        Restore a lost ledger from the exported manifests, export the manifests again that differ
        from the ledger, and repair databases of Dagster that have more than one revision.
    """
    report = Report()
    settings = _look_at_settings(report, root, environment)
    _look_at_java(report, settings.values())
    if not settings:
        return report
    first = next(iter(settings.values()))
    ledger = _open_ledger(report, first)
    if ledger is not None and first.owns_ledger and not first.declared:
        _look_at_settings_of(report, root, ledger.manifests.fetch_environments(), settings)
    report.checked["environments"] = list(settings)
    _look_at_home(report, first, fix=fix)
    meanings = {name: _look_at_sources(report, s) for name, s in settings.items()}
    _look_at_warehouses(report, settings)
    ledger = _look_for_loss(report, ledger, settings, fix=fix)
    if ledger is not None:
        try:
            _look_at_environments(report, ledger, settings)
            _look_at_build_ids(report, ledger, settings, meanings)
            _look_at_tables(report, ledger, settings, meanings)
            _look_at_files(report, ledger, settings, fix=fix)
            _look_at_work(report, ledger)
            _look_at_upstreams(report, ledger, settings)
            _look_at_requests(report, ledger, settings)
        except PersistError as error:
            report.add_error("ledger", error)
        finally:
            ledger.close()
    if spark:
        _start_spark(report, settings.get(environment or "", next(iter(settings.values()))))
    return report


def _look_at_settings(report: Report, root: Path, environment: str | None) -> dict[str, Settings]:
    """Return the settings of each environment that can be loaded, the default one first."""
    by_name: dict[str, Settings] = {}
    try:
        names = [*environments_of(root)]
    except SettingsError as error:
        report.add_error("settings", error)
        return by_name
    if environment is not None and environment not in names:
        names.append(environment)
    _look_at_settings_of(report, root, names, by_name)
    return by_name


def _look_at_settings_of(
    report: Report, root: Path, names: Iterable[str], by_name: dict[str, Settings]
) -> None:
    for name in names:
        if name not in by_name:
            try:
                settings = load_settings(root, environment=name)
                know_stores(settings.stores, settings.patience)
                by_name[name] = settings
            except SettingsError as error:
                report.add_error("settings", error, name)


def _look_at_java(report: Report, settings: Any) -> None:
    try:
        report.checked["pyspark"] = version("pyspark")
    except PackageNotFoundError:
        report.add("spark", "pyspark is not installed", "pip install persist-assets")
    if settings and all("spark.remote" in dict(s.spark) for s in settings):
        return  # Spark runs elsewhere
    try:
        java = use_java()
    except StorageError as error:
        report.add_error("java", error)
        return
    report.checked["java"] = f"{java.version}: {java.path}, from {java.origin}"
    report.checked["class_archive"] = str(
        find_archive() or "none; with one, made by `persist spark prepare`, Spark starts faster"
    )


def _look_at_home(report: Report, settings: Settings, *, fix: bool) -> None:
    """Report, or repair, databases of Dagster that cannot be opened."""
    home = find_home(settings)
    if fix:
        for database in repair_databases(home) if find_split_databases(home) else ():
            message = f"{database} had more than one revision and is repaired"
            report.add("dagster-home", message, severity="note")
    for database in find_split_databases(home):
        report.add(
            "dagster-home",
            f"{database} has more than one revision, so Dagster cannot open it",
            None if fix else "persist doctor --fix repairs it",
        )


def _look_at_sources(report: Report, settings: Settings) -> Mapping[BuildID, str]:
    """Return the SourceIDs of an environment's persisted sources by BuildID."""
    try:
        project = require(load_project(settings))
    except SourcesError as error:
        n = len(error.problems)
        report.add(
            "sources",
            f"{n} problem{'s' * (n != 1)} in the sources: {error.problems[0]}".splitlines()[0],
            f"persist check --env {settings.environment} lists all",
            environment=settings.environment,
        )
        return {}
    except SettingsError as error:
        report.add_error("settings", error, settings.environment)
        return {}
    return {s.build_id: s.source_id for s in project.persisted}


def _look_at_warehouses(report: Report, settings: Mapping[str, Settings]) -> None:
    checked: list[str] = []
    for warehouse in dict.fromkeys(s.warehouse for s in settings.values()):
        probe = f"{warehouse.rstrip('/')}/.doctor-{uuid.uuid4().hex}"
        try:
            permit(warehouse)
            with reached(probe) as (system, path):
                system.create_dir(path.rpartition("/")[0], recursive=True)
                with system.open_output_stream(path) as file:
                    file.write(b"persist doctor")
                system.delete_file(path)
            checked.append(warehouse)
        except UntrustedError as error:
            report.add_error("warehouse", error)
        except StorageError as error:
            names = [n for n, s in settings.items() if s.warehouse == warehouse]
            message = f"cannot write to the warehouse of {', '.join(names)}: {error.message}"
            report.add("warehouse", message, error.hint or "check its disk and permissions")
    report.checked["warehouses"] = checked


def _open_ledger(report: Report, settings: Settings) -> Ledger | None:
    path = settings.ledger.removeprefix("sqlite:///")
    if path != settings.ledger and not Path(path).exists():
        report.add("ledger", "there is no ledger yet", "persist build creates it", severity="note")
        return None
    try:
        ledger = Ledger(settings.ledger)
        report.checked["ledger"] = {"version": VERSION, "events": ledger.events.position()}
    except PersistError as error:
        report.add_error("ledger", error)
        return None
    return ledger


def _look_for_loss(
    report: Report, ledger: Ledger | None, settings: Mapping[str, Settings], *, fix: bool
) -> Ledger | None:
    """Report environments whose ledger was lost; with `fix`, restore what their manifests list."""
    if ledger is None and any(
        f.code in ("ledger", "untrusted") and f.severity == "error" for f in report.findings
    ):
        return None  # the ledger exists, but cannot be opened
    try:
        losses = {name: loss for name, s in settings.items() if (loss := find_lost(s, ledger))}
        if not fix:
            for name, loss in losses.items():
                report.add("ledger-lost", str(loss), HINT, environment=name)
            return ledger
        if losses and ledger is None:
            ledger = Ledger(next(iter(settings.values())).ledger)
        restored = restore([settings[name] for name in losses], ledger) if losses and ledger else {}
    except PersistError as error:
        report.add_error("ledger", error)
        return ledger
    for name, loss in losses.items():
        imported = restored.get(name)
        n = len(imported.moved) + imported.n_same if imported else 0
        message = f"{loss} {n} tables were restored from {settings[name].manifest_path}"
        hint = None if n else "no manifest describes its tables: run persist build"
        report.add("ledger-lost", message, hint, environment=name, severity="note")
        for refused in imported.refused if imported else ():
            report.add(
                "ledger-lost",
                f"{refused.source_id or refused.build_id} was not restored: {refused.reason}",
                "persist build computes it again",
                severity="warning",
                environment=name,
                source_id=refused.source_id,
            )
    return ledger


def _look_at_environments(report: Report, ledger: Ledger, settings: Mapping[str, Settings]) -> None:
    """Report environments of the ledger that `persist.toml` does not declare."""
    first = next(iter(settings.values()))
    if not first.declared:
        return
    for name in ledger.manifests.fetch_environments():
        if name not in settings and name not in first.declared and not first.is_temporary(name):
            n = len(ledger.manifests.fetch(name))
            report.add(
                "unknown-environment",
                f"the ledger has an environment `{name}` with {n} tables, "
                "which persist.toml does not declare",
                f"declare [env.{name}] again if it is still in use",
                # Another project that shares the ledger may own it.
                severity="warning" if first.owns_ledger else "note",
                environment=name,
            )


def _look_at_build_ids(
    report: Report,
    ledger: Ledger,
    settings: Mapping[str, Settings],
    meanings: Mapping[str, Mapping[BuildID, str]],
) -> None:
    """Report environments whose tables have BuildIDs of an older release or of older settings."""
    for name, current in meanings.items():
        manifest = ledger.manifests.fetch(*settings[name].environments)
        problem = find_former_build_ids(settings[name], current, manifest)
        if problem is not None:
            report.add(
                problem.code,
                problem.message,
                problem.hint,
                severity=problem.severity,
                environment=name,
            )


def _look_at_tables(
    report: Report,
    ledger: Ledger,
    settings: Mapping[str, Settings],
    meanings: Mapping[str, Mapping[BuildID, str]],
) -> None:
    """Check that every file of every table that an environment reads exists."""
    first = next(iter(settings.values()))
    looked: dict[tuple[str, int, str], str | None] = {}

    def wrong(root: str, snapshot: Snapshot) -> str | None:
        key = (root, snapshot.version, snapshot.build_uid)
        if key not in looked:
            try:
                read_snapshot(root, snapshot)
                looked[key] = None
            except (StorageError, UntrustedError) as error:
                looked[key] = error.message
        return looked[key]

    for name in ledger.manifests.fetch_environments():
        if name not in settings and not first.owns_ledger:
            continue  # another project may own it, and checks it itself
        env_settings = settings.get(name, first)
        for build_id, snapshot in ledger.manifests.fetch(name).items():
            problems = (
                "a table that it reads was collected"
                if leaf is None
                else wrong(env_settings.table_root(leaf.table), leaf)
                for leaf in beneath(ledger.builds.find_written, snapshot)
                if not isinstance(leaf, RawVersion)
            )
            problem = next((w for w in problems if w is not None), None)
            if problem is None:
                continue
            source_id = meanings.get(name, {}).get(build_id)
            select = (source_id or "").partition("@")[0]
            report.add(
                "table",
                f"cannot read the table of {snapshot.source_id} in `{name}`: {problem}",
                f"persist build {select} --env {name} builds it again, as persist plan shows"
                if source_id
                else "no source has this definition any more, so only a rollback reads it",
                severity="error" if source_id else "warning",
                environment=name,
                source_id=snapshot.source_id,
            )
    report.checked["tables"] = len(looked)
    _look_for_strangers(report, ledger, settings)


def _look_for_strangers(report: Report, ledger: Ledger, settings: Mapping[str, Settings]) -> None:
    """Report tables of a warehouse that the ledger does not know: they belong to another ledger."""
    first = next(iter(settings.values()))
    ours = {first.table_root(table) for table in ledger.builds.fetch_table_names()}
    for warehouse in dict.fromkeys(s.warehouse for s in settings.values()):
        if not is_local(warehouse):
            continue
        with suppress(OSError):
            strange = [
                entry.name
                for entry in os.scandir(warehouse)
                if entry.path not in ours and Path(entry.path, "_delta_log").is_dir()
            ]
            if strange:
                more = f" and {len(strange) - 1} more" if len(strange) > 1 else ""
                report.add(
                    "unknown-table",
                    f"the table {min(strange)}{more} in {warehouse} is not in the ledger",
                    "two ledgers must not share a warehouse; or the ledger was recreated",
                    severity="warning",
                )


def _look_at_files(
    report: Report, ledger: Ledger, settings: Mapping[str, Settings], *, fix: bool
) -> None:
    """Compare the exported manifests with the ledger."""
    for name, env_settings in settings.items():
        try:
            exported = json.loads(env_settings.manifest_path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            exported = None
        except (OSError, ValueError):
            exported = {}
        if exported is None and not ledger.manifests.fetch(*env_settings.environments):
            continue
        if exported == fetch_document(env_settings, ledger):
            continue
        if find_lost(env_settings, ledger) is not None:
            continue  # the file lists builds that the ledger lost
        problem = "is missing" if exported is None else "differs from the ledger"
        message = f"the exported manifest {env_settings.manifest_path} {problem}"
        if fix:
            export_manifest(env_settings, ledger)
            message += "; it was written again"
        hint = None if fix else "persist doctor --fix writes it again"
        severity: Severity = "note" if fix else "warning"
        report.add("manifest-file", message, hint, severity=severity, environment=name)


def _look_at_upstreams(report: Report, ledger: Ledger, settings: Mapping[str, Settings]) -> None:
    """Report upstream graphs whose last read failed, or whose history was reset and read again."""
    for environment, env_settings in settings.items():
        for upstream in env_settings.upstreams:
            name = upstream.name
            problem = ledger.upstreams.find_problem(environment, name)
            if problem is not None:
                hint = "persist evaluate tries again"
                message = f"the graph `{name}`: {problem}"
                report.add("upstream", message, hint, severity="warning", environment=environment)
            elif began_anew(ledger.upstreams.find_cursor(environment, name)):
                message = (
                    f"the history of the graph `{name}` was reset and read again from its start"
                )
                report.add("upstream", message, severity="note", environment=environment)


def _look_at_requests(report: Report, ledger: Ledger, settings: Mapping[str, Settings]) -> None:
    """Report environments in which no process takes build requests."""
    for environment in settings:
        message = find_untaken(ledger, environment, datetime.now(UTC))
        if message is not None:
            report.add("no-runner", message, TAKERS, severity="warning", environment=environment)


def _look_at_work(report: Report, ledger: Ledger) -> None:
    """Report builds and leases of processes that are gone."""
    running = ledger.builds.fetch_under_way()
    report.checked["builds_under_way"] = len(running)
    for build, process, dead in running:
        if dead:
            report.add(
                "dead-build",
                f"a build of {build.source_id} started {_at(build)} in process {process}, "
                "which is gone",
                "its next build or `persist gc` cleans up",
                severity="warning",
                environment=build.environment,
                source_id=build.source_id,
            )
    for lease, dead, expired in ledger.leases.fetch():
        if dead or expired:
            why = "is gone" if dead else "has sent no heartbeat for too long"
            report.add(
                "dead-lease",
                f"`{lease.name}` is held by {lease.holder}, which {why}",
                "the next build takes it over, or `persist gc` gives it back",
                severity="warning",
            )


def _at(build: Build) -> str:
    return build.started_at.strftime("%Y-%m-%d %H:%M UTC")


def _start_spark(report: Report, settings: Settings) -> None:
    from persist_assets.engine.session import create_session
    from persist_assets.engine.spark import SparkEngine

    try:
        session = SparkEngine(settings, lambda: create_session(settings)).session
        report.checked["spark"] = session.version
    except PersistError as error:
        report.add_error("spark", error, settings.environment)
