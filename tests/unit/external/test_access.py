"""Access to stores of external tables: credentials reach their readers and nothing else."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import pytest
from conftest import compiled

from persist_assets.compiler.frontends.sql import parse_sql
from persist_assets.core.errors import StorageError
from persist_assets.core.model.sources import External
from persist_assets.core.settings.values import Upstream
from persist_assets.external.connectors import connect
from persist_assets.external.connectors.access import (
    delta_access,
    follow_references,
    iceberg_access,
    spark_access,
)
from persist_assets.wants.http import NoAnswer, token_of

if TYPE_CHECKING:
    from pathlib import Path

SECRETS = {
    "PERSIST_SECRET_ID": "AKIA-hidden-1",
    "PERSIST_SECRET_KEY": "hidden-2",
    "PERSIST_SECRET_TOKEN": "hidden-3",
}
KEYS = {
    "aws_access_key_id": "${env:PERSIST_SECRET_ID}",
    "aws_secret_access_key": "${env:PERSIST_SECRET_KEY}",
    "aws_session_token": "${env:PERSIST_SECRET_TOKEN}",
}
FOR_SPARK = {
    "fs.s3a.access.key": "AKIA-hidden-1",
    "fs.s3a.secret.key": "hidden-2",
    "fs.s3a.session.token": "hidden-3",
    "fs.s3a.impl.disable.cache": "true",
}
PLACE = {"aws_region": "eu-west-1", "aws_endpoint": "http://minio:9000", "aws_allow_http": "true"}
ICEBERG = {
    "s3.access-key-id": "${env:PERSIST_SECRET_ID}",
    "s3.secret-access-key": "${env:PERSIST_SECRET_KEY}",
    "s3.session-token": "${env:PERSIST_SECRET_TOKEN}",
}


def written(config: dict[str, str], name: str = "delta_table_input") -> str:
    connectors = json.dumps([{"transport": {"name": name, "config": config}}])
    return f"CREATE EXTERNAL TABLE t (id BIGINT) WITH ('connectors' = '{connectors}')"


def external(config: dict[str, str], name: str = "delta_table_input") -> External:
    (declaration,), problems = parse_sql(written(config, name), "a.sql")
    assert not problems, [str(p) for p in problems]
    assert declaration.raw is not None
    assert declaration.raw.external is not None
    return declaration.raw.external


@pytest.mark.parametrize(
    ("name", "config", "expected"),
    [
        ("delta_table_input", {}, {}),
        ("delta_table_input", KEYS, FOR_SPARK),
        ("iceberg_input", ICEBERG, FOR_SPARK),
        (
            "delta_table_input",
            KEYS | PLACE,
            FOR_SPARK
            | {
                "fs.s3a.endpoint.region": "eu-west-1",
                "fs.s3a.endpoint": "http://minio:9000",
                "fs.s3a.path.style.access": "true",
            },
        ),
        (
            "delta_table_input",
            {"aws_region": "eu-west-1"},
            {"fs.s3a.endpoint.region": "eu-west-1", "fs.s3a.impl.disable.cache": "true"},
        ),
    ],
)
def test_spark_gets_credentials_and_store_options(
    name: str, config: dict[str, str], expected: dict[str, str]
) -> None:
    found = follow_references(external({"uri": "s3://lake/t", **config}, name), SECRETS)
    assert spark_access(found) == expected


def test_all_readers_of_a_store_get_the_same_options() -> None:
    found = follow_references(external({"uri": "s3://lake/t", **KEYS, **PLACE}), SECRETS)
    for told in (delta_access(found), iceberg_access(found), spark_access(found)):
        assert {*SECRETS.values(), "eu-west-1", "http://minio:9000"} <= {*told.values()}


@pytest.mark.parametrize(
    ("uri", "option"),
    [
        ("abfss://lake@account.dfs.core.windows.net/t", "azure_storage_account_key"),
        ("gs://lake/t", "google_application_credentials"),
    ],
)
def test_credentials_of_other_stores_are_read_only_from_the_environment(
    uri: str, option: str
) -> None:
    assert spark_access(follow_references(external({"uri": uri}), SECRETS)) == {}
    (_, problems) = parse_sql(written({"uri": uri, option: "${env:PERSIST_SECRET_KEY}"}), "a.sql")
    (problem,) = problems
    assert f"`{option}`" in problem.message
    assert "environment" in f"{problem.message} {problem.hint}"


def test_secrets_are_neither_printed_nor_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    project = compiled({"m.sql": written({"uri": str(tmp_path / "lake"), **KEYS})})
    (source,) = project.sources
    assert source.raw is not None

    def nothing() -> object:
        raise AssertionError("Spark is not asked")

    connector = connect(
        source.raw, str(tmp_path / "lake"), source.columns, nothing, ZoneInfo("UTC")
    )
    with pytest.raises(StorageError) as raised:
        connector.pin()
    said = repr(connector), repr(source), repr(source.raw), str(raised.value), caplog.text
    assert not [value for value in SECRETS.values() if value in "".join(said)]
    monkeypatch.delenv("PERSIST_SECRET_KEY")
    with pytest.raises(StorageError, match="PERSIST_SECRET_KEY, which is not set") as unset:
        connect(source.raw, str(tmp_path / "lake"), source.columns, nothing, ZoneInfo("UTC"))
    assert not [v for v in SECRETS.values() if v in f"{unset.value} {unset.value.hint}"]


@pytest.mark.proves("S11")
@pytest.mark.parametrize(
    "name", ["AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "PERSIST_TOKENS", "PATH"]
)
def test_a_project_may_read_only_allowed_environment_variables(name: str) -> None:
    environ = {name: "hidden", "PERSIST_TOKEN_X": "token", "PERSIST_SECRET_X": "secret"}
    upstream = Upstream("u", "http://127.0.0.1:1", ("**",), token_env=name)
    external = External("delta_table_input", storage=(("aws_access_key_id", f"${{env:{name}}}"),))
    with pytest.raises(NoAnswer, match=f"may not send the environment variable {name} ") as sent:
        token_of(upstream, environ)
    with pytest.raises(StorageError, match=f"variable {name} ") as read:
        follow_references(external, environ)
    assert "hidden" not in f"{sent.value}{read.value}"
    listed = {**environ, "PERSIST_ALLOW_ENV": f"OTHER, {name}"}
    assert token_of(upstream, listed) == "hidden"
    assert follow_references(external, listed) == {"aws_access_key_id": "hidden"}
    assert token_of(replace(upstream, token_env="PERSIST_TOKEN_X"), environ) == "token"
    assert token_of(replace(upstream, token_env="PERSIST_SECRET_X"), environ) == "secret"
