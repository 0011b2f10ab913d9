"""The settings of a project as one frozen value."""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal
from urllib.parse import unquote
from zoneinfo import ZoneInfo

from persist_assets.core.digests import digest_connection, malloy_digest
from persist_assets.core.errors import Location
from persist_assets.core.model.sources import CATALOG, RawTable
from persist_assets.core.object_stores import (
    PATIENCE,
    Patience,
    Store,
    is_local,
    scheme_of,
)
from persist_assets.core.settings.keys import OUT_OF_PROJECT, STATE
from persist_assets.core.settings.retention import FOR_EVER, Retention
from persist_assets.core.settings.service import NOBODY, Role, Service
from persist_assets.core.settings.spark import (
    NEVER_COUNTED,
    TIMEZONE,
    is_harmless,
    may_add_functions,
)
from persist_assets.core.variables import Setting

_PLACES = ("type", "uri", "url", "warehouse", "catalog-impl", r"metastore\.uris?")
"""The settings of a catalog that say where it is."""
_METASTORE = (
    "spark.hadoop.hive.metastore.uris",
    "spark.hive.metastore.uris",
    "spark.hadoop.javax.jdo.option.ConnectionURL",
)
"""The settings that say where a Hive metastore is."""


@dataclass(frozen=True, slots=True)
class Malloy:
    """The settings with which Malloy files are compiled.

    Attributes
    ----------
    connection
        Their name for the only connection: ``spark.table('flights')``.
    givens
        Values of givens; sorted pairs.
    virtual
        The tables that virtual sources stand for, by their names; sorted pairs.
    databricks
        The host, path, default catalog, default schema and setup SQL of the Databricks connection
        with which Malloy's own tools read the project; empty: they use none of Malloy's own.
    """

    connection: str
    givens: tuple[tuple[str, Given], ...]
    virtual: tuple[tuple[str, str], ...]
    databricks: tuple[str | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Publish:
    """The places where an environment publishes its tables under fixed names.

    Attributes
    ----------
    path
        The directory of Delta tables, an absolute path or a URI; empty: none.
    catalog
        The catalog or schema of views; empty: none.
    select
        Selections of the sources; empty: all persisted ones.
    """

    path: str
    catalog: str
    select: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Upstream:
    """Another graph whose partitions this one's wants may wait for.

    Attributes
    ----------
    name
        The prefix of references to its partitions: ``users:data/users/2024-01-01``.
    url
        The address of `persist serve` or, with `dagster`, of a Dagster webserver.
    patterns
        The patterns of its partitions to follow.
    token_env
        The environment variable that holds the token for it.
    environment
        Only events of this environment of it count; None: those of any.
    silent_after_s
        The seconds without a new partition after which it counts as silent; None: never.
    """

    name: str
    url: str
    patterns: tuple[str, ...]
    token_env: str | None = None
    environment: str | None = None
    dagster: bool = False
    silent_after_s: int | None = None


AlertKind = Literal["deadline", "failed", "stale", "silent"]
"""The kinds of alerts.

``deadline``
    A want has missed its deadline.
``failed``
    The last build of a source, or of one of its partitions, failed.
``stale``
    A table is older than its freshness window.
``silent``
    Another graph does not answer, or has had no news for longer than expected.
"""


@dataclass(frozen=True, slots=True)
class Channel:
    """A channel to which alerts are sent.

    Attributes
    ----------
    url_env
        The environment variable with its Apprise URL; None: it is a webhook.
    webhook, secret_env
        The URL of the webhook, and the environment variable with the secret that signs messages.
    select
        The selections of sources that it is about; empty: all.
    environments
        Names or patterns (``pr-*``); empty: all.
    """

    name: str
    url_env: str | None
    webhook: str | None
    secret_env: str | None
    kinds: tuple[AlertKind, ...]
    select: tuple[str, ...] = ()
    environments: tuple[str, ...] = ()

    def is_for(self, environment: str) -> bool:
        """Whether it gets alerts of an environment."""
        return not self.environments or any(
            environment == e or (e.endswith("*") and environment.startswith(e[:-1]))
            for e in self.environments
        )


@dataclass(frozen=True, slots=True)
class Prices:
    """The prices of work and storage; None: it has no price.

    Attributes
    ----------
    compute_hour
        The price of an hour in which a run builds.
    gb_written
        The price of writing 10⁹ bytes.
    gb_month
        The price of storing 10⁹ bytes for a month.
    """

    currency: str = "USD"
    compute_hour: float | None = None
    gb_written: float | None = None
    gb_month: float | None = None

    def __bool__(self) -> bool:
        """Whether anything has a price."""
        return {self.compute_hour, self.gb_written, self.gb_month} != {None}


@dataclass(frozen=True, slots=True)
class Selector:
    """A selection with a name.

    Attributes
    ----------
    patterns
        Selections; the selector means their union.
    location
        The place of its key in `persist.toml`.
    """

    name: str
    patterns: tuple[str, ...]
    location: Location


@dataclass(frozen=True, slots=True)
class Default:
    """One annotation that `persist.toml` gives to the sources of some files.

    Attributes
    ----------
    pattern
        Which files, by their paths below the sources directory.
    key
        The key of the annotation.
    value
        Its value in JSON, unchecked.
    location
        Where the key stands.
    """

    pattern: str
    key: str
    value: str
    location: Location


Given = str | int | float | bool | None | tuple["Given", ...]


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings with which a project is built.

    Attributes
    ----------
    root
        The project root: the directory of `persist.toml`. Absolute.
    sources
        The directory of the sources, relative to `root`, POSIX.
    layout
        The layout of asset keys, one of `LAYOUTS`.
    key_prefix
        The first parts of all asset keys.
    declared
        The environments that `persist.toml` declares, sorted.
    temporary
        The patterns of names of environments that it declares: ``pr-*``; sorted.
    reads
        The environments whose tables are read where this one has none, nearest first.
    raws
        Locations of raw tables in this environment, by name or asset key; sorted pairs.
    warehouse
        The location of this environment's tables: an absolute path or a URI.
    project_warehouse
        The location of tables of environments that do not set their own.
    ledger
        SQLAlchemy URL.
    strict
        Persisted sources may not be read inline: they have to be built.
    parallel
        How many sources a run builds at once; zero: as many as Spark runs tasks (`scheduler.MOST`).
    approve_above
        The bytes of an external table's version that a build reads without approval; zero: any.
    keep_s
        The seconds for which snapshots that no manifest names can still be rolled back to.
    functions
        The functions that the session has besides Spark's own, in lower case, sorted.
    views
        The pattern for names of views by which others read sources that have a `name`, with
        ``{name}`` in it; empty: there are none.
    spark
        Settings of the Spark session, sorted pairs, defaults included.
    shared
        Sessions belong to a server that stays on this machine (`server.ensure_server`).
    shared_port
        The port it listens on, zero for any that is free.
    shared_idle_s
        The seconds without a client after which it ends.
    harmless
        Settings of Spark that the project declares harmless, as `is_harmless` takes them.
    build_ids
        Values of harmless settings that BuildIDs hold, whatever the session has; sorted pairs.
    malloy
        The settings of Malloy files.
    stores
        The buckets that `persist.toml` describes, sorted.
    patience
        The time limits for stores.
    upstreams
        Other graphs, by name.
    webhook
        The URL that missed deadlines are sent to; empty: none.
    defaults
        Annotations of whole directories, in the order of the file.
    selectors
        Selections with names, in their order in the file.
    variables
        Values of SQL variables by name; sorted pairs.
    prices
        The prices of work and storage.
    channels
        The channels of alerts, by name.
    retention
        The retention of the ledger's events.
    publish
        The places of tables under fixed names; None: there are none.
    service
        The identification of the service's callers.
    roles
        The permissions of callers there.
    """

    root: Path
    sources: str
    layout: str
    key_prefix: tuple[str, ...]
    environment: str
    declared: tuple[str, ...]
    reads: tuple[str, ...]
    raws: tuple[tuple[str, str], ...]
    warehouse: str
    project_warehouse: str
    ledger: str
    strict: bool
    parallel: int
    approve_above: int
    keep_s: int
    functions: tuple[str, ...]
    views: str
    spark: tuple[tuple[str, str], ...]
    shared: bool
    shared_port: int
    shared_idle_s: int
    harmless: tuple[str, ...]
    build_ids: tuple[tuple[str, str], ...]
    malloy: Malloy
    stores: tuple[Store, ...]
    patience: Patience = PATIENCE
    upstreams: tuple[Upstream, ...] = ()
    webhook: str = ""
    selectors: tuple[Selector, ...] = ()
    temporary: tuple[str, ...] = ()
    variables: tuple[tuple[str, Setting], ...] = ()
    defaults: tuple[Default, ...] = ()
    prices: Prices = Prices()
    channels: tuple[Channel, ...] = ()
    retention: Retention = FOR_EVER
    publish: Publish | None = None
    service: Service = NOBODY
    roles: tuple[Role, ...] = ()

    @property
    def environments(self) -> tuple[str, ...]:
        """The environment and those that it reads, nearest first."""
        return (self.environment, *self.reads)

    @property
    def has_views(self) -> bool:
        """Whether it has views in a catalog, which only Spark updates."""
        return bool(self.views or (self.publish and self.publish.catalog))

    def is_temporary(self, environment: str) -> bool:
        """Whether a pattern declares an environment, and nothing else does."""
        fits = any(environment.startswith(pattern[:-1]) for pattern in self.temporary)
        return fits and environment not in self.declared

    @property
    def known_functions(self) -> frozenset[str] | None:
        """The functions besides Spark's own that queries may call; None: they are not known."""
        return None if may_add_functions(self.spark) else frozenset(self.functions)

    @property
    def state_dir(self) -> Path:
        """The directory for everything that no URL moves elsewhere."""
        return self.root / STATE

    @property
    def timezone(self) -> ZoneInfo:
        """The session's time zone."""
        return ZoneInfo(dict(self.spark)[TIMEZONE])

    @property
    def manifest_path(self) -> Path:
        """The file that the environment's manifest is exported to."""
        return self.state_dir / "manifests" / f"{self.environment}.json"

    @property
    def changing(self) -> tuple[tuple[str, str], ...]:
        """The settings of the session that can change rows: sorted pairs."""
        return tuple((k, v) for k, v in self.spark if not is_harmless(k, self.harmless))

    @property
    def connection(self) -> tuple[tuple[str, str], ...]:
        """The part of every BuildID that describes the session: sorted pairs."""
        return tuple(sorted((("dialect", "spark"), *self.changing, *self.build_ids)))

    @property
    def malloy_connection(self) -> str:
        """The digest of the connection by which Malloy's own tools look tables up."""
        if self.malloy.databricks:
            return malloy_digest("databricks", *self.malloy.databricks)
        return digest_connection(self.connection)

    @property
    def formerly_counted(self) -> tuple[tuple[str, str], ...]:
        """The settings that BuildIDs do not hold and once may have held: sorted pairs.

        Older releases counted them, or the project did not declare them harmless.
        """
        connection_names = {*dict(self.connection)}
        return tuple(
            (k, v)
            for k, v in self.spark
            if k not in connection_names and not k.startswith(NEVER_COUNTED)
        )

    def place(self, location: str) -> str:
        """Return a raw location in the form in which it is part of an identity.

        A relative location stays relative where the ledger belongs to this project alone, so
        that a moved checkout keeps its identities; in a shared ledger two projects may mean
        different data by the same relative path, so there it is made absolute.
        """
        if scheme_of(location) or Path(location).is_absolute() or self.owns_ledger:
            return location
        return (self.root / location).as_posix()

    def place_of(self, raw: RawTable) -> str:
        """Return the place of raw data as part of an identity; empty if its options say it all.

        For a table of the session's catalog, this is the catalog: environments may have catalogs
        of the same name at different places. Credentials are not part of it.
        """
        if raw.location:
            return self.place(raw.location)
        if raw.format != CATALOG:
            return ""
        parts = dict(raw.options).get("table", "").replace("`", "").split(".")
        default = dict(self.spark).get("spark.sql.defaultCatalog", "spark_catalog")
        catalog = parts[0] if len(parts) > 2 else default
        own = rf"spark\.sql\.catalog\.{re.escape(catalog)}(\.({'|'.join(_PLACES)}))?"
        named = [] if catalog in ("spark_catalog", parts[0]) else [f"catalog={catalog}"]
        named += [f"{k}={v}" for k, v in self.spark if re.fullmatch(own, k) or k in _METASTORE]
        return ";".join(named)

    def with_sources(self, directory: Path) -> Settings:
        """Return the settings with another sources directory, which is within the project."""
        return replace(self, sources=directory.relative_to(self.root).as_posix())

    @property
    def owns_ledger(self) -> bool:
        """Whether the ledger is a file within the project."""
        path = self.ledger.removeprefix("sqlite:///")
        return path != self.ledger and Path(path).is_relative_to(self.root)

    def table_name(self, name: str) -> str:
        """Return the name of a new table in the ledger, and for `table_root`.

        All users of a ledger see all of its tables. So the name is a location outside the project's
        warehouse, and in a ledger that projects with other warehouses may share.
        """
        is_separate = self.warehouse != self.project_warehouse or not self.owns_ledger
        return f"{self.warehouse.rstrip('/')}/{name}" if is_separate else name

    def table_root(self, table: str) -> str:
        """Return the directory of a table, of whichever environment."""
        if "://" in table or table.startswith("/"):
            return table
        return f"{self.project_warehouse.rstrip('/')}/{table}"

    def read_text(self, path: str) -> str:
        """Return the text of a file, by its path relative to the root.

        Raises
        ------
        OSError
            It cannot be read, or a link or `..` leads out of the project.
        ValueError
            It is not UTF-8.
        """
        target = self.root / path
        if not target.resolve().is_relative_to(self.root):
            raise PermissionError(errno.EPERM, OUT_OF_PROJECT)
        return target.read_text(encoding="utf-8-sig")

    def resolve(self, location: str) -> str:
        """Return a location as an absolute path or, where it is not on this machine, a URI."""
        return resolve_path(self.root, location)


def resolve_path(root: Path, location: str) -> str:
    """Return a location of a project as an absolute path; a URI of a store as it is."""
    if scheme_of(location) == "file":
        location = unquote(re.sub(r"^(?i:file):(//[^/]*)?", "", location))
    return str((root / location).resolve()) if is_local(location) else location
