"""``WITH ('connectors' = '[…]')`` of an external table → `External`. Pure.

The options are those of Feldera's connectors; programs from Feldera's documentation compile
unchanged. The invariant: every option has a documented effect, or is a problem with a location. The
result contains no secrets, because secrets have to be references to the environment.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import parse_qsl

from sqlglot import exp
from sqlglot.errors import TokenError

from persist_assets.compiler.frontends.external_catalogs import (
    UNITY_SCHEME,
    UNUSED,
    Wrong,
    catalog_option,
    problems_of_catalog,
    problems_of_unity,
    wrong_catalog_option,
)
from persist_assets.compiler.frontends.external_options import (
    CATALOG,
    CONNECTOR,
    DATABASE_URL,
    FILES,
    FORMATS,
    LACKING,
    LITERAL_SECRET,
    MODES,
    NOT_NEEDED,
    OF_CATALOG,
    OF_ENVIRONMENT,
    ONE_VERSION,
    OPTIONS,
    PASSWORD,
    PROPERTIES,
    REFERENCE,
    STORAGE,
    TRANSACTIONS,
    TRANSPORT,
    UNITY,
    UNSIGNED,
    is_secret,
    unfit_value,
)
from persist_assets.compiler.frontends.intervals import KEYWORD, missing_keywords
from persist_assets.core.dialect import function_named, parse, plain
from persist_assets.core.errors import Problem, did_you_mean
from persist_assets.core.model.sources import External
from persist_assets.core.raw_options import wrong_option

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from persist_assets.core.errors import Location, Severity
    from persist_assets.core.model.columns import Column


@dataclass(frozen=True, slots=True)
class LocatedText:
    """An SQL literal, with the locations of its characters.

    Attributes
    ----------
    source
        The literal as in the file, with its quotes.
    locate
        Returns the location of a character of `source`.
    """

    source: str
    locate: Callable[[int], Location]

    @property
    def text(self) -> str:
        """Its text; a backslash belongs to the JSON."""
        return self.source[1:-1].replace("''", "'")

    def place(self, offset: int) -> Location:
        """Return the location of a character of `text`."""
        at = 1
        while offset > 0 and at < len(self.source) - 1:
            at += 2 if self.source.startswith("''", at) else 1
            offset -= 1
        return self.locate(at)

    def key(self, name: str, after: int = 0) -> int:
        """Return the offset in `text` of a key of an object, or `after` if it is not found."""
        match = re.compile(rf"{re.escape(json.dumps(name))}\s*:").search(self.text, after)
        return match.start() if match else after


def read_external(
    name: str,
    properties: Sequence[tuple[str, LocatedText]],
    columns: Sequence[Column],
    key: tuple[str, ...],
    location: Location,
) -> tuple[External | None, str, list[Problem]]:
    """Return the declaration of an external table, the location of its data, and all problems.

    Parameters
    ----------
    name
        Its name.
    properties
        The properties in WITH, in order, with lower-case keys.
    columns
        The declared columns.
    key
        The columns of its primary key.
    location
        The location of the declaration.

    Returns
    -------
    tuple
        With None if no valid connector was found.
    """
    reading = _Reading(name, columns, location)
    external, uri = reading.read(properties)
    if external is not None:
        external = replace(external, key=key)
    return external, uri, reading.problems


class _Wrong(Exception):
    """The declaration has an error that was already reported."""


class _Reading:
    """One declaration that is being read; it collects the problems."""

    def __init__(self, name: str, columns: Sequence[Column], location: Location) -> None:
        self.name, self.location, self.declared = name, location, columns
        self.columns = [c.name for c in columns]
        self.problems: list[Problem] = []
        self.connectors: LocatedText | None = None
        self.start = 0
        self.skips: bool | None = None

    def say(
        self,
        code: str,
        message: str,
        at: int | None = None,
        hint: str | None = None,
        severity: Severity = "error",
    ) -> None:
        place = (
            self.location if self.connectors is None or at is None else self.connectors.place(at)
        )
        self.problems.append(Problem(f"external-{code}", message, place, hint, severity))

    def at(self, key: str) -> int:
        assert self.connectors is not None
        return self.connectors.key(key, self.start)

    # ------------------------------------------------------------------------------- structure

    def read(self, properties: Sequence[tuple[str, LocatedText]]) -> tuple[External | None, str]:
        append_only, skips = False, None
        connectors: LocatedText | None = None
        for key, value in properties:
            if key not in PROPERTIES:
                hint = did_you_mean(key, PROPERTIES) or f"known properties: {', '.join(PROPERTIES)}"
                self.problems.append(
                    Problem(
                        "external-option",
                        f"external tables have no property `{key}`",
                        value.place(0),
                        hint,
                    )
                )
            elif key == "connectors":
                connectors = value
            elif value.text.lower() not in ("true", "false"):
                self.problems.append(
                    Problem("external-type", f"`{key}` must be true or false", value.place(0))
                )
            elif key == "append_only":
                append_only = value.text.lower() == "true"
            elif key == "skip_unused_columns":
                skips = value.text.lower() == "true"
        if connectors is None:
            self.say(
                "connector",
                f"`{self.name}` has no connector",
                hint="""add WITH ('connectors' = '[{"transport": {"name": "delta_table_input", """
                """"config": {"uri": "…"}}}]')""",
            )
            return None, ""
        self.connectors = connectors
        try:
            external, uri = self.connector(self.only(self.json(connectors)))
        except _Wrong:
            return None, ""
        if skips is not None and self.skips not in (None, skips):
            message = "`skip_unused_columns` differs between WITH and the connector"
            self.say("option", message, self.at("skip_unused_columns"), "remove one of them")
        if skips is not None:
            external = replace(external, skip_unused_columns=skips)
        return replace(external, append_only=append_only), uri

    def json(self, connectors: LocatedText) -> Any:
        text = connectors.text
        twice: list[str] = []

        def pairs(entries: list[tuple[str, Any]]) -> dict[str, Any]:
            keys = [k for k, _ in entries]
            twice.extend(k for k in dict.fromkeys(keys) if keys.count(k) > 1)
            return dict(entries)

        try:
            document = json.loads(_without_trailing_commas(text), object_pairs_hook=pairs)
        except json.JSONDecodeError as error:
            self.say("json", f"invalid JSON: {error.msg}", error.pos)
            raise _Wrong from error
        except RecursionError as error:
            self.say("json", "the nesting is too deep", 0)
            raise _Wrong from error
        for key in twice:
            first = self.at(key)
            self.say("option", f"duplicate key `{key}`", connectors.key(key, first + 1))
        return document

    def only(self, document: Any) -> dict[str, Any]:
        if not isinstance(document, list) or not all(
            isinstance(c, dict) for c in cast("list[Any]", document)
        ):
            self.say("connector", "`connectors` must be a list of objects: [{…}]", 0)
            raise _Wrong
        entries = cast("list[dict[str, Any]]", document)
        if len(entries) != 1:
            n = len(entries) or "none"
            hint = "declare a table for each, and a view for their UNION ALL" if entries else None
            self.say("connector", f"an external table must have one connector, not {n}", 0, hint)
            raise _Wrong
        return entries[0]

    def connector(self, connector: dict[str, Any]) -> tuple[External, str]:
        self.require_known(connector, CONNECTOR, "a connector")
        labels = self.names(connector, "labels")
        start_after = self.names(connector, "start_after")
        called = connector.get("name", "")
        if not isinstance(called, str):
            self.say("type", "`name` must be a string", self.at("name"))
        transport = connector.get("transport")
        if not isinstance(transport, dict):
            self.say(
                "connector",
                "a connector needs a transport: an object with a name and a config",
                self.at("transport"),
            )
            raise _Wrong
        transport = cast("dict[str, Any]", transport)
        self.start = self.at("transport")
        name = transport.get("name")
        if not isinstance(name, str):
            self.say("connector", "a transport needs a name", self.start)
            raise _Wrong
        self.capable(name)
        self.require_known(transport, TRANSPORT, "a transport")
        config = transport.get("config")
        if not isinstance(config, dict):
            self.say("connector", f"`{name}` needs a config object", self.start)
            raise _Wrong
        self.start = self.at("config")
        external, uri = self.config(name, cast("dict[str, Any]", config))
        return replace(external, labels=labels, start_after=start_after), uri

    def capable(self, name: str) -> None:
        if name in FORMATS:
            return
        at = self.at("name")
        able = " or ".join(FORMATS)
        if name in LACKING:
            lacks = " and ".join(LACKING[name])
            message = f"`{name}` is not supported for external tables: it lacks {lacks}"
            self.say("connector", message, at, f"use {able}")
        else:
            hint = did_you_mean(name, FORMATS) or f"known connectors: {', '.join(FORMATS)}"
            self.say("connector", f"unknown connector `{name}`", at, hint)
        raise _Wrong

    def require_known(self, options: Mapping[str, Any], keys: Iterable[str], owner: str) -> None:
        keys = tuple(keys)
        for key in options:
            if key not in keys:
                why = NOT_NEEDED.get(key)
                hint = did_you_mean(key, keys) or f"known options: {', '.join(keys)}"
                message = f"{owner} has no option `{key}`" + (f" here: {why}" if why else "")
                self.say("option", message, self.at(key), "remove it" if why else hint)

    def names(self, options: Mapping[str, Any], key: str) -> tuple[str, ...]:
        value = options.get(key, [])
        names = cast("list[Any]", [value] if isinstance(value, str) else value)
        if not isinstance(value, str | list) or not all(isinstance(n, str) for n in names):
            self.say("type", f"`{key}` must be a list of strings", self.at(key))
            return ()
        return tuple(names)

    # --------------------------------------------------------------------------------- options

    def config(self, name: str, config: dict[str, Any]) -> tuple[External, str]:
        form = FORMATS[name]
        iceberg = form == "iceberg"
        uri = "metadata_location" if iceberg and "metadata_location" in config else "uri"
        version = "snapshot_id" if iceberg and "snapshot_id" in config else "version"
        unused = {"uri", "metadata_location", "version", "snapshot_id"} - {uri, version}
        kinds = {key: kind for key, kind in OPTIONS[form].items() if key not in unused}
        options: dict[str, Any] = {}
        storage: dict[str, str] = {}
        for key, value in config.items():
            if in_catalog := catalog_option(form, key):
                self.of_catalog(key, in_catalog, value, storage, config)
            elif key in kinds:
                if self.is_a(key, value, kinds[key]):
                    options[key] = value
            elif form == "postgres" and key == PASSWORD:
                self.password(value, storage)
            elif form != "postgres" and key.lower() in STORAGE:
                self.stored(key, value, storage)
            else:
                more = (PASSWORD,) if form == "postgres" else STORAGE
                unity = UNITY if form == "delta" else ()
                self.unknown(name, key, (*kinds, *more, *unity))
        for key in (version, "end_version"):
            if options.get(key, 0) < 0:
                self.say("type", f"`{key}` must not be negative", self.at(key))
                del options[key]
        if form == "postgres":
            place = self.database(options)
        else:
            place = self.place(name, uri, config, options, storage)
        if iceberg and ONE_VERSION.search(place):
            self.one_version(options.get("mode"), uri)
        reading = self.files(options) if form == "directory" else ()
        mode = options.get("mode", "snapshot_and_follow")
        if mode not in MODES:
            hint = did_you_mean(mode, MODES) or f"known modes: {', '.join(MODES)}"
            if mode == "cdc":
                hint = "ingest the log as it is, and create a view of the last row of each key"
            self.say("mode", f"unknown mode `{mode}`", self.at("mode"), hint)
            mode = "snapshot_and_follow"
        self.of_the_table(options)
        external = External(
            name,
            mode=mode,
            version=options.get(version),
            datetime=self.instant(options.get("datetime")),
            end_version=options.get("end_version"),
            filter=self.condition("filter", options.get("filter")),
            snapshot_filter=self.condition("snapshot_filter", options.get("snapshot_filter")),
            timestamp_column=self.column(options, "timestamp_column"),
            cursor=self.column(options, "cursor"),
            reading=reading,
            skip_unused_columns=self.skips is not False,
            storage=tuple(sorted(storage.items())),
        )
        self.together(external, version, iceberg)
        return external, place

    def of_catalog(
        self,
        key: str,
        name: str,
        value: Any,
        storage: dict[str, str],
        config: Mapping[str, Any],
    ) -> None:
        """Read an option of a catalog."""
        if not self.is_a(key, value, str):
            return
        wrong = wrong_catalog_option(key, name, value, str(config.get("catalog_type")))
        if wrong:
            self.report(wrong, self.at(key))
        elif name not in UNUSED and storage.setdefault(name, value) != value:
            self.say("option", f"`{key}` conflicts with `{name}`", self.at(key))

    def report(self, wrong: Wrong, at: int) -> None:
        self.say(wrong.code, wrong.message, at, wrong.hint)

    def place(
        self,
        name: str,
        uri: str,
        config: Mapping[str, Any],
        options: Mapping[str, Any],
        storage: dict[str, str],
    ) -> str:
        """Return the location of the data: of the table, or of a catalog and the table in it."""
        place: str = options.get(uri, "")
        is_iceberg = name == "iceberg_input" and any(key in CATALOG for key in config)
        is_unity = name == "delta_table_input" and place.startswith(UNITY_SCHEME)
        problems = problems_of_catalog(config, uri) if is_iceberg else ()
        if name == "delta_table_input":
            problems = problems_of_unity(config, place)
        for wrong in problems:
            self.report(wrong, self.start if wrong.key is None else self.at(wrong.key))
        if is_unity:
            storage["table_name"] = place.removeprefix(UNITY_SCHEME)
        if is_iceberg or is_unity:
            return External(name, storage=tuple(storage.items())).catalog_place or ""
        if uri not in config or place.strip() != place or (uri in options and not place):
            self.say("uri", f"`{name}` needs the location of its data: `{uri}`", self.at(uri))
        elif LITERAL_SECRET.search(place):
            self.say("secret", f"`{uri}` contains credentials", self.at(uri), _as_reference())
            return ""
        return place

    def database(self, options: Mapping[str, Any]) -> str:
        """Return the location of a table in a database: the URL of the database, and its name."""
        uri, table = options.get("uri", ""), options.get("table", "")
        at = self.at("uri")
        if LITERAL_SECRET.search(uri) or any(is_secret(k) for k, _ in parse_qsl(_query(uri))):
            hint = _as_reference(PASSWORD, "PERSIST_SECRET_POSTGRES")
            self.say("secret", "`uri` contains credentials", at, hint)
            return ""
        if "${" in uri:
            message = "`uri` is part of what identifies the table, so it has to be written out"
            self.say("secret", message, at)
        elif not DATABASE_URL.fullmatch(uri) or uri != uri.strip():
            hint = "for example, postgresql://reader@db.example.com/sales"
            self.say("uri", "`uri` must be the URL of a PostgreSQL database", at, hint)
        if not table or table != table.strip():
            hint = 'for example, "table": "sales.events"; in place of a query, name a view'
            self.say("uri", "`postgres_input` needs the name of a table: `table`", self.start, hint)
        if options.get("mode") == "follow":
            message = "`postgres_input` has no mode follow: a database keeps no earlier versions"
            self.say("mode", message, self.at("mode"), "use snapshot_and_follow, and a filter")
        return f"{uri}#{table}"

    def files(self, options: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
        """Return how the files of a directory are read: their format, and its options."""
        if options.get("mode") == "follow":
            message = "`directory_input` has no mode follow: a directory keeps no earlier files"
            self.say("mode", message, self.at("mode"), "use snapshot_and_follow, and a filter")
        form = options.get("format", "")
        if form not in FILES:
            hint = did_you_mean(form, FILES) or f"known formats: {', '.join(FILES)}"
            message = "`directory_input` needs the format of its files: `format`"
            self.say("option", message, self.at("format"), hint)
            return ()
        known_options = {name.lower() for name in FILES[form]}
        reading: dict[str, str] = {}
        for key, written in options.get("options", {}).items():
            value = str(written).lower() if isinstance(written, bool | int) else written
            if key.lower() not in known_options:
                hint = did_you_mean(key, FILES[form])
                hint = hint or f"known options: {', '.join(sorted(FILES[form]))}"
                message = f"files of the format {form} have no option `{key}` here"
                self.say("option", message, self.at(key), hint)
            elif not isinstance(value, str):
                message = f"`{key}` must be a string, an integer, or true or false"
                self.say("type", message, self.at(key))
            else:
                reading[key.lower()] = value
        if wrong := wrong_option(form, reading, self.declared):
            self.say("option", wrong[0], self.at("options"), wrong[1])
        merge = "mergeschema"
        if reading.get(merge, "true").lower() not in ("true", "false"):
            self.say("type", "`mergeSchema` must be true or false", self.at("options"))
        return (("format", form), *sorted(reading.items()))

    def password(self, value: Any, storage: dict[str, str]) -> None:
        """Read the password of a database, which must be a reference."""
        at, hint = self.at(PASSWORD), _as_reference(PASSWORD, "PERSIST_SECRET_POSTGRES")
        if not self.is_a(PASSWORD, value, str):
            return
        if not REFERENCE.fullmatch(value):
            self.say("secret", "`password` is a secret and must not be written here", at, hint)
            return
        storage[PASSWORD] = value

    def of_the_table(self, options: Mapping[str, Any]) -> None:
        """Read `skip_unused_columns`, and report a wrong `transaction_mode`."""
        self.skips = options.get("skip_unused_columns")
        mode = options.get("transaction_mode")
        if mode not in (None, *TRANSACTIONS):
            hint = did_you_mean(mode, TRANSACTIONS) or f"known modes: {', '.join(TRANSACTIONS)}"
            message = f"unknown transaction mode `{mode}`"
            self.say("mode", message, self.at("transaction_mode"), hint)

    def one_version(self, mode: str | None, uri: str) -> None:
        """Report that a metadata file describes one version, so there are no changes to follow."""
        if mode not in (None, "follow", "snapshot_and_follow"):
            return
        self.say(
            "mode",
            f"`{uri}` names a metadata file, which describes one version of the table:"
            " later versions are not found and nothing is followed",
            self.at(uri if mode is None else "mode"),
            "set `uri` to the table's directory, whose metadata/version-hint.text names the newest"
            " file; or, if one version is intended, use mode snapshot",
            "warning" if mode is None else "error",
        )

    def is_a(self, key: str, value: Any, kind: type) -> bool:
        # In Python, True is an int.
        fits = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
        if not fits:
            expected = {
                str: "a string",
                dict: "an object",
                int: "an integer, without quotes",
                bool: "true or false, without quotes",
            }[kind]
            self.say("type", f"`{key}` must be {expected}", self.at(key))
        return fits

    def unknown(self, connector: str, key: str, keys: Iterable[str]) -> None:
        at = self.at(key)
        if key in NOT_NEEDED:
            message = f"`{connector}` has no option `{key}` here: {NOT_NEEDED[key]}"
            self.say("option", message, at, "remove it")
        elif OF_CATALOG.match(key):
            if connector == "iceberg_input":
                hint = did_you_mean(key, CATALOG) or f"options of catalogs: {', '.join(CATALOG)}"
                self.say("option", f"`{connector}` has no option `{key}`", at, hint)
                return
            hint = "use the table's directory (uri) or its metadata file (metadata_location)"
            self.say("option", f"`{key}`: such catalogs are not supported", at, hint)
        elif OF_ENVIRONMENT.match(key.lower()):
            message = (
                f"`{key}` is not allowed here: access to that store comes from the environment"
            )
            self.say(
                "option", message, at, "remove it, and set the environment variable of that name"
            )
        else:
            options = [k for k in keys if "." not in k or "." in key]
            hint = did_you_mean(key, options) or f"known options: {', '.join(options)}"
            self.say("option", f"`{connector}` has no option `{key}`", at, hint)

    def stored(self, key: str, value: Any, storage: dict[str, str]) -> None:
        at = self.at(key)
        name = STORAGE[key.lower()]
        if isinstance(value, bool):
            value = str(value).lower()
        if not isinstance(value, str):
            self.say("type", f"`{key}` must be a string", at)
            return
        if "${" in value and not REFERENCE.fullmatch(value):
            message = f"`{key}` is not a valid reference"
            self.say("secret", message, at, "use ${env:NAME} alone")
            return
        if is_secret(key) and not REFERENCE.fullmatch(value):
            message = f"`{key}` is a secret and must not be written here"
            self.say("secret", message, at, _as_reference(key))
            return
        if name == UNSIGNED:
            if value not in ("true", "false"):
                self.say("type", f"`{key}` must be true or false", at)
            elif value == "true":
                storage[name] = value
            return
        wrong = None if REFERENCE.fullmatch(value) else unfit_value(name, value)
        if wrong:
            self.say("type", wrong[0], at, wrong[1])
            return
        if storage.setdefault(name, value) != value:
            self.say("option", f"`{key}` conflicts with `{name}`", at)

    def together(self, external: External, version: str, iceberg: bool) -> None:
        storage = dict(external.storage)
        if UNSIGNED in storage and any(map(is_secret, storage)):
            message = f"`{UNSIGNED}` sends requests without a signature, so keys have no effect"
            self.say("option", message, self.at(UNSIGNED), "remove it, or remove the keys")
        if external.version is not None and external.datetime is not None:
            self.say(
                "version",
                f"`{version}` and `datetime` both set the start",
                self.at("datetime"),
                "remove one of them",
            )
        if external.end_version is not None and external.mode == "snapshot":
            message = (
                "`end_version` has no effect in mode snapshot, which does not follow the table"
            )
            self.say("version", message, self.at("end_version"), "remove one of them")
        late = (external.version or 0) > (external.end_version or 0)
        if not iceberg and external.end_version is not None and late:
            message = "`end_version` is before `version`"
            self.say("version", message, self.at("end_version"))
        if external.mode == "follow":
            for key in ("snapshot_filter", "timestamp_column"):
                if getattr(external, key) is not None:
                    message = f"`{key}` applies to the initial rows, which mode follow skips"
                    self.say("mode", message, self.at(key), "remove one of them")

    def instant(self, text: str | None) -> str | None:
        if text is None:
            return None
        try:
            at = datetime.fromisoformat(text)
        except ValueError:
            hint = "for example, 2024-12-09T16:09:53+00:00"
            self.say("type", "`datetime` is not a timestamp", self.at("datetime"), hint)
            return None
        if at.tzinfo is None:
            hint = f"for example, {text}Z"
            self.say("type", "`datetime` needs a time zone", self.at("datetime"), hint)
            return None
        return at.astimezone(UTC).isoformat()

    def column(self, options: Mapping[str, Any], key: str) -> str | None:
        """Return the declared column that an option names."""
        name: str | None = options.get(key)
        if name is None:
            return None
        column = next((c for c in self.columns if c.lower() == name.lower()), None)
        if column is None:
            hint = did_you_mean(name, self.columns)
            message = f"`{key}` names `{name}`, which is not a column of `{self.name}`"
            self.say("column", message, self.at(key), hint)
        return column

    def condition(self, key: str, text: str | None) -> str | None:
        if text is None:
            return None
        at = self.at(key)
        with suppress(TokenError):  # which no parser accepts either
            for place in reversed(missing_keywords(text)):
                text = text[:place] + KEYWORD + text[place:]
        tree = parse(text)
        if not isinstance(tree, exp.Condition):
            hint = "for example: category = 'invoices'"
            self.say("filter", f"`{key}` is not a SQL condition", at, hint)
            return None
        for message, hint in self.unfit(tree):
            self.say("filter", f"`{key}` {message}", at, hint)
            return None
        return text.strip()

    def unfit(self, tree: Any) -> Iterator[tuple[str, str | None]]:
        """Yield the problems of a condition that its text alone shows."""
        column_names = {c.lower() for c in self.columns}
        for node in tree.walk():
            if isinstance(node, exp.Query):
                yield "contains a query: only the table's own columns are available", None
            elif isinstance(node, exp.Placeholder | exp.Parameter):
                yield "contains a parameter, which has no value", None
            elif isinstance(node, exp.Column):
                name = plain(node.parts[0].name)
                if name.lower() not in column_names and not function_named(node):
                    hint = did_you_mean(name, self.columns)
                    yield f"names `{name}`, which is not a column of `{self.name}`", hint


def _query(uri: str) -> str:
    return uri.partition("#")[0].partition("?")[2]


def _as_reference(key: str | None = None, name: str | None = None) -> str:
    name = (
        name
        or re.sub(r"\W", "_", STORAGE.get((key or "").lower(), "aws_secret_access_key")).upper()
    )
    option = key or "aws_secret_access_key"
    return f'use an environment variable: "{option}": "${{env:{name}}}"'


def _without_trailing_commas(text: str) -> str:
    """Return JSON without trailing commas; all other characters keep their positions.

    Examples
    --------
    >>> _without_trailing_commas('[{"a": ",]", }, ]')
    '[{"a": ",]"  }  ]'
    """
    return re.sub(
        r'"(?:[^"\\]|\\.)*"|,(?=\s*[}\]])',
        lambda match: match[0] if match[0] != "," else " ",
        text,
    )
