"""What builds, copies and readers need of whatever computes rows.

`SparkEngine` is the engine of users. Tests have a second one, over DuckDB, and
`tests/integration/test_engine_contract.py` is what both hold. A frame is rows that are not computed
yet; whoever composes frames by Spark's own functions needs a frame of `session`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from pyspark.sql import DataFrame, SparkSession

    from persist_assets.core.model.checks import Check, CheckResult
    from persist_assets.core.model.columns import Column
    from persist_assets.core.model.snapshots import Snapshot
    from persist_assets.core.model.sources import Source
    from persist_assets.core.settings.values import Settings
    from persist_assets.engine.row_metrics import Measured
    from persist_assets.planning.render import Statement
    from persist_assets.storage.delta_commit import Staged
    from persist_assets.storage.raw import Pin


@dataclass(frozen=True, slots=True)
class Beside:
    """Rows of files that a table had, of which those that stay are written again.

    Attributes
    ----------
    gone
        Those for which that holds do not stay, SQL that is never NULL; None: all do.
    """

    rows: DataFrame
    gone: str | None = None


class Engine(Protocol):
    """Reads, computes, writes and measures rows; commits nothing."""

    settings: Settings

    @property
    def session(self) -> SparkSession:
        """The Spark session, for what composes frames and for functions that ask for it."""
        ...

    def parallelism(self) -> int:
        """Return how many tasks are run at once."""
        ...

    def catalog(self) -> str:
        """Return what kind of catalog the session has: ``hive`` or ``in-memory``."""
        ...

    def undivided(self) -> AbstractContextManager[None]:
        """Have files that are read in groups read by one task for each group."""
        ...

    def interrupt(self) -> None:
        """End everything that is computed, whichever thread asked for it."""
        ...

    def load_raw(self, source: Source, pin: Pin) -> DataFrame:
        """Return the rows of a raw table at a pinned version."""
        ...

    def check_rows(self, name: str, pin: Pin) -> None:
        """Check that the rows that a table's log promises are read, of each file once."""
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
        """Return the rows of one version of a table that we wrote, whatever build wrote it."""
        ...

    def view(self, name: str, load: Callable[[], DataFrame]) -> str:
        """Return `name`, a view of what `load` returns; it is called the first time."""
        ...

    def forget(self) -> None:
        """Drop the views of this engine, which makes them again if it is asked for them."""
        ...

    def run(self, statement: Statement, columns: Sequence[Column] = ()) -> DataFrame:
        """Return the rows of a statement, with the names that `columns` have."""
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
    ) -> tuple[Staged, Measured]:
        """Write rows as files of a table, measured and checked in the same pass."""
        ...

    def write_files(
        self, frame: DataFrame, root: str, build_uid: str, *, most_rows: int = 0
    ) -> Staged:
        """Write rows as files of a table, and do nothing else."""
        ...

    def measure(
        self, frame: DataFrame, checks: Sequence[Check], time_column: str | None, name: str
    ) -> Measured:
        """Measure and check rows as `write` does, and write nothing."""
        ...

    def greatest(self, frame: DataFrame, column: str, name: str) -> str | None:
        """Return the greatest value of a column, as text, None where all are NULL."""
        ...

    def audit(
        self, frame: DataFrame, checks: Sequence[Check], name: str
    ) -> tuple[CheckResult, ...]:
        """Check rows that are there already."""
        ...

    def failing(self, frame: DataFrame, check: Check) -> DataFrame | None:
        """Return the rows that fail a check, or their keys; None where no rows do."""
        ...

    def unmatched(self, frame: DataFrame, column: str, others: DataFrame, other: str) -> DataFrame:
        """Return the rows whose value of a column is not NULL and no value of another frame's."""
        ...

    def sample(self, frame: DataFrame, columns: Sequence[str], n: int) -> list[str]:
        """Return some columns of the first rows as JSON, at most `n`."""
        ...
