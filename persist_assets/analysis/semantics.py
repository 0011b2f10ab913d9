"""Meaning of one source's query: bound, digested, and presented to its readers. Pure.

`understand` is a function of a declaration and of the faces of its upstreams, so that a meaning can
be remembered by a digest of those (`compiler.Memory`).
"""

from __future__ import annotations

import pickle
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from persist_assets.analysis.algebra import (
    Aggregate,
    Block,
    Call,
    Generate,
    Given,
    Limit,
    Node,
    Opaque,
    Out,
    Outer,
    Rebuild,
    innermost_first,
    walk,
)
from persist_assets.analysis.binder import bind, bind_source
from persist_assets.analysis.binding import MAX_LEAVES, MAX_SIZE, Binding, Face
from persist_assets.analysis.clock_texts import special_texts
from persist_assets.analysis.fingerprint import Fold, drawn
from persist_assets.analysis.functions import CLOCK, DAY_CLOCK, SESSION, VOLATILE, drawn_by
from persist_assets.analysis.increments import Increments, given_growth, unknown
from persist_assets.analysis.lineage import Lineage
from persist_assets.analysis.normal_form import Normal, bounded, size_of
from persist_assets.analysis.result_types import ResultTypes
from persist_assets.analysis.scope import Unanalysable, is_certain
from persist_assets.analysis.syntax import called, clock_texts_in, item_in_text, names_in_text
from persist_assets.analysis.types import STORED
from persist_assets.core.digests import digest
from persist_assets.core.errors import Problem
from persist_assets.core.languages import REFERENCE
from persist_assets.core.model.annotations import VALID_FROM, VALID_TO
from persist_assets.core.model.columns import ColumnEdge, ColumnRef, shortened
from persist_assets.core.partitions import spelled_bounds
from persist_assets.core.time_values import TIMES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from persist_assets.core.model.columns import Growth
    from persist_assets.core.model.queries import BuildID, Function, Parameter, Query, SourceID
    from persist_assets.core.model.sources import Declaration

Clock = Literal["day", "instant"]


@dataclass(frozen=True, slots=True)
class Upstream:
    """An input of a query, as far as its meaning depends on it."""

    face: Face
    persisted: bool
    volatile: bool
    reads_clock: Clock | None


@dataclass(frozen=True, slots=True)
class Meaning:
    """Everything that follows from the text of a query and from its inputs.

    Attributes
    ----------
    columns
        Names and types.
    face
        The view that its readers get; pickled until it is needed, if it was remembered.
    stored_names
        The names of the columns of a pickled face; None: they are not known.
    marks
        The parts of the BuildID (`model.shortened`).
    growth
        For incremental builds: the growth of its rows, and of those of its time column.
    """

    build_id: BuildID
    columns: tuple[tuple[str, str | None], ...]
    lineage: tuple[ColumnEdge, ...]
    volatile: bool
    reads_clock: Clock | None
    notes: tuple[str, ...]
    face: Face | bytes
    marks: str
    growth: Growth | None = None
    stored_names: tuple[str, ...] | None = None

    def shown(self) -> Face:
        """Return the view that its readers get."""
        return pickle.loads(self.face)[-1] if isinstance(self.face, bytes) else self.face

    def packed(self) -> Meaning:
        """Return the meaning in its stored form."""
        if isinstance(self.face, bytes):
            return self
        return replace(self, face=_pickled(self.face), stored_names=self.face.names)

    @property
    def names(self) -> tuple[str, ...] | None:
        """The names of the columns that readers see, without unpickling; None: not known."""
        return self.stored_names if isinstance(self.face, bytes) else self.face.names


def _pickled(face: Face) -> bytes:
    """Return a pickle of a sequence whose last element is `face`."""
    try:
        return pickle.dumps((face,), pickle.HIGHEST_PROTOCOL)
    except RecursionError:
        # Pickled parts are only referred to: innermost first, nothing is nested.
        inside: dict[int, object] = {}
        for thing, _ in innermost_first(face.block, inside):
            inside[id(thing)] = thing
        return pickle.dumps((*inside.values(), face), pickle.HIGHEST_PROTOCOL)


def own_origins(source_id: SourceID, names: Iterable[str]) -> tuple[frozenset[ColumnRef], ...]:
    """Return the origins that readers see where lineage stops at a source."""
    return tuple(frozenset((ColumnRef(source_id, name),)) for name in names)


def understand(
    declaration: Declaration,
    upstream: Sequence[Upstream],
    connection: str,
    *,
    followed: bool = False,
) -> Meaning | Sequence[Problem]:
    """Return the meaning of a declared query, or its problems.

    Parameters
    ----------
    declaration
        A declaration whose query has its tree.
    upstream
        The input behind each reference of the query.
    connection
        Digest of all session properties that change results.
    followed
        Whether the growth of rows is needed (`Growth`).
    """
    query = declaration.query
    assert query is not None
    faces = [u.face for u in upstream]
    lots = any(u.volatile for u in upstream if not u.persisted)
    binding = Binding(bind, declaration.location.path, faces, REFERENCE, inlines_lots=lots)
    block, notes = bind_whole(binding, query, faces)
    if binding.problems:
        return binding.problems
    names = query.column_names or tuple(o.name for o in block.columns)
    if query.column_names and len(names) != len(block.columns) and block.columns:
        n, m = len(names), len(block.columns)
        message = f"`{declaration.name}` names {n} columns, but its query has {m}"
        return [Problem("columns", message, declaration.location)]
    outs = tuple(replace(o, name=n, written=n) for o, n in zip(block.columns, names, strict=False))
    wrong = [] if query.column_names else _badly_named(declaration, binding, outs)
    wrong += _reserved_names(declaration, names)
    if wrong:
        return wrong
    block = replace(block, columns=outs)
    increments = Increments(binding.types, followed=followed)
    wrong = list(_unfollowed(declaration, binding, block, notes, increments))
    if wrong:
        return wrong
    functions = _draws(binding, upstream, block)
    if notes:
        functions = called(query.tree, _column_names(faces))
    return _meaning(declaration, upstream, connection, binding, block, functions, notes, increments)


def narrowed(function: Function, names: Sequence[tuple[str, ...] | None]) -> Function:
    """Return a function whose frames have only the columns that it uses, where these are known.

    Parameters
    ----------
    names
        The columns of each frame, None where they are not known.
    """
    names_by_frame = dict(zip((p.name for p in function.frames), names, strict=True))
    return replace(
        function,
        parameters=tuple(
            replace(p, columns=_used_columns(p, names_by_frame.get(p.name)))
            for p in function.parameters
        ),
    )


def _used_columns(parameter: Parameter, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Return the columns that occur in the texts of a parameter, sorted."""
    words = "\n".join(parameter.selects or ()).lower()
    columns = [n for n in names or () if re.search(rf"(?<!\w){re.escape(n.lower())}(?!\w)", words)]
    return tuple(sorted(columns, key=str.lower)) or None


def understand_function(
    declaration: Declaration, upstream: Sequence[Upstream], connection: str
) -> Meaning:
    """Return the meaning of a declared function: all of its code, over all of its inputs.

    Its columns are known only when it is computed. A contract of its table names them, but not in
    their order.
    """
    query, function = declaration.query, declaration.function
    assert query is not None
    assert function is not None
    shown: list[tuple[str, tuple[str, ...], str | None]] = []
    names: list[tuple[str, ...] | None] = []
    for parameter, one in zip(function.frames, upstream, strict=True):
        relation, known = _whole(one.face), one.face.ordered_names
        columns = relation.columns
        if parameter.columns is not None:
            by_name = dict(zip(known or (), columns, strict=True))
            columns = tuple(by_name[name] for name in parameter.columns)
        shown.append((relation.rows, columns, relation.order))
        names.append(known if parameter.columns is None else parameter.columns)
    rows = digest("function", query.wording, shown, names)
    build_id = _merged(declaration, digest("build", connection, rows, ()))
    lots, days, instants = drawn_by(function.names, function.methods, function.calls)
    inlined = [u for u in upstream if not u.persisted]
    volatile = bool(lots) or any(u.volatile for u in inlined)
    clocks = {"day"} if days else set[str]()
    clocks |= {"instant"} if instants else set[str]()
    clocks |= {u.reads_clock for u in inlined if u.reads_clock}
    notes = _variability_notes(sorted(lots), sorted({*days, *instants}), clocks)
    differs = _is_kept(declaration)
    fixed = differs or (declaration.persisted and bool(volatile or clocks))
    reads = frozenset[str]().union(*(given_growth(u.face.given).reads for u in upstream))
    own_id = f"{declaration.name}@{declaration.location.path}"
    own_rows = digest("table", build_id) if fixed else rows
    contract = declaration.annotation.contract if declaration.persisted else None
    promised = contract.columns if contract is not None else ()
    relation = Given(
        own_rows,
        tuple(digest("column", own_rows, name.lower()) for name in promised),
        None,
        own_origins(own_id, promised),
        (None,) * len(promised),
        volatile and not fixed,
        None if promised else unknown(frozenset((own_id,)) if declaration.persisted else reads, 0),
    )
    return Meaning(
        build_id=build_id,
        columns=(),
        lineage=(),
        volatile=volatile,
        reads_clock="instant" if "instant" in clocks else "day" if clocks else None,
        notes=tuple(notes),
        face=Face(None, relation, promised or None, is_ordered=False),
        marks=shortened(rows, ()),
        growth=unknown(reads, 1) if _is_incremental(declaration) else None,
    )


def _is_incremental(declaration: Declaration) -> bool:
    annotation = declaration.annotation
    return declaration.persisted and (
        annotation.refresh == "incremental" or annotation.partition is not None
    )


def _is_kept(declaration: Declaration) -> bool:
    """Whether a table has other rows than exactly those of its query."""
    annotation = declaration.annotation
    lookback = annotation.trusted_lookback_s
    settings = (annotation.merge, annotation.partition, annotation.validity, lookback)
    return any(one is not None for one in settings)


def _deciding_columns(declaration: Declaration) -> set[str] | None:
    """Return the columns that decide which rows of a query its table has.

    None if all columns may decide, or the time of the build: a trusted lookback omits late rows.
    """
    partition = declaration.annotation.partition
    return None if partition is None else {d.column.lower() for d in partition.dimensions}


def _merged(declaration: Declaration, build_id: BuildID) -> BuildID:
    """Return the BuildID of a source's table, from the BuildID of its query."""
    merge, by = declaration.annotation.merge, declaration.annotation.time_column or ""
    partition = declaration.annotation.partition
    if partition is not None:
        return digest("partition", build_id, *spelled_bounds(partition))
    validity = declaration.annotation.validity
    if validity is not None:
        columns = [sorted(c.lower() for c in some) for some in (validity.key, validity.watch)]
        return digest("history", build_id, *columns, by.lower(), validity.hard_deletes)
    lookback = declaration.annotation.trusted_lookback_s
    if lookback is not None:
        build_id = digest("lookback", build_id, lookback, by.lower())
    if merge is None:
        return build_id
    key = sorted(column.lower() for column in merge.key)
    return digest("merge", build_id, key, by.lower(), merge.on_tie)


def _variability_notes(
    lots: Sequence[str], clock: Sequence[str], clocks: Collection[str]
) -> list[str]:
    """Return notes on nondeterminism and on use of the clock."""
    notes: list[str] = []
    if lots:
        notes.append(f"nondeterministic ({', '.join(lots)}): each build may return different rows")
    if clock:
        soon = "immediately" if "instant" in clocks else "the next day"
        notes.append(f"time-dependent ({', '.join(clock)}): stale {soon}")
    return notes


def bind_whole(binding: Binding, query: Query, upstream: Sequence[Face]) -> tuple[Block, list[str]]:
    """Return the algebra of a query; if there is none, the query as one leaf, and a note why."""
    binding.types.collated |= "collate" in query.text.lower()
    try:
        if query.lost:
            raise Unanalysable(f"of {query.lost}")
        return bind_source(binding, query.tree), []
    except Unanalysable as error:
        reason = error.reason
    because = reason if reason.startswith("because") else f"because {reason}"
    note = f"treated as a whole {because}: any upstream change rebuilds it"
    names = query.column_names
    if not names:
        names = names_in_text(query.tree, _column_names(upstream), loses=query.lost is not None)
    published = tuple(f.ordered_names for f in upstream)  # SELECT s.* or PIVOT may depend on names
    words = (query.wording, "reads", str(published))
    leaf = Opaque(words, tuple(map(_whole, upstream)), len(names))
    calls = binding.calls
    instance = next(binding.instances)
    outs = tuple(Out(n, n, calls.ref(instance, i)) for i, n in enumerate(names))
    return Block(((instance, leaf),), (), outs), [note]


def _whole(face: Face) -> Given:
    """Return a relation as functions, and queries that are not analysed, see it."""
    if face.is_ordered:
        return face.given
    growth = unknown(given_growth(face.given).reads, 0)
    return replace(face.given, columns=(), origins=(), types=(), growth=growth)


def _column_names(faces: Iterable[Face]) -> frozenset[str]:
    return frozenset(name.lower() for face in faces for name in face.ordered_names or ())


_BAD_IN_TABLES = " ,;{}()\n\t="


def _badly_named(declaration: Declaration, binding: Binding, outs: Sequence[Out]) -> list[Problem]:
    problems: list[Problem] = []
    seen: set[str] = set()
    tree = declaration.query.tree if declaration.query else None
    name, place = declaration.name, declaration.location
    for number, out in enumerate(outs, 1):
        if not is_certain(out.name):
            item_place = binding.place(item_in_text(tree, number, len(outs)))
            item_place = item_place if item_place.line > 1 or item_place.column > 1 else place
            message, hint = f"column {number} of `{name}` has no name", "name it: … AS name"
            problems.append(Problem("column-name", message, item_place, hint))
        elif out.name.lower() in seen:
            message = f"`{name}` has two columns named `{out.name}`"
            problems.append(Problem("column-name", message, place, "rename one: … AS other_name"))
        elif set(out.name) & set(_BAD_IN_TABLES):
            message = f"`{out.name}` is not a valid column name for a table"
            problems.append(Problem("column-name", message, place, "rename it: … AS other_name"))
        seen.add(out.name.lower())
    return problems


def _meaning(
    declaration: Declaration,
    upstream: Sequence[Upstream],
    connection: str,
    binding: Binding,
    block: Block,
    functions: frozenset[str],
    notes: list[str],
    increments: Increments,
) -> Meaning:
    fold, normal = Fold(binding.types), Normal(binding)
    digests = fold.relation(normal.normal(block))
    origins = Lineage(binding.origins).columns(block)
    texts = special_texts(ResultTypes.over(binding.types), block)
    if notes and declaration.query is not None:
        texts |= clock_texts_in(declaration.query.tree)
    lots, clock = sorted(functions & LOTS), sorted({*(functions & CLOCK), *map(repr, texts)})
    inlined = [u for u in upstream if not u.persisted]
    volatile = bool(lots) or any(u.volatile for u in inlined)
    clocks = {"day" if f in DAY_CLOCK else "instant" for f in functions & CLOCK}
    clocks |= {"instant" if text.startswith("now") else "day" for text in texts}
    clocks |= {u.reads_clock for u in inlined if u.reads_clock}
    notes += _variability_notes(lots, clock, clocks)
    has_times = declaration.annotation.validity is not None
    added = ((VALID_FROM, "timestamp"), (VALID_TO, "timestamp")) if has_times else ()
    columns = (*((o.name, o.type) for o in block.columns), *added)
    named = [(o.name, d) for o, d in zip(block.columns, digests.columns, strict=True)]
    build_id = _merged(declaration, digest("build", connection, digests.rows, named))
    names, types = tuple(n for n, _ in columns), tuple(kind for _, kind in columns)
    table_origins = own_origins(f"{declaration.name}@{declaration.location.path}", names)
    marks = (*digests.columns, *(digest("column", name) for name, _ in added))
    if _is_kept(declaration) or (declaration.persisted and (volatile or clocks)):
        rows = _table_rows(declaration, connection, build_id, digests.rows, named, volatile, clocks)
        own, flat = _of_table(rows, names, marks, volatile=volatile), None
        relation = Given(rows, own, digests.order, table_origins, types)
    else:
        flat = _inlined(declaration, fold, normal, binding, block, increments) if names else None
        reader_origins = table_origins if declaration.persisted else origins
        draws = binding.is_volatile(block)
        own = drawn(digests.columns, [draws and binding.is_volatile(o.expr) for o in block.columns])
        relation = Given(digests.rows, own, digests.order, reader_origins, types, draws)
        if not declaration.persisted:
            growth = increments.growth(block) if flat is None else increments.nothing(block)
            relation = replace(relation, growth=growth, memberships=_memberships(binding, block))
    relation = replace(relation, literals=fold.literals_in(relation.columns))
    return Meaning(
        build_id=build_id,
        columns=columns,
        lineage=tuple(
            ColumnEdge(ref, name)
            for name, refs in zip(names, origins, strict=not added)
            for ref in sorted(refs)
        ),
        volatile=volatile,
        reads_clock="instant" if "instant" in clocks else "day" if clocks else None,
        notes=tuple(notes),
        face=Face(flat, relation, names or None, collated=binding.types.collated),
        marks=shortened(digests.rows, marks),
        growth=_growth(declaration, increments, block),
    )


def _memberships(binding: Binding, relation: Block | Node) -> frozenset[int]:
    return binding.memberships.of(relation) if binding.computes_in else frozenset()


def _of_table(
    rows: str, names: Sequence[str], columns: Sequence[str], *, volatile: bool
) -> tuple[str, ...]:
    """Return the digests of the columns of rows that only a table has.

    Columns that are computed alike are equal, unless that draws their values.
    """
    return tuple(
        digest("column", rows, column, name.lower())
        if volatile and columns.count(column) > 1
        else digest("column", rows, column)
        for name, column in zip(names, columns, strict=True)
    )


def _table_rows(
    declaration: Declaration,
    connection: str,
    build_id: BuildID,
    query_rows: str,
    columns: Sequence[tuple[str, str]],
    volatile: bool,
    clocks: Collection[str],
) -> str:
    """Return the digest of rows that only the table has: computed again, they may differ.

    Columns that nobody reads do not count if others decide which rows the table has.
    """
    deciding = _deciding_columns(declaration)
    if deciding is None or volatile or clocks:
        return digest("table", build_id)
    parted = [d for name, d in columns if name.lower() in deciding]
    return _merged(declaration, digest("table", connection, query_rows, parted))


def _inlined(
    declaration: Declaration,
    fold: Fold,
    normal: Normal,
    binding: Binding,
    block: Block,
    increments: Increments,
) -> Block | None:
    """Return the block that readers see instead of a table; None if it is too large.

    Readers of a table that may keep rows of older code follow the table.
    """
    annotation = declaration.annotation
    continued = annotation.refresh == "incremental" and annotation.goes_on
    if not 0 < len(block.leaves) <= MAX_LEAVES or (declaration.persisted and continued):
        return None
    flat = _as_given(fold, normal, binding, block, increments)
    if binding.is_large(flat, closed=True):
        return None
    if declaration.persisted and binding.computes_in:
        return binding.memberships.with_marks(binding.calls, STORED, flat)
    return flat


def _growth(declaration: Declaration, increments: Increments, block: Block) -> Growth | None:
    """Return the growth of an incremental source's rows, and of those of its time column."""
    if not _is_incremental(declaration):
        return None
    growth = increments.growth(block)
    if growth is None:
        return None
    partition = declaration.annotation.partition
    named = (declaration.annotation.time_column or "").lower()
    if partition is not None:
        named = partition.dimensions[0].column.lower()
    columns = zip(block.columns, growth.columns, strict=True)
    return replace(growth, columns=tuple(w for o, w in columns if o.name.lower() == named))


def _unfollowed(
    declaration: Declaration,
    binding: Binding,
    block: Block,
    notes: Sequence[str],
    increments: Increments,
) -> Iterator[Problem]:
    """Yield the problems with parameters by which builds cannot narrow their input."""
    bounds = declaration.query.bounds if declaration.query else ()
    if not bounds:
        return
    if notes:
        message = f"`:{bounds[0].name}` is in a query that is {notes[0].partition(':')[0]}"
        hint = "remove the condition: builds keep only the rows they need anyway"
        yield Problem("parameter", message, bounds[0].location, hint)
        return
    annotation = declaration.annotation
    if annotation.partition is not None:
        growth = _growth(declaration, increments, block)
        column = annotation.partition.dimensions[0].column
        timed = annotation.partition.time is not None
        if timed and growth and growth.columns and not increments.keeps(block, growth):
            message = f"`:{bounds[0].name}` may lose rows of a partition"
            hint = (
                f"compare with the expression of `{column}` as written in the query, or remove the"
                " condition: builds read only what the partitions depend on"
            )
            yield Problem("parameter", message, bounds[0].location, hint)
        return
    by = (annotation.time_column or "").lower()
    kinds = {o.name.lower(): o.type for o in block.columns}
    if annotation.refresh != "incremental" or by not in kinds:
        return  # reported elsewhere
    kind = kinds[by]
    for parameter, compared in binding.bounded:
        compared_type, place = binding.types.of(compared), binding.place(parameter)
        if kind is None or compared_type is None:
            what = f"of `{by}`" if kind is None else "of the value compared with `:watermark`"
            message, hint = f"the type {what} is uncertain", "cast it: CAST(… AS timestamp)"
            yield Problem("parameter", message, place, hint)
        elif compared_type != kind and not (kind == "date" and compared_type in TIMES):
            message = f"`:watermark` is {kind} but is compared with {compared_type}"
            hint = f"compare it with a value of type {kind}, or remove the condition"
            yield Problem("parameter", message, place, hint)


def _reserved_names(declaration: Declaration, names: Iterable[str]) -> list[Problem]:
    """Return the problems with column names that are reserved for snapshots."""
    if declaration.annotation.validity is None:
        return []
    name, place = declaration.name, declaration.location
    reserved = [n for n in names if n.lower() in (VALID_FROM, VALID_TO)]
    hint = "rename it: … AS other_name"
    message = "refresh=snapshot adds a column `{}`, which `{}` already has"
    return [Problem("column-name", message.format(n, name), place, hint) for n in reserved]


LOTS = VOLATILE | SESSION | {"limit", "tablesample"}
"""Sources of nondeterminism: functions, and LIMIT without ORDER BY."""

_TELLING = LOTS | CLOCK
"""Operators and functions worth searching for."""


def _draws(binding: Binding, upstream: Iterable[Upstream], block: Block) -> frozenset[str]:
    """Return the functions of a block, and ``limit`` if it picks rows in no defined order.

    The set is empty, without a search, if nothing in the block can be nondeterministic or read the
    clock.
    """
    inlines = any(u.volatile or u.reads_clock for u in upstream if not u.persisted)
    if not (inlines or binding.limited) and binding.calls.ops.isdisjoint(_TELLING):
        return frozenset()
    names: set[str] = set()
    for thing in walk(block):
        if isinstance(thing, Call):
            names.add(thing.op)
        elif isinstance(thing, Limit) and not thing.ordered:
            names.add("limit")
    return frozenset(names)


def _as_given(
    fold: Fold, normal: Normal, binding: Binding, block: Block, increments: Increments
) -> Block:
    """Return a block whose leaves, at every depth, are known by their digests only."""
    if binding.only_given:
        return block
    types: dict[int, tuple[str | None, ...]] = {}

    def enter(inner: Block) -> None:
        leaf_types = binding.types.leaves
        types.update({id(node): leaf_types.get(instance, ()) for instance, node in inner.leaves})

    def given(node: Node) -> Node | None:
        if isinstance(node, Given | Generate) or fold.free(node):
            return None
        digests = fold.node(normal.node(node), {})
        # Readers know the origins of the columns they see; those of the leaves are never used.
        nowhere = (frozenset[ColumnRef](),) * len(digests.columns)
        lots = binding.is_volatile(node)
        growth = increments.of_node(node, len(digests.columns))
        shape = None if lots else shown(node)
        rows, columns, order = digests.rows, digests.columns, digests.order
        kinds, tests = types[id(node)], _memberships(binding, node)
        literals = fold.literals_in(columns)
        return Given(rows, columns, order, nowhere, kinds, lots, growth, shape, tests, literals)

    def shown(node: Node) -> Node | None:
        """Return the shape that readers see of a leaf, unless it is large."""
        if not isinstance(node, Outer | Aggregate) or size_of(node, deep=False) > MAX_SIZE:
            return None
        inside = Rebuild(binding.calls, node=lambda n: None if n is node else given(n), enter=enter)
        return bounded(binding.calls, inside.node(node))

    return Rebuild(binding.calls, node=given, enter=enter).block(block)
