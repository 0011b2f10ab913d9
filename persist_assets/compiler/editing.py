"""The state that an editor keeps between compilations: texts that are not saved, and results.

The invariant: like the compile cache, the results save time and decide nothing. The exception is
data outside the project: its columns are those of the last call of `forget_data`, because nobody
wants stores to be asked at every key.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from persist_assets.compiler import files
from persist_assets.compiler.cache import Cache
from persist_assets.compiler.state import Focus
from persist_assets.core.errors import PersistError
from persist_assets.storage import raw as raw_data

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from persist_assets.analysis.semantics import Meaning
    from persist_assets.compiler.cache import Parsed
    from persist_assets.core.errors import Problem
    from persist_assets.core.model.columns import Column
    from persist_assets.core.model.sources import RawTable

_MOST_KEPT = 3
"""The number of earlier meanings to keep for each meaning that a compilation needs."""


@dataclass(slots=True)
class Editing:
    """The texts of an editor and what compiling found, for `load`; outside of editors, nothing.

    Attributes
    ----------
    texts
        The texts of open files by path relative to the project root. They count instead of the
        files.
    focus
        What the next compilation compiles; with paths, it takes the files as they were last read.
    """

    texts: dict[str, str] = field(default_factory=dict[str, str])
    focus: Focus = field(default_factory=Focus)
    _cache: Cache | None = None
    _results: list[tuple[Mapping[str, Parsed], Mapping[str, Meaning]]] = field(default_factory=list)
    _n_most: int = 0
    _contents: dict[str, bytes] = field(default_factory=dict[str, bytes])
    _unread: list[str] = field(default_factory=list[str])
    _columns: dict[tuple[RawTable, str], tuple[Column, ...] | PersistError] = field(
        default_factory=dict
    )

    @property
    def cache(self) -> Cache | None:
        """The results of earlier compilations; None before the first."""
        for parsed, used in self._results:
            former = self._cache or Cache()
            rest = {key: m for key, m in former.meanings.items() if key not in used}
            self._n_most = max(self._n_most, len(used))
            surplus = len(rest) - _MOST_KEPT * self._n_most
            for key in list(rest)[: max(surplus, 0)]:  # the oldest are the first
                del rest[key]
            self._cache = Cache({**former.files, **parsed}, {**rest, **used})
        self._results.clear()
        return self._cache

    def keep(self, parsed: Mapping[str, Parsed], used: Mapping[str, Meaning]) -> None:
        """Let the next compilation reuse results, also those that are added after this call."""
        self._results.append((parsed, used))

    def forget_data(self) -> None:
        """Make the next compilation read the columns of raw tables from their data again."""
        self._columns.clear()

    def read_sources(
        self, root: Path, directory: Path, problems: list[Problem]
    ) -> tuple[dict[str, bytes], list[str]]:
        """Return the files of sources with the editor's texts; see `files.read_sources`."""
        if not self.focus.paths:
            self._contents, self._unread = files.read_sources(root, directory, problems)
        texts: dict[str, bytes] = {}
        for path, text in self.texts.items():
            file = root / path
            if file.is_relative_to(directory) and files.is_source(file.relative_to(directory)):
                texts[path] = text.encode(errors="surrogatepass")
        contents = {**self._contents, **texts}
        return dict(sorted(contents.items())), [p for p in self._unread if p not in texts]

    def reading(self, read: Callable[[str], str]) -> Callable[[str], str]:
        """Return a function that reads the text of a project file, like `read`."""
        return lambda path: self.texts[path] if path in self.texts else read(path)

    def find_columns(self, raw: RawTable, location: str) -> tuple[Column, ...]:
        """Return the columns of a raw table, or raise the error, as of the last look at its data.

        Raises
        ------
        StorageError, UntrustedError
            See `storage.raw.find_columns`.
        """
        known = self._columns.get((raw, location))
        if known is None:
            try:
                known = raw_data.find_columns(raw, location)
            except PersistError as error:
                known = error
            self._columns[raw, location] = known
        if isinstance(known, PersistError):
            raise known
        return known
