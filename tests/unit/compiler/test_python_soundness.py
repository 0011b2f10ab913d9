"""Random modules, edited and run: if the results differ, the BuildIDs must differ.

Side effects of imports are generated on purpose: registries, aliases, globals that functions set,
attributes that other modules set, star imports, names looked up by value.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conftest import BY_NIGHT, compiled, draws

from persist_assets.engine.project_modules import modules_of

if TYPE_CHECKING:
    from persist_assets.core.model.queries import Function

ORDER = ("one", "two", "own")
"""The modules; each may import earlier ones."""


class Writer:
    """Writes random modules; with odd seeds, modules that only define things."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.calm = seed % 2 == 1
        self.n = 0
        self.names: dict[str, list[tuple[str, str]]] = {m: [] for m in ORDER}
        self.lines: dict[str, list[str]] = {m: [] for m in ORDER}

    def new(self) -> int:
        self.n += 1
        return self.n

    def constant(self) -> str:
        return f"<{self.new()}>"

    def seen(self, module: str, *kinds: str) -> list[str]:
        """Return expressions for names of some kinds that a module may use."""
        found: list[str] = []
        for other in ORDER[: ORDER.index(module) + 1]:
            prefix = "" if other == module else f"{other}."
            found += [f"{prefix}{name}" for name, kind in self.names[other] if kind in kinds]
        return found

    def expression(self, module: str, most: int = 1) -> str:
        use = {"value": "{}", "list": "{}", "function": "{}()", "class": "{}().m()"}
        parts = [self.constant()]
        for kind, form in use.items():
            known = self.seen(module, kind)
            if known and (most > 1 or self.draw.random() < 0.6):
                chosen = self.draw.sample(known, min(most, len(known)))
                parts += [form.format(name) for name in chosen]
        if self.draw.random() < 0.2 and module != "own":
            parts.append("[x for x in (1, 2)]")
        return f"({', '.join(parts)},)"

    def statement(self, module: str) -> str:
        i, draw = self.new(), self.draw
        lists = self.seen(module, "list")
        own = [n for n, kind in self.names[module] if kind == "value"]
        theirs = [n for n in self.seen(module, "value") if "." in n]
        classes = self.seen(module, "class")
        functions = self.seen(module, "function")
        wanted: list[tuple[str, str, str]] = [
            (f"v{i}", "value", f"v{i} = {self.expression(module)}"),
            (f"v{i}", "value", f"v{i}: int = {self.constant()}"),
            (f"l{i}", "list", f"l{i} = [{self.constant()}]"),
            (f"f{i}", "function", f"def f{i}(x={self.constant()}):\n    return x, {self.expression(module)}"),
            (f"f{i}", "function", f"def f{i}():\n    'doc'\n    y = {self.constant()}\n    return y, {self.expression(module)}"),
            (f"f{i}", "function", f"f{i} = lambda: {self.expression(module)}"),
            (f"C{i}", "class", f"class C{i}:\n    a = {self.constant()}\n    def m(self): return self.a, {self.expression(module)}"),
            (f"v{i}", "value", f"if {self.constant()} % 2:\n    v{i} = {self.constant()}\nelse:\n    v{i} = 0"),
            (f"v{i}", "value", f"try:\n    v{i} = {self.expression(module)}\nexcept NameError:\n    v{i} = 3"),
            (f"v{i}", "value", f"for v{i} in range({self.constant()}): pass"),
            (f"v{i}", "value", f"v{i}, (w{i}, *z{i}) = {self.constant()}, ({self.constant()}, 1)"),
        ]  # fmt: skip
        if self.calm:
            lists, own, theirs, classes, functions = [], [], [], [], []
        if lists:
            a = draw.choice(lists)
            wanted += [
                ("", "", f"{a}.append({self.constant()})"),
                (f"v{i}", "value", f"v{i} = {a}.append({self.constant()})"),
                (f"l{i}", "list", f"l{i} = {a}"),
                ("", "", f"{a}[0] = {self.constant()}"),
                (f"v{i}", "value", f"v{i} = len(sorted({a}))"),
                (f"f{i}", "function", f"def d{i}(g): {a}.append({self.constant()}); return g\n@d{i}\ndef f{i}(): return {self.constant()}"),
                (f"f{i}", "function", f"def f{i}():\n    {a}.append({self.constant()})\n    return {a}"),
                (f"v{i}", "value", f"import random as r{i}\nv{i} = r{i}.Random(1).shuffle({a})"),
                (f"C{i}", "class", f"class C{i}:\n    {a}.append({self.constant()})\n    def m(self): return 1") if "." in a else (f"v{i}", "value", f"v{i} = {a}"),
            ]  # fmt: skip
        if own:
            a = draw.choice(own)
            wanted += [
                (f"f{i}", "function", f"def f{i}():\n    global {a}\n    {a} = {self.constant()}\n    return {a}"),
                ("", "", f"globals()['{a}'] = {self.constant()}"),
                ("", "", f"{a} = {self.constant()}"),
                (f"v{i}", "value", f"v{i} = eval('{a}')"),
                (f"f{i}", "function", f"def f{i}({a}=1): return {a}, {self.constant()}"),
            ]  # fmt: skip
        if theirs:
            module_name, _, name = draw.choice(theirs).partition(".")
            wanted += [
                ("", "", f"{module_name}.{name} = {self.constant()}"),
                ("", "", f"setattr({module_name}, '{name}', {self.constant()})"),
                (f"v{i}", "value", f"v{i} = getattr({module_name}, '{name}')"),
                (f"v{i}", "value", f"from {module_name} import {name} as v{i}"),
                (f"f{i}", "function", f"def f{i}():\n    from {module_name} import {name} as q\n    return q, {self.constant()}"),
                (f"f{i}", "function", f"def f{i}():\n    import {module_name} as q\n    return q.{name}, {self.constant()}"),
                (f"v{i}", "value", f"import {module_name} as q{i}\nv{i} = q{i}.{name}"),
                (f"v{i}", "value", f"v{i} = vars({module_name})['{name}']"),
            ]  # fmt: skip
        if classes:
            a = draw.choice(classes)
            wanted += [
                ("", "", f"{a}.a = {self.constant()}"),
                (f"C{i}", "class", f"class C{i}({a}):\n    b = {self.constant()}"),
                (f"v{i}", "value", f"v{i} = {a}().m()"),
            ]
        if functions:
            a = draw.choice(functions)
            wanted += [
                (f"v{i}", "value", f"v{i} = {a}()"),
                ("", "", f"{a}()"),
                (f"f{i}", "function", f"f{i} = {a}"),
                (f"f{i}", "function", f"from functools import partial\nf{i} = partial({a})"),
            ]
        name, kind, text = draw.choice(wanted)
        if name:
            self.names[module].append((name, kind))
        return text

    def write(self) -> None:
        for module in ORDER:
            for other in ORDER[: ORDER.index(module)]:
                star = self.draw.random() < 0.1
                self.lines[module].append(f"import {other}")
                if star:
                    self.lines[module].append(f"from {other} import *")
                    self.names[module] += self.names[other]
            for _ in range(self.draw.randrange(2, 7)):
                self.lines[module].append(self.statement(module))
        result = self.expression("own", most=3)
        self.lines["own"] += [
            "from persist_assets import table",
            f"@table\ndef result(n={self.constant()}):\n    return n, {result}",
        ]

    def texts(self, edited: int | None) -> dict[str, str]:
        found: dict[str, str] = {}
        for module, lines in self.lines.items():
            text = "\n".join(lines) + "\n"
            for number in range(1, self.n + 1):
                text = text.replace(f"<{number}>", "4" if number == edited else str(number % 3 + 1))
            found[module] = text
        return found


def plain(value: Any, depth: int = 0) -> Any:
    """Return a comparable form of a value."""
    if isinstance(value, list | tuple) and depth < 20:
        return type(value).__name__, [plain(v, depth + 1) for v in value]
    return value if isinstance(value, int | str | type(None)) else type(value).__name__


def build_id(texts: dict[str, str]) -> tuple[str, Function]:
    files = {"d.py": texts["own"], "/one.py": texts["one"], "/two.py": texts["two"]}
    found = compiled(files)
    assert not found.errors, [str(p) for p in found.errors]
    source = found.by_id["result@sources/d.py"]
    assert source.function is not None
    return source.build_id, source.function


def run(function: Function) -> Any:
    try:
        module = modules_of(function, Path("/nowhere")).load_file(function.path)
        return plain(module.result())
    except Exception as error:
        return type(error).__name__


@pytest.mark.random
@pytest.mark.parametrize("start", range(0, 60, 20))
def test_build_ids_differ_where_results_differ(start: int) -> None:
    differed = same = 0
    for seed in range(start, start + draws(7, 20)):
        writer = Writer(seed)
        writer.write()
        before_id, before = build_id(writer.texts(None))
        expected = run(before)
        for edited in range(1, writer.n + 1):
            texts = writer.texts(edited)
            if texts == writer.texts(None):
                continue
            after_id, after = build_id(texts)
            if run(after) != expected:
                differed += 1
                assert after_id != before_id, (seed, edited, texts)
            else:
                same += after_id == before_id
    assert differed > draws(10, 30)
    assert same > 0 or not BY_NIGHT
