"""Scripts over a project with a Hive catalog, each in a Spark of its own process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from pathlib import Path

CATALOG = """
"spark.sql.catalogImplementation" = "hive"
"spark.sql.warehouse.dir" = "{root}/hive"
"spark.hadoop.javax.jdo.option.ConnectionURL" = "jdbc:derby:;databaseName={root}/metastore;create=true"
"""


def run_script(script: str, root: Path, place: Path, numbers: list[int], *arguments: str) -> Any:
    """Run a script in a process of its own, and return the document that it prints last.

    Parameters
    ----------
    root
        The project, which gets a Hive catalog and the raw table `raw/t` of a column `a`.
    place
        Where the catalog is, and where the script runs.
    numbers
        The rows of the raw table.
    *arguments
        Further arguments of the script, after the project.
    """
    toml = root / "persist.toml"
    toml.write_text(toml.read_text() + CATALOG.format(root=place))
    (root / "raw/t").mkdir(parents=True)
    pq.write_table(pa.table({"a": pa.array(numbers, pa.int64())}), root / "raw/t/part-0.parquet")
    done = subprocess.run(
        [sys.executable, "-c", script, str(root), *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        cwd=place,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])
