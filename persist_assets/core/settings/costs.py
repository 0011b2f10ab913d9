"""The prices that settings name."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any

from persist_assets.core.errors import SettingsError
from persist_assets.core.settings.checks import check_keys
from persist_assets.core.settings.keys import COST_KEYS
from persist_assets.core.settings.places import at
from persist_assets.core.settings.values import Prices

if TYPE_CHECKING:
    from collections.abc import Mapping


def read_prices(
    entries: Mapping[str, Any], overrides: Mapping[str, Any], environment: str
) -> Prices:
    """Return the prices of an environment, whose own prices override the project's one by one.

    Raises
    ------
    SettingsError
        A price is negative, or the currency is no short word.
    """
    prices: dict[str, float] = {}
    currency = "USD"
    for table, path in ((entries, ("cost",)), (overrides, ("env", environment, "cost"))):
        check_keys(table, COST_KEYS, *path)
        currency = table.get("currency", currency)
        if not (0 < len(currency) <= 8 and currency.isprintable() and " " not in currency):
            raise SettingsError(
                f"`currency` must be a short code, got {currency!r}",
                hint='for example, currency = "EUR"',
                location=at(*path, "currency"),
            )
        for key, value in table.items():
            if key == "currency":
                continue
            if not isfinite(value) or value < 0:
                message = f"`{key}` must be a price of zero or more, got {value!r}"
                raise SettingsError(message, location=at(*path, key))
            prices[key] = float(value)
    return Prices(currency, **prices)
