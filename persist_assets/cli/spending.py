"""Commands about what builds cost: `cost`."""

from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from persist_assets.cli.application import (
    Invocation,
    SelectArgument,
    command,
    in_bytes,
    out,
    print_json,
    table_of,
)
from persist_assets.core.errors import SettingsError
from persist_assets.core.settings.durations import in_short

if TYPE_CHECKING:
    from persist_assets.operations.costs import Spent
    from persist_assets.operations.documents.costs import CostsDocument

_DAYS = 30


class Grouping(StrEnum):
    """The groupings of the table of costs."""

    BOTH = "both"
    DAY = "day"
    SOURCE = "source"


@command("cost")
def cost(
    invocation: Invocation,
    selection: SelectArgument = None,
    since: Annotated[
        str | None,
        typer.Option("--from", metavar="DAY", help="The first day; default: 29 days ago."),
    ] = None,
    until: Annotated[
        str | None, typer.Option("--to", metavar="DAY", help="The last day; default: today.")
    ] = None,
    by: Annotated[
        Grouping, typer.Option("--by", help="One line per source and day, per day, or per source.")
    ] = Grouping.BOTH,
) -> None:
    """Show what builds cost: seconds, bytes, and money by the prices in persist.toml."""
    from persist_assets.operations.costs import account
    from persist_assets.operations.documents.costs import CostsDocument

    settings, costs, now = invocation.settings, invocation.ledger.costs, datetime.now(UTC)
    zone = settings.timezone
    last = _day("--to", until) or now.astimezone(zone).date()
    first = _day("--from", since) or last - timedelta(days=_DAYS - 1)
    if first > last:
        raise SettingsError(f"--from {first} is after --to {last}")
    chosen = invocation.select(selection) if selection or invocation.exclude else None
    start = datetime.combine(first, time(), zone)
    end = datetime.combine(last + timedelta(days=1), time(), zone)
    work = costs.fetch_work(settings.environment, start, end)
    stored = costs.fetch_stored(settings.environment, end) if settings.prices.gb_month else []
    days = account(work, stored, settings.prices, first=first, last=last, now=now, zone=zone)
    if chosen is not None:
        days = {key: spent for key, spent in days.items() if key[1] in chosen}
    document = CostsDocument.of(settings, invocation.loaded.project.keys, days, first, last)
    if invocation.as_json:
        print_json(document.as_json())
        return
    if not days:
        out.print(f"nothing was built in {settings.environment} from {first} to {last}")
        return
    _print_table(document, by)


def _day(option: str, text: str | None) -> date | None:
    try:
        day = date.fromisoformat(text) if text is not None else None
        if day is None or 1900 <= day.year <= 2200:
            return day
        raise SettingsError(f"{option} {day} is out of range", hint="use a year from 1900 to 2200")
    except ValueError as error:
        message = f"{option} `{text}` is not a date"
        raise SettingsError(message, hint="for example, 2026-11-26") from error


def _print_table(document: "CostsDocument", by: Grouping) -> None:
    from persist_assets.operations.costs import Spent, total

    sums: dict[tuple[str, ...], list[Spent]] = {}
    fields = Spent.__slots__
    for line in document.days:
        names = {
            Grouping.BOTH: (str(line.day), line.asset_key),
            Grouping.DAY: (str(line.day),),
            Grouping.SOURCE: (line.asset_key,),
        }[by]
        sums.setdefault(names, []).append(Spent(**{name: getattr(line, name) for name in fields}))
    titles = {Grouping.BOTH: ("day", "source")}.get(by, (str(by),))
    has_prices = any(v is not None for k, v in document.prices if k != "currency")
    money = (document.prices.currency,) if has_prices else ()
    table = table_of(*titles, "built", "reused", "failed", "time", "written", *money)
    for column in table.columns[len(titles) :]:
        column.justify = "right"
    for names, spent in sums.items():
        table.add_row(*map(escape, names), *_cells(total(spent), bool(money)))
    out.print(table)
    out.print(f"total: {', '.join(_total(document, bool(money)))}")
    if document.total.unknown:
        n = document.total.unknown
        out.print(f"[dim]the time of {n} interrupted build{'s' * (n != 1)} is unknown[/]")
    if not money:
        out.print("[dim]no prices: set them in `\\[cost]` of persist.toml[/]")


def _cells(spent: "Spent", has_prices: bool) -> list[str]:
    cells = [f"{n:,}" if n else "" for n in (spent.built, spent.reused, spent.failed)]
    cells += [in_short(spent.seconds), in_bytes(spent.bytes_written)]
    return [*cells, _money(spent.money)] if has_prices else cells


def _total(document: "CostsDocument", has_prices: bool) -> list[str]:
    spent = document.total
    n = spent.built + spent.failed + spent.reused
    words = [f"{n:,} build{'s' * (n != 1)}", in_short(spent.seconds)]
    words.append(f"{in_bytes(spent.bytes_written)} written")
    return [*words, f"{_money(spent.money)} {document.prices.currency}"] if has_prices else words


def _money(amount: float | None) -> str:
    """Return an amount with two digits after the point; a small one with four.

    Examples
    --------
    >>> _money(1234.567), _money(0.00123), _money(None)
    ('1,234.57', '0.0012', '')
    """
    if amount is None:
        return ""
    return f"{amount:,.4f}" if 0 < amount < 0.1 else f"{amount:,.2f}"
