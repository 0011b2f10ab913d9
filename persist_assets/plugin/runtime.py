"""State shared by the assets and the IO manager of a code location: projects and builders of runs.

A Dagster run asks for its builder by its run id; all steps of a run in one process get the same
one, so that they share their view of the raw data and one Spark session. A run builds in the
environment that its tag `ENVIRONMENT_TAG` names, else in that of the code location. The location of
raw data is part of BuildIDs, so the sources are compiled for each environment.
"""

import json
import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import dagster as dg

from persist_assets.building.builder import Builder
from persist_assets.building.observe import Observer
from persist_assets.building.pins import begin_together, reading_as
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
from persist_assets.operations.trimming import Trimmed, trim

log = logging.getLogger(__name__)

ENVIRONMENT_TAG = "persist/environment"
"""The tag of a run that names the environment it builds in; events of assets have it too."""
SCHEMA_TAG = "persist/schema-change"
"""A run with this tag set to ``allow`` publishes changed columns, whatever the sources' policy."""

ORIGIN_TAG = "persist/origin"
"""The tag of a run started from our command line: who and where, in JSON."""
PYSPARK = "pyspark"
"""The key of the Spark session's resource."""


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
        Sources that also wait for assets that are not sources (`Pool`).
    deps
        Dependencies in Dagster of each persisted source's asset.
    """

    def __init__(self, settings: Settings, project: Project, fed: frozenset[SourceID]) -> None:
        self.settings, self.project, self.fed = settings, project, fed
        self.late: set[SourceID] = set()
        self.deps: dict[SourceID, tuple[dg.AssetKey, ...]] = {}
        self._settings = {settings.environment: settings}
        self._projects = {settings.environment: project}
        self._builders: dict[str, Builder] = {}
        self._in_parts: set[str] = set()
        self._pools: dict[str, Pool] = {}
        self._first_calls: dict[str, set[object]] = {}
        self._ledger: Ledger | None = None
        self._lock = threading.RLock()

    def settings_of(self, run: dg.DagsterRun | None) -> Settings:
        """Return the settings of the environment that a run builds in.

        Raises
        ------
        SettingsError
            Its tag names an environment that does not exist.
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
        """Return the sources as compiled for an environment.

        They are read when a run first builds there. They must still match those loaded with the
        code location, because assets, dependencies and checks come from that time.
        """
        name = settings.environment
        if name not in self._projects:
            project = load_project(settings)
            project = sound(project) if self.project.errors else require(project)
            if _own_parts(project) != _own_parts(self.project):
                raise ConflictError(
                    f"the sources changed after they were loaded, before a run in `{name}`",
                    hint="reload the definitions",
                )
            self._projects[name] = project
        return self._projects[name]

    def builder(
        self,
        run: dg.DagsterRun | None,
        session: Callable[[], Any],
        *,
        in_parts: bool = False,
    ) -> Builder:
        """Return the builder of a run; it takes its session when it first needs one.

        Parameters
        ----------
        in_parts
            The steps of the run are executed in processes of their own. All of them read the same
            versions of raw and external tables: see `building.pins`.

        Raises
        ------
        SettingsError
            Its tag names an environment that does not exist.
        SourcesError
            The sources are wrong in that environment.
        ConflictError
            They have changed since they were loaded; or a run in an environment with other Spark
            settings is in progress in this process, which has one session.
        LedgerError
            The ledger cannot be opened.
        """
        run_id = run.run_id if run else ""
        with self._lock:
            if in_parts and run_id not in self._in_parts:
                self._in_parts.add(run_id)
                if (alone := self._builders.pop(run_id, None)) is not None:
                    alone.close()  # it has looked at the data by itself
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
                engine, ledger = SparkEngine(settings, session), self._open_ledger()
                shared = nullcontext()
                if run_id in self._in_parts:
                    now = datetime.now(UTC)
                    shared = reading_as(begin_together(ledger, settings, run_id, now))
                with shared:
                    self._builders[run_id] = Builder(
                        settings,
                        project,
                        ledger,
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
            log.warning("%s", problem, extra={"action": "settings"})

    def _open_ledger(self) -> Ledger:
        with self._lock:
            if self._ledger is None:
                self._ledger = open_ledger(self.settings)
            return self._ledger

    def observer(self) -> Observer:
        """Return a new observer of the current state.

        Raises
        ------
        LedgerError
            The ledger cannot be opened.
        """
        return Observer(self.settings, self.project, self._open_ledger(), fed=self.fed)

    def collect(self, run: dg.DagsterRun) -> list[Collected]:
        """Delete unneeded data in the environment of a run: see `operations.gc.collect`.

        People may build with newer sources than those of the code location.
        """
        settings = self.settings_of(run)
        with self._lock:
            project = self._project(settings)
        return collect(settings, project, self._open_ledger(), is_fresh=False)

    def trim(self) -> Trimmed:
        """Archive and delete old events, as the settings say: see `operations.trimming`."""
        seconds = self.settings.retention.events_s
        return trim(self.settings, self._open_ledger(), seconds)

    def pool(self, run_id: str, make: Callable[[], Pool]) -> Pool:
        """Return the pool of a run; it is created when a step first asks for it."""
        if run_id not in self._pools:
            self._pools[run_id] = make()
        return self._pools[run_id]

    def is_first(self, run_id: str, key: object) -> bool:
        """Whether this is the first call for `key` in a run."""
        with self._lock:
            keys = self._first_calls.setdefault(run_id, set())
            new = key not in keys
            keys.add(key)
            return new

    def close(self, run_id: str) -> None:
        """Forget a run that has ended, and end the work that is still in progress."""
        self._first_calls.pop(run_id, None)
        pool = self._pools.pop(run_id, None)
        if pool is not None:
            pool.close()
        with self._lock:
            self._in_parts.discard(run_id)
            builder = self._builders.pop(run_id, None)
        if builder is not None:
            builder.close()


def _own_parts(project: Project) -> dict[SourceID, object]:
    """Return the parts of sources that no environment may change."""
    return {
        s.source_id: (
            s.definition if s.raw is None else s.raw.format,
            s.persisted,
            tuple((c.name, c.definition, c.blocking) for c in s.checks),
        )
        for s in project.sources
    }


def origin_of(run: dg.DagsterRun | None) -> Mapping[str, Any]:
    """Return the origin of a run, which the wants of its builds record as their source."""
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
