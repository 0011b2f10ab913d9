"""Values of SQL variables: whether they fit a type, and how SQL says them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal, InvalidOperation

VariableValue = str | int | float | bool | date | datetime
"""A value as TOML has it."""

_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_TIMES = ("timestamp", "timestamp_ntz")
VARIABLE_TYPES = (*_BITS, "float", "double", "boolean", "string", "date", *_TIMES)
"""The types of variables in `persist.toml`, besides decimals."""


@dataclass(frozen=True, slots=True)
class Setting:
    """The value of a variable in `persist.toml`; `type` is None if it follows from the value."""

    value: VariableValue
    type: str | None = None

    @property
    def own_type(self) -> str:
        """The type that it says, or that of its value."""
        return self.type or type_of(self.value)


def type_of(value: VariableValue) -> str:
    """Return the type of a value.

    Examples
    --------
    >>> type_of(True), type_of(5), type_of(3_000_000_000), type_of("a")
    ('boolean', 'int', 'bigint', 'string')
    """
    match value:
        case bool():
            return "boolean"
        case int():
            return "int" if -(2**31) <= value < 2**31 else "bigint"
        case float():
            return "double"
        case datetime():
            return "timestamp"
        case date():
            return "date"
        case str():
            return "string"


def unfit(value: VariableValue | None, kind: str) -> str | None:
    """Return why a value is not of a type; None if it is, or if that is unknown here.

    Parameters
    ----------
    value
        The value; None: it is not known.
    kind
        Spark's name of the type.

    Examples
    --------
    >>> unfit("2024-02-30", "date")
    "'2024-02-30' is not a date"
    >>> unfit(300, "tinyint"), unfit(300, "int")
    ('300 is not a tinyint', None)
    """
    if value is None or _fits(value, kind):
        return None
    written = repr(value) if isinstance(value, str) else spelled(value).strip("'")
    article = "an" if kind[0] in "aeiou" else "a"
    return f"{written} is not {article} {kind}"


def _fits(value: VariableValue, kind: str) -> bool:
    try:
        if kind in _BITS:
            number = int(value) if isinstance(value, int | str) else None
            half = 2 ** (_BITS[kind] - 1)
            is_number = number is not None and not isinstance(value, bool)
            return is_number and -half <= number < half
        if kind in ("float", "double"):
            return not isinstance(value, bool | date) and _is_number(value)
        if kind.startswith("decimal("):
            return _fits_decimal(value, kind)
        if kind == "boolean":
            texts = ("true", "false")
            return isinstance(value, bool) or (isinstance(value, str) and value.lower() in texts)
        if kind == "date":
            is_date = isinstance(value, date) and not isinstance(value, datetime)
            return is_date or (isinstance(value, str) and _is_date(value))
        if kind in _TIMES:
            return isinstance(value, date) or (isinstance(value, str) and _is_time(value))
    except ValueError:
        return False
    return True


def _is_number(value: str | float) -> bool:
    float(value)
    return True


def _is_date(text: str) -> bool:
    return date.fromisoformat(text).isoformat() == text


def _is_time(text: str) -> bool:
    datetime.fromisoformat(text)
    return True


def _fits_decimal(value: VariableValue, kind: str) -> bool:
    precision, _, scale = kind.removeprefix("decimal(").rstrip(")").partition(",")
    if isinstance(value, bool | date):
        return False
    try:
        number = Decimal(str(value))
    except InvalidOperation:
        return False
    exponent = number.as_tuple().exponent
    if not isinstance(exponent, int) or -exponent > int(scale or 0):
        return False
    return number.copy_abs() < Decimal(10) ** (int(precision) - int(scale or 0))


def spelled(value: VariableValue) -> str:
    r"""Return a value as a literal of SQL.

    Examples
    --------
    >>> print(spelled("it's"), spelled(5), spelled(True), spelled(date(2024, 1, 1)))
    'it\'s' 5 true '2024-01-01'
    """
    match value:
        case bool():
            return str(value).lower()
        case int():
            return str(value)
        case datetime():
            return f"'{value.isoformat(sep=' ')}'"
        case date():
            return f"'{value.isoformat()}'"
        case float():
            return f"'{value!r}'"
        case str():
            quoted = value.replace("\\", "\\\\").replace("'", "\\'")
            return f"'{quoted}'"


def expression(value: VariableValue, kind: str) -> str:
    """Return a value as an expression of a type.

    Examples
    --------
    >>> expression(date(2024, 1, 1), "date")
    "CAST('2024-01-01' AS date)"
    """
    return f"CAST({spelled(value)} AS {kind})"
