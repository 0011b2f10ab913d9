"""Values of SQL variables and folded constants, whatever the decimal context of the process."""

from __future__ import annotations

from decimal import Context, localcontext

import pytest

from persist_assets.analysis.predicates.terms import Term
from persist_assets.analysis.pushdown.constants import constant
from persist_assets.core.variables import unfit


@pytest.mark.parametrize("precision", [6, 28])
def test_values_of_decimals_have_all_their_digits(precision: int) -> None:
    """A project's module may have changed the context when it was imported."""
    with localcontext(Context(prec=precision, rounding="ROUND_UP")):
        assert unfit("9" * 38, "decimal(38,0)") is None
        assert unfit("1" + "0" * 38, "decimal(38,0)")
        third = [(Term("decimal", (), (t,)), "decimal(2,1)") for t in ("1.0", "3.0")]
        tenths = [(Term("decimal", (), (t,)), "decimal(9,8)") for t in ("1.23456789", "1.0")]
        rounded = constant("div", (), third), constant("-", (), tenths)
    with localcontext(Context()):
        assert rounded == (constant("div", (), third), constant("-", (), tenths))
