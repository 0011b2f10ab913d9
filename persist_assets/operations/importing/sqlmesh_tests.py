"""Unit tests of SQLMesh → tests of ours."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast

from persist_assets.operations.importing.lined_yaml import plain
from persist_assets.operations.importing.translation import UntranslatableError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from persist_assets.operations.importing.sqlmesh_ranges import Limit, Ranged
    from persist_assets.operations.importing.translation import Target

_KEYS = ("model", "inputs", "outputs", "vars", "description")
_EPOCH = "1970-01-01"
"""The start and the end of a test that names none."""
_DAY = re.compile(r"(\d{4}-\d{2}-\d{2})(?:[ T]([0-9:.]+))?")
_WHOLE_DAYS = ("dt", "ts")
"""The macros whose end is the last moment of a day."""


def case_of(
    test: Mapping[str, Any],
    target: Target,
    resolve: Callable[[Any], Target | None],
    ranged: Ranged | None,
) -> dict[str, Any]:
    """Return a test as our files of tests have it.

    Parameters
    ----------
    resolve
        Returns the source of a name in the test, if it is imported.
    ranged
        The query of the model if it is one by time range.

    Raises
    ------
    UntranslatableError
        It has a form that has no counterpart, or expects other rows than those of our query.
    """
    _check_keys(test, _KEYS)
    inputs: dict[str, Any] = {}
    for name, rows in _mapping(test, "inputs").items():
        read = resolve(name)
        if read is None:
            raise UntranslatableError(f"the input `{name}` is not imported")
        inputs[read.name] = _rows(rows)
    case: dict[str, Any] = {"source": target.name, "inputs": inputs}
    outputs = _mapping(test, "outputs")
    _check_keys(outputs, ("query", "ctes", "partial"))
    if outputs.get("query") is not None:
        case["expect"] = _rows(outputs["query"])
    ctes = _mapping(outputs, "ctes")
    if ctes:
        case["ctes"] = {str(cte): _rows(rows) for cte, rows in ctes.items()}
    if not case.keys() & {"expect", "ctes"}:
        raise UntranslatableError("it expects no rows")
    variables = _mapping(test, "vars")
    if ranged is not None:
        _check_range(ranged, variables, case, resolve)
    if variables.get("execution_time"):
        case["clock"] = str(variables["execution_time"])
    return case


def _mapping(above: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = above.get(key)
    if not isinstance(value, dict | None):
        raise UntranslatableError(f"its `{key}` is not a mapping")
    return cast("dict[str, Any]", value or {})


def _check_keys(mapping: Mapping[str, Any], known: tuple[str, ...]) -> None:
    unknown = {str(key) for key in mapping} - set(known)
    if unknown:
        raise UntranslatableError(f"`{min(unknown)}` has no counterpart")


def _rows(body: Any) -> Any:
    """Return the rows of a test: a list, or a query."""
    if isinstance(body, dict):
        mapping = cast("dict[str, Any]", body)
        if isinstance(mapping.get("query"), str) and not mapping.keys() - {"query", "partial"}:
            return str(mapping["query"])
        body = None if mapping.keys() - {"rows", "partial"} else mapping.get("rows")
    rows: list[Any] | None = body if isinstance(body, list) else None
    if rows is None or not all(isinstance(row, dict) for row in rows):
        raise UntranslatableError("its rows have a form that has no counterpart")
    return plain(rows)


# --------------------------------------------------------------------------------- time ranges


def _check_range(
    ranged: Ranged,
    variables: Mapping[str, Any],
    case: Mapping[str, Any],
    resolve: Callable[[Any], Target | None],
) -> None:
    """Check that the range of a test leaves out the same rows as the start of the model.

    Raises
    ------
    UntranslatableError
        It does not, or that is not certain.
    """
    start, end = (str(variables.get(key) or _EPOCH) for key in ("start", "end"))
    # SQLMesh tests the query alone.
    if not ranged.is_limited and not _have_since(case.get("expect", []), ranged):
        limit = f"before {ranged.since}" if ranged.since else "without a time"
        raise UntranslatableError(f"it may expect rows {limit}")
    for limit in ranged.limits:
        read = resolve(".".join(limit.table)) if limit.table else None
        rows = case["inputs"].get(read.name) if read else None
        if not isinstance(rows, list) or not all(
            _agree_on(_value(row, limit.column), limit, ranged.since, (start, end))
            for row in cast("list[dict[str, Any]]", rows)
        ):
            raise UntranslatableError(
                f"its range from {start} to {end} may not select the rows that the model selects"
                " here"
            )


def _have_since(rows: Any, ranged: Ranged) -> bool:
    """Whether rows are those since the start of a model."""
    if not isinstance(rows, list):
        return False
    days = [_day(_value(row, ranged.column)) for row in cast("list[dict[str, Any]]", rows)]
    return all(day is not None and day[0] >= (ranged.since or "") for day in days)


def _agree_on(value: Any, limit: Limit, since: str | None, times: tuple[str, str]) -> bool:
    """Whether SQLMesh's test and our query certainly agree on a row."""
    if value is None:
        return True  # neither
    day, first, last = (_day(v) for v in (value, *times))
    if day is None or first is None or last is None or first[1] or last[1]:
        return False
    if limit.has_start and day[0] < first[0]:
        return since is not None and day[0] < since
    if since is not None and day[0] < since:
        return False
    if day[0] != last[0]:
        return not limit.ends or day[0] < last[0]
    return all(
        form in _WHOLE_DAYS or not (day[1] or operator == "lt") for form, operator in limit.ends
    )


def _value(row: Mapping[str, Any], column: str) -> Any:
    return next((value for key, value in row.items() if str(key).lower() == column), None)


def _day(value: Any) -> tuple[str, str] | None:
    """Return the day of a time, and its time of day without zeros; None: it is not a time."""
    match = _DAY.fullmatch(str(value))
    return (match[1], (match[2] or "").strip("0:.")) if match else None
