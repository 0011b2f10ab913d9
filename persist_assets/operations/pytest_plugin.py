"""A plugin of pytest that runs the tests of sources: those that `persist test` runs.

In `conftest.py`: ``pytest_plugins = ["persist_assets.operations.pytest_plugin"]``. All tests of a
project share a Spark session.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from persist_assets.core.errors import SettingsError, SourcesError
from persist_assets.core.settings.load import find_root, load_settings
from persist_assets.operations.cases import DIRECTORY, read_cases
from persist_assets.operations.testing import run_cases

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from persist_assets.operations.cases import Case
    from persist_assets.operations.testing import Outcome

_CASES = pytest.StashKey[dict["Path", list["Case"]]]()
_PROJECTS = pytest.StashKey[dict["Path", Any]]()


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect the YAML files of tests of a project."""
    if file_path.suffix not in (".yml", ".yaml"):
        return None
    with suppress(SettingsError):
        root = find_root(file_path.parent)
        if file_path.is_relative_to(root / DIRECTORY):
            return SourceTests.from_parent(parent, path=file_path, root=root)
    return None


class SourceTests(pytest.File):
    """A file of tests of sources."""

    def __init__(self, *, root: Path, **named: Any) -> None:
        super().__init__(**named)
        self.root = root

    def collect(self) -> Iterator[pytest.Item]:
        """Yield the tests of the file."""
        relative = self.path.relative_to(self.root).as_posix()
        by_root = self.config.stash.setdefault(_CASES, {})
        try:
            if self.root not in by_root:
                by_root[self.root] = read_cases(self.root)
        except SourcesError as error:
            raise self.CollectError(str(error)) from error
        for case in by_root[self.root]:
            if case.location.path == relative:
                yield SourceTest.from_parent(self, name=case.name, case=case, root=self.root)


class SourceTest(pytest.Item):
    """A test of a source."""

    def __init__(self, *, case: Case, root: Path, **named: Any) -> None:
        super().__init__(**named)
        self.case, self.root = case, root

    def runtest(self) -> None:
        """Run it; fail with the rows that differ."""
        settings, project, engine = _opened(self.config, self.root)
        (outcome,) = run_cases(settings, project, engine, [self.case])
        if outcome.status != "passed":
            pytest.fail(_report(outcome), pytrace=False)

    def reportinfo(self) -> tuple[Path, int, str]:
        """Return its place."""
        return self.path, self.case.location.line - 1, self.name


def _opened(config: pytest.Config, root: Path) -> Any:
    """Return the settings, the project and the engine of a project; they are opened once."""
    from persist_assets.compiler.load import load_project, require
    from persist_assets.engine.session import create_session
    from persist_assets.engine.spark import SparkEngine

    projects = config.stash.setdefault(_PROJECTS, {})
    if root not in projects:
        settings = load_settings(root)
        engine = SparkEngine(settings, lambda: create_session(settings))
        projects[root] = settings, require(load_project(settings)), engine
    return projects[root]


def _report(outcome: Outcome) -> str:
    """Return why a test did not pass."""
    lines = [f"{outcome.case.location}: {outcome.case.name}"]
    if outcome.error is not None:
        lines.append(str(outcome.error))
    for difference in outcome.differences:
        lines.append(f"{difference.part} ({', '.join(difference.columns)}):")
        lines += [f"  - {row}" for row in difference.missing]
        lines += [f"  + {row}" for row in difference.unexpected]
    return "\n".join(lines)
