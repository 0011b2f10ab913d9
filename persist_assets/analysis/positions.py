"""Positions: numbers in GROUP BY and ORDER BY that stand for columns of the SELECT list."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlglot import exp

from persist_assets.analysis.scope import Unanalysable
from persist_assets.analysis.syntax import without_parens
from persist_assets.core.errors import Problem

if TYPE_CHECKING:
    from persist_assets.analysis.binding import Binding

_MAX_INT = 2**31 - 1


def position(binding: Binding, item: Any, n_columns: int, clause: str) -> int | None:
    """Return the column that an item of a clause stands for, counted from 0.

    None if it is not a position. Numbers that are not an INT are constants.

    Parameters
    ----------
    n_columns
        The number of columns in the SELECT list.
    clause
        Its words, for the message.

    Raises
    ------
    Unanalysable
        The position is out of range; the problem is in `binding.problems`.
    """
    number = without_parens(item)
    is_negative = isinstance(number, exp.Neg)
    number = number.this if is_negative else number
    if not isinstance(number, exp.Literal) or number.is_string or not number.name.isdecimal():
        return None
    if int(number.name) > _MAX_INT:
        return None
    if not is_negative and 0 < int(number.name) <= n_columns:
        return int(number.name) - 1
    shown = f"{clause} {'-' * is_negative}{number.name}"
    raise out_of_range(binding, number, f"{shown} is out of range: the SELECT list has", n_columns)


def out_of_range(binding: Binding, number: Any, message: str, n_columns: int) -> Unanalysable:
    """Report a position that is out of range, and return the error to raise.

    Parameters
    ----------
    number
        The position in the tree.
    message
        Its words, which the number of columns follows.
    """
    counted = "1 column" if n_columns == 1 else f"{n_columns} columns"
    hint = f"write a number from 1 to {n_columns}" if n_columns > 1 else "write the column"
    place = binding.place(number)
    binding.problems.append(Problem("position", f"{message} {counted}", place, hint))
    return Unanalysable("of an invalid position")
