"""Which places outside a project are trusted, and hidden ways to others."""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from postgres import AS_ROOT, NOBODY
from typer.testing import CliRunner

from persist_assets.cli import app
from persist_assets.core.errors import SettingsError, StorageError, UntrustedError
from persist_assets.core.model.sources import External
from persist_assets.core.object_stores import read_stores
from persist_assets.core.settings.load import load_settings
from persist_assets.core.trust import add_trusted, confined, permit, place_of, trusted_places
from persist_assets.external.connectors.access import follow_references, servers_of
from persist_assets.operations.revisions import find_commit, load_revision

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

URL = "postgresql://me:secret@host/database"


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's settings directory."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "own"))
    monkeypatch.delenv("PERSIST_TRUST", raising=False)
    return tmp_path / "own"


def trust(root: Path, *arguments: str) -> dict[str, bool]:
    """Run `persist trust`, and return whether each place that it lists is trusted."""
    done = CliRunner().invoke(app, ["--project", str(root), "trust", *arguments, "--json"])
    assert done.exit_code == 0, done.stderr
    return {p["place"]: p["trusted"] for p in json.loads(done.stdout)["places"]}


def is_permitted(root: Path, location: str) -> bool:
    with confined(root):
        try:
            permit(location)
        except UntrustedError:
            return False
    return True


# ---------------------------------------------------------------------------------------- places


@pytest.mark.proves("S30")
@pytest.mark.parametrize(
    "url",
    [
        URL,
        "postgresql://me@host/database",
        "postgresql://me:another@host/database",
        "postgresql://me:***@host/database",
        "postgresql://me:se/cr:et@host/database",
        "postgresql://me:secret@host/database?password=secret",
    ],
)
def test_a_database_is_the_same_place_with_any_password(
    url: str, tmp_path: Path, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not is_permitted(tmp_path, URL)
    monkeypatch.setenv("PERSIST_TRUST", url)
    assert is_permitted(tmp_path, URL)
    monkeypatch.delenv("PERSIST_TRUST")
    root = tmp_path / "project"
    (root / "sources").mkdir(parents=True)
    (root / "persist.toml").write_text(f'ledger = "{URL}"')
    assert trust(root, url) == {"postgresql://me@host/database": True}
    assert is_permitted(root, URL)
    assert "secret" not in (own / "persist_assets" / "trusted.json").read_text()


@pytest.mark.proves("S30")
@pytest.mark.parametrize(
    "other",
    [
        "postgresql://me:secret@evil@host/database",
        "postgresql://me:secret@evil/database?x=@host/database",
        "postgresql://me:secret@host/database?host=evil",
        "postgresql://you:secret@host/database",
        "postgresql://host:secret@evil/x:@host/database",
    ],
)
def test_urls_of_another_host_or_user_are_not_trusted(
    other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERSIST_TRUST", URL)
    assert is_permitted(tmp_path, URL)
    assert not is_permitted(tmp_path, other)
    assert place_of(place_of(other)) == place_of(other)


@pytest.mark.proves("S30")
def test_a_trusted_directory_is_trusted_by_all_its_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, real, link = tmp_path / "project", tmp_path / "real", tmp_path / "link"
    real.mkdir()
    (root / "sources").mkdir(parents=True)
    link.symlink_to(real)
    for listed in (str(link), f"file://{link}", f"sqlite:///{link}/ledger.db", "~/link"):
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("PERSIST_TRUST", listed)
        assert is_permitted(root, f"sqlite:///{real}/ledger.db"), listed
        assert not is_permitted(root, str(tmp_path / "other")), listed
    monkeypatch.delenv("PERSIST_TRUST")
    assert not is_permitted(root, str(real))
    (root / "persist.toml").write_text(f'warehouse = "{real}"')
    monkeypatch.chdir(root)
    assert trust(root) == {str(real): False}
    assert trust(root, "../link") == {str(real): True}
    assert is_permitted(root, str(real / "below"))


@pytest.mark.proves("S30")
def test_symbolic_links_of_the_project_do_not_extend_trust(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, outside = tmp_path / "project", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (root / "data").symlink_to(outside)
    (tmp_path / "way").symlink_to(root)
    for listed in (root / "data", tmp_path / "way" / "data", "/proc/self/cwd/data"):
        monkeypatch.chdir(root)
        monkeypatch.setenv("PERSIST_TRUST", str(listed))
        assert not is_permitted(root, str(outside)), listed


@pytest.mark.proves("S30")
def test_places_in_the_project_and_relative_paths_are_rejected(
    tmp_path: Path, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "project"
    (root / "sources").mkdir(parents=True)
    (root / "persist.toml").write_text("")
    monkeypatch.chdir(root)
    for inside in ("minio:9000", "sources"):
        done = CliRunner().invoke(app, ["trust", inside])
        assert done.exit_code == 2
        assert "is in the project and needs no trust" in done.stderr
    assert not own.exists()
    for listed in ("../real", "minio:9000"):
        with pytest.raises(SettingsError, match="lists the relative path") as refused:
            trusted_places(root, {"PERSIST_TRUST": f"s3://lake {listed}"})
        assert listed in refused.value.message
        assert "absolute" in (refused.value.hint or "")


@contextmanager
def as_nobody() -> Iterator[None]:
    """Run this process with the rights of an ordinary user, so that file modes apply."""
    if AS_ROOT:
        os.seteuid(NOBODY.pw_uid)
    try:
        yield
    finally:
        if AS_ROOT:
            os.seteuid(0)


@pytest.mark.proves("S30")
def test_an_inaccessible_settings_directory_trusts_nothing(
    tmp_path: Path, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_trusted(tmp_path, ["/data"])
    assert trusted_places(tmp_path) == ("/data",)
    own.chmod(0)
    try:
        with as_nobody():
            assert is_permitted(tmp_path, str(tmp_path / "own ledger"))
            assert not is_permitted(tmp_path, "/data")
            monkeypatch.setenv("PERSIST_TRUST", "*")
            assert is_permitted(tmp_path, "/data")
            with pytest.raises(SettingsError, match=r"cannot write .*Permission denied"):
                add_trusted(tmp_path, ["/data"])
    finally:
        own.chmod(0o700)
    (own / "persist_assets" / "trusted.json").write_text("{")
    with pytest.raises(SettingsError, match="cannot read"):
        trusted_places(tmp_path)


# ---------------------------------------------------------------------------------------- stores

REGIONS = ("evil.example/x", "evil.example", "x@evil", "eu-west-1\n", "a b", "a:1")
ENDPOINTS = (
    *("127.0.0.1:9000", "minio", "s3://x", "https://", "https://@evil", "https://a\\@evil"),
    *("https://a#@evil", "https://a?@evil", "https://a b", "https://a\n", "https://a:x"),
)


@pytest.mark.proves("S30")
@pytest.mark.parametrize(
    ("key", "value"), [*(("region", r) for r in REGIONS), *(("endpoint", e) for e in ENDPOINTS)]
)
def test_invalid_regions_and_endpoints_are_rejected_in_settings_and_connectors(
    key: str, value: str
) -> None:
    with pytest.raises(SettingsError, match=f"the (store )?{key} `"):
        read_stores({"s3://lake": {key: value}}, {})
    written = External("delta_table_input", storage=((f"aws_{key}", value),))
    referred = External("delta_table_input", storage=((f"aws_{key}", "${env:PERSIST_SECRET_X}"),))
    for external in (written, referred):
        with pytest.raises(StorageError, match=f"aws_{key}.* is invalid") as refused:
            follow_references(external, {"PERSIST_SECRET_X": value})
        assert value not in refused.value.message
        if key == "endpoint":
            assert not [*servers_of(external, {"PERSIST_SECRET_X": value})]


@pytest.mark.parametrize("region", ["eu-central-1", "us-gov-west-1", "auto", "RegionOne", "a_b"])
@pytest.mark.parametrize(
    "endpoint", ["http://127.0.0.1:9000", "https://[::1]:9/", "https://min_io.example.com/s3/a"]
)
def test_usual_regions_and_endpoints_are_accepted(region: str, endpoint: str) -> None:
    (store,) = read_stores({"s3://lake": {"region": region, "endpoint": endpoint}}, {})
    assert (store.region, store.endpoint) == (region, endpoint)
    options = (("aws_endpoint", endpoint), ("aws_region", region))
    assert follow_references(External("x", storage=options), {}) == dict(options)


@pytest.mark.proves("S30")
def test_an_endpoint_in_a_variable_is_listed_and_needs_trust(
    make_project: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {"uri": "s3://lake/t", "aws_endpoint": "${env:PERSIST_SECRET_PLACE}"}
    connectors = json.dumps([{"transport": {"name": "delta_table_input", "config": config}}])
    text = f"CREATE EXTERNAL TABLE t (a INT) WITH ('connectors' = '{connectors}')"
    root = make_project({"t.sql": text}, "")
    assert trust(root) == {"s3://lake": False}
    monkeypatch.setenv("PERSIST_SECRET_PLACE", "http://minio:9000/x")
    assert trust(root) == {"s3://lake": False, "http://minio:9000": False}
    external = External("delta_table_input", storage=(("aws_endpoint", config["aws_endpoint"]),))
    with confined(root), pytest.raises(UntrustedError, match="http://minio:9000 is outside"):
        follow_references(external, os.environ)


# ------------------------------------------------------------------------------------------- git


def git(root: Path, *arguments: str) -> str:
    who = ("-c", "user.name=n", "-c", "user.email=e@x", "-c", "commit.gpgsign=false")
    done = subprocess.run(
        ["git", *who, *arguments], cwd=root, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def repository(root: Path, mark: Path, missing: str) -> None:
    """Make a clone that lacks an object and configures programs for everything in git."""
    git(root, "init", "-q", "-b", "main")
    (root / ".gitattributes").write_text("* diff=x filter=x\n")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "first")
    lacking = git(root, "rev-parse", missing)
    script = mark.with_name("script")
    script.write_text(f"#!/bin/sh\necho $0 >> {mark}\nexit 1\n")
    script.chmod(0o755)
    hooks = mark.with_name("hooks")
    hooks.mkdir()
    for hook in ("post-index-change", "reference-transaction", "fsmonitor-watchman"):
        (hooks / hook).symlink_to(script)
    for key, value in {
        "core.repositoryformatversion": "1",
        "extensions.partialClone": "origin",
        "remote.origin.promisor": "true",
        "remote.origin.url": "ssh://127.0.0.1/x",
        "remote.origin.uploadpack": str(script),
        "core.sshCommand": str(script),
        "core.gitProxy": str(script),
        "core.hooksPath": str(hooks),
        "core.alternateRefsCommand": str(script),
        "core.pager": str(script),
        "core.editor": str(script),
        "core.askPass": str(script),
        "credential.helper": f"!{script}",
        "diff.external": str(script),
        "diff.x.textconv": str(script),
        "diff.x.command": str(script),
        "filter.x.smudge": str(script),
        "gpg.program": str(script),
        "log.showSignature": "true",
        "alias.ls-tree": f"!{script}",
        "core.fsmonitor": str(script),
    }.items():
        git(root, "config", key, value)
    (root / ".git" / "objects" / lacking[:2] / lacking[2:]).unlink()


@pytest.mark.proves("S7", "S30")
@pytest.mark.parametrize(
    "url",
    ["ssh://127.0.0.1/x", "git://127.0.0.1/x", "ext::sh -c x", "/nowhere", "http://u@[::1]:9"],
)
@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("HEAD:sources/m.sql", "git cannot find `sources/m.sql` in "),
        ("HEAD:sources", "git cannot list the files of "),
        ("HEAD:sources/code.py", "git cannot find `sources/code.py` in "),
    ],
)
def test_git_runs_no_program_that_a_repository_configures(
    make_project: Callable[..., Path], tmp_path: Path, missing: str, message: str, url: str
) -> None:
    files = {"m.sql": "CREATE VIEW a AS SELECT 1 AS one;", "code.py": "one = 1\n"}
    root, mark = make_project(files), tmp_path / "mark"
    repository(root, mark, missing)
    git(root, "config", "remote.origin.url", url)
    mark.unlink(missing_ok=True)
    settings = load_settings(root)
    commit = find_commit(settings, "HEAD")
    assert commit is not None
    with pytest.raises(StorageError, match=message) as refused:
        load_revision(settings, "HEAD", commit)
    assert "partial clone" in (refused.value.hint or "")
    assert not mark.exists(), mark.read_text()
