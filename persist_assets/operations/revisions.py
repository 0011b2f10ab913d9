"""Sources at another place: at a revision of the project's git repository, in an environment.

The invariant: neither the working tree nor the index is changed, and git runs no program that the
repository's configuration names. Files of a revision are read as git stores them and compiled in
memory, with today's settings and data.
"""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Literal

from persist_assets.compiler.files import is_source
from persist_assets.compiler.load import compile_files
from persist_assets.core.errors import NotFoundError, SourcesError, StorageError, did_you_mean
from persist_assets.core.settings.keys import SETTINGS_FILE
from persist_assets.core.settings.load import load_settings
from persist_assets.planning.diff import Standings, of_builds, of_project

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from persist_assets.core.model.project import Project
    from persist_assets.core.model.queries import SourceID
    from persist_assets.core.model.snapshots import Snapshot
    from persist_assets.core.settings.values import Settings
    from persist_assets.ledger.ledger import Ledger

WORKING_TREE = "."
"""The name of the current files, where places are compared."""

_ALONE: Mapping[str, str] = {
    "GIT_NO_LAZY_FETCH": "1",  # older versions of git do not know this one
    "GIT_ALLOW_PROTOCOL": "",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
}
"""Variables that keep git from fetching, because a fetch runs programs of the configuration."""
_PLAIN = (
    "--no-pager",
    *("-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}"),
    *("-c", "core.sshCommand=false", "-c", "safe.bareRepository=explicit"),
)
"""Options that override programs of the configuration."""
_LACKING = (
    "the clone may lack it (a partial clone, or a damaged one). git fetches it for `git archive"
    " REVISION`, which may run programs that .git/config names: do that only in your own clone"
)

_BUILD_ID = re.compile(r"[0-9a-f]{8,64}")


@dataclass(frozen=True, slots=True)
class Place:
    """A place where sources have definitions.

    Attributes
    ----------
    kind
        ``files`` are the current ones or those of a revision.
    tables
        The built tables that readers find there; None for files, which have no tables.
    project
        The compiled files; None for environments and builds.
    """

    kind: Literal["files", "environment", "build"]
    standings: Standings
    tables: Mapping[SourceID, Snapshot] | None = None
    project: Project | None = None

    def only(self, source_ids: Iterable[SourceID]) -> Place:
        """Return the place with some sources only."""
        return replace(self, standings={s: self.standings[s] for s in source_ids})


def find_places(
    settings: Settings, project: Project, ledger: Ledger, before: str, after: str
) -> tuple[Place, Place]:
    """Return two places, restricted to the sources that both know.

    Environments and builds know only persisted sources, and a build knows only one.

    Parameters
    ----------
    project
        The current files.
    before, after
        Names as `find_place` takes them.

    Raises
    ------
    NotFoundError
        A name means nothing.
    SourcesError
        The sources of a revision are wrong.
    """
    first, second = (find_place(settings, project, ledger, n) for n in (before, after))
    if first.kind == second.kind == "build":
        (old,), (new,) = (p.standings.values() for p in (first, second))
        standings = {new.source_id: replace(old, source_id=new.source_id)}
        table = (first.tables or {}).get(old.source_id)
        tables = {new.source_id: table} if table else {}
        return Place("build", standings, tables), second
    places = [first, second]
    if not first.kind == second.kind == "files":
        places = [p.only(k for k, s in p.standings.items() if s.persisted) for p in places]
    for place in (first, second):
        if place.kind == "build":
            places = [p.only(k for k in p.standings if k in place.standings) for p in places]
    return places[0], places[1]


def find_place(settings: Settings, project: Project, ledger: Ledger, name: str) -> Place:
    """Return the place of that name: an environment, a git revision or a build, in this order.

    ``.`` means the current files.

    Raises
    ------
    NotFoundError
        The name means nothing.
    ConflictError
        Several BuildIDs begin with it.
    SourcesError
        The sources of that revision are wrong; the paths in its locations begin with its name.
    """
    if name == WORKING_TREE:
        return Place("files", of_project(project), project=project)
    environments = sorted({*ledger.manifests.fetch_environments(), *settings.declared})
    if name in environments or settings.is_temporary(name):
        chain = (name,)
        if name in settings.declared or settings.is_temporary(name):
            chain = load_settings(settings.root, environment=name).environments
        current, manifest = ledger.builds.fetch_current(*chain), ledger.manifests.fetch(*chain)
        tables = {k: manifest[b.build_id] for k, b in current.items() if b.build_id in manifest}
        return Place("environment", of_builds(current.values()), tables)
    commit = find_commit(settings, name)
    if commit is not None:
        revision = load_revision(settings, name, commit)
        return Place("files", of_project(revision), project=revision)
    build = ledger.builds.find(name) if _BUILD_ID.fullmatch(name) else None
    if build is not None:
        tables = {build.source_id: build.snapshot} if build.snapshot else {}
        return Place("build", of_builds([build]), tables)
    raise NotFoundError(
        f"`{name}` is not an environment, git revision or BuildID",
        hint=did_you_mean(name, environments)
        or f"environments: {', '.join(environments) or 'none yet'}",
    )


def find_commit(settings: Settings, ref: str) -> str | None:
    """Return the commit that a name means in the project's repository, or None."""
    output = _git(
        settings, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}"
    )
    return output.decode().strip() if output is not None else None


def is_other_settings_file(settings: Settings, ref: str) -> bool:
    """Whether a revision has another `persist.toml` than the project."""
    if ref == WORKING_TREE:
        return False
    then = _git(settings, "cat-file", "blob", f"{ref}:./{SETTINGS_FILE}") or b""
    file = settings.root / SETTINGS_FILE
    now = file.read_bytes() if file.exists() else b""
    return then.split() != now.split()


def load_revision(settings: Settings, ref: str, commit: str) -> Project:
    """Compile the sources of a commit, with today's settings.

    Raises
    ------
    SourcesError
        They are wrong.
    StorageError
        The clone lacks some of them.
    """
    listed = _list(settings, commit, "--name-only")
    paths = frozenset(listed.decode(errors="surrogateescape").split("\0"))

    def read(path: str) -> str:
        if path.endswith(".py") and path not in paths:  # modules are looked up in many places
            raise FileNotFoundError(f"it is not in {ref}")
        content = _git(settings, "cat-file", "blob", f"{commit}:./{path}")
        if content is None and path in paths:
            raise _lacking(path, commit)
        if content is None:
            raise FileNotFoundError(f"it is not in {ref}")
        return content.decode("utf-8-sig")

    project = compile_files(settings, read_revision(settings, commit), read)
    if project.errors:
        raise SourcesError(
            replace(p, location=replace(p.location, path=f"{ref}:{p.location.path}"))
            for p in project.errors
        )
    return project


def read_revision(settings: Settings, commit: str) -> Mapping[str, bytes]:
    """Return the files of the sources directory in a commit, by path relative to the root.

    Raises
    ------
    StorageError
        The clone lacks some of them.
    """
    listing = _list(settings, commit, below=f"{settings.sources}/")
    names: list[str] = []
    object_ids: list[bytes] = []
    for entry in listing.split(b"\0"):
        facts, _, name = entry.partition(b"\t")
        path = name.decode(errors="surrogateescape")
        if facts.startswith(b"100") and is_source(
            PurePosixPath(path).relative_to(settings.sources)
        ):
            names.append(path)
            object_ids.append(facts.split()[2])
    contents = _git(settings, "cat-file", "--batch", content=b"\n".join(object_ids))
    files: dict[str, bytes] = {}
    at = 0
    for name in names:
        head = contents.find(b"\n", at) if contents is not None else -1
        facts = contents[at:head].split() if contents is not None and head >= 0 else []
        if contents is None or len(facts) != 3 or facts[1] != b"blob":
            raise _lacking(name, commit)
        size = int(facts[2])
        files[name] = contents[head + 1 : head + 1 + size]
        at = head + 1 + size + 1
    return files


def _list(settings: Settings, commit: str, *options: str, below: str = ".") -> bytes:
    listing = _git(settings, "ls-tree", "-r", "-z", *options, commit, "--", below)
    if listing is None:
        raise StorageError(f"git cannot list the files of {commit[:12]}", hint=_LACKING)
    return listing


def _lacking(path: str, commit: str) -> StorageError:
    return StorageError(f"git cannot find `{path}` in {commit[:12]}", hint=_LACKING)


def _git(settings: Settings, *arguments: str, content: bytes = b"") -> bytes | None:
    """Return git's output, or None if git fails or is not installed.

    The repository may be untrusted: git must neither fetch nor run what its configuration names.
    """
    command = ["git", "-C", str(settings.root), *_PLAIN, *arguments]
    try:
        process = subprocess.run(
            command,
            input=content,
            capture_output=True,
            timeout=60,
            check=False,
            env={**os.environ, **_ALONE},
        )
    except FileNotFoundError:
        return None
    except subprocess.TimeoutExpired as error:
        raise StorageError(f"git did not answer: {' '.join(arguments[:1])}") from error
    return process.stdout if process.returncode == 0 else None
