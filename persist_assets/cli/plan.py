"""`plan`."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from rich.markup import escape
from rich.tree import Tree

from persist_assets.cli.application import (
    AgainstOption,
    ForceOption,
    FromOption,
    Invocation,
    PartitionOption,
    RangeOption,
    SelectArgument,
    ToOption,
    command,
    err,
    in_bytes,
    out,
    print_json,
    print_problem,
)
from persist_assets.cli.external import print_holding
from persist_assets.compiler.load import find_former_build_ids
from persist_assets.core.errors import Problem, SettingsError
from persist_assets.core.model.plans import Plan, Step
from persist_assets.core.model.project import Project
from persist_assets.core.model.queries import SourceID
from persist_assets.core.settings.durations import in_short
from persist_assets.external.status import find_holdings
from persist_assets.operations.revisions import WORKING_TREE, find_places
from persist_assets.planning.changed_checks import ChangedCheck
from persist_assets.planning.diff import Change, Standings, compare, to_rebuild
from persist_assets.planning.maintenance import way_out, why_all_rows
from persist_assets.planning.promotion import is_elsewhere
from persist_assets.planning.reach import partitions_in_range


@command("plan", is_confined=True)
def plan(
    invocation: Invocation,
    selection: SelectArgument = None,
    force: ForceOption = False,
    against: AgainstOption = None,
    partition: PartitionOption = None,
    partition_range: RangeOption = None,
    first: FromOption = None,
    last: ToOption = None,
) -> None:
    """Show what a build would do, and why. Builds nothing, starts no Spark."""
    chosen = invocation.select(selection)
    keys, _ = partition_keys(invocation, chosen, partition, partition_range, first, last)
    restricted = chosen if selection or invocation.exclude else None
    compared = _against(invocation, against, restricted) if against else None
    planned = invocation.observer.plan(chosen, force=force, partition_keys=keys)
    warn_of_former_build_ids(invocation)
    absent = {
        r.source_id: r.message for s in planned.steps for r in s.reasons if r.code == "no-data"
    }
    for source_id, message in absent.items():
        place = invocation.project.by_id[source_id or ""].location
        print_problem(invocation, Problem("no-data", message, place, severity="warning"))
    for problem in _warnings(invocation.project, planned):
        print_problem(invocation, problem)
    if not invocation.project.persisted:
        from persist_assets.compiler.remarks import ignored_files, list_files

        err.print("[cyan]note[/]: no source is persisted: write `--@ persist` above a CREATE VIEW")
        for problem in ignored_files(invocation.settings, list_files(invocation.settings)):
            print_problem(invocation, problem)
    holdings = find_holdings(invocation.observer.ingestion, chosen)
    checks = invocation.observer.changed_checks(planned)
    if invocation.as_json:
        from persist_assets.operations.documents.plans import PlanDocument

        document = PlanDocument.of(invocation.project, planned, holdings, checks).as_json()
        comparison = {"against": _against_json(against, *compared)} if compared else {}
        print_json(document | comparison)
        return
    out.print(plan_tree(invocation.project, planned, checks))
    for holding in holdings:
        print_holding(holding)
    manifest = invocation.observer.manifest()
    n = sum(step.action == "build" for step in planned.steps)
    n_elsewhere = sum(is_elsewhere(step, manifest) for step in planned.steps)
    n_current = len(planned.steps) - n - n_elsewhere
    elsewhere = f"{n_elsewhere} to reuse from another environment, " if n_elsewhere else ""
    out.print(f"{n} to build, {elsewhere}{n_current} up to date in [bold]{planned.environment}[/]")
    if compared:
        changes = compare(*compared)
        out.print(changes_tree(f"against {against}", [c for c in changes if c.change != "same"]))
        same = sum(c.change == "same" for c in changes)
        out.print(
            f"{to_rebuild(*compared)} to rebuild, {same} the same as in {escape(against or '')}"
        )


def _warnings(project: Project, planned: Plan) -> Iterator[Problem]:
    """Yield a warning for each incremental source of which all rows would be computed."""
    for step in planned.steps:
        source, codes = project.by_id[step.source_id], {r.code for r in step.reasons}
        if "strict" in codes:
            message = f"`{source.name}` cannot be built: refresh=strict, but {step.why}"
            hint = way_out(source)
            yield Problem("strict", message, source.location, hint, severity="warning")
        elif "whole" in codes and step.maintenance == "whole":
            message = f"all rows of `{source.name}` will be computed: {step.why}"
            yield Problem("whole", message, source.location, severity="warning")


def warn_of_former_build_ids(invocation: Invocation) -> None:
    """Print a warning if the manifest has BuildIDs of an earlier release."""
    current = {s.build_id for s in invocation.project.persisted}
    manifest = invocation.ledger.manifests.fetch(*invocation.settings.environments)
    problem = find_former_build_ids(invocation.settings, current, manifest)
    if problem is not None:
        print_problem(invocation, problem)


def partition_keys(
    invocation: Invocation,
    chosen: Sequence[SourceID],
    partition: str | None,
    partition_range: str | None,
    first: str | None,
    last: str | None,
) -> tuple[dict[SourceID, tuple[str, ...]], Mapping[SourceID, Sequence[str]]]:
    """Return the partitions of chosen sources that options name, and all partitions.

    Both are empty if the options name none.

    Raises
    ------
    SettingsError
        More than one option names partitions, or the range is malformed.
    """
    ends = _ends(partition, partition_range, first, last)
    if ends is None:
        return {}, {}
    order, zone = invocation.observer.keys(), invocation.settings.timezone.key
    keys = next((order[s] for s in chosen if order.get(s)), ("?",))
    low, high = ends[0] or keys[0], ends[1] or keys[-1]
    return partitions_in_range(invocation.project, chosen, order, zone, low, high), order


def _ends(
    partition: str | None, partition_range: str | None, first: str | None, last: str | None
) -> tuple[str | None, str | None] | None:
    """Return the ends of the range of partitions that options name; None if they name none."""
    if sum(x is not None for x in (partition, partition_range, first or last)) > 1:
        raise SettingsError("--partition, --partition-range and --from, --to cannot be combined")
    if partition is not None:
        return partition, partition
    if partition_range is not None:
        start, dots, end = partition_range.partition("...")
        if not (start and dots and end):
            raise SettingsError(
                f"`{partition_range}` is not a partition range",
                hint="for example, 2013-01-01...2013-01-31",
            )
        return start, end
    return (first, last) if first is not None or last is not None else None


def _against(
    invocation: Invocation, name: str, chosen: Sequence[SourceID] | None
) -> tuple[Standings, Standings]:
    """Return the persisted sources at a place and in the files; only those chosen, if any are."""
    places = find_places(
        invocation.settings, invocation.project, invocation.ledger, name, WORKING_TREE
    )
    before, after = (
        {k: s for k, s in p.standings.items() if s.persisted and (chosen is None or k in chosen)}
        for p in places
    )
    return before, after


def _against_json(name: str | None, before: Standings, after: Standings) -> dict[str, Any]:
    return {
        "ref": name,
        "sources": [
            {
                "source_id": c.source_id,
                "change": c.change,
                "columns": list(c.columns),
                "rows_changed": c.rows_changed,
            }
            for c in compare(before, after)
        ],
        "to_rebuild": to_rebuild(before, after),
    }


def changes_tree(title: str, changes: Sequence[Change]) -> Tree:
    """Return changes as a tree: below each source, the expressions that differ."""
    root = Tree(f"[bold]{escape(title)}[/]")
    for change in changes:
        parts = [*change.columns]
        if change.change == "changed":
            parts = [*(["rows"] if change.rows_changed else []), *parts]
        names = f" [dim]{escape(', '.join(parts))}[/]" if parts else ""
        colour = {"added": "green", "removed": "red"}.get(change.change, "yellow")
        label = f"[{colour}]{change.change}[/] {escape(change.source_id)}{names}"
        branch = root.add(label)
        for e in change.expressions:
            name = e.column or "rows"
            branch.add(f"{escape(name)}: {_one_line(e.before)} [dim]→[/] {_one_line(e.after)}")
        for source_id in change.because:
            branch.add(f"[dim]because {escape(source_id)} changed[/]")
    return root


def _one_line(text: str | None) -> str:
    return escape(" ".join(text.split())) if text is not None else "[dim]?[/]"


def _method(step: Step) -> str:
    """Return the method of a step in parentheses, unless its table simply stays."""
    if step.maintenance == "reuse":
        return ""
    is_odd = any(r.code in ("whole", "strict") for r in step.reasons)
    return f" [{'yellow' if is_odd else 'cyan'}]({step.maintenance})[/]"


def _costs(step: Step) -> str:
    """Return how much a step reads and how long it takes, as far as that is known."""
    facts: list[str] = []
    if step.reads is not None and step.reads.bytes:
        rows = f" ({step.reads.rows:,} rows)" if step.reads.rows is not None else ""
        facts.append(f"reads up to {in_bytes(step.reads.bytes)}{rows}")
    if step.expected is not None and step.maintenance != "whole":
        seconds = step.expected
        facts.append(f"about {in_short(seconds.delta_s)}, all rows {in_short(seconds.whole_s)}")
    return f"[{'; '.join(facts)}]" if facts else ""


def plan_tree(
    project: Project,
    planned: Plan,
    checks: Mapping[SourceID, Sequence[ChangedCheck]] = MappingProxyType({}),
) -> Tree:
    """Return a plan as a tree: every step below a step that it reads.

    Parameters
    ----------
    checks
        The changed checks of the sources.
    """
    steps = {step.source_id: step for step in planned.steps}
    root = Tree(f"[bold]{planned.environment}[/]")
    branches: dict[SourceID, Tree] = {}
    for step in planned.steps:
        source = project.by_id[step.source_id]
        inputs = project.inputs(source)
        parent = next(
            (branches[s.source_id] for s in reversed(inputs) if s.source_id in branches), root
        )
        also = [
            s.name
            for s in inputs
            if s.source_id in steps and branches.get(s.source_id) is not parent
        ]
        reads = f" [dim](reads {', '.join(also)} too)[/]" if also else ""
        colour = "yellow" if step.action == "build" else "green"
        why = "; ".join((*(r.message for r in step.reasons), *why_all_rows(step)))
        reasons = f" [dim]{escape(why)}[/]" if why else ""
        costs = f" [dim]{escape(text)}[/]" if (text := _costs(step)) else ""
        name = f"[{colour}]{step.action}[/] {escape(source.key)}{_method(step)}"
        label = f"{name}{reasons}{costs}{reads}"
        branches[step.source_id] = branch = parent.add(label)
        for note in source.notes:
            branch.add(f"[dim]note: {escape(note)}[/]")
        for changed in checks.get(step.source_id, ()):
            branch.add(f"[cyan]{escape(changed.in_words)}[/]")
    return root
