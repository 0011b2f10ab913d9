"""The keys that differ between two versions: those of all commits in between, or unknown."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from persist_assets.storage.touched_keys import TOUCHED, Touched, keys_since

if TYPE_CHECKING:
    from pathlib import Path

FILE = "part-0.parquet"


def commit(root: Path, version: int, touched: Touched | None, *, is_stored: bool = True) -> None:
    info = {"persist.build": f"b{version}"}
    if touched is not None:
        info[TOUCHED] = touched.as_metadata
    log = root / "_delta_log"
    log.mkdir(exist_ok=True)
    (log / f"{version:020}.json").write_text(json.dumps({"commitInfo": info}))
    if is_stored and touched is not None:
        directory = root / f"b{version}" / "touched"
        directory.mkdir(parents=True)
        (directory / FILE).touch()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A table whose versions store the touched keys since the last one, except 3 (undone) and 6."""
    for version, base in ((1, 0), (2, 1), (4, 2), (5, 4), (7, 6)):
        commit(tmp_path, version, Touched(base, ("a", "b"), 1))
    commit(tmp_path, 3, None)
    commit(tmp_path, 6, None)
    return tmp_path


def files(root: Path, *versions: int) -> tuple[tuple[str], ...]:
    return tuple((f"{root}/b{version}/touched/{FILE}",) for version in versions)


@pytest.mark.parametrize(
    ("then", "now", "versions"),
    [(1, 2, (2,)), (0, 2, (2, 1)), (2, 5, (5, 4)), (1, 5, (5, 4, 2)), (6, 7, (7,))],
)
def test_keys_of_all_commits_between_two_versions_are_returned(
    root: Path, then: int, now: int, versions: tuple[int, ...]
) -> None:
    assert keys_since(str(root), then, now) == (("a", "b"), files(root, *versions))


@pytest.mark.parametrize(
    ("then", "now"), [(3, 5), (4, 6), (4, 7), (5, 7), (-1, 2), (2, 9), (2, 2), (5, 4)]
)
def test_keys_are_unknown_without_a_complete_chain_of_commits(
    root: Path, then: int, now: int
) -> None:
    """A version is not the base of another, stored no keys, does not exist, or is not later."""
    assert keys_since(str(root), then, now) is None


def test_keys_of_different_columns_are_not_combined(root: Path) -> None:
    commit(root, 8, Touched(7, ("a",), 1))
    assert keys_since(str(root), 7, 8) == (("a",), files(root, 8))
    assert keys_since(str(root), 6, 8) is None


@pytest.mark.parametrize("n_files", [1, 2])
def test_keys_with_a_missing_file_are_unknown(root: Path, n_files: int) -> None:
    commit(root, 8, Touched(7, ("a", "b"), n_files), is_stored=n_files > 1)
    assert keys_since(str(root), 7, 8) is None
