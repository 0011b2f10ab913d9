"""What Spark reads of data."""

from __future__ import annotations

from typing import Any


class Scans:
    """What Spark scans of some data from now on, as its own status tells.

    Parameters
    ----------
    mark
        Stands in how its scans are planned, and in that of nothing else.
    """

    def __init__(self, spark: Any, mark: str) -> None:
        self._mark = mark
        self._status = spark._jsparkSession.sharedState().statusStore()
        self._bus = spark.sparkContext._jsc.sc().listenerBus()
        self._before = max(self._executions(), default=-1)

    def _executions(self) -> list[int]:
        self._bus.waitUntilEmpty()
        return [e.executionId() for e in listed(self._status.executionsList())]

    def told(self) -> tuple[int, int, list[str]]:
        """Return how many rows and files were scanned, and how each scan was planned."""
        counted = {"number of output rows": 0, "number of files read": 0}
        plans = list[str]()
        for execution in (e for e in self._executions() if e > self._before):
            values = self._status.executionMetrics(execution)
            for node in listed(self._status.planGraph(execution).allNodes()):
                if node.name().startswith("Scan parquet") and self._mark in node.desc():
                    plans.append(node.desc())
                    for metric in listed(node.metrics()):
                        told = values.get(metric.accumulatorId())
                        if metric.name() in counted and told.isDefined():
                            counted[metric.name()] += int(told.get().replace(",", ""))
        rows, files = counted.values()
        return rows, files, plans


def listed(sequence: Any) -> list[Any]:
    """Return what a sequence of Scala's holds."""
    return [sequence.apply(n) for n in range(sequence.size())]
