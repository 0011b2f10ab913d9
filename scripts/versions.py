"""Run the important suites on versions of Spark and of Dagster, and print a table.

Without names, it runs the supported versions, as `make nightly` does. Candidates are versions that
are not supported before all suites have passed; they run if they are named::

    python scripts/versions.py spark-4.2 dagster-1.12 --suite engine --suite build

A candidate has a virtual environment with the versions of requirements.lock, but for what it
requires itself.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
EXTRAS = ("demo", "dev", "malloy", "postgres")


@dataclass(frozen=True)
class Version:
    """An environment to test in.

    Attributes
    ----------
    requires
        What is installed instead of the locked versions.
    kind
        The kind of Spark, see `tests/conftest.py`.
    suites
        Names of `SUITES`.
    """

    requires: tuple[str, ...] = ()
    kind: str = "local"
    suites: tuple[str, ...] = (
        *("analysis", "engine", "build", "python", "malloy", "external", "dagster", "cli"),
    )


_OF_KINDS = ("build", "dagster")
_OF_DAGSTER = ("dagster", "plugin", "cli")
VERSIONS = {
    "spark-4.3": Version(),
    "spark-4.3-local-cluster": Version(kind="local-cluster", suites=_OF_KINDS),
    "spark-4.3-shared": Version(kind="shared", suites=_OF_KINDS),
    "dagster-1.13": Version(suites=_OF_DAGSTER),
}
"""The supported versions: those of the ranges in pyproject.toml."""
CANDIDATES = {
    "spark-4.1": Version(("pyspark[connect]==4.1.*",)),
    "spark-4.2": Version(("pyspark[connect]==4.2.*",)),
    "dagster-1.12": Version(
        (
            *(f"dagster{part}==1.12.*" for part in ("", "-webserver", "-dg-cli")),
            *(f"dagster-{part}==0.28.*" for part in ("k8s", "postgres", "pyspark")),
        ),
        suites=_OF_DAGSTER,
    ),
}

_INTEGRATION = "tests/integration"
SUITES = {
    "analysis": (f"{_INTEGRATION}/analysis",),
    "engine": (f"{_INTEGRATION}/engine",),
    "build": (
        f"{_INTEGRATION}/building/test_builder.py",
        f"{_INTEGRATION}/building/test_partitioned.py",
        f"{_INTEGRATION}/operations/test_environments.py",
    ),
    "python": (f"{_INTEGRATION}/building/test_python_sources.py",),
    "malloy": (f"{_INTEGRATION}/building/test_malloy_tables.py",),
    "external": (
        f"{_INTEGRATION}/external/test_ingestion.py",
        f"{_INTEGRATION}/external/test_external_routes.py",
    ),
    "dagster": (f"{_INTEGRATION}/plugin/test_dagster.py", f"{_INTEGRATION}/plugin/test_pool.py"),
    "plugin": (
        f"{_INTEGRATION}/plugin/test_partitions_in_dagster.py",
        f"{_INTEGRATION}/plugin/test_wants_in_dagster.py",
        f"{_INTEGRATION}/plugin/test_retries.py",
        f"{_INTEGRATION}/plugin/test_automation.py",
    ),
    "cli": ("tests/e2e/test_cli.py",),
}


def make_environment(name: str, version: Version, directory: Path) -> Path:
    """Return the Python of a version's environment, which is made or brought up to date."""
    if not version.requires:
        return Path(sys.executable)
    uv = shutil.which("uv") or str(Path(sys.executable).parent / "uv")
    home = directory / name
    home.mkdir(parents=True, exist_ok=True)
    project = ROOT / "pyproject.toml"
    (home / "requires.txt").write_text("".join(f"{line}\n" for line in version.requires))
    # Versions that stand in the output stay where they can.
    packages = shutil.copy(ROOT / "requirements.lock", home / "packages.txt")
    extras = [word for extra in EXTRAS for word in ("--extra", extra)]
    python = home / "bin" / "python"
    for command in (
        ["venv", "--quiet", "--allow-existing", "--python", sys.executable, str(home)],
        [
            *("pip", "compile", str(project), *extras, "--override", str(home / "requires.txt")),
            *("--quiet", "--no-header", "--no-annotate", "-o", packages),
        ],
        ["pip", "install", "--quiet", "--python", str(python), "-r", packages],
        ["pip", "install", "--quiet", "--python", str(python), "--no-deps", "-e", str(ROOT)],
    ):
        subprocess.run([uv, *command], check=True, stdout=subprocess.DEVNULL)
    return python


def run_suite(python: Path, version: Version, suite: str, report: Path) -> dict[str, int]:
    """Return how many tests of a suite passed, failed and were skipped."""
    environ = {
        **os.environ,
        "PERSIST_TEST_SPARK": version.kind,
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
    }
    # PySpark 4.1 leaves sockets open.
    quiet = ("-W", "ignore::pytest.PytestUnraisableExceptionWarning")
    command = [str(python), "-m", "pytest", "-q", *quiet, f"--junit-xml={report}", *SUITES[suite]]
    report.unlink(missing_ok=True)
    with report.with_suffix(".txt").open("w", encoding="utf-8") as output:
        done = subprocess.run(command, cwd=ROOT, env=environ, stdout=output, stderr=output)
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    if report.exists():
        for case in ET.parse(report).iter("testcase"):
            kinds = {child.tag for child in case}
            is_bad = kinds & {"failure", "error"}
            counts["failed" if is_bad else "skipped" if "skipped" in kinds else "passed"] += 1
    if done.returncode and not counts["failed"]:
        counts["failed"] = 1  # it did not get to its tests
    return counts


def main() -> int:
    """Run what is chosen, and print a line for each version and suite."""
    every = VERSIONS | CANDIDATES
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("versions", nargs="*", metavar="VERSION", help=", ".join(every))
    parser.add_argument("--suite", action="append", choices=SUITES, help="only these suites")
    parser.add_argument("--directory", type=Path, default=ROOT / ".persist" / "versions")
    chosen = parser.parse_args()
    unknown = sorted(set(chosen.versions) - set(every))
    if unknown:
        parser.error(f"unknown version {unknown[0]}: there are {', '.join(every)}")
    directory: Path = chosen.directory.resolve()
    failed = 0
    print("| version | suite | passed | failed | skipped |\n|---|---|---|---|---|", flush=True)
    for name in chosen.versions or VERSIONS:
        version = every[name]
        python = make_environment(name, version, directory)
        for suite in version.suites:
            if chosen.suite and suite not in chosen.suite:
                continue
            report = directory / f"{name}.{suite}.xml"
            report.parent.mkdir(parents=True, exist_ok=True)
            counts = run_suite(python, version, suite, report)
            failed += counts["failed"]
            cells = " | ".join(str(n) for n in counts.values())
            print(f"| {name} | {suite} | {cells} |", flush=True)
    if failed:
        print(f"{failed} failed: see the reports in {directory}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
