"""The tools that `peers.py` compares: their environments, projects and commands.

Each tool gets the same models from `gen_project.py`, and the same rows as Parquet files. The page
`docs/benchmarks-peers.md` says what a tool cannot do.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).parent.parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "persist-peers"
"""Where the environments are; they stay for the next run."""
PACKAGES: Mapping[str, Sequence[str]] = {
    "sqlmesh": ("sqlmesh==0.236.4",),
    "dbt": ("dbt-core==1.11.16", "dbt-duckdb==1.11.1", "dagster-dbt==0.29.27"),
    "pipelines": ("pyspark[pipelines]==4.3.0",),
}
_FILL = """
import duckdb, sys
from pathlib import Path
database, raw = sys.argv[1:]
with duckdb.connect(database) as connection:
    connection.execute("CREATE SCHEMA IF NOT EXISTS raw")
    for path in sorted(Path(raw).iterdir()):
        files = f"read_parquet('{path}/*.parquet')"
        connection.execute(f"CREATE OR REPLACE TABLE raw.{path.name} AS SELECT * FROM {files}")
"""
_DAGSTER_DBT = """
from pathlib import Path
from dagster import Definitions
from dagster_dbt import DbtCliResource, dbt_assets

@dbt_assets(manifest=Path(__file__).parent / "target" / "manifest.json")
def models(context, dbt: DbtCliResource):
    yield from dbt.cli(["build"], context=context).stream()

here = str(Path(__file__).parent)
resource = DbtCliResource(project_dir=here, profiles_dir=here)
defs = Definitions(assets=[models], resources={"dbt": resource})
"""


def environment(name: str) -> Path:
    """Return the directory of a tool's programs, in an environment of its own.

    It is made once, with pip and the registry that pip is configured for.
    """
    root = CACHE / name
    done, packages = root / "installed.txt", "\n".join(PACKAGES[name])
    if not done.exists() or done.read_text() != packages:
        shutil.rmtree(root, ignore_errors=True)
        venv.create(root, with_pip=True)
        pip = [str(root / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, *PACKAGES[name]], check=True)
        done.write_text(packages)
    return root / "bin"


def generate(root: Path, form: str, n: int, rows: int) -> None:
    """Write a project of `n` models in a tool's format, with the rows of its raw tables."""
    script = str(ROOT / "benchmarks" / "gen_project.py")
    shutil.rmtree(root, ignore_errors=True)
    made = {form: root, "persist": root if form == "persist" else root / "data"}
    for kind, out in made.items():
        options = ["--n", str(n), "--format", kind, "--out", str(out), "--rows", str(rows)]
        subprocess.run([sys.executable, script, *options], check=True, stdout=subprocess.DEVNULL)
    if form != "persist":
        shutil.move(root / "data" / "raw", root / "raw")
        shutil.rmtree(root / "data")


@dataclass
class Tool:
    """A tool with a project."""

    root: Path
    n: int
    name = ""
    form = ""
    top = "models"

    def prepare(self, rows: int) -> None:
        """Write the project."""
        generate(self.root, self.form, self.n, rows)

    def refill(self) -> None:
        """Let the tool see the raw files that there are now."""

    def forget(self) -> None:
        """Delete what the tool keeps of an earlier load."""

    def commands(self) -> Mapping[str, list[str]]:
        """Return the commands by step."""
        raise NotImplementedError

    def count(self, output: str) -> int | None:
        """Return how many models a build computed, from its output."""
        raise NotImplementedError

    def run(self, command: list[str]) -> str:
        """Run a command, and return its output."""
        home = self.root / ".home"
        home.mkdir(exist_ok=True)
        env = {
            **os.environ,
            "DAGSTER_HOME": str(home),
            "PYTHONWARNINGS": "ignore",
            "DO_NOT_TRACK": "1",
            "PATH": f"{Path(command[0]).parent}:{os.environ['PATH']}",
        }
        ended = subprocess.run(
            command, cwd=self.root, env=env, capture_output=True, text=True, check=False
        )
        output = ended.stdout + ended.stderr
        if ended.returncode:
            raise RuntimeError(f"{' '.join(command)}: {output[-3000:]}")
        return output

    def edit(self, name: str, pattern: str, replacement: str) -> None:
        """Change the text of a model once."""
        (path,) = (self.root / self.top).rglob(f"{name}.sql")
        text, n = re.subn(pattern, replacement, path.read_text(), count=1)
        assert n == 1, (name, pattern)
        path.write_text(text)


class Persist(Tool):
    """persist_assets itself."""

    name, form, top = "persist_assets", "persist", "sources"

    def forget(self) -> None:
        """Delete its state and cache."""
        shutil.rmtree(self.root / ".persist", ignore_errors=True)

    def prepare(self, rows: int) -> None:
        """Write the project, with Spark for two cores."""
        super().prepare(rows)
        (self.root / "persist.toml").write_text(
            '[spark]\n"spark.master" = "local[2]"\n"spark.sql.shuffle.partitions" = "2"\n'
            '"spark.ui.enabled" = "false"\n'
        )

    def commands(self) -> Mapping[str, list[str]]:
        """Return the commands by step."""
        persist = str(Path(sys.executable).parent / "persist")
        return {
            "load": [persist, "check"],
            "plan": [persist, "plan", "--json"],
            "build": [persist, "build"],
        }

    def count(self, output: str) -> int | None:
        """Return the steps of a plan that build."""
        steps = json.loads(output[output.index("{") :])["steps"]
        return sum(step["action"] == "build" for step in steps)


class OnDuckDB(Tool):
    """A tool that computes in DuckDB, with a file of its own and a cache of parsed models."""

    database: str
    cache: str

    def refill(self) -> None:
        """Load the Parquet files into DuckDB."""
        python = str(environment(self.form) / "python")
        self.run([python, "-c", _FILL, self.database, "raw"])

    def forget(self) -> None:
        """Delete its cache of parsed models."""
        shutil.rmtree(self.root / self.cache, ignore_errors=True)


class SqlMesh(OnDuckDB):
    """SQLMesh on DuckDB."""

    name, form, database, cache = "SQLMesh", "sqlmesh", "db.db", ".cache"

    def commands(self) -> Mapping[str, list[str]]:
        """Return the commands by step."""
        sqlmesh = [str(environment("sqlmesh") / "sqlmesh")]
        plan = [*sqlmesh, "plan", "--no-prompts", "--auto-apply"]
        return {
            "load": [*sqlmesh, "info", "--skip-connection"],
            "plan": plan,
            "build": plan,
            "new rows": [*sqlmesh, "run", "--ignore-cron"],
        }

    def count(self, output: str) -> int | None:
        """Return how many models a plan or a run has evaluated."""
        return len({*re.findall(r"\[\d+/\d+\]\s+(\S+)", output)})


class Dbt(OnDuckDB):
    """dbt Core on DuckDB."""

    name, form, database, cache = "dbt Core", "dbt", "db.duckdb", "target"

    def keep_state(self) -> None:
        """Keep the manifest, with which the next build compares."""
        (self.root / "state").mkdir(exist_ok=True)
        shutil.copy(self.root / "target" / "manifest.json", self.root / "state")

    def commands(self) -> Mapping[str, list[str]]:
        """Return the commands by step."""
        dbt = [str(environment("dbt") / "dbt")]
        changed = ["--select", "state:modified+", "--state", "state"]
        return {
            "load": [*dbt, "parse"],
            "plan": [*dbt, "build", *changed],
            "build": [*dbt, "build"],
            "new rows": [*dbt, "build"],
        }

    def count(self, output: str) -> int | None:
        """Return how many models a build has created."""
        return len(re.findall(r"OK created", output))


class DagsterDbt(Dbt):
    """dagster-dbt: only loading differs from dbt."""

    name = "dagster-dbt"

    def prepare(self, rows: int) -> None:
        """Write the project, and the manifest that Dagster loads."""
        super().prepare(rows)
        self.run([str(environment("dbt") / "dbt"), "parse"])
        (self.root / "definitions.py").write_text(_DAGSTER_DBT)

    def forget(self) -> None:
        """Keep the manifest: it is an input."""

    def commands(self) -> Mapping[str, list[str]]:
        """Return the commands by step."""
        dagster = str(environment("dbt") / "dagster")
        return {"load": [dagster, "definitions", "validate", "-f", "definitions.py"]}


class Pipelines(Tool):
    """Spark's declarative pipelines."""

    name, form = "Spark declarative pipelines", "sdp"

    def prepare(self, rows: int) -> None:
        """Write the project, with its raw tables as views over the Parquet files."""
        super().prepare(rows)
        raw = "".join(
            f"CREATE TEMPORARY VIEW {path.name} AS SELECT * FROM parquet.`{path}`;\n"
            for path in sorted((self.root / "raw").iterdir())
        )
        (self.root / "models" / "raw.sql").write_text(raw)
        (self.root / "spark-pipeline.yml").write_text(
            f"name: demo\nstorage: file://{self.root}/storage\n"
            "libraries:\n  - glob:\n      include: models/**\n"
            'configuration:\n  spark.sql.shuffle.partitions: "2"\n'
        )

    def commands(self) -> Mapping[str, list[str]]:
        """Return the commands by step."""
        pipelines = [str(environment("pipelines") / "spark-pipelines")]
        return {
            "load": [*pipelines, "dry-run"],
            "plan": [*pipelines, "run"],
            "build": [*pipelines, "run"],
            "new rows": [*pipelines, "run"],
        }

    def count(self, output: str) -> int | None:
        """Return how many flows a run has completed."""
        return len({*re.findall(r"Flow '?(\S+?)'? has COMPLETED", output)})
