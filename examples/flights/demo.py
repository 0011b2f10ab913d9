"""What `make demo` does: real data, one Dagster run, and a look at what came of it."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

from prepare import prepare

ROOT = Path(__file__).resolve().parents[2]

ENGINES = """run: flown -> {
  group_by: aircraft.engine
  aggregate: n_planes is aircraft.count(), n_seats is aircraft.seats.sum(), miles is distance.sum()
}"""


def persist(*arguments: str) -> None:
    """Run our command line as a user would, and stop if it fails."""
    print(f"\n$ persist {shlex.join(arguments)}", flush=True)
    command = [sys.executable, "-m", "persist_assets.cli", "--project", str(ROOT), *arguments]
    if subprocess.run(command, check=False).returncode:
        raise SystemExit(f"persist {arguments[0]} failed")


def main() -> None:
    """Run the demo."""
    prepare(ROOT / ".persist" / "demo")
    persist("plan")
    persist("build")
    persist("query", "SELECT * FROM carrier_scorecard ORDER BY place", "--limit", "5")
    persist("query", "SELECT * FROM worst_routes WHERE place <= 2 ORDER BY origin, place")
    persist("query", "SELECT * FROM rush_hours ORDER BY mean_delay DESC", "--limit", "5")
    persist("show", "carriers.malloy")
    persist("query", "carriers.malloy:punctuality", "--limit", "5")
    persist("query", "fleet.malloy", "--run", ENGINES)
    manifest = ROOT / ".persist" / "manifests" / "dev.json"
    entries = json.loads(manifest.read_text())["entries"]
    tables = [e for e in entries.values() if "buildId" not in e]  # others name a table again
    print(f"\nThe manifest of {len(tables)} tables is {manifest.relative_to(ROOT)}.")
    print("Open the UI with: make ui    (then http://127.0.0.1:3000/asset-groups/~)")


if __name__ == "__main__":
    main()
