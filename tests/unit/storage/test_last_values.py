"""The greatest value of a time column, from file statistics where they are sufficient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from typing import Any

import pytest

from persist_assets.building.strategies.in_place import last_of
from persist_assets.core.time_values import earlier, greatest
from persist_assets.storage.delta_tables import Live

Ask = Callable[[Sequence[Live]], str | None]


def file(name: str, last: Any = None) -> Live:
    """Return a file of a table, with the greatest value in its statistics."""
    told = {} if last is None else {"at": last}
    return Live(name, 1, 1, told, told, {"at": 0})


def asking(truth: dict[str, str], kind: str) -> tuple[list[str], Ask]:
    """Return the list of files that were read, and a function that reads their true values."""
    asked: list[str] = []

    def ask(files: Sequence[Live]) -> str | None:
        asked.extend(f.path for f in files)
        return greatest([truth.get(f.path) for f in files], kind)

    return asked, ask


def at(microsecond: int) -> datetime:
    return datetime(2024, 1, 1, 12, 0, 0, microsecond, tzinfo=UTC)


@pytest.mark.parametrize(
    ("kind", "values", "others", "expected"),
    [
        ("date", [date(2024, 1, 9), date(2024, 1, 10)], "2024-01-02", "2024-01-10"),
        ("date", [date(2024, 1, 9), date(2024, 1, 10)], "2024-01-11", "2024-01-11"),
        ("int", [9, 10], None, "10"),
        ("int", [], "3", "3"),
        ("int", [], None, None),
    ],
)
def test_statistics_of_dates_and_integers_are_sufficient(
    kind: str, values: list[Any], others: str | None, expected: str | None
) -> None:
    asked, ask = asking({}, kind)
    files = [file(str(n), value) for n, value in enumerate(values)]
    assert last_of(files, others, "AT", kind, ask) == expected
    assert asked == []


def test_only_files_whose_truncated_timestamps_may_be_greatest_are_read() -> None:
    truth = {"a": "2024-01-01T12:00:00.005900Z", "b": "2024-01-01T12:00:00.006100Z"}
    truth["c"] = "2024-01-01T12:00:00.001000Z"
    asked, ask = asking(truth, "timestamp")
    # The writer truncated one of them to milliseconds, and rounded the other one up.
    files = [file("a", at(6000)), file("b", at(6000)), file("c", at(1000))]
    assert last_of(files, None, "at", "timestamp", ask) == truth["b"]
    assert asked == ["a", "b"]
    later = "2024-01-01T12:00:00.006101Z"
    assert last_of(files, later, "at", "timestamp", ask) == later


def test_files_without_statistics_are_read() -> None:
    asked, ask = asking({"old": "2024-02-01"}, "date")
    files = [file("old"), file("empty"), file("new", date(2024, 1, 1))]
    assert last_of(files, "2023-01-01", "at", "date", ask) == "2024-02-01"
    assert asked == ["old", "empty"]


def test_all_files_are_read_for_string_columns() -> None:
    asked, ask = asking({"a": "x", "b": "y"}, "string")
    assert last_of([file("a", "x"), file("b", "y")], "w", "at", "string", ask) == "y"
    assert asked == ["a", "b"]


@pytest.mark.parametrize(("others", "kind"), [("2.5", "double"), ("+10000-01-01", "date")])
def test_values_that_python_cannot_compare_are_rejected(others: str, kind: str) -> None:
    _, ask = asking({"a": "1.5"}, kind)
    with pytest.raises(ValueError, match="cannot compare values of type"):
        last_of([file("a")], others, "at", kind, ask)


def test_the_greatest_of_equal_texts_needs_no_comparison() -> None:
    assert greatest((None, "+10000-01-01", "+10000-01-01"), "date") == "+10000-01-01"
    assert greatest((None, None), "date") is None
    assert greatest(("9", "10"), "int") == "10"


@pytest.mark.proves("S31")
@pytest.mark.parametrize("seconds", [86_400, 10**15])
def test_earlier_times_are_clamped_to_the_first_year(seconds: int) -> None:
    assert earlier(date(1, 1, 1), seconds) == date(1, 1, 1)
    assert earlier(datetime(1, 1, 1, 5), seconds) == datetime(1, 1, 1)
    assert earlier(at(0).replace(year=1), seconds) == datetime(1, 1, 1, tzinfo=UTC)
