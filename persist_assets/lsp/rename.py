"""A source gets another name, in all files.

The invariant: a rename changes names only. The renamed project is compiled before an editor gets
the edits, and if a BuildID, a reference or an error differs, the rename is refused.
"""

from __future__ import annotations

import ast
import json
import re
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from sqlglot.tokenizer_core import TokenType

from persist_assets.compiler.malloy.declarations import SUFFIX as MALLOY
from persist_assets.core.dialect import tokenize
from persist_assets.lsp.names import Mention, in_sql, mentions

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from pathlib import Path

    from persist_assets.core.model.queries import SourceID
    from persist_assets.lsp.positions import Text
    from persist_assets.lsp.workspace import State

_PLAIN = re.compile(r"[^\W\d]\w*")


class RefusedError(Exception):
    """A rename that is not certain to change names only; the text says why."""


@dataclass(frozen=True, slots=True, order=True)
class Edit:
    """A part of a file, as offsets, and its new text."""

    path: str
    start: int
    end: int
    text: str


def renaming(state: State, source_id: SourceID, name: str) -> tuple[Edit, ...]:
    """Return the edits that give a source another name.

    Raises
    ------
    RefusedError
        The name is invalid, or a place that names the source cannot be edited for certain.
    """
    if state.loaded is None or state.loaded.project.errors:
        problems = state.loaded.project.errors if state.loaded else state.problems
        raise RefusedError(f"fix this error first: {problems[0]}")
    source = state.loaded.project.by_id[source_id]
    if source.location.path.endswith(MALLOY):
        raise RefusedError(
            "sources in Malloy files cannot be renamed: only Malloy knows where they are used"
        )
    if not _PLAIN.fullmatch(name):
        raise RefusedError(f"`{name}` is not a valid name: use letters, digits and underscores")
    edits: set[Edit] = set()
    for mention in mentions(state):
        if mention.source_id == source_id:
            edits.update(_edits(state, mention, source.name, name))
    if not any(e.path == source.location.path for e in edits):
        raise RefusedError("its name is not written in its declaration")
    return tuple(sorted(edits))


def _edits(state: State, mention: Mention, old: str, name: str) -> Iterator[Edit]:
    """Yield the edits of one place that names a source."""
    path, start, end = mention.path, mention.start, mention.end
    text = state.text(path)
    if path.endswith(".py"):
        is_string = text.text[start - 1 : start] in ("'", '"', "/", ".")
        if mention.reference is not None and not is_string:
            yield _with_input(text, mention, old, name)
        else:
            yield Edit(path, start, end, name)
    elif path.endswith(MALLOY) or mention.unit is None:
        yield Edit(path, start, end, name)
    else:
        is_declared_or_read = mention.reference is not None or (
            text.offset_of(mention.unit.declaration.location) == start
        )
        yield Edit(path, start, end, in_sql(name) if is_declared_or_read else name)
        if mention.reference is not None:
            yield from _with_alias(text, mention, old)


def _with_alias(text: Text, mention: Mention, old: str) -> Iterator[Edit]:
    """Yield ``AS old`` after a table's name if it has no alias and qualifies columns."""
    reference, query = mention.reference, mention.unit and mention.unit.declaration.query
    if reference is None or query is None or reference.alias_at is None:
        return
    tokens = tokenize(query.text)
    spans = [(r.start, r.end) for r in query.references]
    qualifies = any(
        after.token_type is TokenType.DOT
        and token.text.lower() == old.lower()
        and not any(start <= token.start < end for start, end in spans)
        for token, after in pairwise(tokens)
    )
    if qualifies:
        at = text.offset_of(reference.location) + reference.alias_at - reference.start
        yield Edit(mention.path, at, at, f" AS {in_sql(old)}")


def _with_input(text: Text, mention: Mention, parameter: str, name: str) -> Edit:
    """Return the edit that makes a parameter of a function read a source by its new name.

    The parameter stays what it is, and ``inputs`` of the decorator says which source it means.
    """
    unit = mention.unit
    assert unit is not None
    function = next(
        (
            node
            for node in ast.walk(ast.parse(text.text))
            if isinstance(node, ast.FunctionDef) and node.name == unit.declaration.name
        ),
        None,
    )
    if function is None or len(function.decorator_list) != 1:
        place = unit.declaration.location
        raise RefusedError(f"{place} reads it in a way that `inputs` cannot express")
    decorator = function.decorator_list[0]
    entry = f"{json.dumps(parameter)}: {json.dumps(name)}"
    if not isinstance(decorator, ast.Call):
        at = _end(text, decorator)
        return Edit(mention.path, at, at, f"(inputs={{{entry}}})")
    inputs = next((k.value for k in decorator.keywords if k.arg == "inputs"), None)
    if isinstance(inputs, ast.Dict) and inputs.values:
        at = _end(text, inputs.values[-1])
        return Edit(mention.path, at, at, f", {entry}")
    last = max((k.value for k in decorator.keywords), key=lambda v: _end(text, v), default=None)
    at = _end(text, last) if last is not None else _end(text, decorator.func) + 1
    return Edit(mention.path, at, at, f"{', ' if last is not None else ''}inputs={{{entry}}}")


def _end(text: Text, node: ast.expr) -> int:
    """Return the offset of the end of a node; Python counts bytes."""
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    lines = text.text.split("\n")
    before = sum(len(line) + 1 for line in lines[: node.end_lineno - 1])
    return before + len(lines[node.end_lineno - 1].encode()[: node.end_col_offset].decode())


def applied(state: State, edits: Iterable[Edit]) -> dict[str, str]:
    """Return the texts of the edited files with edits, by path."""
    texts: dict[str, str] = {}
    for edit in sorted(edits, reverse=True):
        text = texts.get(edit.path)
        text = state.text(edit.path).text if text is None else text
        texts[edit.path] = text[: edit.start] + edit.text + text[edit.end :]
    return texts


def verify(before: State, after: State, source_id: SourceID, name: str) -> SourceID:
    """Return the new SourceID if a renamed project differs from the former one in names only.

    Raises
    ------
    RefusedError
        It differs in something else; the text says in what.
    """
    assert before.loaded is not None
    if after.loaded is None or after.loaded.project.errors:
        problems = after.loaded.project.errors if after.loaded else after.problems
        raise RefusedError(f"the renamed project would have errors: {problems[0]}")
    new_id = f"{name}@{source_id.partition('@')[2]}"

    def renamed(one: SourceID) -> SourceID:
        return new_id if one == source_id else one

    new, old = after.loaded.project.by_id, before.loaded.project.by_id
    for former in old.values():
        source = new.get(renamed(former.source_id))
        if source is None:
            raise RefusedError(f"`{former.key}` would disappear")
        if source.build_id != former.build_id and former.raw is None:
            raise RefusedError(f"`{former.key}` would have another BuildID, and be built again")
        if source.bindings != tuple(map(renamed, former.bindings)):
            raise RefusedError(f"`{former.key}` would read other sources")
    return new_id


def leftovers(root: Path, renamed: Collection[str], name: str) -> list[str]:
    """Return places that still have a name: in settings, tests and other Python files.

    Parameters
    ----------
    renamed
        The paths of the files of sources; these have been edited.
    """
    word = re.compile(rf"(?<!\w){re.escape(name)}(?!\w)")
    places: list[str] = []
    for path in sorted(root.rglob("*")):
        relative = path.relative_to(root)
        hidden = any(part.startswith(".") or part == "node_modules" for part in relative.parts)
        is_text = path.suffix in (".toml", ".yml", ".yaml", ".py") and not hidden
        if not is_text or relative.as_posix() in renamed or not path.is_file():
            continue
        for n, line in enumerate(path.read_text(errors="replace").splitlines(), start=1):
            if word.search(line):
                places.append(f"{relative.as_posix()}:{n}")
    return places
