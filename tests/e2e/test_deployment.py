"""The services of examples/deployment, run as local processes with their commands and settings."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from conftest import wait_for
from deployment import EXAMPLE, ask, ending, free_ports, is_healthy, start

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from postgres import Postgres

PORTS = ("3000", "3070", "4000")
TOKEN = "r" * 32
COMPOSE: dict[str, Any] = yaml.safe_load((EXAMPLE / "compose.yaml").read_text())


def on_loopback(value: str, ports: Mapping[str, str], directory: Path, database: Path) -> str:
    """Return a value of compose.yaml, adapted to processes on this machine."""
    value = re.sub(r"@postgres:5432/(\w+)", rf"@/\1?host={database}", value)
    value = re.sub(r"^(\d{4})$", lambda m: ports.get(m[1], m[1]), value)
    value = re.sub(
        r"\$\{(\w+)[^}]*\}",
        lambda m: {"PERSIST_TOKENS": f"ops:write:{TOKEN}"}.get(m[1], "x"),
        value,
    )
    value = {"0.0.0.0": "127.0.0.1", "code": "127.0.0.1"}.get(value, value)
    return value.replace("/dagster/", f"{directory}/dagster/")


@pytest.fixture
def deployed(tmp_path: Path, postgres: Postgres) -> Iterator[tuple[Path, dict[str, str]]]:
    """Start the services of compose.yaml without containers; yield the project and its ports."""
    import psycopg

    project, home, ports = tmp_path / "project", tmp_path / "dagster", free_ports(PORTS)
    made = [sys.executable, "-m", "persist_assets.cli", "init", str(project)]
    subprocess.run(made, check=True, capture_output=True)
    settings = (EXAMPLE / "persist.toml").read_text().replace("/warehouse", f"{tmp_path}/warehouse")
    settings = re.sub(r"@postgres:5432/(\w+)", rf"@/\1?host={postgres.root}", settings)
    toml = project / "persist.toml"
    toml.write_text(settings + toml.read_text())
    home.mkdir()
    for name in ("dagster.yaml", "workspace.yaml"):
        shutil.copy(EXAMPLE / name, home)
    with psycopg.connect(host=str(postgres.root), user="postgres", autocommit=True) as connection:
        connection.execute("CREATE ROLE persist LOGIN SUPERUSER")
        connection.execute("CREATE DATABASE persist")
        connection.execute((EXAMPLE / "create-dagster.sql").read_text().encode())
    with ending() as processes:
        for name, service in COMPOSE["services"].items():
            if name == "postgres":
                continue
            values = {k: str(v) for k, v in service["environment"].items()}
            more = {k: on_loopback(v, ports, tmp_path, postgres.root) for k, v in values.items()}
            command = [on_loopback(w, ports, tmp_path, postgres.root) for w in service["command"]]
            env = {**more, "DAGSTER_HOME": str(home)}
            processes.append(start(command, project, env, tmp_path / f"{name}.log"))
        yield project, ports


def get(url: str, **headers: str) -> Any:
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


@pytest.mark.slow
@pytest.mark.proves("U5")
def test_the_deployment_materializes_assets_from_the_dagster_ui(
    deployed: tuple[Path, dict[str, str]], page: Any
) -> None:
    root, ports = deployed
    url = f"http://127.0.0.1:{ports['3000']}"
    assets = "{ assetNodes { id } }"
    wait_for(lambda: is_healthy(url) and ask(url, assets)["assetNodes"], seconds=180)
    page.goto(f"{url}/asset-groups/~")
    page.get_by_text(re.compile(r"Materialize (all|\(\d+\))")).first.click()
    runs = "{ runsOrError(limit: 9) { ... on Runs { results { status } } } }"

    def statuses() -> set[str]:
        return {run["status"] for run in ask(url, runs)["runsOrError"]["results"]}

    wait_for(lambda: bool(statuses() & {"SUCCESS", "FAILURE"}), seconds=240)
    assert statuses() == {"SUCCESS"}
    # The service shows what the run built: both use the ledger in PostgreSQL.
    service = f"http://127.0.0.1:{ports['3070']}"
    entries = get(f"{service}/api/v1/manifest", Authorization=f"Bearer {TOKEN}")["entries"]
    assert entries
    assert all(e["path"].startswith(f"{root.parent}/warehouse/") for e in entries.values())
    page.goto(f"{url}/runs")
    page.get_by_text("Success", exact=True).first.wait_for()


def test_systemd_units_run_the_same_commands_as_the_containers() -> None:
    """The commands of the systemd units are those of the services of compose.yaml."""
    units = {
        p.stem.removeprefix("persist-"): p.read_text() for p in (EXAMPLE / "systemd").iterdir()
    }
    services = {n: s["command"] for n, s in COMPOSE["services"].items() if n != "postgres"}
    assert units.keys() == services.keys()
    for name, command in services.items():
        (started,) = re.findall(r"^ExecStart=\S+/(\S+ .*)$", units[name], re.MULTILINE)
        expected = " ".join(command).replace("0.0.0.0", "127.0.0.1")
        assert started == expected.replace(" /dagster/", " /opt/persist/dagster/")
