"""Lines of source files, shown below messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from persist_assets.cli.excerpts import excerpt
from persist_assets.core.errors import Location
from tests.support.commands import persist

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("line", "column", "shown"),
    [
        ("SELECT cuont(*) FROM t", 8, "2 | SELECT cuont(*) FROM t\n    |        ^^^^^"),
        ("\tSELECT `a b` x", 9, "2 |  SELECT `a b` x\n    |         ^^^^^"),
        ("SELECT '日本', x y", 14, "2 | SELECT '日本', x y\n    |                ^"),
        ("SELECT a +", 11, "2 | SELECT a +\n    |           ^"),
        ("SELECT \x1b[31m[red]a\r", 8, "2 | SELECT  [31m[red]a\n    |        ^"),
        ("x" * 300 + " abc", 302, f"2 | …{'x' * 116} abc\n    | {' ' * 118}^^^"),
        ("url = 'db://u:hidden@host'", 1, None),
        ("password = 'x'", 1, None),
        ("  ", 1, None),
        ("a", 9, None),
    ],
)
def test_carets_mark_the_token_and_secrets_are_not_shown(
    tmp_path: Path, line: str, column: int, shown: str | None
) -> None:
    (tmp_path / "a.sql").write_text(f"--\n{line}\n", newline="")
    text = excerpt(tmp_path, Location("a.sql", 2, column), {})
    assert (text.plain if text else None) == (f"  {shown}" if shown else None)
    assert excerpt(tmp_path, Location("query", 1, column), {"query": line}) is not None or not shown


def test_files_outside_the_project_are_not_shown(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "a.sql").write_text("SELECT a")
    (tmp_path / "root" / "b.sql").symlink_to(tmp_path / "a.sql")
    for path in ("../a.sql", "b.sql", "main:a.sql", "", "\0"):
        assert excerpt(tmp_path / "root", Location(path, 1, 1), {}) is None


@pytest.mark.proves("W6")
def test_errors_on_the_command_line_show_their_line(tmp_path: Path) -> None:
    (tmp_path / "sources").mkdir()
    (tmp_path / "persist.toml").touch()
    (tmp_path / "sources" / "a.sql").write_text("CREATE VIEW v AS\n  SELECT row_number() AS n;\n")
    done = persist("check", cwd=tmp_path)
    assert done.returncode == 3
    assert done.stderr == (
        "sources/a.sql:2:10: error: `row_number` needs a window [window]\n"
        "  2 |   SELECT row_number() AS n;\n"
        "    |          ^^^^^^^^^^\n"
        "  hint: row_number() OVER (PARTITION BY … ORDER BY …)\n"
    )
    (tmp_path / "sources" / "a.sql").write_text("CREATE VIEW v AS SELECT 1 AS n;\n")
    done = persist("query", "SELECT a AS 'b' FROM v", cwd=tmp_path)
    assert done.returncode == 3
    assert "  1 | SELECT a AS 'b' FROM v\n    |             ^^^\n" in done.stderr
    (tmp_path / "persist.toml").write_text('keep = "9d"\nkeeep = 2\n')
    done = persist("check", cwd=tmp_path)
    assert done.returncode == 2
    assert "  2 | keeep = 2\n    | ^^^^^\n" in done.stderr
