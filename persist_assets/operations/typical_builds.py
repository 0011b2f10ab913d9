"""Typical builds of a small project, so that Spark loads the classes that builds need.

`persist spark prepare` runs this file in a process of its own.
"""

from __future__ import annotations

import tempfile
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from persist_assets.building.builder import Builder
from persist_assets.compiler.load import load_project, require
from persist_assets.core.settings.load import load_settings
from persist_assets.engine.class_archive import end_jvm
from persist_assets.engine.session import create_session
from persist_assets.engine.spark import SparkEngine
from persist_assets.ledger.ledger import Ledger

_SOURCES = """
CREATE TABLE events (id BIGINT, day DATE, kind STRING, amount DECIMAL(12, 2), ratio DOUBLE)
USING parquet LOCATION 'raw/events';

CREATE TABLE kinds (kind STRING, label STRING)
USING csv OPTIONS (header 'true') LOCATION 'raw/kinds.csv';

--@ persist
CREATE VIEW cleaned AS
SELECT id, day, upper(trim(kind)) AS kind, amount,
  CASE WHEN ratio > 1 THEN 1 ELSE ratio END AS ratio
FROM events WHERE amount IS NOT NULL AND day >= DATE '2024-01-01';

--@ persist
--@ check { unique=[day, kind] not_null=[day] }
CREATE VIEW daily AS
SELECT day, kind, count(*) AS n, sum(amount) AS amount, avg(ratio) AS ratio, max(id) AS last
FROM cleaned GROUP BY day, kind;

--@ persist
CREATE VIEW ranked AS
WITH totals AS (SELECT kind, count(DISTINCT day) AS days FROM cleaned GROUP BY kind)
SELECT c.id, k.label, t.days,
  row_number() OVER (PARTITION BY c.kind ORDER BY c.amount DESC, c.id) AS nth,
  sum(c.amount) OVER (PARTITION BY c.kind ORDER BY c.id) AS running
FROM cleaned c LEFT JOIN totals t ON c.kind = t.kind JOIN kinds k ON c.kind = k.kind
WHERE EXISTS (SELECT 1 FROM daily d WHERE d.kind = c.kind AND d.n > 1);

--@ persist
CREATE VIEW months AS
SELECT date_trunc('MONTH', day) AS month, kind, amount FROM daily
UNION ALL SELECT TIMESTAMP '2023-12-01', 'none', CAST(0 AS DECIMAL(22, 2));

--@ persist partition=daily time_column=day start="2024-01-01" end="2024-01-03"
CREATE VIEW by_day AS SELECT day, count(*) AS n, sum(amount) AS amount FROM cleaned GROUP BY day;
"""


def main() -> None:
    """Build the tables twice, with more rows the second time, and end Spark."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        (root / "sources").mkdir()
        (root / "raw" / "events").mkdir(parents=True)
        (root / "persist.toml").touch()
        (root / "sources" / "sources.sql").write_text(_SOURCES)
        kinds = "".join(f"KIND {i},label {i}\n" for i in range(7))
        (root / "raw" / "kinds.csv").write_text(f"kind,label\n{kinds}")
        settings = load_settings(root)
        engine = SparkEngine(settings, lambda: create_session(settings))
        project = require(load_project(settings))
        ledger = Ledger(settings.ledger)
        for part in range(2):
            _write_events(root / "raw" / "events" / f"part-{part}.parquet", part)
            builder = Builder(settings, project, ledger, engine)
            for source in project.persisted:
                builder.build(source)
                builder.read(source).limit(1).toArrow()
        ledger.close()
        end_jvm(engine.session.sparkContext)


def _write_events(path: Path, part: int) -> None:
    days = [date(2024, 1, 1) + timedelta(days=part * 2 + i % 2) for i in range(200)]
    rows = {
        "id": pa.array(range(part * 200, part * 200 + 200), pa.int64()),
        "day": pa.array(days),
        "kind": [f" kind {i % 7}" for i in range(200)],
        "amount": pa.array([Decimal(i % 50) for i in range(200)], pa.decimal128(12, 2)),
        "ratio": [i / 100 for i in range(200)],
    }
    pq.write_table(pa.table(rows), path)


if __name__ == "__main__":
    main()
