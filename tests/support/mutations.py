"""Break rules of the analysis and of increments one by one, and say which tests find each.

`make mutations` runs it; a mutation that no test finds is an error. Each one is applied to a copy
of the project, so that the clone itself stays as it is.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_COPIED = ("persist_assets", "tests", "examples", "docs", "benchmarks", "pyproject.toml")

IDENTITY = ("tests/unit/analysis", "tests/unit/planning")
INCREMENTS = (
    "tests/unit/analysis/test_increments.py",
    "tests/unit/planning",
    "tests/integration/building/test_growing.py",
    "tests/integration/building/test_strategies.py",
    "tests/integration/building/test_partitioned.py",
    "tests/integration/building/test_validity.py",
    "tests/integration/building/test_checks_by_partition.py",
    "tests/integration/building/test_reruns.py",
)


@dataclass(frozen=True, slots=True)
class Mutation:
    """One rule turned round or taken away.

    Attributes
    ----------
    file
        Below `persist_assets/`.
    old, new
        Text of the file, which is there once, and what stands there instead.
    tests
        Where the tests are that have to find it.
    """

    rule: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def _identity(rule: str, file: str, old: str, new: str) -> Mutation:
    return Mutation(rule, f"analysis/{file}", old, new, IDENTITY)


def _increments(rule: str, file: str, old: str, new: str) -> Mutation:
    return Mutation(rule, file, old, new, INCREMENTS)


MUTATIONS = (
    _identity(
        "a < b is not a <= b", "algebra.py", 'op, args = "<=", (b, a)', 'op, args = "<", (b, a)'
    ),
    _identity(
        "NOT (a < b) is b <= a", "algebra.py", '"<": "<=", "<=": "<"}', '"<": "<", "<=": "<="}'
    ),
    _identity(
        "the order of columns of other leaves counts",
        "fingerprint.py",
        'return digest("at", label, columns[column]) if label else columns[column]',
        "return columns[column]",
    ),
    _identity(
        "the order of arguments counts",
        "fingerprint.py",
        "elif op in COMMUTATIVE:",
        "elif len(made) == 2:",
    ),
    _identity(
        "the words of a call count",
        "fingerprint.py",
        "return digest(op, made, words)",
        "return digest(op, made)",
    ),
    _identity(
        "the direction of an order counts in windows",
        "fingerprint.py",
        "[(rows.expr(s.by), s.descending, s.nulls_first) for s in expr.order]",
        "[(rows.expr(s.by), s.nulls_first) for s in expr.order]",
    ),
    _identity(
        "windows are computed over the rows where they stand",
        "fingerprint.py",
        "            rows.rows,\n            mapping,\n",
        "            mapping,\n",
    ),
    _identity(
        "filters count",
        "fingerprint.py",
        'scope.rows = digest("filter", leaf.rows, conditions) if conditions else leaf.rows',
        "scope.rows = leaf.rows",
    ),
    _identity(
        "conditions of joins count",
        "fingerprint.py",
        'digest("join", joined, conjunct_digests,',
        'digest("join", joined,',
    ),
    _identity(
        "two leaves of one relation are two",
        "fingerprint.py",
        "        for same in _groups(labels, order):\n            if len(same) > 1:\n"
        '                labels.update({i: f"{labels[i]}#{number}"',
        "        for same in _groups(labels, order):\n            if len(same) > 9:\n"
        '                labels.update({i: f"{labels[i]}#{number}"',
    ),
    _identity(
        "outer instances are others than inner ones",
        "fingerprint.py",
        'around: Instances = {i: (f"^{label}", columns) for i, (label, columns) in outer.items()}',
        'around: Instances = {i: (f"{label}", columns) for i, (label, columns) in outer.items()}',
    ),
    _identity(
        "a cast keeps the name of its column",
        "names.py",
        "return plain(operand.name) if used == parts else NO_WORD if used else UNKNOWN",
        "return NO_WORD if used else UNKNOWN",
    ),
    _increments(
        "rows are additive in one leaf of a join only",
        "analysis/increments.py",
        "if one.isdisjoint(rest):",
        "if True:",
    ),
    _increments(
        "an outer join is not additive in its right side",
        "analysis/increments.py",
        "tuple(s for s in self._block_sums(left) if s.isdisjoint(rest))",
        "self._block_sums(left)",
    ),
    _increments(
        "branches of a union that read one table grow together",
        "analysis/increments.py",
        "whole & r == branch_sum for r, branch_sum in zip(reads, chosen, strict=True)",
        "True for _ in reads",
    ),
    _increments(
        "a window looks at rows of its partition",
        "analysis/increments.py",
        "if isinstance(thing, Subquery) or not self._within(thing, traced):",
        "if isinstance(thing, Subquery):",
    ),
    _increments(
        "a subquery may look at rows of any time",
        "analysis/increments.py",
        "if isinstance(thing, Subquery) or not self._within(thing, traced):",
        "if not isinstance(thing, Subquery) and not self._within(thing, traced):",
    ),
    _increments(
        "what an aggregate reads besides is loose",
        "analysis/increments.py",
        "return Windows(windows.traces, windows.loose | beside)",
        "return Windows(windows.traces, windows.loose)",
    ),
    _increments(
        "a table that is loose must be as it was",
        "planning/increments.py",
        "if windows is None or windows.loose & changed.keys() or not",
        "if windows is None or not",
    ),
    _increments(
        "rows are only added where none went",
        "planning/increments.py",
        "outcome = None if shrunk or spans else _sum(source, base, certain)",
        "outcome = None if spans else _sum(source, base, certain)",
    ),
    _increments(
        "files that went count too",
        "planning/increments.py",
        "for piece in (*change.lost, *change.added):",
        "for piece in change.added:",
    ),
    _increments(
        "a merged span ends with the later one",
        "planning/increments.py",
        "merged[-1] = (merged[-1][0], max(high, merged[-1][1]))",
        "merged[-1] = (merged[-1][0], min(high, merged[-1][1]))",
    ),
    _increments(
        "files with rows of the window are written again",
        "building/strategies/in_place.py",
        "touched |= {f.path for f in live.values() if meets(f, window)}",
        "pass",
    ),
    _increments(
        "rows outside the window are not computed",
        "building/strategies/in_place.py",
        "        frame = frame.where(window.condition)\n",
        "",
    ),
    _increments(
        "NULL keys are one key",
        "building/strategies/in_place.py",
        'f"old.{quote(k)} <=> new.{quote(k)}"',
        'f"old.{quote(k)} = new.{quote(k)}"',
    ),
    _increments(
        "checks are asked of the whole table",
        "building/strategies/in_place.py",
        "unanswered = [c for c in checks if not c.on_rows or not _is_answered(c, previous)]",
        "unanswered = []",
    ),
    _increments(
        "a watermark that went is looked for",
        "building/strategies/in_place.py",
        "replaced = by_key or _replaces(window, column, base.watermark, kind)",
        "replaced = False",
    ),
)


def _found_by(mutation: Mutation) -> str | None:
    """Return the first test that fails with a mutation; None: all pass."""
    with tempfile.TemporaryDirectory(prefix="persist-mutation-") as directory:
        copy = Path(directory)
        for name in _COPIED:
            if (ROOT / name).is_dir():
                ignore = shutil.ignore_patterns("__pycache__", "node_modules", ".persist")
                shutil.copytree(ROOT / name, copy / name, ignore=ignore, symlinks=True)
            else:
                shutil.copy(ROOT / name, copy / name)
        path = copy / "persist_assets" / mutation.file
        text = path.read_text()
        if text.count(mutation.old) != 1:
            raise SystemExit(f"{mutation.file} does not contain this once:\n{mutation.old}")
        path.write_text(text.replace(mutation.old, mutation.new))
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
        command += ["-m", "not slow", "-o", "addopts=--strict-markers", *mutation.tests]
        environment = os.environ | {"PYTHONPATH": str(copy)}
        run = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
        output = run.stdout.splitlines()
        named = [line for line in output if line.startswith(("FAILED ", "ERROR "))]
        if run.returncode == 1 and named:
            return named[0].partition(" - ")[0]
        if run.returncode == 0:
            return None
        raise SystemExit(f"the tests did not run:\n{run.stdout[-3000:]}{run.stderr[-1000:]}")


def main() -> int:
    """Try all mutations whose rule or file has a text; return 1 if no test finds one of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", nargs="?", default="", help="only mutations with this text")
    text = parser.parse_args().text
    chosen = [m for m in MUTATIONS if text in f"{m.file} {m.rule}"]
    missed = 0
    for mutation in chosen:
        test = _found_by(mutation)
        missed += test is None
        print(f"{mutation.file}: {mutation.rule}: {test or 'NOT FOUND'}", flush=True)
    print(f"{len(chosen)} mutations, {len(chosen) - missed} found")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
