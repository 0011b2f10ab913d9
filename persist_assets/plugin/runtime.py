"""What the assets and the IO manager of one code location share: projects, and a run's builder.

A Dagster run asks for its builder by its run id; all steps of a run in one process get the same
one, so that they share their view of the raw data and one Spark session. A run builds in the
environment that its tag `ENVIRONMENT_TAG` names, without one in that of the code location. Where
raw data lies is part of BuildIDs, so each environment has the sources compiled for it.
"""

import json
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import dagster as dg

from persist_assets.building.builder import Builder
from persist_assets.building.observe import Observer
from persist_assets.building.scheduler import Pool
from persist_assets.compiler.load import find_former_build_ids, load_project, require, sound
from persist_assets.core.errors import ConflictError, SettingsError
from persist_assets.core.model.project import Project
from persist_assets.core.model.queries import SourceID
from persist_assets.core.settings.load import load_settings
from persist_assets.core.settings.values import Settings
from persist_assets.engine.spark import SparkEngine
from persist_assets.ledger.ledger import Ledger
from persist_assets.operations.gc import Collected, collect
from persist_assets.operations.recovery import open_ledger

log = logging.getLogger(__name__)

ENVIRONMENT_TAG = "persist/environment"
"""The tag of a run that names the environment it builds in; events of assets have it too."""
SCHEMA_TAG = "persist/schema-change"
"""A run with this tag set to ``allow`` publishes other columns, whatever sources say of that."""

ORIGIN_TAG = "persist/origin"
"""The tag of a run that somebody started by our command line: who and where, in JSON."""
PYSPARK = "pyspark"
"""The key of the resource that has the Spark session."""


class Runtime:
    """The project behind a code location.

    Parameters
    ----------
    settings, project
        In the environment of the code location.
    fed
        Raw tables that assets of the code location write.

    Attributes
    ----------
    late
        Sources that wait for more than sources (`Pool`).
    deps
        The assets that those of persisted sources depend on in Dagster.
    """

    def __init__(self, settings: Settings, project: Project, fed: frozenset[SourceID]) -> None:
        self.settings, self.project, self.fed = settings, project, fed
        self.late: set[SourceID] = set()
        self.deps: dict[SourceID, tuple[dg.AssetKey, ...]] = {}
        self._settings = {settings.environment: settings}
        self._projects = {settings.environment: project}
        self._builders: dict[str, Builder] = {}
        self._pools: dict[str, Pool] = {}
        self._told: dict[str, set[object]] = {}
        self._ledger: Ledger | None = None
        self._lock = threading.RLock()

    def settings_of(self, run: dg.DagsterRun | None) -> Settings:
        """Return the settings of the environment that a run builds in.

        Raises
        ------
        SettingsError
            Its tag names an environment that there is not.
        """
        name = run.tags.get(ENVIRONMENT_TAG) if run else None
        if name is None:
            return self.settings
        with self._lock:
            if name not in self._settings:
                try:
                    loaded = load_settings(self.settings.root, environment=name)
                except SettingsError as error:
                    message = f"the run's tag `{ENVIRONMENT_TAG}: {name}`: {error.message}"
                    raise SettingsError(
                        message, hint=error.hint, location=error.location
                    ) from error
                self._settings[name] = replace(loaded, sources=self.settings.sources)
            return self._settings[name]

    def _project(self, settings: Settings) -> Project:
        """Return the sources as an environment has them.

        They are read when a run first builds there, and have to say what they said when the code
        location was loaded: assets, dependencies and checks are those of that time.
        """
        name = settings.environment
        if name not in self._projects:
            project = load_project(settings)
            project = sound(project) if self.project.errors else require(project)
            if _said(project) != _said(self.project):
                raise ConflictError(
                    f"the sources changed after they were loaded, before a run in `{name}`",
                    hint="reload the definitions",
                )
            self._projects[name] = project
        return self._projects[name]

    def builder(self, run: dg.DagsterRun | None, session: Callable[[], Any]) -> Builder:
        """Return the builder of a run; its session is taken when it first needs one.

        Raises
        ------
        SettingsError
            Its tag names an environment that there is not.
        SourcesError
            The sources are wrong in that environment.
        ConflictError
            They have changed since they were loaded; or a run in an environment with other
            settings of Spark is under way in this process, which has one session.
        LedgerError
            The ledger cannot be opened.
        """
        run_id = run.run_id if run else ""
        with self._lock:
            if run_id not in self._builders:
                settings = self.settings_of(run)
                project = self._project(settings)
                for other in self._builders.values():
                    if other.settings.changing != settings.changing:
                        raise ConflictError(
                            f"a run in `{other.settings.environment}`, whose Spark settings "
                            "differ, is in progress in this process",
                            hint="wait for its end, or start this one in a separate process",
                        )
                self._warn_of_former_build_ids(settings, project)
                engine = SparkEngine(settings, session)
                self._builders[run_id] = Builder(
                    settings,
                    project,
                    self._open_ledger(),
                    engine,
                    run_id=run_id,
                    fed=self.fed,
                    origin=origin_of(run),
                    changing=bool(run) and run.tags.get(SCHEMA_TAG, "").lower() == "allow",
                )
            return self._builders[run_id]

    def _warn_of_former_build_ids(self, settings: Settings, project: Project) -> None:
        manifest = self._open_ledger().manifests.fetch(*settings.environments)
        current = {s.build_id for s in project.persisted}
        problem = find_former_build_ids(settings, current, manifest)
        if problem is not None:
            log.warning("%s", problem)

    def _open_ledger(self) -> Ledger:
        with self._lock:
            if self._ledger is None:
                self._ledger = open_ledger(self.settings)
            return self._ledger

    def observer(self) -> Observer:
        """Return a new observer of everything as it is now.

        Raises
        ------
        LedgerError
            The ledger cannot be opened.
        """
        return Observer(self.settings, self.project, self._open_ledger(), fed=self.fed)

    def collect(self, run: dg.DagsterRun) -> list[Collected]:
        """Delete what nobody needs, in the environment of a run: see `operations.gc.collect`."""
        settings = self.settings_of(run)
        with self._lock:
            project = self._project(settings)
        return collect(settings, project, self._open_ledger())

    def pool(self, run_id: str, make: Callable[[], Pool]) -> Pool:
        """Return the pool of a run; it is made when a step first asks for it."""
        if run_id not in self._pools:
            self._pools[run_id] = make()
        return self._pools[run_id]

    def is_first(self, run_id: str, what: object) -> bool:
        """Whether a run has not been asked this before."""
        with self._lock:
            keys = self._told.setdefault(run_id, set())
            new = what not in keys
            keys.add(what)
            return new

    def close(self, run_id: str) -> None:
        """Forget a run that has ended; what is under way is ended too."""
        self._told.pop(run_id, None)
        pool = self._pools.pop(run_id, None)
        if pool is not None:
            pool.close()
        with self._lock:
            builder = self._builders.pop(run_id, None)
        if builder is not None:
            builder.close()


def _said(project: Project) -> dict[SourceID, object]:
    """Return what sources say themselves, which no environment changes."""
    return {
        s.source_id: (
            s.definition if s.raw is None else s.raw.format,
            s.persisted,
            tuple((c.name, c.definition, c.blocking) for c in s.checks),
        )
        for s in project.sources
    }


def origin_of(run: dg.DagsterRun | None) -> Mapping[str, Any]:
    """Return how a run came to be: what the wants of its builds say of their source."""
    if run is None:
        return {"type": "api"}
    tags = run.tags
    for tag, kind in (("dagster/schedule_name", "schedule"), ("dagster/sensor_name", "sensor")):
        if tag in tags:
            return {"type": kind, kind: tags[tag], "job": run.job_name}
    if ORIGIN_TAG in tags:
        return {"type": "cli", **json.loads(tags[ORIGIN_TAG])}
    if run.remote_job_origin is not None or any(tag.startswith(".dagster/") for tag in tags):
        more = {"backfill": tags["dagster/backfill"]} if "dagster/backfill" in tags else {}
        return {"type": "dashboard", "job": run.job_name, **more}
    return {"type": "api", "job": run.job_name}
