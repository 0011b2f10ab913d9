"""Tables in public buckets: requests are unsigned on demand, even if there are credentials."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import write_deltalake
from icebergs import need_iceberg
from test_iceberg_projects import rows
from test_object_store import Server, server
from test_secrets import SECRETS, iceberg_in

from persist_assets.compiler.load import load_project, require
from persist_assets.core.settings.load import load_settings
from persist_assets.external.connectors import connect
from persist_assets.external.connectors.access import spark_access

__all__ = ["server"]  # a fixture: it is used by its name


@pytest.mark.proves("V12")
@pytest.mark.parametrize("unsigned", [True, False])
@pytest.mark.parametrize("kind", ["delta_table_input", "iceberg_input"])
def test_requests_are_unsigned_only_with_aws_skip_signature(
    make_project: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    server: Server,
    tmp_path: Path,
    kind: str,
    unsigned: bool,
) -> None:
    bucket, key, secret = server.new_bucket(), "AKIATESTTESTTESTTEST", "secret"
    if kind == "iceberg_input":
        need_iceberg()
        for name, value in SECRETS.items():
            monkeypatch.setenv(name, value)
        uri = iceberg_in(bucket, server, tmp_path)
    else:
        uri = f"{bucket}/events"
        options = {"AWS_ENDPOINT": server.url, "AWS_REGION": "eu-central-1", "AWS_ALLOW_HTTP": "true"}  # fmt: skip
        options |= {"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret}
        told = rows((1, "invoices", 0), (2, "deposits", 0))
        write_deltalake(uri, told, storage_options=options)
    statement = {"Effect": "Allow", "Principal": "*", "Action": "s3:*", "Resource": "*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    server.ask("PUT", f"/{bucket.removeprefix('s3://')}?policy", policy.encode())
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    text = f"""create external table t (id bigint) with ('connectors' = '[{{"transport": {{
      "name": "{kind}", "config": {{"uri": "{uri}", "aws_endpoint": "{server.url}",
      "aws_region": "eu-central-1", "aws_allow_http": true,
      "aws_skip_signature": {str(unsigned).lower()}}}}}}}]');"""
    settings = load_settings(make_project({"m.sql": text}))
    (source,) = require(load_project(settings)).sources
    assert source.raw is not None
    table = connect(source.raw, uri, source.columns, _no_session, settings.timezone)
    server.requests()
    server.signed()
    assert table.prune(None, table.pin()).rows == 2
    asked, signed = server.requests(), server.signed()
    assert asked
    assert (signed == []) is unsigned


def _no_session() -> None:
    raise AssertionError("no rows are read here")


@pytest.mark.proves("V12")
def test_spark_gets_anonymous_credentials_with_aws_skip_signature() -> None:
    provider = "fs.s3a.aws.credentials.provider"
    anonymous = "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"
    options = spark_access({"aws_skip_signature": "true"})
    assert options == {provider: anonymous, "fs.s3a.impl.disable.cache": "true"}
    assert provider not in spark_access({"aws_region": "eu-central-1"})
