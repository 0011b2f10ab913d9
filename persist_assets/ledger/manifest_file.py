"""The manifest as a file: Malloy's JSON, BuildID → table, which Malloy's own tools can read.

Besides the table's name, each entry holds everything that a ledger has to know about a snapshot, so
that the file can be imported into the ledger that wrote it, or into another one. Malloy's own tools
look tables up by BuildIDs of their own, so a Malloy source has a second, short entry under that
BuildID, which names the first (`buildId`). The invariant: this entry names the table of the
source's current meaning, or does not exist.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any, cast

from filelock import FileLock

from persist_assets.core.model.columns import Column
from persist_assets.core.model.snapshots import RawVersion
from persist_assets.core.settings.load import load_settings
from persist_assets.core.settings.user import make_private

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from persist_assets.core.model.queries import BuildID, SourceID
    from persist_assets.core.model.snapshots import AsOf, Build
    from persist_assets.core.settings.values import Settings
    from persist_assets.ledger.ledger import Ledger

log = logging.getLogger(__name__)


def manifest_document(
    settings: Settings, published: Mapping[BuildID, Build], malloy: Mapping[BuildID, BuildID]
) -> dict[str, Any]:
    """Return an environment's manifest in Malloy's format, with more fields in each entry.

    Parameters
    ----------
    malloy
        Malloy's BuildIDs in the environment, each with ours, whether it is published or not.
    """
    entries = {
        build_id: _entry_json(settings, build)
        for build_id, build in published.items()
        if build.snapshot is not None
        and build.snapshot.view is None  # tools that know no more than this document compute it
    }
    named = {m: _malloy_json(m, b, entries[b]) for m, b in malloy.items() if b in entries}
    return {
        "entries": {**named, **entries},
        "connections": {settings.malloy.connection: settings.malloy_connection},
        "strict": settings.strict,
    }


def fetch_document(settings: Settings, ledger: Ledger) -> dict[str, Any]:
    """Return the current manifest of an environment, as `manifest_document` does.

    Tainted snapshots are left out: tools that know no more than this document compute them.
    """
    published = ledger.builds.fetch_published(*settings.environments)
    tainted = ledger.taints.fetch(*settings.environments)
    published = {
        build_id: build
        for build_id, build in published.items()
        if build.snapshot is not None and build.snapshot.build_uid not in tainted
    }
    # Read last: a meaning that is newer than `published` is not in it, and so gets no entry.
    return manifest_document(
        settings, published, ledger.manifests.fetch_malloy(settings.environment)
    )


def _malloy_json(malloy_id: BuildID, build_id: BuildID, entry: Mapping[str, Any]) -> dict[str, Any]:
    named = {
        "tableName": entry["tableName"],
        "version": entry["version"],
        "buildId": build_id,
    }
    return {**named, "digest": _digest(malloy_id, named, _NAMED)}


def _entry_json(settings: Settings, build: Build) -> dict[str, Any]:
    snapshot = build.snapshot
    assert snapshot is not None
    path = settings.table_root(snapshot.table)
    entry = {
        "tableName": f"delta.`{path}@v{snapshot.version}`",
        "sourceId": snapshot.source_id,
        "path": path,
        "version": snapshot.version,
        "rows": snapshot.rows,
        "builtAt": snapshot.built_at.isoformat(),
        "bytes": snapshot.bytes,
        "columns": [[c.name, c.type] for c in snapshot.columns],
        "content": snapshot.content,
        "watermark": snapshot.watermark,
        "asOf": [[v.raw, v.version] for v in snapshot.as_of],
        "inputs": [[v.raw, v.version] for v in snapshot.inputs],
        "buildUid": snapshot.build_uid,
        "definition": build.definition,
    }
    return {**entry, "digest": _digest(build.build_id, entry, _CLAIMS)}


def _digest(build_id: BuildID, entry: Mapping[str, Any], keys: Iterable[str]) -> str:
    """Return a digest of an entry's claims, which reveals changes to them."""
    claims = {k: entry.get(k) for k in keys}
    return sha256(json.dumps([build_id, claims], sort_keys=True).encode()).hexdigest()[:32]


def export_manifest(settings: Settings, ledger: Ledger) -> int:
    """Write the manifests of an environment and of those that read it, each to its file.

    A file is always complete: the old or the new one. The last state always wins, because the
    ledger is read under the file's lock.
    """
    n_entries = _export(settings, ledger)
    for name in settings.declared:
        other = load_settings(settings.root, environment=name)
        if settings.environment in other.reads:
            n_entries += _export(other, ledger)
    return n_entries


def _export(settings: Settings, ledger: Ledger) -> int:
    path = settings.manifest_path
    make_private(path.parent)
    with FileLock(f"{path}.lock"):
        if not _may_replace(path, settings, ledger):
            return 0
        document = fetch_document(settings, ledger)
        temporary = path.with_name(f".{path.name}.new")
        temporary.unlink(missing_ok=True)
        temporary.touch(mode=0o600)
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(document, file, indent=2, sort_keys=True)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    return len(document["entries"])


def unknown_entries(path: Path, ledger: Ledger | None) -> int:
    """Return how many entries of a manifest file name builds that a ledger does not know.

    Parameters
    ----------
    ledger
        None: there is none, so all builds are unknown.
    """
    try:
        read = parse_manifest(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return 0
    uids = {e.claim.build_uid for e in read.entries if e.claim is not None}
    return len(uids - ledger.builds.fetch_known(uids) if ledger is not None else uids)


_owned_files: set[tuple[Path, str]] = set()
"""The files that are known to belong to a ledger, each with the log id of that ledger."""


def _may_replace(path: Path, settings: Settings, ledger: Ledger) -> bool:
    """Whether a manifest file may be overwritten.

    A file that names builds of another ledger is left alone until this ledger has published
    something in the environment, because it is the only record of these builds. After that, a copy
    of it stays.
    """
    file_key = path, ledger.events.log_id()
    if file_key in _owned_files:
        return True
    n = unknown_entries(path, ledger)
    if n and not ledger.manifests.has_published(*settings.environments):
        log.warning(
            "%s names %d builds that are not in the ledger, so it was not overwritten:"
            " persist doctor --fix restores them",
            path,
            n,
            extra={"action": "manifest"},
        )
        return False
    if n:
        copy = path.with_name(f"{path.stem}.before-{file_key[1][:8]}.json")
        if not copy.exists():
            shutil.copy2(path, copy)
        log.warning(
            "%s named %d builds that are not in the ledger: see %s",
            path,
            n,
            copy,
            extra={"action": "manifest"},
        )
    _owned_files.add(file_key)
    return True


# ------------------------------------------------------------------------------------------ import


@dataclass(frozen=True, slots=True)
class Claim:
    """The claims of a manifest entry about a snapshot, besides its place.

    Attributes
    ----------
    build_uid
        The build that wrote it.
    """

    build_uid: str
    as_of: AsOf
    inputs: AsOf
    content: str
    rows: int
    bytes: int
    built_at: datetime
    columns: tuple[Column, ...]
    watermark: str | None
    definition: str


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a manifest file.

    Attributes
    ----------
    path
        The table's directory: an absolute path or a URI.
    claim
        None if the file does not say enough for a ledger that does not know the build.
    """

    build_id: BuildID
    source_id: SourceID | None
    path: str
    version: int
    claim: Claim | None


@dataclass(frozen=True, slots=True)
class Refused:
    """An entry of a manifest file that cannot be imported; no BuildID: the file itself."""

    build_id: BuildID | None
    source_id: SourceID | None
    reason: str


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """The contents of a manifest file.

    Attributes
    ----------
    strict
        None if the file does not say.
    malloy
        Malloy's BuildIDs, each with ours.
    """

    entries: tuple[Entry, ...]
    refused: tuple[Refused, ...]
    strict: bool | None = None
    malloy: tuple[tuple[BuildID, BuildID], ...] = ()


class _Twice(ValueError):
    """A key occurs twice in an object: one of its values would be ignored."""


def parse_manifest(text: str) -> ManifestFile:
    """Return the contents of a manifest file, and everything that is wrong with it. Pure."""
    try:
        document: Any = json.loads(text, object_pairs_hook=_once)
    except _Twice as error:
        return _unreadable(f"it contains `{error}` twice")
    except (ValueError, RecursionError) as error:
        return _unreadable(f"invalid JSON: {error}")
    if not isinstance(document, dict):
        return _unreadable("it is not a manifest: it must be a JSON object")
    manifest = cast("dict[str, Any]", document)
    entries, strict = manifest.get("entries"), manifest.get("strict")
    if not isinstance(entries, dict):
        return _unreadable("it is not a manifest: `entries` must be an object")
    if strict is not None and not isinstance(strict, bool):
        return _unreadable("it is not a manifest: `strict` must be true or false")
    documents = cast("dict[str, Any]", entries)
    good: list[Entry] = []
    malloy: list[tuple[BuildID, BuildID]] = []
    refused: list[Refused] = []
    for build_id, entry in documents.items():
        if isinstance(entry, dict) and "buildId" in entry:
            problem = _malloy_problem(build_id, cast("dict[str, Any]", entry), documents)
            if problem:
                refused.append(Refused(build_id, None, problem))
            else:
                malloy.append((build_id, entry["buildId"]))
            continue
        recorded_id: Any = entry.get("sourceId") if isinstance(entry, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        source_id = recorded_id if isinstance(recorded_id, str) else None
        problems = [*_problems(build_id, entry)]
        if problems:
            refused.append(Refused(build_id, source_id, "; ".join(problems)))
        else:
            claim = _claim(entry) if entry.keys() >= {*_CLAIMS, "digest"} else None
            good.append(Entry(build_id, source_id, entry["path"], entry["version"], claim))
    return ManifestFile(tuple(good), tuple(refused), strict, tuple(malloy))


def _unreadable(reason: str) -> ManifestFile:
    return ManifestFile((), (Refused(None, None, reason),))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        keys = [key for key, _ in pairs]
        raise _Twice(next(key for key in keys if keys.count(key) > 1))
    return mapping


def _problems(build_id: str, entry: Any) -> Iterator[str]:
    if not re.fullmatch(r"[0-9a-f]{64}", build_id):
        yield "invalid BuildID"
    if not isinstance(entry, dict):
        yield "it must be an object"
        return
    fields = cast("dict[str, Any]", entry)
    if not isinstance(fields.get("tableName"), str):
        yield "`tableName` must be a string"
        return
    if "version" not in fields or "path" not in fields:
        yield "it lacks the table or its version: it was not written by persist_assets"
        return
    for key, (fits, expected) in _CLAIMS.items():
        if key in fields and not fits(fields[key]):
            yield f"`{key}` must be {expected}"
            return
    path = fields["path"]
    if not ("://" in path or path.startswith("/")) or ".." in path.split("/"):
        yield "`path` must be absolute"
    elif fields["tableName"] != f"delta.`{path}@v{fields['version']}`":
        yield "`tableName` names a different table or version than `path` and `version`"
    elif "digest" in fields and fields["digest"] != _digest(build_id, fields, _CLAIMS):
        yield _CHANGED


def _malloy_problem(
    malloy_id: str, entry: Mapping[str, Any], entries: Mapping[str, Any]
) -> str | None:
    """Return the problem of an entry that names another one for Malloy's own tools, or None."""
    if entry.get("digest") != _digest(malloy_id, entry, _NAMED):
        return _CHANGED
    if not re.fullmatch(r"[0-9a-f]{64}", malloy_id):
        return "invalid BuildID"
    build_id = entry["buildId"]
    named: Any = entries.get(build_id) if isinstance(build_id, str) else None
    if not isinstance(named, dict) or "buildId" in named:
        return f"it names {build_id}, which has no entry"
    if any(entry.get(k) != named.get(k) for k in ("tableName", "version")):  # pyright: ignore[reportUnknownMemberType]
        return f"it names a different table or version than the entry of {build_id}"
    return None


_CHANGED = "it has been changed since it was written"
_NAMED = ("tableName", "version", "buildId")
"""The keys of an entry for Malloy's own tools, besides its digest."""


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_pairs(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(p, list) and len(cast("list[Any]", p)) == 2 and all(map(_is_text, p))
        for p in cast("list[Any]", value)
    )


def _is_instant(value: Any) -> bool:
    try:
        return datetime.fromisoformat(value).tzinfo is not None
    except (ValueError, TypeError):
        return False


_TEXT = (_is_text, "text")
_COUNT = (_is_count, "an integer of at least 0")
_PAIRS = (_is_pairs, "a list of pairs")
_CLAIMS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "sourceId": _TEXT,
    "path": _TEXT,
    "version": _COUNT,
    "rows": _COUNT,
    "bytes": _COUNT,
    "builtAt": (_is_instant, "a timestamp with a time zone"),
    "columns": _PAIRS,
    "content": _TEXT,
    "watermark": (lambda v: v is None or isinstance(v, str), "a string or null"),
    "asOf": _PAIRS,
    "inputs": _PAIRS,
    "buildUid": (lambda v: isinstance(v, str) and v.isalnum(), "letters and digits"),
    "definition": (lambda v: isinstance(v, str), "text"),
}
"""The keys of an entry that a ledger has to know, with the check and the kind of each value."""


def _claim(entry: Mapping[str, Any]) -> Claim:
    def versions(key: str) -> AsOf:
        return tuple(RawVersion(raw, version) for raw, version in entry[key])

    return Claim(
        build_uid=entry["buildUid"],
        as_of=versions("asOf"),
        inputs=versions("inputs"),
        content=entry["content"],
        rows=entry["rows"],
        bytes=entry["bytes"],
        built_at=datetime.fromisoformat(entry["builtAt"]).astimezone(UTC),
        columns=tuple(Column(name, kind) for name, kind in entry["columns"]),
        watermark=entry["watermark"],
        definition=entry["definition"],
    )
