"""A report of a change as Markdown, for a comment on a pull request.

Names, messages and values come from files and data, so none of them is read as Markdown or HTML:
each is a code span, and in the one place where there are none, in a summary, it is escaped.
"""

from __future__ import annotations

import html
import json
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from persist_assets.engine.data_diff import NotCompared, RowsDiffer
from persist_assets.engine.row_values import json_value
from persist_assets.operations.review import shares

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from persist_assets.operations.documents.builds import BuildDocument
    from persist_assets.operations.review import Altered, Report, Review, Reviewed
    from persist_assets.operations.testing import Outcome

MARK = "<!-- persist ci -->"
"""The first line, by which a bot finds its earlier comment."""
_MOST = 60_000
"""The maximum number of characters: GitHub refuses comments with more than 65,536."""
_MOST_OF_LIST = 15_000
"""The maximum number of characters of one list or table in it."""
_LONGEST = 300
"""The maximum number of characters of a text in it."""


def markdown(report: Report) -> str:
    """Return a report as Markdown: a summary, a table of sources, and details to open."""
    failed = report.exit_code != 0
    parts = [f"{MARK}\n## {'❌' if failed else '✅'} persist: {_headline(report)}\n"]
    parts += [f"> **Note:** {_code(note)}\n" for note in _notes(report)]
    if report.problems:
        lines = [f"- {_code(p.location)}: {_code(p.message)}" for p in report.problems]
        parts.append("\n".join([*_first(lines), ""]))
    if failures := [*_failures(report)]:
        parts.append("\n".join([*_first(failures), ""]))
    if report.review is not None and report.review.sources:
        parts.append(_table(report, report.review))
    left_out = 0
    for reviewed in report.review.sources if report.review else ():
        text = _details(report, reviewed)
        if sum(map(len, parts)) + len(text) > _MOST:
            left_out += 1
        else:
            parts.append(text)
    if left_out:
        parts.append(f"Details of {_n(left_out, 'more source')} are in the output of `--json`.\n")
    return "\n".join(parts)


def _headline(report: Report) -> str:
    against = _code(report.against)
    if report.review is None:
        return f"{_n(len(report.problems), 'error')} in the sources, so nothing was compared"
    sources = report.review.sources
    n = sum(r.is_rebuilt for r in sources)
    counts = Counter(r.difference.change for r in sources)
    kinds = [f"{counts[k]} {k}" for k in ("changed", "added", "removed") if counts[k]]
    facts = [f"{_n(n, 'table')} to build, compared with {against}", *kinds]
    facts += [cost] if (cost := _cost(report.review)) else []
    if report.tests:
        by_status = Counter(t.status for t in report.tests)
        facts.append(
            "tests: " + ", ".join(f"{by_status[s]} {s}" for s in sorted(by_status, reverse=True))
        )
    return " · ".join(facts)


def _cost(review: Review) -> str:
    """Return how long the builds took the last time, and how many were never measured."""
    rebuilt = [r for r in review.sources if r.is_rebuilt]
    known = [r.seconds for r in rebuilt if r.seconds is not None]
    unknown = len(rebuilt) - len(known)
    if not known:
        return ""
    rest = f" and {unknown} not measured yet" if unknown else ""
    return f"about {_seconds(sum(known))}{rest}"


def _notes(report: Report) -> Sequence[str]:
    return (*(report.review.notes if report.review else ()), *report.notes)


def _failures(report: Report) -> Iterable[str]:
    """Yield the failures of building and testing the change, line by line."""
    for b in report.run.builds if report.run else ():
        if b.action in ("failed", "skipped"):
            why = b.error or ""
            why = why if report.shows_rows else why.partition("\n")[0]
            yield f"- {b.action}: {_code(b.source_id)}: {_code(why)}"
    for source_id, results in report.checks.items():
        for c in results:
            kind = "check failed" if c.blocking else "warning of a check"
            yield f"- {kind}: {_code(source_id)}: {_code(c.definition)}: {_code(c.in_words)}"
    for outcome in report.tests or ():
        if outcome.status != "passed":
            yield from _test(outcome)
    for v in report.violations:
        yield f"- {_code(f'--fail-on {v.rule}')}: {_code(v.source_id)}: {_code(v.reason)}"


def _test(outcome: Outcome) -> Iterable[str]:
    """Yield a test that did not pass, and the rows that differ."""
    place, name = _code(outcome.case.location), _code(outcome.case.name)
    why = f": {_code(outcome.error.message)}" if outcome.error else ""
    yield f"- test {outcome.status}: {name} ({place}){why}"
    for d in outcome.differences:
        for sign, rows in (("missing", d.missing), ("unexpected", d.unexpected)):
            for row in rows[:5]:
                yield f"    - {sign}: {_value(dict(zip(d.columns, row, strict=True)))}"


# --------------------------------------------------------------------------------------- sources


def _table(report: Report, review: Review) -> str:
    builds = _builds(report)
    heads = ["source", "change", "columns", "rows" if report.run else "", "seconds"]
    heads = [h for h in heads if h]
    rows: list[str] = []
    for r in review.sources:
        build = builds.get(r.source_id)
        cells = [_code(r.source_id), _change(r), _columns_in_short(r)]
        if report.run:
            cells.append(_rows_in_short(report.rows.get(r.source_id), build))
        seconds = r.seconds if r.seconds is not None or build is None else build.seconds
        cells.append("" if seconds is None or not r.is_rebuilt else f"{seconds:.1f}")
        rows.append(_row(cells))
    unchanged = f"\nUnchanged: {_n(review.n_same, 'table')}.\n"
    return "\n".join([*_heads(*heads), *_first(rows), unchanged])


def _builds(report: Report) -> Mapping[str, BuildDocument]:
    return {b.source_id: b for b in report.run.builds} if report.run else {}


def _change(r: Reviewed) -> str:
    if r.difference.change == "same":
        return "checks"
    if r.difference.change == "changed" and not r.is_rebuilt:
        return "changed, existing table reused"
    return r.difference.change


def _columns_in_short(r: Reviewed) -> str:
    columns = r.columns
    parts = [f"+{_code(c.name)}" for c in columns.added]
    parts += [f"−{_code(c.name)}" for c in columns.removed]
    parts += [f"{_code(c.name)} {_code(c.before)} → {_code(c.after)}" for c in columns.retyped]
    parts += [_code(name) for name in columns.changed]
    return ", ".join([*parts[:5], *(["…"] if len(parts) > 5 else [])])


def _rows_in_short(difference: RowsDiffer | NotCompared | None, build: BuildDocument | None) -> str:
    if isinstance(difference, RowsDiffer):
        parts = [f"+{difference.added:,}", f"−{difference.removed:,}"]
        parts += [f"~{difference.changed:,}"] if difference.changed is not None else []
        differs = difference.added or difference.removed or difference.changed
        text = " ".join(parts) if differs else "the same"
        uncompared = [_code(u.column) for u in difference.uncompared if u.before and u.after]
        return f"{text}, not compared: {', '.join(uncompared[:5])}" if uncompared else text
    if build is not None and build.action == "failed":
        return "failed"
    if difference is not None:
        return "not compared"
    return f"{build.rows:,} rows" if build is not None and build.rows is not None else ""


def _details(report: Report, r: Reviewed) -> str:
    """Return everything about a source, below a line to open."""
    why = [*(reason.message for reason in r.step.reasons)] if r.step else ["no longer defined"]
    lines = [f"- why: {_code('; '.join(why))}"] if why else []
    for e in r.difference.expressions if r.difference.change == "changed" else ():
        sides = [_code(text) for text in (e.before, e.after) if text is not None]
        lines.append(f"- {_code(e.column or 'rows')}: {' → '.join(sides)}")
    columns = r.columns
    if not columns.is_known:
        lines.append("- columns: their names and types are unknown until the build")
    lines += [f"- column added: {_code(c.name)} {_code(c.type or '')}" for c in columns.added]
    lines += [f"- column removed: {_code(c.name)} {_code(c.type or '')}" for c in columns.removed]
    lines += [_altered("column", c) for c in columns.retyped]
    lines += [f"- check added: {_code(text)}" for text in r.checks.added]
    lines += [f"- no longer checked: {_code(text)}" for text in r.checks.removed]
    lines += [_altered("check", c) for c in r.checks.changed]
    if r.rebuilt:
        lines.append(f"- rebuilt readers: {', '.join(map(_code, r.rebuilt))}")
    if r.spared:
        lines.append(f"- readers that need no build: {', '.join(map(_code, r.spared))}")
    if r.step is not None and r.is_rebuilt:
        lines.append(f"- method: {r.step.maintenance}{_before(r)}")
    difference = report.rows.get(r.source_id)
    if isinstance(difference, NotCompared):
        lines.append(f"- rows not compared: {_code(difference.reason)}")
    body = "\n".join(lines)
    if isinstance(difference, RowsDiffer):
        body += "\n" + _rows(difference, r)
    title = f"<summary><code>{html.escape(r.source_id)}</code></summary>"
    return f"<details>{title}\n\n{body}\n\n</details>\n"


def _altered(kind: str, c: Altered) -> str:
    return f"- {kind} {_code(c.name)}: {_code(c.before)} → {_code(c.after)}"


def _before(r: Reviewed) -> str:
    facts: list[str] = []
    if r.seconds is not None:
        facts.append(_seconds(r.seconds))
    if r.step is not None and r.step.estimate is not None:
        facts.append(f"{_n(r.step.estimate.rows, 'row')}, {r.step.estimate.bytes:,} bytes")
    return f"; the last time {', '.join(facts)}" if facts else "; never built before"


def _rows(difference: RowsDiffer, r: Reviewed) -> str:
    """Return how many rows differ, in which columns, and some of them."""
    key = f", matched by {', '.join(map(_code, difference.key))}" if difference.key else ""
    counts = f"{_count(difference.before)} before, {_count(difference.after)} after"
    parts = [f"{difference.added:,} added", f"{difference.removed:,} removed"]
    parts += [f"{difference.changed:,} changed"] if difference.changed is not None else []
    lines = [f"- rows: {counts}{key}: {', '.join(parts)}"]
    lines += [
        f"- column not compared: {_code(u.column)}: {_code(u.before)} → {_code(u.after)}"
        for u in difference.uncompared
        if not r.columns.is_known or (u.before and u.after)
    ]
    if by_column := shares(difference):
        lines += ["", *_heads("column", "rows that differ", "share")]
        lines += [
            _row((_code(name), f"{difference.columns[name]:,}", f"{share:.1%}"))
            for name, share in by_column.items()
        ]
    samples = [("+", row) for row in difference.added_rows]
    samples += [("−", row) for row in difference.removed_rows]
    changes = [(c.key | c.before, c.key | c.after) for c in difference.changed_rows]
    if samples or changes:
        lines += ["", *_heads("", "some of the rows")]
        lines += [_row((sign, _value(row))) for sign, row in samples]
        lines += [_row(("~", f"{_value(before)} → {_value(after)}")) for before, after in changes]
    return "\n".join(lines)


# ------------------------------------------------------------------------------------------ texts


def _first(lines: Sequence[str]) -> Iterable[str]:
    """Yield lines until they are too many, and then how many there are."""
    size = 0
    for i, line in enumerate(lines):
        size += len(line) + 1
        if size > _MOST_OF_LIST:
            yield f"\n… and {len(lines) - i:,} more lines"
            return
        yield line


def _count(n: int | None) -> str:
    return "?" if n is None else f"{n:,}"


def _n(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'s' * (n != 1)}"


def _seconds(seconds: float) -> str:
    minutes = int(seconds // 60)
    return f"{minutes} min {seconds - 60 * minutes:.0f} s" if minutes else f"{seconds:.1f} s"


def _value(values: Any) -> str:
    text = json.dumps(json_value(values), ensure_ascii=False, default=str)
    return _code(text)


def _code(value: object) -> str:
    """Return a text on one line as a code span; None: a question mark."""
    if value is None:
        return "?"
    text = " ".join(str(value).split())
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    fence = "`" * (max(map(len, re.findall("`+", text)), default=0) + 1)
    space = " " if not text or "`" in (text[0], text[-1]) else ""
    return f"{fence}{space}{text}{space}{fence}"


def _row(cells: Iterable[str]) -> str:
    """Return a row of a table. A bar within a cell is escaped, also in code spans."""
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _heads(*cells: str) -> list[str]:
    return [_row(cells), _row("---" for _ in cells)]
