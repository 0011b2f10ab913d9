"""Write docs/acceptance.md: every promise of docs/acceptance-rows.md and the tests that prove it.

With `--check`, say whether it is up to date instead.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROWS = ROOT / "docs" / "acceptance-rows.md"
TARGET = ROOT / "docs" / "acceptance.md"
HEAD = """\
# Promises and their proofs

Made by `make acceptance` from [the rows](acceptance-rows.md) and the markers of the tests.
"""


def rows() -> dict[str, tuple[str, str]]:
    """Return section and text of every row, by its identifier."""
    promises: dict[str, tuple[str, str]] = {}
    section = ""
    for line in ROWS.read_text().splitlines():
        if line.startswith("## "):
            section = line[3:]
        match = re.match(r"([A-Z]\d+)\+?(?: \([^)]*\))? \| (.*)", line)
        if match:
            if match[1] in promises:
                sys.exit(f"two rows are called {match[1]}")
            # How the promise is checked follows the last bar.
            promise = match[2].rpartition(" | ")[0] or match[2]
            promises[match[1]] = section, promise.strip().replace("|", "\\|")
    return promises


def proofs() -> Iterator[tuple[str, str]]:
    """Yield the row and the test of every marker."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        tree = ast.parse(path.read_text())
        of_all = [
            node.value
            for node in tree.body
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
        ]
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef):
                continue
            is_test = node.name.startswith("test_")
            for mark in [*(of_all if is_test else ()), *node.decorator_list]:
                if (
                    isinstance(mark, ast.Call)
                    and isinstance(mark.func, ast.Attribute)
                    and mark.func.attr == "proves"
                ):
                    for argument in mark.args:
                        name = node.name.removeprefix("test_").replace("_", " ")
                        where = path.relative_to(ROOT).as_posix()
                        yield ast.literal_eval(argument), f"[{name}](../{where})"


def page() -> str:
    """Return the page.

    Raises
    ------
    SystemExit
        A test claims to prove a row that does not exist.
    """
    known = rows()
    proven: dict[str, list[str]] = {row: [] for row in known}
    for row, test in proofs():
        if row not in known:
            raise SystemExit(f"{test} claims to prove {row}, which is no row of {ROWS.name}")
        proven[row].append(test)
    n = sum(bool(tests) for tests in proven.values())
    lines = [HEAD, f"{n} of {len(known)} rows are proven by tests.", ""]
    section = ""
    for row, (where, text) in known.items():
        if where != section:
            section = where
            lines += [f"\n## {section}\n", "| row | promise | proven by |", "| --- | --- | --- |"]
        lines.append(f"| {row} | {text} | {'; '.join(sorted(proven[row])) or '–'} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    text = page()
    if "--check" in sys.argv:
        up_to_date = TARGET.exists() and TARGET.read_text() == text
        raise SystemExit(0 if up_to_date else f"{TARGET} is out of date: run make acceptance")
    TARGET.write_text(text)
