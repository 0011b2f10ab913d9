"""Let the JVMs of tests start quickly; `make test` runs this file before the tests.

A test computes a few rows, so nearly all time of its JVM goes into loading classes, and into
compiling well what runs for a second. Here only the quick compiler is used, loaded classes come
from an archive that is made once, and Spark evaluates expressions itself: it generates no code,
which would be compiled twice. `make nightly` starts Spark as users do.

A JVM that cannot use the archive, of another Java or with other jars, starts without it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from persist_assets.engine.class_archive import OPTIONS, end_jvm, write_archive

if TYPE_CHECKING:
    from collections.abc import MutableMapping

ARCHIVE = Path(__file__).resolve().parents[2] / ".pytest_cache" / "spark.jsa"
FLAGS = (
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-Xmn400m",  # half of what a heap has by default is full, and looked through, too often
    "-XX:ReservedCodeCacheSize=240m",  # what the quick compiler has by default is full soon
    "-Dspark.sql.codegen.wholeStage=false",
    "-Dspark.sql.codegen.factoryMode=NO_CODEGEN",
    "-Xlog:disable",  # an archive that does not fit would be told on stdout
)
STATEMENT = """
    WITH t AS (
      SELECT id, CAST(id AS STRING) AS text, TIMESTAMP '2024-01-01' + make_dt_interval(id) AS ts
      FROM range(100)
    ), days AS (
      SELECT CAST(ts AS DATE) AS day, count(*) AS n, max(text) AS text FROM t GROUP BY 1 HAVING n > 0
    )
    SELECT *, row_number() OVER (PARTITION BY n ORDER BY day) AS nth FROM days JOIN t USING (text)
    WHERE id IN (SELECT id FROM t) UNION ALL SELECT 'a', current_date(), 1, 2, now(), 3 ORDER BY 1
"""


def quicken(environ: MutableMapping[str, str]) -> None:
    """Let drivers that are started with these variables start quickly."""
    there = (f'"-XX:SharedArchiveFile={ARCHIVE}"',) if ARCHIVE.exists() else ()
    environ[OPTIONS] = " ".join((*FLAGS, *there))


def archive() -> None:
    """Make the archive, unless there is one of this Java and this Spark."""
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java")
    if java is None:
        return  # the tests say so
    import pyspark

    version = subprocess.run([java, "-version"], capture_output=True, text=True, check=True)
    wanted = "\n".join((pyspark.__file__, pyspark.__version__, *FLAGS, version.stderr))
    made_for = ARCHIVE.with_suffix(".txt")
    if ARCHIVE.exists() and made_for.exists() and made_for.read_text() == wanted:
        return
    ARCHIVE.parent.mkdir(exist_ok=True)
    write_archive(ARCHIVE, (sys.executable, __file__, "load"), FLAGS)
    made_for.write_text(wanted)


def load_classes() -> None:
    """Have Spark do what it does in tests; its JVM has ended then."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    session = builder.config("spark.log.level", "OFF").getOrCreate()
    with tempfile.TemporaryDirectory() as base:
        session.sql(STATEMENT).write.parquet(f"{base}/rows")
        session.read.parquet(f"{base}/rows").toArrow()
    end_jvm(session.sparkContext)


if __name__ == "__main__":
    load_classes() if "load" in sys.argv else archive()
