"""A SQLMesh project → drafts of ours.

FULL, INCREMENTAL_BY_… ─► persisted sources     audits ─► checks, sources of failing rows
VIEW, EMBEDDED ─► sources                       tests ─► tests
SEED, external models ─► raw tables
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from sqlglot import exp
from sqlglot.errors import SqlglotError

from persist_assets.core.errors import Location, NotFoundError, SettingsError
from persist_assets.operations.importing import drafts as parts
from persist_assets.operations.importing.drafts import Case, Draft, Drafts, Origin
from persist_assets.operations.importing.lined_yaml import Mapping, line_of, read_yaml
from persist_assets.operations.importing.raw_tables import raw_table, seed
from persist_assets.operations.importing.sqlmesh_audits import rules_of
from persist_assets.operations.importing.sqlmesh_headers import (
    Headed,
    call,
    listed,
    read_headed,
    unquoted,
    without_macros,
)
from persist_assets.operations.importing.sqlmesh_ranges import Ranged, of_all_time
from persist_assets.operations.importing.sqlmesh_tests import case_of
from persist_assets.operations.importing.translation import (
    Target,
    UntranslatableError,
    check_dialect,
    tables_of,
    translate,
    translate_type,
)
from persist_assets.operations.importing.writing import add_failing, without_readers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_CONFIGS = ("config.yaml", "config.yml", "config.py")
_COUNTERPARTS = "persist has no counterpart"
_PERSISTED = (
    *("FULL", "INCREMENTAL_BY_TIME_RANGE", "INCREMENTAL_BY_UNIQUE_KEY"),
    "INCREMENTAL_BY_PARTITION",
)
_NOT_PERSISTED = ("VIEW", "EMBEDDED")
_HARMLESS = (
    *("time_column", "unique_key", "materialized", "batch_size", "batch_concurrency", "lookback"),
    *("partition_by_time_column", "auto_restatement_cron", "auto_restatement_intervals"),
)
"""Options of kinds that are read, or only say when and how SQLMesh computes which rows."""
_CHANGING = {
    "when_matched": "SQLMesh decides by it what becomes of rows whose key is in the table already;"
    " here the table has the rows of the query",
    "merge_filter": "SQLMesh leaves rows out by it when it merges; here the table has all rows of"
    " the query",
    "forward_only": "in SQLMesh, rows of earlier code stay; here the table has the rows of the"
    " query",
    "disable_restatement": "SQLMesh never computes earlier rows again; here the table has the rows"
    " of the query",
}
"""Options of kinds with which SQLMesh's table has different rows from its query."""
_MERGED = {
    "INCREMENTAL_BY_UNIQUE_KEY": "the table follows its query: rows whose key the query no longer"
    " has go, and nothing merges rows of one key (a check of `unique` finds them)",
    "INCREMENTAL_BY_PARTITION": "the table follows its query: partitions that the query no longer"
    " has go",
}
_HISTORY = "write a source with refresh=snapshot: docs/annotations.md"
"""The way to replace models of the kinds SCD_TYPE_2…"""
_STANDALONE = "write a persisted source of its rows with check { row_count { max=0 } }"
_DEFAULTS = ("dialect", "kind", "owner", "start")
"""The defaults of models that are read."""
_READ = (
    *("name", "kind", "dialect", "owner", "cron", "start", "tags", "grain", "grains", "audits"),
    *("columns", "description", "column_descriptions", "enabled", "references"),
)
_CRON = re.compile(r"@(?:hourly|daily|weekly|monthly|yearly)|\S+(?: \S+){4}")
_FORMATS = ("%Y-%m-%d", "yyyy-MM-dd", "YYYY-MM-DD")
"""Formats of time columns whose values are ordered like days."""


@dataclass(frozen=True, slots=True)
class _Model:
    """A model of a file, and what it becomes."""

    origin: Origin
    headed: Headed
    below: str
    dialect: str
    kind: str
    options: dict[str, str]
    target: Target


def import_sqlmesh(root: Path, dialect: str | None = None) -> Drafts:
    """Return the drafts of a SQLMesh project.

    Parameters
    ----------
    dialect
        The SQL dialect of models that name none; None: that of the configuration.

    Raises
    ------
    NotFoundError
        There is no SQLMesh project.
    SettingsError
        Its dialect is not known, or one of its files cannot be read.
    """
    name, config = _config(root)
    importer = _Importer(root, name, config, dialect)
    importer.list_defaults(name)
    importer.read_models()
    importer.read_externals()
    importer.write_models()
    importer.read_tests()
    importer.list_others()
    importer.remove_readers()
    return importer.drafts


def _config(root: Path) -> tuple[str, Mapping]:
    """Return the name of the configuration file, and what it contains."""
    name = next((name for name in _CONFIGS if (root / name).is_file()), None)
    if name is None:
        raise NotFoundError(
            f"there is no config.yaml in {root}", hint="name the directory of the SQLMesh project"
        )
    if name.endswith(".py"):
        return name, Mapping()  # only SQLMesh can run it
    config = read_yaml(root / name, root)
    return name, _mapping(Mapping() if config is None else config, "the configuration", name)


def _mapping(value: Any, what: str, path: str, line: int = 1) -> Mapping:
    """Return a mapping of the configuration.

    Raises
    ------
    SettingsError
        It is something else.
    """
    if not isinstance(value, Mapping):
        raise SettingsError(f"{what} is not a mapping", location=Location(path, line))
    return value


def _section(config: Mapping, key: str, path: str) -> Mapping:
    """Return a mapping in a mapping of the configuration; an empty one if it has none.

    Raises
    ------
    SettingsError
        It is something else.
    """
    value = config.get(key)
    if value is None:
        return Mapping()
    return _mapping(value, f"`{key}`", path, _line_at(config, key))


def _line_at(mapping: Mapping, key: str) -> int:
    """Return the line of a key of a mapping."""
    return line_of(next((k for k in mapping if k == key), None), mapping.line)


class _Importer:
    """The state of an import while a project is read."""

    def __init__(self, root: Path, name: str, config: Mapping, dialect: str | None) -> None:
        self.root = root
        self.defaults = _section(config, "model_defaults", name)
        chosen = dialect or self.defaults.get("dialect") or _engine(config, name)
        if not chosen:
            raise SettingsError(
                "the SQL dialect of the models is unknown: config.yaml sets none",
                hint="set it: --dialect duckdb, postgres, snowflake, bigquery, databricks, …",
            )
        try:
            check_dialect(str(chosen))
        except ValueError as error:
            hint = "name a dialect that sqlglot knows: duckdb, postgres, snowflake, spark, …"
            raise SettingsError(f"unknown dialect `{chosen}`", hint=hint) from error
        self.dialect = str(chosen)
        self.drafts = Drafts("SQLMesh", self.dialect)
        self.models: list[_Model] = []
        self.audits: dict[str, tuple[Origin, Headed]] = {}
        self.targets: dict[tuple[str, ...], Target] = {}
        self.ranged: dict[str, Ranged] = {}

    def list_defaults(self, name: str) -> None:
        """List the defaults of models that are not carried, such as audits.

        Parameters
        ----------
        name
            The name of the configuration file.
        """
        if name.endswith(".py"):
            origin = Origin("configuration", name, name)
            self.drafts.skip(
                origin,
                "only SQLMesh can run it: defaults of models, such as audits, are not known",
                "write what it sets into each MODEL",
            )
        for key, value in self.defaults.items():
            if key not in _DEFAULTS and value not in (None, [], {}, False):
                line = line_of(key, line_of(self.defaults, 1))
                origin = Origin("property", f"model_defaults.{key}", name, line)
                self.drafts.skip(origin, f"{_COUNTERPARTS}: it applies to all models")

    # -------------------------------------------------------------------------------------- files

    def _files(self, directory: str, *suffixes: str) -> Iterator[tuple[str, str]]:
        """Yield files below a directory: their paths from the root, and from there."""
        for path in sorted((self.root / directory).rglob("*")):
            inside = path.resolve().is_relative_to(self.root.resolve())
            if path.is_file() and inside and path.suffix in suffixes:
                yield (
                    path.relative_to(self.root).as_posix(),
                    path.relative_to(self.root / directory).as_posix(),
                )

    def _text(self, path: str) -> str:
        try:
            return (self.root / path).read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"{self.root / path} cannot be read: {error}") from error

    def read_models(self) -> None:
        """Read the files of models and audits, and decide the names of sources."""
        read: list[tuple[Origin, Headed, str]] = []
        for directory in ("models", "audits"):
            for path, below in self._files(directory, ".sql"):
                text = self._text(path)
                origin = Origin(directory[:-1], PurePosixPath(path).stem, path)
                try:
                    headed = read_headed(text, self.dialect)
                except UntranslatableError as error:
                    self.drafts.skip(origin, str(error))
                    continue
                if not headed:
                    self.drafts.skip(origin, f"it has no {directory[:-1].upper()} (…)")
                for one in headed:
                    name = one.text("name") or origin.name
                    place = Origin(one.word.lower(), name, path, one.line)
                    if one.word == "AUDIT":
                        self.audits[name.lower()] = place, one
                    else:
                        read.append((place, one, below))
        names = [_parts_of(origin.name)[-1].lower() for origin, _, _ in read]
        for origin, one, below in read:
            self._read_model(origin, one, below, names)

    def _read_model(self, origin: Origin, headed: Headed, below: str, names: list[str]) -> None:
        dialect = headed.text("dialect") or self.dialect
        written = headed.properties.get("kind")
        default: Any = self.defaults.get("kind") or "VIEW"
        default = str(default.get("name", "VIEW") if isinstance(default, dict) else default)
        try:
            kind, _, rest = (written.value if written else default).strip().partition("(")
            pairs = listed(f"({rest}", dialect) if rest else []
            options = dict(_pair(pair) for pair in pairs)
            check_dialect(dialect)
        except (UntranslatableError, ValueError) as error:
            self.drafts.skip(origin, str(error))
            return
        kind = kind.strip().upper()
        if written is None and isinstance(self.defaults.get("kind"), dict):
            named: dict[str, Any] = {**self.defaults["kind"], "name": None}
            options = {k: str(v) for k, v in named.items() if isinstance(v, str | bool | int)}
        above = _parts_of(origin.name)
        name = above[-1] if names.count(above[-1].lower()) == 1 else "_".join(above)
        directory = "raw/" if kind == "SEED" else f"{PurePosixPath(below).parent.as_posix()}/"
        place = f"sources/{directory.removeprefix('./')}{name}.sql"
        if headed.word == "METRIC" or (headed.text("enabled") or "true").lower() == "false":
            reason = _COUNTERPARTS if headed.word == "METRIC" else "it is disabled"
            self.drafts.skip(origin, reason)
            return
        if name.lower() in {t.name.lower() for t in self.targets.values()}:
            self.drafts.skip(origin, f"there is another `{name}`", "rename one of them")
            return
        target = Target(name, place, above[-1])
        self.targets[tuple(p.lower() for p in above)] = target
        kind_origin = replace(origin, kind="seed") if kind == "SEED" else origin
        self.models.append(_Model(kind_origin, headed, below, dialect, kind, options, target))

    def resolve(self, names: tuple[str, ...]) -> Target | None:
        """Return the source that a table refers to; a catalog may be missing."""
        lowered = tuple(name.lower() for name in names)
        if lowered in self.targets:
            return self.targets[lowered]
        fits = {
            t
            for n, t in self.targets.items()
            if len(n) > 1 and len(lowered) > 1 and n[-2:] == lowered[-2:]
        }
        return fits.pop() if len(fits) == 1 else None

    def read_externals(self) -> None:
        """Read declared external models, then add those that queries read undeclared."""
        files = ["external_models.yaml", "external_models.yml", "schema.yaml", "schema.yml"]
        files = [f for f in files if (self.root / f).is_file()]
        for path in (*files, *(p for p, _ in self._files("external_models", ".yaml", ".yml"))):
            body: Any = read_yaml(self.root / path, self.root)
            if not isinstance(body, list | None):
                origin = Origin("external model", path, path, line_of(body))
                self.drafts.skip(origin, "it is not a list of external models")
                continue
            entries: list[Any] = body or []
            for entry in entries:
                if isinstance(entry, Mapping) and entry.get("name"):
                    self._external(str(entry["name"]), path, entry)
                else:
                    origin = Origin("external model", path, path, line_of(entry))
                    self.drafts.skip(origin, "an external model without a name")
        for model in self.models:
            for names in self._tables(model):
                if self.resolve(names) is None:
                    line = _line_of(self._text(model.origin.path), names[-1])
                    entry = Mapping()
                    entry.line = line
                    self._external(".".join(names), model.origin.path, entry)

    def _tables(self, model: _Model) -> list[tuple[str, ...]]:
        try:
            return tables_of(self._query(model)[0], model.dialect) if model.kind != "SEED" else []
        except UntranslatableError:
            return []  # the model is listed later

    def _external(self, name: str, path: str, entry: Mapping) -> None:
        above = _parts_of(name)
        key = tuple(part.lower() for part in above)
        if key in self.targets:
            return
        origin = Origin("external model", name, path, entry.line)
        taken = {t.name.lower() for t in self.targets.values()}
        own = next(
            n
            for n in (above[-1], "_".join(above[-2:]), "_".join(above), f"{above[-1]}_")
            if n.lower() not in taken
        )
        self.targets[key] = Target(own, f"sources/raw/{own}.sql", above[-1])
        columns: dict[str, str] = {}
        written = entry.get("columns") or Mapping()
        if not isinstance(written, Mapping):
            place = Origin("property", f"{name}.columns", path, _line_at(entry, "columns"))
            self.drafts.skip(place, "it is not a mapping of columns to types")
            written = Mapping()
        for column, kind in written.items():
            columns[str(column)] = self._type(str(kind), origin, str(column), self.dialect)
        draft = raw_table(self.drafts, origin, own, columns, None)
        draft.description = str(entry.get("description") or "").strip()
        if entry.get("audits"):
            self._leave_property(origin, "audits", line_of(entry["audits"], entry.line))

    def _type(self, written: str, origin: Origin, column: str, dialect: str) -> str:
        try:
            return translate_type(written, dialect)
        except UntranslatableError as error:
            place = Origin("column type", f"{origin.name}.{column}", origin.path, origin.line)
            self.drafts.skip(place, str(error), "it is a STRING now")
            return "STRING"

    def _leave_property(self, origin: Origin, key: str, line: int) -> None:
        place = Origin("property", f"{origin.name}.{key}", origin.path, line)
        self.drafts.skip(place, _COUNTERPARTS)

    # ------------------------------------------------------------------------------------- models

    def write_models(self) -> None:
        """Add the drafts of all models, with their audits."""
        for model in self.models:
            try:
                draft = self._seed(model) if model.kind == "SEED" else self._draft(model)
            except UntranslatableError as error:
                hint = _HISTORY if model.kind.startswith("SCD_TYPE_2") else None
                self.drafts.skip(model.origin, str(error), hint)
                continue
            if draft is not None:
                self.drafts.sources[draft.name] = draft
                self._annotate(model, draft)
        for model in self.models:
            self._audit(model)

    def _seed(self, model: _Model) -> Draft | None:
        written = unquoted(model.options.get("path", ""))
        above = self.root if written.startswith("$root") else (self.root / model.origin.path).parent
        place = (above / written.removeprefix("$root").lstrip("/")).resolve()
        if not written or not place.is_relative_to(self.root.resolve()):
            raise UntranslatableError(f"its file `{written}` is not in the project")
        for key in model.options.keys() - {"path", "batch_size"}:
            self._leave_property(model.origin, key, model.headed.properties["kind"].line)
        types: dict[str, str] = {}
        for part in self._columns(model):
            name, _, kind = part.partition(" ")
            types[unquoted(name)] = self._type(kind.strip(), model.origin, name, model.dialect)
        return seed(self.drafts, model.origin, model.target.name, place, types)

    def _columns(self, model: _Model) -> list[str]:
        if "columns" not in model.headed.properties:
            return []
        return listed(model.headed.properties["columns"].value, model.dialect)

    def _draft(self, model: _Model) -> Draft:
        if model.kind not in (*_PERSISTED, *_NOT_PERSISTED):
            raise UntranslatableError(f"models of kind {model.kind} have no counterpart")
        query, notes = self._query(model)
        translated = translate(query, model.dialect, self.resolve)
        materialized = model.options.get("materialized", "false").lower() == "true"
        if model.kind in _MERGED:
            notes = [*notes, _MERGED[model.kind]]
        self._list_options(model)
        return Draft(
            model.origin,
            model.target.name,
            model.target.path,
            translated.sql,
            is_persisted=model.kind in _PERSISTED or materialized,
            reads=translated.reads,
            notes=[*notes, *translated.notes],
        )

    def _list_options(self, model: _Model) -> None:
        """List the options of a model's kind that are not carried."""
        written = model.headed.properties.get("kind")
        line = written.line if written else model.origin.line
        for key, value in model.options.items():
            if key in _HARMLESS or value.lower() == "false":
                continue
            place = Origin("property", f"{model.origin.name}.{key}", model.origin.path, line)
            self.drafts.skip(place, _CHANGING.get(key, _COUNTERPARTS))

    def _query(self, model: _Model) -> tuple[str, list[str]]:
        """Return the query of a model without SQLMesh's macros, and notes.

        Raises
        ------
        UntranslatableError
            It has other macros, or statements beside its query.
        """
        statements = model.headed.statements
        if len(statements) != 1:
            word = "no query" if not statements else "statements beside its query"
            raise UntranslatableError(f"it has {word}")
        if model.kind != "INCREMENTAL_BY_TIME_RANGE":
            return without_macros(statements[0], model.dialect), []
        return self._of_all_times(model, statements[0])

    def _of_all_times(self, model: _Model, query: str) -> tuple[str, list[str]]:
        """Return the query of a model by time range for all of its time, and notes.

        SQLMesh keeps rows within the range, whether or not the query mentions it.

        Raises
        ------
        UntranslatableError
            It has other macros, or a time column whose values are in an unknown format.
        """
        written = listed(model.options.get("time_column", ""), model.dialect)
        if not written:
            raise UntranslatableError("it has no time column")
        form = unquoted(written[1]) if len(written) > 1 else None
        if form and form not in _FORMATS:
            raise UntranslatableError(f"the format `{form}` of its time column is unknown")
        ranged = of_all_time(query, model.dialect, written[0], self._start(model))
        self.ranged[model.target.name] = ranged
        start = ranged.since
        since = f"since {start}" if start else "of all times: its start is not a date"
        notes = [f"it has the rows {since}; the table follows its data without @start_… and @end_…"]
        if ranged.spans:
            notes.append("check windows, LIMIT and DISTINCT ON: they are over rows of all times")
        return ranged.sql, notes

    def _start(self, model: _Model) -> str | None:
        """Return the first day of a model's time, if it is a date."""
        written = model.headed.text("start") or str(self.defaults.get("start") or "")
        match = re.match(r"\d{4}-\d{2}-\d{2}(?=$|[ T]00:00)", written)
        return match[0] if match else None

    def _annotate(self, model: _Model, draft: Draft) -> None:
        """Put the properties of a header into the annotation of a draft; list the rest."""
        headed, origin, dialect = model.headed, model.origin, model.dialect
        lines = [headed.text("description") or headed.comment]
        if "column_descriptions" in headed.properties:
            for part in listed(headed.properties["column_descriptions"].value, dialect):
                column, _, text = part.partition("=")
                lines.append(f"- {unquoted(column)}: {' '.join(unquoted(text).split())}")
        draft.description = "\n".join(line for line in lines if line).strip()
        if "tags" in headed.properties:
            names = [unquoted(t) for t in listed(headed.properties["tags"].value, dialect)]
            draft.keys += parts.tags(names, origin, self.drafts)
        owner = headed.text("owner") or self.defaults.get("owner")
        if owner:
            draft.keys += parts.owner(str(owner), origin, self.drafts)
        cron = headed.text("cron")
        if cron and not draft.is_persisted:
            draft.notes.append(f"cron {cron}: it has no table to build")
        elif cron:
            if _CRON.fullmatch(cron):
                draft.keys.append(f"automation={parts.text(cron)}")
            else:
                self._leave_property(origin, "cron", headed.properties["cron"].line)
        if draft.is_persisted and self._columns(model):
            names = [unquoted(part.split()[0]) for part in self._columns(model)]
            draft.keys.append(f"columns {{ {' '.join(map(parts.word, names))} }}")
            draft.notes.append("columns: their types are those of the query")
        for key in ("grain", "grains", "references"):
            if key in headed.properties:
                shown = " ".join(headed.properties[key].value.split())
                draft.notes.append(f"{key} {shown}: nothing checks it, as in SQLMesh")
        for key, written in headed.properties.items():
            if key not in _READ:
                self._leave_property(origin, key, written.line)

    # ------------------------------------------------------------------------------------- audits

    def _audit(self, model: _Model) -> None:
        """Add the audits of a model."""
        written = model.headed.properties.get("audits")
        if written is None:
            return
        draft = self.drafts.sources.get(model.target.name)
        for text in listed(written.value, model.dialect):
            name = text.partition("(")[0].strip().lower()
            shown = f"{name}_{model.target.name}"
            origin = Origin("audit", shown, model.origin.path, written.line)
            try:
                if draft is None:
                    raise UntranslatableError(f"`{model.origin.name}` is not imported")
                rules = rules_of(text, origin, model.dialect)
                if rules is None:
                    self._own_audit(text, origin, model)
                else:
                    draft.rules += rules
            except UntranslatableError as error:
                self.drafts.skip(origin, str(error))

    def _own_audit(self, text: str, origin: Origin, model: _Model) -> None:
        """Add a source of failing rows for an audit of the project."""
        name, arguments = call(text, model.dialect)
        if name not in self.audits:
            raise UntranslatableError(f"unknown audit `{name}`")
        place, headed = self.audits[name]
        if (headed.text("standalone") or "false").lower() == "true":
            raise UntranslatableError(f"`{name}` is a standalone audit")
        if arguments or "defaults" in headed.properties:
            raise UntranslatableError("audits with arguments have no counterpart")
        if len(headed.statements) != 1:
            raise UntranslatableError("it has no query, or several statements")
        dialect = headed.text("dialect") or model.dialect
        query = re.sub(r"@this_model\b", model.target.name, headed.statements[0], flags=re.I)
        query = without_macros(query, dialect)
        this = (model.target.name.lower(),)

        def resolve(names: tuple[str, ...]) -> Target | None:
            is_this = tuple(n.lower() for n in names) == this
            return model.target if is_this else self.resolve(names)

        translated = translate(query, dialect, resolve)
        only_warns = (headed.text("blocking") or "true").lower() == "false"
        notes = (f"the audit at {place.path}:{place.line}", *translated.notes)
        add_failing(
            self.drafts,
            origin,
            translated.sql,
            translated.reads,
            only_warns=only_warns,
            notes=notes,
        )

    # -------------------------------------------------------------------------------------- tests

    def read_tests(self) -> None:
        """Add the unit tests."""
        for path, _ in self._files("tests", ".yaml", ".yml"):
            body: Any = read_yaml(self.root / path, self.root)
            if not isinstance(body, Mapping | None):
                origin = Origin("unit test", path, path, line_of(body))
                self.drafts.skip(origin, "it is not a mapping of tests by name")
                continue
            for name, test in (body or {}).items():
                origin = Origin("unit test", str(name), path, line_of(name, line_of(body)))
                try:
                    target, case = self._case(test)
                except UntranslatableError as error:
                    self.drafts.skip(origin, str(error))
                    continue
                place = f"tests/{target.name}.yml"
                self.drafts.cases.append(Case(origin, target.name, place, case))

    def _case(self, test: Any) -> tuple[Target, dict[str, Any]]:
        """Return the source that a test is of, and the test as our files have it."""
        if not isinstance(test, Mapping):
            raise UntranslatableError("it is not a mapping")

        def named(name: Any) -> Target | None:
            return self.resolve(tuple(_parts_of(str(name))))

        target = named(test.get("model"))
        if target is None:
            raise UntranslatableError(f"`{test.get('model')}` is not imported")
        return target, case_of(test, target, named, self.ranged.get(target.name))

    # ------------------------------------------------------------------------------------- others

    def list_others(self) -> None:
        """List the files that only SQLMesh can run."""
        for directory, kind in (("models", "model"), ("macros", "macro"), ("signals", "signal")):
            for path, _ in self._files(directory, ".py"):
                if self._text(path).strip():
                    origin = Origin(kind, PurePosixPath(path).stem, path)
                    self.drafts.skip(origin, f"a {kind} in Python: only SQLMesh can run it")
        for path, _ in self._files("metrics", ".sql"):
            self.drafts.skip(Origin("metric", PurePosixPath(path).stem, path), _COUNTERPARTS)
        used = " ".join(
            m.headed.properties["audits"].value.lower()
            for m in self.models
            if "audits" in m.headed.properties
        )
        for name, (origin, headed) in self.audits.items():
            if (headed.text("standalone") or "false").lower() == "true":
                self.drafts.skip(origin, f"it is a standalone audit: {_COUNTERPARTS}", _STANDALONE)
            elif not re.search(rf"\b{re.escape(name)}\b", used):
                self.drafts.skip(origin, "no model has it")

    def remove_readers(self) -> None:
        """Leave out sources that read one that is not imported."""
        for target in self.targets.values():
            if target.name not in self.drafts.sources:
                without_readers(self.drafts, target.name)


def _engine(config: Mapping, name: str) -> str | None:
    """Return the dialect of the default gateway's connection."""
    gateways = _section(config, "gateways", name)
    default = str(config.get("default_gateway"))
    chosen = default if default in gateways else next(iter(gateways), None)
    gateway = _section(gateways, chosen, name) if chosen is not None else Mapping()
    kind = _section(gateway, "connection", name).get("type")
    return {"mssql": "tsql", "motherduck": "duckdb"}.get(str(kind), kind)


def _parts_of(name: str) -> list[str]:
    """Return the parts of a name of a table, without quotes."""
    try:
        return [part.name for part in exp.to_table(name).parts]
    except SqlglotError:
        return name.split(".")


def _pair(text: str) -> tuple[str, str]:
    key, _, value = text.strip().partition(" ")
    return key.lower(), value.strip()


def _line_of(text: str, name: str) -> int:
    return text[: max(text.find(name), 0)].count("\n") + 1
