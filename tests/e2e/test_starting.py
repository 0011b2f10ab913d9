"""`persist init` and `persist raw` create projects that can be built, queried and opened."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import clean_environ, document, persist


@pytest.mark.slow
@pytest.mark.proves("W3")
def test_a_new_project_builds_and_loads_in_dagster(tmp_path: Path, servers: None) -> None:
    languages = [word for n in ("sql", "malloy", "python") for word in ("--language", n)]
    begun = persist("init", "shop", *languages, cwd=tmp_path)
    assert begun.returncode == 0, begun.stderr
    root = tmp_path / "shop"
    next_steps = begun.stdout.partition("next:")[2]
    assert [line.strip() for line in next_steps.strip().splitlines()] == [
        "cd shop",
        'persist build && persist query "SELECT * FROM daily_delays" --limit 5',
        "dagster dev -f definitions.py",
    ]
    builds = document("build", cwd=root)["builds"]
    assert {(b["source_id"].partition("@")[0], b["action"]) for b in builds} == {
        ("daily_delays", "built"),
        ("destinations", "built"),
        ("carrier_delays", "built"),
    }
    query = "SELECT sum(n_flights) AS n FROM daily_delays"
    assert document("query", query, cwd=root)["rows"] == [[936]]
    validate = [str(Path(sys.executable).parent / "dagster"), "definitions", "validate"]
    done = subprocess.run(
        [*validate, "-f", "definitions.py"],
        cwd=root,
        env={**clean_environ(), "DAGSTER_HOME": str(root / ".persist" / "dagster")},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    again = persist("init", "shop", cwd=tmp_path)
    assert (again.returncode, "already exists" in again.stderr) == (2, True)


ROWS = [
    {"id": 1, "Zip": "00123", "paid": 1.5, "day": "2024-01-31", "note": 'says "hi",\nand goes'},
    {"id": 2, "Zip": "45678", "paid": None, "day": "2024-02-01", "note": "a; b \\ c"},
]


def write_data(place: Path) -> None:
    """Write the rows in several formats."""
    place.mkdir()
    lines = ['id;Zip;paid;day;note;at\n1;00123;1.5;2024-01-31;"says ""hi"",\nand goes";']
    lines += ['2024-01-31 10:00:00\n2;45678;NA;2024-02-01;"a; b \\ c";2024-02-01T11:30:00\n']
    (place / "text.csv").write_text("".join(lines))
    (place / "lines.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    (place / "list.json").write_text(json.dumps(ROWS, indent=1))
    at = datetime(2024, 1, 31, 10, tzinfo=UTC)
    table = pa.table({"id": [1], "at": [at], "tags": [[{"k": 1}]]})
    pq.write_table(table, place / "typed.parquet")


@pytest.mark.slow
@pytest.mark.proves("W1")
def test_spark_reads_files_through_generated_declarations(tmp_path: Path, servers: None) -> None:
    write_data(tmp_path / "in")
    places = ["text.csv", "lines.jsonl", "list.json", "typed.parquet"]
    words = [word for place in places for word in ("--from", f"in/{place}")]
    begun = persist("init", *words, cwd=tmp_path)
    assert begun.returncode == 0, begun.stderr
    declared = persist("raw", *(f"in/{p}" for p in places), cwd=tmp_path)
    assert declared.stdout == (tmp_path / "sources" / "raw.sql").read_text()

    def rows(table: str, items: str = "id, Zip, paid, day, note") -> list[list[object]]:
        query = f"SELECT {items} FROM {table} ORDER BY id"
        return list(document("query", query, cwd=tmp_path)["rows"])

    assert rows("text") == rows("lines") == rows("list") == [[*row.values()] for row in ROWS]
    at = "date_format(at, 'yyyy-MM-dd HH:mm:ss') AS at"
    assert rows("text", f"id, {at}") == [[1, "2024-01-31 10:00:00"], [2, "2024-02-01 11:30:00"]]
    typed = f"id, {at}, tags[0].k AS k"
    assert rows("typed", typed) == [[1, "2024-01-31 10:00:00", 1]]


def test_notes_on_inferred_types_name_the_file(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    for name in ("1.csv", "2.csv"):
        (tmp_path / "logs" / name).write_text("1,2\n")
    done = persist("raw", "logs", cwd=tmp_path)
    assert (done.returncode, done.stderr.splitlines()) == (
        0,
        [
            "logs: types were inferred from part of the data, in logs/1.csv",
            "logs/1.csv: no header was recognized: columns are _c0, _c1, …",
        ],
    )
    (tmp_path / "logs" / "LICENSE.txt").write_text("free")
    refused = persist("raw", "logs/", cwd=tmp_path)
    assert refused.returncode == 6
    assert refused.stderr.endswith("hint: name files of one kind: persist raw logs/*.csv\n")
