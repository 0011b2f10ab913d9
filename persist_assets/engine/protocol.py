"""The interface of engines, which compute rows for builds, copies and readers.

Users have `SparkEngine`. Tests have a second engine, over DuckDB;
`tests/integration/test_engine_contract.py` tests the contract of both. A frame is lazy rows. Code
that composes frames by Spark's own functions needs a frame of `session`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from pyspark.sql import DataFrame, SparkSession

    from persist_assets.core.model.checks import Check, CheckResult
    from persist_assets.core.model.columns import Column
    from persist_assets.core.model.queries import PythonUdf
    from persist_assets.core.model.snapshots import Snapshot
    from persist_assets.core.model.sources import Source
    from persist_assets.core.settings.values import Settings
    from persist_assets.engine.activity import Activity
    from persist_assets.engine.attribution import Attribution
    from persist_assets.engine.row_metrics import Measured
    from persist_assets.planning.render import Statement
    from persist_assets.storage.delta_commit import Staged
    from persist_assets.storage.raw import Pin


@dataclass(frozen=True, slots=True)
class Beside:
    """Rows of a table's files that are rewritten without the removed rows.

    Attributes
    ----------
    gone
        An SQL condition, never NULL, that holds for the removed rows; None: no row is removed.
    columns
        The names of the columns that are written; empty: all. The condition may use others.
    """

    rows: DataFrame
    gone: str | None = None
    columns: tuple[str, ...] = ()


class Engine(Protocol):
    """Reads, computes, writes and measures rows; commits nothing."""

    settings: Settings

    @property
    def session(self) -> SparkSession:
        """The Spark session, for code that composes frames and for functions that ask for it."""
        ...

    def define(self, functions: Iterable[PythonUdf]) -> None:
        """Register Python functions for statements and checks."""
        ...

    def parallelism(self) -> int:
        """Return the number of tasks that run at once."""
        ...

    def version(self) -> str:
        """Return the name and version of what computes: ``Spark 4.3.0``."""
        ...

    def catalog(self) -> str:
        """Return the kind of the session's catalog: ``hive`` or ``in-memory``."""
        ...

    def undivided(self) -> AbstractContextManager[None]:
        """Read each group of files in one task."""
        ...

    def interrupt(self) -> None:
        """Cancel all computations, of any thread."""
        ...

    def attributed(self, to: Attribution) -> AbstractContextManager[None]:
        """Attribute this thread's computations to a build; cancel them if it is interrupted."""
        ...

    def activity(self) -> Activity | None:
        """Return the current activity, for any thread; None if unknown."""
        ...

    def for_few_rows(self, frame: DataFrame) -> DataFrame:
        """Return the same rows, which are computed faster if they follow from few rows.

        They are in another session: they can be written, but not combined with other frames.
        """
        ...

    def load_raw(self, source: Source, pin: Pin) -> DataFrame:
        """Return the rows of a raw table at a pinned version."""
        ...

    def check_rows(self, name: str, pin: Pin) -> None:
        """Check once for each file that the rows promised by the table's log are read."""
        ...

    def read_files(
        self,
        form: str,
        pin: Pin,
        columns: Sequence[Column],
        options: Mapping[str, str],
        *,
        file: str | None = None,
    ) -> DataFrame:
        """Return the rows of pinned files."""
        ...

    def load_snapshot(self, snapshot: Snapshot) -> DataFrame:
        """Return the rows of a snapshot."""
        ...

    def load_table(self, root: str, version: int) -> DataFrame:
        """Return the rows of one version of a table of ours, of any build."""
        ...

    def view(self, name: str, load: Callable[[], DataFrame]) -> str:
        """Return `name`, a view of the frame that `load` returns; `load` is called once."""
        ...

    def forget(self) -> None:
        """Drop the views of this engine; it creates them again on demand."""
        ...

    def run(self, statement: Statement, columns: Sequence[Column] = ()) -> DataFrame:
        """Return the rows of a statement, with the names of `columns`."""
        ...

    def over(self, frame: DataFrame, query: Callable[[str], str]) -> DataFrame:
        """Return the rows of a query over the rows of a frame."""
        ...

    def collect(self, frame: DataFrame, n: int) -> list[Any]:
        """Return the first rows of a frame, at most `n`."""
        ...

    def columns(self, frame: DataFrame, name: str) -> tuple[Column, ...]:
        """Return the columns of rows, with Spark's names of their types."""
        ...

    def write(
        self,
        frame: DataFrame,
        table: str,
        build_uid: str,
        checks: Sequence[Check],
        time_column: str | None,
        name: str,
        *,
        beside: Beside | None = None,
        clustered: bool = False,
        bounds: Sequence[str] = (),
        few: bool = False,
    ) -> tuple[Staged, Measured]:
        """Write rows as files of a table, measured and checked in the same pass."""
        ...

    def write_files(
        self, frame: DataFrame, root: str, build_uid: str, *, most_rows: int = 0
    ) -> Staged:
        """Write rows as files of a table, without measuring them."""
        ...

    def measure(
        self, frame: DataFrame, checks: Sequence[Check], time_column: str | None, name: str
    ) -> Measured:
        """Measure and check rows as `write` does, and write nothing."""
        ...

    def greatest(self, frame: DataFrame, column: str, name: str) -> str | None:
        """Return the greatest value of a column as text, None if all are NULL."""
        ...

    def audit(
        self, frame: DataFrame, checks: Sequence[Check], name: str
    ) -> tuple[CheckResult, ...]:
        """Check existing rows."""
        ...

    def failing(self, frame: DataFrame, check: Check) -> DataFrame | None:
        """Return the rows that fail a check, or their keys; None if no single row can fail it."""
        ...

    def unmatched(self, frame: DataFrame, column: str, others: DataFrame, other: str) -> DataFrame:
        """Return the rows whose value in a column is not NULL and missing in another frame."""
        ...

    def sample(self, frame: DataFrame, columns: Sequence[str], n: int) -> list[str]:
        """Return some columns of the first rows as JSON, at most `n`."""
        ...
