"""`persist.toml` and the environment → `Settings`."""

from __future__ import annotations

import os
import re
import tomllib
from contextlib import contextmanager
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from zoneinfo import ZoneInfo

from persist_assets.core.errors import Location, SettingsError, did_you_mean
from persist_assets.core.object_stores import (
    ICEBERG_SCHEMES,
    PATIENCE,
    Patience,
    Store,
    any_store,
    read_stores,
    spark_settings,
    unfit_for_tables,
    unknown_scheme,
)
from persist_assets.core.settings.alerts import read_channels
from persist_assets.core.settings.checks import check_keys, section_of
from persist_assets.core.settings.costs import read_prices
from persist_assets.core.settings.defaults import read_defaults
from persist_assets.core.settings.durations import read_duration
from persist_assets.core.settings.keys import (
    DATABRICKS_KEYS,
    ENV_KEYS,
    KEYS,
    LAYOUTS,
    MALLOY_KEYS,
    SETTINGS_FILE,
    STATE,
    STORE_KEYS,
)
from persist_assets.core.settings.places import KeyPlace, at, place_in
from persist_assets.core.settings.publishing import check_apart, read_publish
from persist_assets.core.settings.retention import read_retention
from persist_assets.core.settings.selectors import read_selectors
from persist_assets.core.settings.service import read_access
from persist_assets.core.settings.spark import (
    LEGACY_WRITES,
    REFUSED,
    SPARK_FIXED,
    SPARK_LOCAL,
    SPARK_LOOPBACK,
    TIMEZONE,
    flat_spark,
    spark_keys,
)
from persist_assets.core.settings.upstreams import read_upstreams, read_webhook
from persist_assets.core.settings.values import Given, Malloy, Settings, resolve_path
from persist_assets.core.settings.variables import read_variables

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping


def find_root(start: Path) -> Path:
    """Return the nearest directory from `start` upwards that holds a `persist.toml`.

    Raises
    ------
    SettingsError
        There is none.
    """
    start = start.resolve()
    for directory in (start, *start.parents):
        if (directory / SETTINGS_FILE).is_file():
            return directory
    raise SettingsError(
        f"no {SETTINGS_FILE} in {start} or any parent directory",
        hint=f"create an empty {SETTINGS_FILE} in the project root, or name it with --project",
    )


def load_settings(
    root: Path, *, environment: str | None = None, environ: Mapping[str, str] = os.environ
) -> Settings:
    """Read the settings of a project.

    Parameters
    ----------
    root
        The project root; `persist.toml` in it is optional.
    environment
        Overrides ``PERSIST_ENV``, which overrides the file.
    environ
        Environment variables.

    Raises
    ------
    SettingsError
        The file cannot be read, or holds an unknown key or a value of the wrong kind.
    """
    root = root.resolve()
    _check_links(root / STATE)
    with _placed(root):
        entries = _read(root / SETTINGS_FILE)
    name = environment or environ.get("PERSIST_ENV") or entries.get("environment", "dev")
    _check_environment(name)
    section = _section_of(name, entries.get("env", {}))
    with _placed(root, section):
        return _settings(root, entries, name, section, environ)


@contextmanager
def _placed(root: Path, environment: str = "") -> Generator[None]:
    """Add the place of the key in `persist.toml` to errors."""
    try:
        yield
    except SettingsError as error:
        if isinstance(error.location, KeyPlace):
            error.location = place_in(root, error.location.keys, environment)
        raise


def _settings(
    root: Path, entries: dict[str, Any], name: str, section: str, environ: Mapping[str, str]
) -> Settings:
    """Return the settings of an environment.

    Parameters
    ----------
    entries
        All entries of the file.
    section
        Its name, or the pattern of names that it has in the file.
    """
    environments = _read_environments(root, entries)
    overrides: dict[str, Any] = environments.get(section, {})
    reads = _chain(name, environments, entries.get("environment", "dev"))
    project_warehouse = resolve_path(root, entries.get("warehouse", f"{STATE}/warehouse"))
    spark_entries: dict[str, Any] = {**entries.get("spark", {}), **overrides.get("spark", {})}
    malloy = _malloy(entries.get("malloy", {}), overrides.get("malloy", {}), section)
    variables = read_variables(
        entries.get("variables", {}), overrides.get("variables", {}), section
    )
    prices = read_prices(entries.get("cost", {}), overrides.get("cost", {}), section)
    entries = {**entries, **overrides}
    sources = _sources(root, entries.get("sources", "sources"))
    spark_values = spark_keys(spark_entries)
    stores = _stores(entries.get("store", {}), environ)
    spark = _spark(spark_entries, entries.get("timezone", "UTC"), stores, environ)
    warehouse = (
        resolve_path(root, entries["warehouse"]) if "warehouse" in entries else project_warehouse
    )
    for place in (warehouse, project_warehouse):
        _check_warehouse(place)
    return Settings(
        root=root,
        sources=sources,
        layout=_layout(entries.get("layout", LAYOUTS[0])),
        key_prefix=_key_prefix(entries.get("key_prefix", "")),
        environment=name,
        declared=tuple(sorted(n for n in environments if not n.endswith("*"))),
        temporary=tuple(sorted(n for n in environments if n.endswith("*"))),
        reads=reads,
        raws=tuple(sorted(overrides.get("raw", {}).items())),
        warehouse=warehouse,
        project_warehouse=project_warehouse,
        ledger=_ledger_url(root, entries.get("ledger", f"sqlite:///{STATE}/ledger.db")),
        strict=entries.get("strict", False),
        parallel=_parallel(entries.get("parallel", 0)),
        approve_above=_approve_above(entries.get("approve_above", 0)),
        keep_s=read_duration("keep", entries, 7 * 86_400, "must exceed the longest query"),
        functions=_functions(entries.get("functions", [])),
        # Else a build for a pull request would show its rows to the readers of a view.
        views="" if section.endswith("*") else _views(entries.get("views", "")),
        spark=tuple(sorted(spark.items())),
        malloy=malloy,
        stores=stores,
        patience=_patience(entries),
        upstreams=read_upstreams(entries.get("upstream", {})),
        webhook=read_webhook(entries.get("sla", {})),
        defaults=read_defaults(root, entries.get("defaults", {})),
        selectors=read_selectors(root, entries.get("selectors", {})),
        publish=read_publish(root, section, overrides, warehouse, reads),
        variables=variables,
        prices=prices,
        channels=read_channels(entries.get("alerts", {})),
        retention=read_retention(entries.get("retention", {})),
        **read_access(entries),
        **spark_values,
    )


def _sources(root: Path, path: str) -> str:
    """Return the path of the sources directory, relative to the project root."""
    sources = Path(path)
    if sources.is_absolute() or not (root / sources).resolve().is_relative_to(root):
        raise SettingsError(
            f"the sources directory {sources} is outside the project {root}",
            hint="SourceIDs are paths within the project: move it, or move persist.toml up",
            location=at("sources"),
        )
    return (root / sources).resolve().relative_to(root).as_posix()


def _spark(
    entries: Mapping[str, Any],
    timezone: str,
    stores: tuple[Store, ...],
    environ: Mapping[str, str],
) -> dict[str, str]:
    """Return the settings of the Spark session, by their full names."""
    flat = flat_spark({**entries})
    spark = {
        **SPARK_FIXED,
        **SPARK_LOCAL,
        **spark_settings((*stores, any_store(environ))),
        TIMEZONE: timezone,
        **flat,
    }
    for key, default in REFUSED.items():
        if spark.get(key, default).lower() != default.lower():
            message = f"`{key}` must be {default}: queries are analyzed with the default"
            raise SettingsError(message, location=at("spark", key))
    for key in LEGACY_WRITES:
        if spark.get(key, "").upper() == "LEGACY":
            message = f"`{key}` must not be LEGACY: statistics of tables have dates as they are"
            raise SettingsError(message, location=at("spark", key))
    try:
        ZoneInfo(spark[TIMEZONE])
    except (KeyError, ValueError, OSError) as error:
        message = f"unknown time zone `{spark[TIMEZONE]}`"
        hint = "use a region such as Europe/Berlin, or UTC"
        place = at("spark", TIMEZONE) if TIMEZONE in flat else at("timezone")
        raise SettingsError(message, hint=hint, location=place) from error
    is_local = spark["spark.master"].startswith("local") and "spark.remote" not in spark
    return {**SPARK_LOOPBACK, **spark} if is_local else spark


def _functions(names: list[Any]) -> tuple[str, ...]:
    """Return the names of functions, in lower case."""
    for name in names:
        if not isinstance(name, str):
            message = f"`functions` must be a list of names, got {name!r}"
            raise SettingsError(message, location=at("functions"))
    return tuple(sorted({name.lower() for name in names}))


def _patience(entries: Mapping[str, Any]) -> Patience:
    answer = "how long a store may take to answer"
    retry = "how long to retry while a store throttles"
    return Patience(
        read_duration("store_timeout", entries, PATIENCE.answer_s, answer),
        read_duration("store_retry", entries, PATIENCE.retry_s, retry),
    )


_ENVIRONMENT = re.compile(r"[a-z][a-z0-9_-]{0,63}")
"""Names that no file system, database or Dagster takes for one another: they name files too."""


def environments_of(root: Path) -> tuple[str, ...]:
    """Return the environments that a project's `persist.toml` names, the default one first.

    Those that only a pattern names are left out.

    Raises
    ------
    SettingsError
        The file cannot be read, or says of one what cannot be said.
    """
    with _placed(root):
        entries = _read(root / SETTINGS_FILE)
        environments = _read_environments(root, entries)
    default = entries.get("environment", "dev")
    return (default, *sorted(n for n in environments if n != default and not n.endswith("*")))


def _malloy(entries: dict[str, Any], overrides: dict[str, Any], environment: str) -> Malloy:
    """Return the settings of Malloy: the project's, and those that its environment overrides."""
    for table, path in ((entries, ("malloy",)), (overrides, ("env", environment, "malloy"))):
        check_keys(table, MALLOY_KEYS, *path)
        where = section_of(path)
        for name, target in table.get("virtual", {}).items():
            if not isinstance(target, str):
                message = f"{where}`virtual.{name}` must be a table name, got {target!r}"
                raise SettingsError(message, location=at(*path, "virtual", name))
    givens = {**entries.get("givens", {}), **overrides.get("givens", {})}
    virtual = {**entries.get("virtual", {}), **overrides.get("virtual", {})}
    connection = overrides.get("connection", entries.get("connection", "spark"))
    if not re.fullmatch(r"[^\W\d]\w*", connection):
        message = f"invalid connection name `{connection}`"
        raise SettingsError(message, location=at("malloy", "connection"))
    pairs = tuple((name, _read_given(name, value)) for name, value in sorted(givens.items()))
    databricks: dict[str, str] = {
        **_databricks(entries, "malloy"),
        **_databricks(overrides, "env", environment, "malloy"),
    }
    stock = tuple(databricks.get(key) for key in DATABRICKS_KEYS) if databricks else ()
    return Malloy(connection, pairs, tuple(sorted(virtual.items())), stock)


def _databricks(malloy: Mapping[str, Any], *path: str) -> dict[str, str]:
    """Return the Databricks connection that settings of Malloy describe."""
    entries: dict[str, str] = malloy.get("databricks", {})
    check_keys(entries, DATABRICKS_KEYS, *path, "databricks")
    if entries and "host" not in entries:
        raise SettingsError(
            f"`{section_of((*path, 'databricks')).strip()}` needs `host`",
            hint='as in the connection of Malloy: host = "dbc-1234.cloud.databricks.com"',
            location=at(*path, "databricks"),
        )
    return entries


def _read_given(name: str, value: Any) -> Given:
    """Return a TOML value as JSON represents it."""
    match value:
        case datetime():
            return value.isoformat(sep=" ")
        case date():
            return value.isoformat()
        case list():
            elements = cast("list[Any]", value)
            return tuple(_read_given(name, element) for element in elements)
        case str() | bool() | int() | float():
            return value
        case _:
            message = f"`[malloy.givens] {name}` must be a string, number, date, boolean or list"
            raise SettingsError(message, location=at("malloy", "givens", name))


def _stores(entries: Mapping[str, Any], environ: Mapping[str, str]) -> tuple[Store, ...]:
    for location, store in entries.items():
        if not isinstance(store, dict):
            message, hint = f"`store.{location}` must be a table", '[store."s3://BUCKET"]'
            raise SettingsError(message, hint=hint, location=at("store", location))
        check_keys({**store}, STORE_KEYS, "store", location)
    try:
        return read_stores(entries, environ)
    except SettingsError as error:
        error.location = at("store")
        raise


def _check_warehouse(location: str) -> None:
    """Refuse a warehouse in which tables cannot be created."""
    wrong, unfit = unknown_scheme(location), unfit_for_tables(location)
    if unfit:
        wrong = f"the warehouse cannot be {location}: delta-rs misreads `{unfit}`", "use another"
    if wrong:
        raise SettingsError(wrong[0], hint=wrong[1], location=at("warehouse"))


def _check_links(state: Path) -> None:
    """Refuse links in `.persist`: writing through them would change other files."""
    places = (state, *(p for d in (state, state / "manifests") if d.is_dir() for p in d.iterdir()))
    link = next((p for p in places if p.is_symlink()), None)
    if link is not None:
        raise SettingsError(
            f"{link.relative_to(state.parent)} is a symbolic link: it is not written through",
            hint="remove it; to store data elsewhere set `warehouse` and `ledger` in persist.toml",
        )


def _section_of(name: str, environments: Mapping[str, Any]) -> str:
    """Return the key of an environment below `[env]`: its name, or the longest fitting pattern."""
    fitting = [n for n in environments if n.endswith("*") and name.startswith(n[:-1])]
    return name if name in environments or not fitting else max(fitting, key=len)


def _check_environment(name: str, location: Location | None = None) -> None:
    if not _ENVIRONMENT.fullmatch(name):
        hint = "at most 64 lowercase letters (a to z), digits, underscores and dashes"
        message = f"invalid environment name `{name}`"
        raise SettingsError(message, hint=hint, location=location)


def _layout(name: str) -> str:
    if name not in LAYOUTS:
        hint = did_you_mean(name, LAYOUTS) or f"known layouts: {', '.join(LAYOUTS)}"
        raise SettingsError(f"unknown layout `{name}`", hint=hint, location=at("layout"))
    return name


def _key_prefix(prefix: str) -> tuple[str, ...]:
    parts = tuple(prefix.split("/")) if prefix else ()
    if not all(re.fullmatch(r"[A-Za-z0-9_]+", part) for part in parts):
        message = f"`key_prefix`: `{prefix}` is not a valid asset key prefix"
        hint = "parts of letters, digits and underscores, separated by /"
        raise SettingsError(message, hint=hint, location=at("key_prefix"))
    return parts


def _read_environments(root: Path, entries: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables of environments, without invalid names, keys and values."""
    environments: dict[str, Any] = entries.get("env", {})
    for name, table in environments.items():
        _check_environment(name.removesuffix("*"), at("env", name))
        if not isinstance(table, dict):
            raise SettingsError(f"`env.{name}` must be a table", location=at("env", name))
        keys: dict[str, Any] = {**table}
        check_keys(keys, ENV_KEYS, "env", name)
        if name.endswith("*") and "views" in keys:
            message = f'`[env."{name}"] views`: environments of a pattern have no views'
            raise SettingsError(message, hint="remove it", location=at("env", name, "views"))
        raws: dict[str, Any] = keys.get("raw", {})
        for raw, place in raws.items():
            if not isinstance(place, str):
                message = f"`[env.{name}.raw] {raw}` must be a location, got {place!r}"
                raise SettingsError(message, location=at("env", name, "raw", raw))
            if wrong := unknown_scheme(place, ICEBERG_SCHEMES):
                message = f"`[env.{name}.raw] {raw}`: {wrong[0]}"
                raise SettingsError(message, hint=wrong[1], location=at("env", name, "raw", raw))
    check_apart(entries, root)
    return environments


def _chain(name: str, environments: Mapping[str, Any], default: str) -> tuple[str, ...]:
    """Return the environments whose tables are read in one, nearest first.

    Where `persist.toml` declares environments, those and the default one are all there are.
    """
    names = {default, *environments}
    chain: list[str] = []
    following: str | None = name
    while following is not None:
        section = _section_of(following, environments)
        if environments and (section not in names or following.endswith("*")):
            prefix = f"`[env.{chain[-1]}] reads` names" if chain else "unknown environment"
            raise SettingsError(
                f"{prefix} `{following}`" + (", which is not declared" if chain else ""),
                hint=did_you_mean(following, names)
                or f"known environments: {', '.join(sorted(names))}",
                location=_reads(chain[-1], environments) if chain else Location(SETTINGS_FILE),
            )
        if following in chain:
            raise SettingsError(
                f"environments read each other in a cycle: {' → '.join([*chain, following])}",
                hint="remove `reads` from one of them",
                location=_reads(chain[-1], environments),
            )
        chain.append(following)
        following = environments.get(section, {}).get("reads")
    return tuple(chain[1:])


def _reads(name: str, environments: Mapping[str, Any]) -> Location:
    """Return the place of an environment's `reads`."""
    return at("env", _section_of(name, environments), "reads")


def _number(key: str, number: int, of: str, hint: str) -> int:
    if number < 0:
        message = f"`{key}` must be a number of {of}, got {number}"
        raise SettingsError(message, hint=hint, location=at(key))
    return number


def _parallel(number: int) -> int:
    hint = "1 builds one at a time, 0 as many at once as Spark runs tasks"
    return _number("parallel", number, "sources", hint)


def _approve_above(limit: int) -> int:
    return _number("approve_above", limit, "bytes", "0 means no limit")


def _views(pattern: str) -> str:
    if pattern and "{name}" not in pattern:
        raise SettingsError(
            f"`views`: `{pattern}` gives all views the same name",
            hint='include {name}: views = "{name}", or "{name}__dev"',
            location=at("views"),
        )
    return pattern


def _read(path: Path) -> dict[str, Any]:
    try:
        entries = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"invalid TOML: {error}", location=_place_in_toml(error)) from error
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}") from error
    check_keys(entries, KEYS)
    return entries


def _place_in_toml(error: Exception) -> Location:
    """Return the place of a syntax error in a TOML file."""
    match = re.search(r"at line (\d+), column (\d+)", str(error))
    return Location(SETTINGS_FILE, *map(int, match.groups())) if match else Location(SETTINGS_FILE)


def _ledger_url(root: Path, url: str) -> str:
    """Return the ledger's URL, a relative SQLite path made absolute."""
    path = url.removeprefix("sqlite:///")
    if "://" not in url:
        raise SettingsError(
            f"`ledger` is not a database URL: {url}",
            hint='for example, "sqlite:///.persist/ledger.db"',
            location=at("ledger"),
        )
    if path == url and not url.startswith("sqlite"):
        return url
    if path == url or not path or path.startswith((":memory:", "file:")) or "?" in path:
        raise SettingsError(
            f"`ledger` must be a plain path to a SQLite file, got {url}",
            hint='for example, "sqlite:///.persist/ledger.db"',
            location=at("ledger"),
        )
    return f"sqlite:///{(root / path).resolve()}"
