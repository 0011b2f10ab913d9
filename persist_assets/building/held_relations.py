"""Relations that a run computes once and holds in Spark's memory."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class HeldRelations:
    """The relations that a run holds in Spark's memory until it ends."""

    def __init__(self) -> None:
        self._frames: dict[str, DataFrame] = {}
        self._lock = threading.RLock()

    def hold(self, name: str, frame: DataFrame) -> DataFrame:
        """Return a frame whose rows are computed once."""
        with self._lock:
            if name not in self._frames:
                self._frames[name] = frame.persist()
            return self._frames[name]

    def release(self) -> None:
        """Give the memory back."""
        with self._lock:
            frames, self._frames = self._frames, {}
        for frame in frames.values():
            frame.unpersist()
