"""Readers of tables under fixed names, in a process of their own; what each saw is a line of JSON.

As a script: `readers.py OUT PLACE…`, until it is ended.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

PAUSE_S = 0.3


def digest_of(rows: list[dict[str, Any]]) -> str:
    """Return a digest of rows that does not depend on their order."""
    texts = sorted(repr([(k, row[k]) for k in sorted(row)]) for row in rows)
    return sha256("\n".join(texts).encode()).hexdigest()[:16]


def options_of(place: str) -> dict[str, str]:
    """Return how a place is reached."""
    if not place.startswith("s3://"):
        return {}
    return {
        "AWS_ENDPOINT_URL": os.environ["SOAK_ENDPOINT"],
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "timeout": "10s",
    }


def by_delta_rs(place: str) -> list[dict[str, Any]]:
    from deltalake import DeltaTable

    return DeltaTable(place, storage_options=options_of(place)).to_pyarrow_table().to_pylist()


def by_polars(place: str) -> list[dict[str, Any]]:
    import polars

    scanned: Any = polars.scan_delta(place, storage_options=options_of(place) or None)
    return scanned.collect().to_dicts()


def by_duckdb(place: str) -> list[dict[str, Any]]:
    import duckdb
    from deltalake import DeltaTable

    data = DeltaTable(place, storage_options=options_of(place)).to_pyarrow_dataset()
    with duckdb.connect() as connection:
        relation = connection.register("d", data).sql("SELECT * FROM d")
        names = relation.columns
        return [dict(zip(names, row, strict=True)) for row in relation.fetchall()]


READERS: dict[str, Callable[[str], list[dict[str, Any]]]] = {
    "delta-rs": by_delta_rs,
    "polars": by_polars,
    "duckdb": by_duckdb,
}


def read(engine: str, place: str) -> dict[str, Any]:
    """Return what a reader saw: rows, or an error."""
    seen: dict[str, Any] = {"engine": engine, "place": place, "at": time.time()}
    try:
        rows = READERS[engine](place)
    except Exception as error:  # whatever a reader raises is what it saw
        return {**seen, "error": f"{type(error).__name__}: {str(error)[:400]}"}
    seen |= {"rows": len(rows), "digest": digest_of(rows)}
    if rows and set(rows[0]) == {"g", "i"}:
        seen["generations"] = sorted({row["g"] for row in rows})
        seen["numbers"] = sorted(row["i"] for row in rows)
    return seen


def main(out: str, places: list[str]) -> None:
    chance, lock = random.Random(out), threading.Lock()
    with Path(out).open("a", buffering=1) as file:

        def loop(engine: str) -> None:
            while True:
                place = chance.choice(places)
                seen = read(engine, place)
                with lock:
                    file.write(json.dumps(seen) + "\n")
                time.sleep(PAUSE_S)

        threads = [threading.Thread(target=loop, args=(name,), daemon=True) for name in READERS]
        for thread in threads:
            thread.start()
        sys.stdin.read()  # ends with whoever started it
        os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
