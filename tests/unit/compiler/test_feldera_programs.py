"""Programs written for Feldera: accepted, or rejected with a hint for an alternative."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from persist_assets.compiler.load import load_project
from persist_assets.core.errors import Problem
from persist_assets.core.model.project import Project
from persist_assets.core.settings.load import load_settings

TABLE = """create external table t (
    id bigint not null primary key{},
    lateness int,
    ts timestamp{},
    s struct<a: int, watermark: int>
) with ({}'connectors' = '[{{"transport": {{
    "name": "delta_table_input", "config": {{"uri": "lake"{}}}}}}}]');
"""
VIEW = "create materialized view v as select id, ts, lateness, s.watermark as w from t;\n"
Make = Callable[..., Path]


def loaded(make_project: Make, text: str) -> tuple[Project, list[Problem]]:
    project = load_project(load_settings(make_project({"m.sql": text})))
    return project, [*project.problems]


def table(key: str = "", ts: str = "", properties: str = "", config: str = "") -> str:
    return TABLE.format(key, ts, properties, config)


@pytest.mark.proves("V12")
@pytest.mark.parametrize(
    ("written", "words"),
    [
        (" LATENESS INTERVAL 1 HOURS", ["LATENESS"]),
        (" not null lateness interval '1' day", ["LATENESS"]),
        (" WATERMARK INTERVAL '4:00' HOUR TO MINUTE not null", ["WATERMARK"]),
        (" LATENESS (INTERVAL 1 HOUR) WATERMARK INTERVAL 1 DAY COMMENT 'when'", ["LATENESS", "WATERMARK"]),
    ],
)  # fmt: skip
def test_lateness_and_watermark_are_accepted_without_effect(
    make_project: Make, written: str, words: list[str]
) -> None:
    plain, _ = loaded(make_project, table() + VIEW)
    text = table(ts=written) + VIEW
    project, problems = loaded(make_project, text)
    assert [(p.code, p.severity) for p in problems] == [("external-stream", "note")] * len(words)
    for problem, word in zip(problems, words, strict=True):
        assert f"`{word}` of `ts` changes nothing here" in problem.message
        line = text.splitlines()[problem.location.line - 1]
        assert line[problem.location.column - 1 :].upper().startswith(word)
    assert [s.build_id for s in project.sources] == [s.build_id for s in plain.sources]
    assert [c.name for c in project.sources[0].columns] == ["id", "lateness", "ts", "s"]


@pytest.mark.proves("V12")
def test_lateness_of_a_number_is_accepted(make_project: Make) -> None:
    project, problems = loaded(make_project, table(key=" LATENESS 100") + VIEW)
    assert [p.severity for p in problems] == ["note"]
    assert project.sources[0].external is not None
    assert project.sources[0].external.key == ("id",)


@pytest.mark.proves("V12")
def test_lateness_without_a_bound_is_an_error(make_project: Make) -> None:
    _, problems = loaded(make_project, table(ts=" LATENESS") + VIEW)
    assert next(p.severity for p in problems) == "error"


@pytest.mark.proves("V12")
@pytest.mark.parametrize(
    ("properties", "config", "skips"),
    [
        ("", "", True),
        ("'skip_unused_columns' = 'true', ", "", True),
        ("'skip_unused_columns' = 'false', ", "", False),
        ("", ', "skip_unused_columns": false', False),
        ("'skip_unused_columns' = 'FALSE', ", ', "skip_unused_columns": false', False),
    ],
)
def test_skip_unused_columns_can_be_set_on_the_table_or_the_connector(
    make_project: Make, properties: str, config: str, skips: bool
) -> None:
    project, problems = loaded(make_project, table(properties=properties, config=config) + VIEW)
    assert problems == []
    assert project.sources[0].external is not None
    assert project.sources[0].external.skip_unused_columns is skips


@pytest.mark.proves("V12")
@pytest.mark.parametrize(
    ("properties", "config", "message"),
    [
        ("'skip_unused_columns' = 'perhaps', ", "", "must be true or false"),
        (
            "'skip_unused_columns' = 'true', ",
            ', "skip_unused_columns": false',
            "differs between WITH and the connector",
        ),
    ],
)
def test_invalid_and_contradictory_properties_are_errors(
    make_project: Make, properties: str, config: str, message: str
) -> None:
    _, problems = loaded(make_project, table(properties=properties, config=config) + VIEW)
    assert [p.severity for p in problems] == ["error"]
    assert message in problems[0].message


@pytest.mark.proves("V12")
@pytest.mark.parametrize("mode", ["none", "snapshot", "catchup", "always"])
def test_transactions_and_unsigned_requests_are_accepted(make_project: Make, mode: str) -> None:
    config = f', "transaction_mode": "{mode}", "aws_skip_signature": "true"'
    plain, _ = loaded(make_project, table() + VIEW)
    project, problems = loaded(make_project, table(config=config) + VIEW)
    assert problems == []
    assert project.sources[0].external is not None
    assert project.sources[0].external.storage == (("aws_skip_signature", "true"),)
    assert [s.build_id for s in project.sources] == [s.build_id for s in plain.sources]
    signed, _ = loaded(make_project, table(config=', "s3.anonymous": false') + VIEW)
    assert signed.sources[0].external is not None
    assert signed.sources[0].external.storage == ()


@pytest.mark.proves("V12")
@pytest.mark.parametrize(
    ("statement", "message", "hint"),
    [
        ("SET x = 'y';", "`SET` changes the session", "persist.toml"),
        ("LATENESS v.ts INTERVAL 1 HOUR;", "`LATENESS` has no meaning here", "remove"),
        ("create view u as select DATE_TRUNC(ts, MONTH) as m from t;", "`MONTH` is not a column", "date_trunc('MONTH', …), which returns a timestamp; trunc(…, 'MONTH')"),
        ("create view u as select date_trunc(ts, day) as m from t;", "`day` is not a column", "date_trunc('DAY', …), which returns a timestamp"),
    ],
)  # fmt: skip
def test_rejected_statements_have_a_hint_with_the_alternative(
    make_project: Make, statement: str, message: str, hint: str
) -> None:
    text = table() + VIEW + statement
    _, (problem,) = loaded(make_project, text)
    assert problem.severity == "error"
    assert message in problem.message
    assert hint in (problem.hint or "")
    assert problem.location.line == len(text.splitlines())
    # A column with that name is accepted.
    kinds = "id bigint, ts string, day timestamp"
    right = f"create table r ({kinds}) using parquet location 'r';"
    right += "create view u as select date_trunc(ts, day) as m from r;"
    assert loaded(make_project, right)[1] == []


CATALOG = {
    "catalog_type": "rest",
    "rest.uri": "http://catalog:8181/api",
    "rest.warehouse": "w",
    "rest.token": "${env:PERSIST_TOKEN_LAKE}",
    "table_name": "a.b.t",
}


def cataloged(options: dict[str, str]) -> str:
    connector = {"transport": {"name": "iceberg_input", "config": options}}
    return f"create external table t (id bigint) with ('connectors' = '{json.dumps([connector])}');"


@pytest.mark.proves("V13")
def test_a_table_in_a_catalog_is_identified_by_catalog_and_name(make_project: Make) -> None:
    project, problems = loaded(make_project, cataloged(CATALOG))
    assert problems == []
    (source,) = project.sources
    assert source.raw is not None
    assert source.raw.location == "http://catalog:8181/api#a.b.t"
    build_ids = {source.build_id}
    for changed in ({"rest.warehouse": "v"}, {"table_name": "a.t"}, {"rest.uri": "http://other"}):
        other, problems = loaded(make_project, cataloged({**CATALOG, **changed}))
        assert problems == []
        build_ids.add(other.sources[0].build_id)
    assert len(build_ids) == 4
    same, _ = loaded(make_project, cataloged({**CATALOG, "rest.token": "${env:PERSIST_TOKEN_B}"}))
    assert same.sources[0].build_id == source.build_id


@pytest.mark.proves("V13")
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"catalog_type": "hive"}, "catalogs of the type `hive` are not supported"),
        ({"catalog_type": None}, "a catalog needs `catalog_type`"),
        ({"table_name": None}, "a catalog needs `table_name`"),
        ({"table_name": "t"}, "`table_name` must be namespace.table"),
        ({"table_name": "a..t"}, "`table_name` must be namespace.table"),
        ({"rest.uri": None}, "a catalog needs `rest.uri`"),
        ({"rest.uri": "catalog:8181"}, "`rest.uri` must be a URL without credentials"),
        ({"rest.uri": "http://me:secret@catalog"}, "`rest.uri` must be a URL without credentials"),
        ({"rest.uri": "${env:PERSIST_TOKEN_A}"}, "has to be written out"),
        ({"rest.token": "abc"}, "`rest.token` is a secret and must not be written here"),
        ({"rest.credential": "id:abc"}, "`rest.credential` is a secret"),
        ({"uri": "lake"}, "`uri` and a catalog both locate the data"),
        ({"rest.sigv4-enabled": "true"}, "has no option `rest.sigv4-enabled`"),
        ({"glue.region": "eu-west-1"}, "`glue.region` has no effect on a catalog of the type"),
        ({"rest.warehouse": " "}, "`rest.warehouse` must not be empty"),
    ],
)
def test_invalid_declarations_of_catalogs_are_errors(
    make_project: Make, changed: dict[str, str | None], message: str
) -> None:
    options = {key: value for key, value in {**CATALOG, **changed}.items() if value is not None}
    _, problems = loaded(make_project, cataloged(options))
    assert [p.severity for p in problems] == ["error"]
    assert message in problems[0].message


GLUE = {
    "catalog_type": "glue",
    "glue.region": "eu-west-1",
    "glue.access-key-id": "${env:PERSIST_SECRET_ID}",
    "glue.secret-access-key": "${env:PERSIST_SECRET_KEY}",
    "table_name": "sales.events",
}


@pytest.mark.proves("V34")
def test_a_table_of_glue_is_identified_by_its_region_account_and_name(make_project: Make) -> None:
    project, problems = loaded(make_project, cataloged(GLUE))
    assert problems == []
    (source,) = project.sources
    assert source.raw is not None
    assert source.raw.location == "glue://eu-west-1#sales.events"
    build_ids = {source.build_id}
    different = ({"glue.region": "eu-west-2"}, {"table_name": "a.t"}, {"glue.id": "123456789012"})
    for changed in (*different, {"glue.endpoint": "http://localhost:5000"}):
        other, problems = loaded(make_project, cataloged({**GLUE, **changed}))
        assert problems == []
        build_ids.add(other.sources[0].build_id)
    assert len(build_ids) == 5
    same = ({"glue.access-key-id": "${env:PERSIST_SECRET_B}"}, {"glue.profile-name": "p"})
    for changed in (*same, {"glue.warehouse": "s3://lake"}):
        other, problems = loaded(make_project, cataloged({**GLUE, **changed}))
        assert problems == []
        assert other.sources[0].build_id == source.build_id


@pytest.mark.proves("V34")
@pytest.mark.parametrize(
    ("changed", "message", "hint"),
    [
        ({"catalog_type": "gleu"}, "type `gleu` are not supported", "did you mean `glue`?"),
        ({"glue.region": None}, "a catalog needs `glue.region`", ""),
        ({"glue.region": "evil.example/x"}, "the region `evil.example/x` is invalid", "eu-central"),
        ({"glue.region": "${env:PERSIST_TOKEN_A}"}, "has to be written out", ""),
        (
            {"glue.regoin": "eu-west-1"},
            "has no option `glue.regoin`",
            "did you mean `glue.region`?",
        ),
        ({"rest.uri": "http://a"}, "`rest.uri` has no effect", "change catalog_type"),
        ({"glue.secret-access-key": "abc"}, "is a secret and must", "PERSIST_SECRET_GLUE_SECRET_"),
        ({"glue.session-token": "abc"}, "`glue.session-token` is a secret", "${env:"),
        ({"glue.access-key-id": "AKIA"}, "`glue.access-key-id` is a secret", "${env:"),
        ({"glue.access-key-id": None}, "`glue.secret-access-key` needs `glue.access-key-id`", ""),
        ({"glue.endpoint": "localhost"}, "`glue.endpoint` must be a URL", "https://"),
        ({"table_name": "a.b.t"}, "`table_name` must be database.table", ""),
        ({"metadata_location": "x"}, "`metadata_location` and a catalog both locate", "remove one"),
    ],
)
def test_invalid_declarations_of_glue_tables_are_errors(
    make_project: Make, changed: dict[str, str | None], message: str, hint: str
) -> None:
    options = {key: value for key, value in {**GLUE, **changed}.items() if value is not None}
    _, problems = loaded(make_project, cataloged(options))
    assert [p.severity for p in problems] == ["error"]
    assert message in problems[0].message
    assert hint in (problems[0].hint or "")


UNITY = {
    "uri": "uc://main.sales.events",
    "unity_workspace_url": "https://dbc.example.com",
    "unity_access_token": "${env:PERSIST_TOKEN_UNITY}",
}


def in_unity(options: dict[str, str]) -> str:
    connector = {"transport": {"name": "delta_table_input", "config": options}}
    return f"create external table t (id bigint) with ('connectors' = '{json.dumps([connector])}');"


@pytest.mark.proves("V35")
def test_a_table_of_unity_is_identified_by_its_catalog_and_name(make_project: Make) -> None:
    project, problems = loaded(make_project, in_unity(UNITY))
    assert problems == []
    (source,) = project.sources
    assert source.raw is not None
    assert source.raw.location == "https://dbc.example.com#main.sales.events"
    build_ids = {source.build_id}
    for changed in ({"uri": "uc://main.sales.other"}, {"unity_workspace_url": "http://b"}):
        other, problems = loaded(make_project, in_unity({**UNITY, **changed}))
        assert problems == []
        build_ids.add(other.sources[0].build_id)
    assert len(build_ids) == 3
    spelled = {
        "uri": UNITY["uri"],
        "databricks_host": UNITY["unity_workspace_url"],
        "databricks_token": "${env:PERSIST_TOKEN_B}",
    }
    same, problems = loaded(make_project, in_unity(spelled))
    assert problems == []
    assert same.sources[0].build_id == source.build_id


@pytest.mark.proves("V35")
@pytest.mark.parametrize(
    ("changed", "message", "hint"),
    [
        ({"uri": "uc://main.events"}, "`uri` must be uc://catalog.schema.table", ""),
        ({"uri": "uc://main.sales.events/x"}, "`uri` must be uc://catalog.schema.table", ""),
        ({"unity_workspace_url": None}, "needs `unity_workspace_url`", "databricks.com"),
        ({"unity_workspace_url": "dbc.example.com"}, "must be a URL", "https://"),
        ({"unity_workspace_url": "${env:PERSIST_TOKEN_A}"}, "has to be written out", ""),
        ({"unity_workspace_url": "https://u:p@dbc"}, "must be a URL without credentials", ""),
        ({"unity_access_token": "dapi0"}, "is a secret and must not", "UNITY_ACCESS_TOKEN}"),
        ({"unity_acess_token": "x"}, "no option `unity_acess_token`", "`unity_access_token`?"),
        ({"databricks_host": "https://b"}, "`databricks_host` conflicts with", ""),
        ({"unity_allow_http_url": "true"}, "has no option `unity_allow_http_url` here", "remove"),
    ],
)
def test_invalid_declarations_of_unity_tables_are_errors(
    make_project: Make, changed: dict[str, str | None], message: str, hint: str
) -> None:
    options = {key: value for key, value in {**UNITY, **changed}.items() if value is not None}
    _, problems = loaded(make_project, in_unity(options))
    assert [p.severity for p in problems] == ["error"]
    assert message in problems[0].message
    assert hint in (problems[0].hint or "")


@pytest.mark.proves("V35")
def test_unity_options_without_a_unity_table_are_reported(make_project: Make) -> None:
    _, problems = loaded(make_project, in_unity({**UNITY, "uri": "s3://lake/events"}))
    assert ["has no effect" in p.message for p in problems] == [True, True]


DATABASE = {"uri": "postgresql://me@db/sales?sslmode=require", "table": "public.events"}


def in_database(options: dict[str, object]) -> str:
    connector = {"transport": {"name": "postgres_input", "config": options}}
    columns = "id bigint, at timestamp"
    return f"create external table t ({columns}) with ('connectors' = '{json.dumps([connector])}');"


@pytest.mark.proves("V14")
@pytest.mark.parametrize(
    ("before", "after", "is_same"),
    [("at timestamp", "at timestamp, x int", True), ("id bigint", "id int", False)],
)
def test_an_unused_column_of_a_database_table_does_not_change_its_readers(
    make_project: Make, before: str, after: str, is_same: bool
) -> None:
    text = in_database(DATABASE) + "create materialized view v as select id from t;"
    projects = (loaded(make_project, t)[0] for t in (text, text.replace(before, after)))
    first, second = ({s.name: s.build_id for s in p.sources}["v"] for p in projects)
    assert (first == second) is is_same


@pytest.mark.proves("V14", "V15")
def test_a_table_of_a_database_is_identified_without_its_password(make_project: Make) -> None:
    password = {"password": "${env:PERSIST_SECRET_PG}"}
    project, problems = loaded(make_project, in_database({**DATABASE, **password}))
    assert problems == []
    (source,) = project.sources
    assert source.raw is not None
    assert source.raw.location == "postgresql://me@db/sales?sslmode=require#public.events"
    same, _ = loaded(make_project, in_database(DATABASE))
    assert same.sources[0].build_id == source.build_id
    ids = {source.build_id}
    for changed in ({"table": "events"}, {"uri": "postgresql://me@db/b"}, {"cursor": "ID"}):
        other, problems = loaded(make_project, in_database({**DATABASE, **changed}))
        assert problems == []
        ids.add(other.sources[0].build_id)
    assert len(ids) == 4


@pytest.mark.proves("V14", "V15")
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"uri": "postgresql://me:secret@db/sales"}, "`uri` contains credentials"),
        ({"uri": "postgresql://me@db/sales?password=x"}, "`uri` contains credentials"),
        ({"uri": "postgresql://me@db/sales?sslpassword=x"}, "`uri` contains credentials"),
        ({"uri": "${env:PERSIST_SECRET_URL}"}, "has to be written out"),
        ({"uri": "mysql://me@db/sales"}, "must be the URL of a PostgreSQL database"),
        ({"uri": "postgresql://me@db/sales#x"}, "must be the URL of a PostgreSQL database"),
        ({"uri": None}, "must be the URL of a PostgreSQL database"),
        ({"uri": 3}, "`uri` must be a string"),
        ({"table": None}, "needs the name of a table"),
        ({"table": " t"}, "needs the name of a table"),
        ({"password": "abc"}, "`password` is a secret and must not be written here"),
        ({"mode": "follow"}, "has no mode follow"),
        ({"cursor": "updated"}, "`cursor` names `updated`, which is not a column of `t`"),
        ({"version": 3}, "`postgres_input` has no option `version`"),
        ({"query": "select 1"}, "`postgres_input` has no option `query`"),
        ({"aws_region": "x"}, "`postgres_input` has no option `aws_region`"),
    ],
)
def test_invalid_declarations_of_database_tables_are_errors(
    make_project: Make, changed: dict[str, object], message: str
) -> None:
    options = {key: value for key, value in {**DATABASE, **changed}.items() if value is not None}
    _, problems = loaded(make_project, in_database(options))
    assert "error" in [p.severity for p in problems]
    assert message in problems[0].message
    assert "secret@" not in str(problems)
