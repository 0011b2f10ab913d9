"""``CREATE EXTERNAL TABLE``: which options are read, and where and why others are rejected."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from conftest import compiled
from proposed import TABLE, V1, V2

from persist_assets.compiler.frontends.external_options import LACKING, public_pairs
from persist_assets.compiler.frontends.intervals import missing_keywords
from persist_assets.compiler.frontends.sql import parse_sql
from persist_assets.core.model.annotations import Kind
from persist_assets.core.model.sources import Declaration, External

if TYPE_CHECKING:
    from persist_assets.core.errors import Problem


def declared(config: Any, name: str = "delta_table_input", **more: Any) -> str:
    connector = [{"transport": {"name": name, "config": config}, **more}]
    written = json.dumps(connector).replace("'", "''")
    return f"CREATE EXTERNAL TABLE t (id BIGINT, c STRING, ts TIMESTAMP) WITH ('connectors' = '{written}')"


def read(text: str) -> tuple[Declaration, list[Problem]]:
    declarations, problems = parse_sql(text, "a.sql")
    return declarations[0], problems


def one(text: str) -> External:
    declaration, problems = read(text)
    assert not problems, [str(p) for p in problems]
    assert declaration.raw is not None
    assert declaration.raw.external is not None
    return declaration.raw.external


def wrong(text: str) -> Problem:
    declaration, problems = read(text)
    assert declaration.raw is None
    assert len(problems) == 1, [str(p) for p in problems]
    return problems[0]


@pytest.mark.proves("F1")
def test_varchar_without_a_length_is_a_string_only_in_external_tables() -> None:
    text = declared({"uri": "s3://a/b", "mode": "snapshot"})
    columns = "c VARCHAR, names ARRAY<VARCHAR>, d VARCHAR(3)"
    declaration, problems = read(text.replace("c STRING", columns))
    assert not problems
    types = {c.name: c.type for c in declaration.columns}
    assert (types["c"], types["names"]) == ("string", "array<string>")
    assert types["d"] == "varchar(3)"
    raw = "CREATE TABLE t (c VARCHAR) USING parquet LOCATION 't'"
    assert "needs a length" in str(parse_sql(raw, "a.sql")[1][0])


@pytest.mark.proves("F1")
@pytest.mark.parametrize("view", [V1, V2])
def test_the_programs_of_the_proposal_compile_unchanged(view: str) -> None:
    project = compiled({"a.sql": TABLE + view})
    assert not project.problems
    table, v1 = sorted(project.sources, key=lambda s: s.name)
    assert table.kind is Kind.EXTERNAL
    assert table.raw is not None
    assert (table.raw.format, table.raw.location) == ("delta", "s3://...")
    assert table.raw.external == External("delta_table_input", key=("id",))
    assert [(c.name, c.type) for c in table.columns] == [
        ("id", "bigint"),
        ("category", "string"),
        ("ts", "timestamp"),
    ]
    assert v1.reads == (table.source_id,)
    assert v1.reads_clock == "instant"


@pytest.mark.proves("F1")
def test_a_plain_table_is_raw_and_differs_from_an_external_table() -> None:
    text = "CREATE TABLE t (id BIGINT, c STRING) USING delta LOCATION 'x'"
    plain, problems = read(text)
    assert not problems
    assert plain.raw is not None
    assert (plain.raw.external, plain.raw.options) == (None, ())
    source = compiled({"a.sql": text}).sources[0]
    assert source.kind is Kind.RAW
    # The same table as an external table has another BuildID, by which builds are found.
    external = text.replace("TABLE", "EXTERNAL TABLE").replace(
        "USING delta LOCATION 'x'",
        """WITH ('connectors' = '[{"transport": {"name": "delta_table_input", "config": {"uri": "x"}}}]')""",
    )
    assert compiled({"a.sql": external}).sources[0].build_id != source.build_id


@pytest.mark.parametrize("head", ["CREATE", "create", "Create Or Replace"])
def test_keywords_and_property_names_are_case_insensitive(head: str) -> None:
    text = TABLE.replace("create", head)
    assert one(
        text.upper()
        .replace(TABLE[TABLE.index("'[") :].upper(), TABLE[TABLE.index("'[") :])
        .replace("'CONNECTORS'", "'connectors'")
    )
    assert one(text.replace("'connectors'", "'Connectors'"))


# ------------------------------------------------------------------------------------- intervals


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT NOW() - 6 months", "SELECT NOW() - INTERVAL 6 months"),
        ("SELECT now()-6 MONTH x", "SELECT now()-INTERVAL 6 MONTH x"),
        ("SELECT NOW() + 1 day - 3 hours", "SELECT NOW() + INTERVAL 1 day - INTERVAL 3 hours"),
        ("SELECT CURRENT_TIMESTAMP - 2 weeks", "SELECT CURRENT_TIMESTAMP - INTERVAL 2 weeks"),
        (
            "SELECT NOW() /* x */ - -- y\n 6 months",
            "SELECT NOW() /* x */ - -- y\n INTERVAL 6 months",
        ),
        *(
            (text, text)
            for text in (
                "SELECT NOW() - INTERVAL 6 MONTHS",
                "SELECT NOW() - INTERVAL '6' MONTH",
                "SELECT NOW() - INTERVAL '6 months'",
                "SELECT current_date() - 6 days",  # the name of the result is days
                "SELECT x.now - 6 months",
                "SELECT a - 6 months",
                "SELECT 'NOW() - 6 months'",
                "SELECT 1 -- NOW() - 6 months",
                "SELECT NOW() - 6 AS months",
            )
        ),
    ],
)
def test_interval_is_inserted_only_where_it_is_unambiguous(text: str, expected: str) -> None:
    done = text
    for place in reversed(missing_keywords(text)):
        done = f"{done[:place]}INTERVAL {done[place:]}"
    assert done == expected


def test_locations_refer_to_the_file_despite_inserted_keywords() -> None:
    text = (
        "CREATE VIEW a AS SELECT NOW() - 6 months AS m, * FROM nowhere; CREATE VIEW b AS SELECT ("
    )
    declarations, problems = parse_sql(text, "a.sql")
    query = declarations[0].query
    assert query is not None
    assert query.text == "SELECT NOW() - INTERVAL 6 months AS m, * FROM nowhere"
    reference = query.references[0]
    assert query.text[reference.start : reference.end] == "nowhere"
    assert reference.location.column == text.index("nowhere") + 1
    assert declarations[1].location.column == text.index("b AS") + 1
    assert problems[0].location.column >= text.index("SELECT (")


def test_intervals_with_and_without_the_keyword_have_one_build_id() -> None:
    ids = {
        compiled(
            {"a.sql": TABLE + f"CREATE VIEW v AS SELECT id FROM external_table WHERE ts >= {t}"}
        )
        .by_id["v@sources/a.sql"]
        .build_id
        for t in ("NOW() - 6 months", "NOW() - INTERVAL 6 months")
    }
    assert len(ids) == 1


# --------------------------------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, {}),
        ({"mode": "snapshot"}, {"mode": "snapshot"}),
        ({"mode": "follow", "version": 0}, {"mode": "follow", "version": 0}),
        ({"version": 3, "end_version": 3}, {"version": 3, "end_version": 3}),
        ({"datetime": "2024-12-09T16:09:53+01:00"}, {"datetime": "2024-12-09T15:09:53+00:00"}),
        ({"filter": " c = 'a''b' "}, {"filter": "c = 'a''b'"}),
        ({"filter": 'c = "x"'}, {"filter": 'c = "x"'}),
        ({"snapshot_filter": "ts BETWEEN '2005-01-01' AND '2010-12-31'"}, {"snapshot_filter": "ts BETWEEN '2005-01-01' AND '2010-12-31'"}),
        ({"timestamp_column": "TS"}, {"timestamp_column": "ts"}),
        ({"skip_unused_columns": False}, {"skip_unused_columns": False}),
        (
            {"aws_secret_access_key": "${env:LAKE_KEY}", "AWS_Region": "eu-west-1", "aws_allow_http": True},
            {"storage": (("aws_allow_http", "true"), ("aws_region", "eu-west-1"), ("aws_secret_access_key", "${env:LAKE_KEY}"))},
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["delta_table_input", "iceberg_input"])
def test_options_are_read(name: str, config: dict[str, Any], expected: dict[str, Any]) -> None:
    assert one(declared({"uri": "x", **config}, name)) == External(name, **expected)


def test_iceberg_connectors_have_their_own_option_names() -> None:
    config = {"metadata_location": "s3://b/t/v3.metadata.json", "snapshot_id": 7051729675574597004}
    declaration, problems = read(declared(config, "iceberg_input"))
    assert [p.severity for p in problems] == ["warning"]  # it has no mode
    assert declaration.raw is not None
    assert (declaration.raw.format, declaration.raw.location) == (
        "iceberg",
        config["metadata_location"],
    )
    assert declaration.raw.external == External("iceberg_input", version=7051729675574597004)


FOLLOWED = "later versions are not found and nothing is followed"


@pytest.mark.parametrize("mode", ["follow", "snapshot_and_follow", "snapshot", None])
@pytest.mark.parametrize(
    ("place", "is_of_one_version"),
    [
        ("s3://b/t/metadata/00012-7f2a.metadata.json", True),
        ("s3://b/t/metadata/00012-7f2a.gz.metadata.json", True),
        ("v3.metadata.json.gz", True),
        ("t/metadata/newest.metadata.json", False),  # which may be overwritten
        ("s3://b/t", False),
    ],
)
@pytest.mark.parametrize("key", ["uri", "metadata_location"])
def test_following_a_metadata_file_is_warned_about_or_rejected(
    key: str, place: str, is_of_one_version: bool, mode: str | None
) -> None:
    config = {key: place} | ({} if mode is None else {"mode": mode})
    text = declared(config, "iceberg_input")
    _, problems = read(text)
    if not is_of_one_version or mode == "snapshot":
        assert not problems
        return
    (problem,) = problems
    assert (problem.code, problem.severity) == (
        "external-mode",
        "warning" if mode is None else "error",
    )
    assert FOLLOWED in problem.message
    assert "set `uri` to the table's directory" in (problem.hint or "")
    at = key if mode is None else "mode"
    assert problem.location.column == text.index(f'"{at}":') + 1


def test_labels_start_after_and_append_only_are_read() -> None:
    text = declared({"uri": "x"}, name="delta_table_input", labels=["a"], start_after="b")
    external = one(text[:-1] + ", 'append_only' = 'true', 'materialized' = 'false')")
    assert (external.labels, external.start_after, external.append_only) == (("a",), ("b",), True)


@pytest.mark.parametrize(
    ("key", "columns"),
    [
        ("(id BIGINT PRIMARY KEY, b INT)", ("id",)),
        ("(id BIGINT NOT NULL PRIMARY KEY, b INT)", ("id",)),
        ("(id BIGINT, B INT, PRIMARY KEY (id, b))", ("id", "B")),
        ("(id BIGINT)", ()),
    ],
)
def test_a_primary_key_is_read(key: str, columns: tuple[str, ...]) -> None:
    config = """WITH ('connectors' = '[{"transport": {"name": "delta_table_input", "config": {"uri": "x"}}}]')"""
    assert one(f"CREATE EXTERNAL TABLE t {key} {config}").key == columns


WRONG = [
    ({"uri": "x", "vresion": 1}, "option", "has no option `vresion`", "did you mean `version`?", '"vresion"'),
    ({"uri": "x", "aws_regoin": "a"}, "option", "has no option `aws_regoin`", "did you mean `aws_region`?", '"aws_regoin"'),
    ({"uri": "x", "version": 1, "datetime": "2024-01-01T00:00:00Z"}, "version", "`version` and `datetime`", "remove one", '"datetime"'),
    ({"uri": "x", "version": "1"}, "type", "`version` must be an integer", None, '"version"'),
    ({"uri": "x", "version": True}, "type", "`version` must be an integer", None, '"version"'),
    ({"uri": "x", "version": 1.5}, "type", "`version` must be an integer", None, '"version"'),
    ({"uri": "x", "version": -1}, "type", "`version` must not be negative", None, '"version"'),
    ({"uri": "x", "version": 5, "end_version": 4}, "version", "`end_version` is before `version`", None, '"end_version"'),
    ({"uri": "x", "mode": "snapshot", "end_version": 4}, "version", "does not follow", "remove one", '"end_version"'),
    ({"uri": "x", "mode": "follow", "snapshot_filter": "id = 1"}, "mode", "mode follow skips", None, '"snapshot_filter"'),
    ({"uri": "x", "mode": "folow"}, "mode", "unknown mode `folow`", "did you mean `follow`?", '"mode"'),
    ({"uri": "x", "mode": "cdc"}, "mode", "unknown mode `cdc`", "a view of the last row", '"mode"'),
    ({"uri": "x", "datetime": "yesterday"}, "type", "`datetime` is not a timestamp", "for example", '"datetime"'),
    ({"uri": "x", "datetime": "2024-01-01T00:00:00"}, "type", "time zone", "2024-01-01T00:00:00Z", '"datetime"'),
    ({"uri": "x", "filter": "id >"}, "filter", "`filter` is not a SQL condition", "for example", '"filter"'),
    ({"uri": "x", "filter": "SELECT 1"}, "filter", "`filter` is not a SQL condition", None, '"filter"'),
    ({"uri": "x", "filter": ""}, "filter", "`filter` is not a SQL condition", "for example", '"filter"'),
    ({"uri": "x", "filter": "idd = 1"}, "filter", "`filter` names `idd`, which is not a column of `t`", "did you mean `id`?", '"filter"'),
    ({"uri": "x", "snapshot_filter": "x.y = 1"}, "filter", "`snapshot_filter` names `x`", None, '"snapshot_filter"'),
    ({"uri": "x", "filter": "id IN (SELECT id FROM u)"}, "filter", "contains a query", None, '"filter"'),
    ({"uri": "x", "filter": "id = :id"}, "filter", "contains a parameter", None, '"filter"'),
    ({"uri": "x", "timestamp_column": "tss"}, "column", "`tss`, which is not a column of `t`", "did you mean `ts`?", '"timestamp_column"'),
    ({"uri": "x", "skip_unused_columns": "true"}, "type", "true or false", None, '"skip_unused_columns"'),
    ({"uri": "x", "transaction_mode": "snapshots"}, "mode", "unknown transaction mode `snapshots`", "did you mean `snapshot`?", '"transaction_mode"'),
    ({"uri": "x", "aws_skip_signature": "yes"}, "type", "`aws_skip_signature` must be true or false", None, '"aws_skip_signature"'),
    ({"uri": "x", "aws_skip_signature": True, "aws_access_key_id": "${env:K}"}, "option", "without a signature", "remove the keys", '"aws_skip_signature"'),
    ({"uri": "x", "num_parsers": 4}, "option", "Spark decides how many tasks to use", "remove it", '"num_parsers"'),
    ({"uri": "x", "azure_storage_token": "s"}, "option", "comes from the environment", "remove it", '"azure_storage_token"'),
    ({"uri": "x", "rest.uri": "s"}, "option", "catalogs are not supported", "metadata_location", '"rest.uri"'),
    ({"uri": "x", "aws_region": "${env:A}b"}, "secret", "not a valid reference", "${env:NAME}", '"aws_region"'),
    ({"uri": "x", "aws_region": "${secret:kubernetes:a/b}"}, "secret", "not a valid reference", "${env:NAME}", '"aws_region"'),
    ({"uri": "x", "aws_region": 3}, "type", "`aws_region` must be a string", None, '"aws_region"'),
    ({"uri": "x", "aws_region": "evil.example/x"}, "type", "the region `evil.example/x` is invalid", "eu-central-1", '"aws_region"'),
    ({"uri": "x", "aws_default_region": ""}, "type", "the region `` is invalid", None, '"aws_default_region"'),
    ({"uri": "x", "aws_endpoint": "127.0.0.1:9000"}, "type", "the store endpoint `127.0.0.1:9000` is not a URL", "https://", '"aws_endpoint"'),
    ({"uri": 3}, "type", "`uri` must be a string", None, '"uri"'),
    ({"uri": ""}, "uri", "needs the location of its data", None, '"uri"'),
    ({}, "uri", "needs the location of its data", None, '"config"'),
]  # fmt: skip


@pytest.mark.proves("F26")
@pytest.mark.parametrize(("config", "code", "message", "hint", "at"), WRONG)
def test_errors_in_options_are_reported_at_their_locations(
    config: dict[str, Any], code: str, message: str, hint: str | None, at: str
) -> None:
    text = declared(config)
    problem = wrong(text)
    assert problem.code == f"external-{code}"
    assert message in problem.message
    assert hint is None or hint in (problem.hint or "")
    assert problem.location.column == text.index(at + ":") + 1


@pytest.mark.parametrize(
    ("document", "message", "at"),
    [
        ('[{"transport": {"name": "delta_table_input" "config": {}}}]', "invalid JSON", '"config"'),
        ('[{"transport"', "invalid JSON", "'"),
        ("", "invalid JSON", "'"),
        ("{}", "`connectors` must be a list of objects", "{}"),
        ("[]", "one connector, not none", "[]"),
        ("[{}, {}]", "one connector, not 2", "[{}"),
        ("[{}]", "needs a transport", "[{}"),
        ('[{"transport": {}}]', "a transport needs a name", '"transport"'),
        ('[{"transport": {"name": "delta_table_input"}}]', "needs a config", '"transport"'),
        ('[{"name": "a", "name": "b", "transport": {"name": "delta_table_input", "config": {"uri": "x"}}}]', "duplicate key `name`", '"name": "b"'),
        ('[{"fromat": 1, "transport": {"name": "delta_table_input", "config": {"uri": "x"}}}]', "a connector has no option `fromat`", '"fromat"'),
        ('[{"format": {}, "transport": {"name": "delta_table_input", "config": {"uri": "x"}}}]', "the format follows from the data", '"format"'),
        ('[{"labels": 3, "transport": {"name": "delta_table_input", "config": {"uri": "x"}}}]', "`labels` must be a list", '"labels"'),
    ],
)  # fmt: skip
def test_an_invalid_connector_is_rejected_at_its_location(
    document: str, message: str, at: str
) -> None:
    text = f"CREATE EXTERNAL TABLE t\n (id BIGINT)\nWITH ('connectors' = '{document}')"
    problem = wrong(text)
    assert message in problem.message
    assert problem.location.line == 3
    line = text.split("\n")[2]
    place = line.index(at, line.index("= '") + 3)
    assert abs(problem.location.column - place - 1) <= (1 if at == "'" else 0)


@pytest.mark.proves("F2")
@pytest.mark.parametrize("name", sorted(LACKING))
def test_an_unsupported_connector_is_rejected_with_its_missing_features(name: str) -> None:
    problem = wrong(declared({}, name))
    assert f"`{name}` is not supported for external tables: it lacks " in problem.message
    assert all(lack in problem.message for lack in LACKING[name])
    assert "delta_table_input" in (problem.hint or "")


def test_a_misspelled_connector_gets_a_suggestion() -> None:
    assert wrong(declared({}, "delta_tabel_input")).hint == "did you mean `delta_table_input`?"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("CREATE EXTERNAL TABLE t (id INT)", "`t` has no connector"),
        ("CREATE EXTERNAL TABLE t WITH ('connectors' = '[]')", "has no columns"),
        ("CREATE EXTERNAL TABLE t (id INT) USING delta LOCATION 'x'", "has no USING"),
        ("CREATE EXTERNAL TABLE t (id INT) WITH ('conectors' = '[]')", "no property `conectors`"),
        ("CREATE EXTERNAL TABLE t (id INT, PRIMARY KEY (ie)) WITH ('connectors' = '[]')", "names `ie`"),
        ("CREATE LOCAL MATERIALIZED VIEW t AS SELECT 1 AS a", "`t` is LOCAL"),
        ("--@ persist\nCREATE LOCAL VIEW t AS SELECT 1 AS a", "`t` is LOCAL"),
    ],
)  # fmt: skip
def test_contradictory_or_incomplete_statements_are_rejected(text: str, message: str) -> None:
    assert any(message in p.message for p in read(text)[1])


@pytest.mark.parametrize(
    "condition",
    [
        "ts > NOW()",
        "ts > NOW() - 6 days",
        "rand() > 0.5",
        "sum(id) > 1",
        "c = current_user()",
        "ts <= 'now'",
        "CAST(ts AS DATE) < 'tomorrow'",
        "ts BETWEEN '2024-01-01' AND ' Today'",
        "ts IN ('2024-01-01', 'yesterday')",
        "to_date('now') > ts",
        "ts > '10:30'",
        "id",
        "(1)",
        "id + 1",
    ],
)
def test_a_filter_must_be_a_deterministic_condition_on_rows(condition: str) -> None:
    project = compiled({"a.sql": declared({"uri": "x", "filter": condition})})
    assert [p.code for p in project.problems] == ["external-filter"]


@pytest.mark.parametrize("condition", ["c = 'now'", "'today' <> c", "c IN ('now', 'then')"])
def test_a_filter_may_compare_strings_with_words_that_name_times(condition: str) -> None:
    project = compiled({"a.sql": declared({"uri": "x", "filter": condition})})
    assert not project.problems


# --------------------------------------------------------------------------------------- secrets

SECRET = "wJalrXUtnFEMI"


@pytest.mark.parametrize(
    "config",
    [
        {"uri": "x", "aws_secret_access_key": SECRET},
        {"uri": "x", "aws_access_key_id": SECRET},
        {"uri": "x", "AWS_SESSION_TOKEN": SECRET},
        {"uri": f"s3://key:{SECRET}@bucket/x"},
        {"uri": f"abfss://c@a.dfs.core.windows.net/x?sig={SECRET}"},
        {"uri": f"s3://b/x?X-Amz-Signature={SECRET}"},
    ],
)
def test_a_secret_in_plain_text_is_rejected_and_not_repeated(config: dict[str, Any]) -> None:
    problem = wrong(declared(config))
    assert problem.code == "external-secret"
    assert "${env:" in (problem.hint or "")
    assert SECRET not in str(problem)


def test_credentials_and_skip_unused_columns_do_not_affect_build_ids() -> None:
    def build_id(**config: Any) -> str:
        return compiled({"a.sql": declared({"uri": "x", **config})}).sources[0].build_id

    plain = build_id()
    assert build_id(aws_secret_access_key="${env:A}", aws_access_key_id="${env:B}") == plain
    assert build_id(skip_unused_columns=False) == plain
    for other in (
        {"version": 3},
        {"filter": "id = 1"},
        {"mode": "snapshot"},
        {"aws_endpoint": "https://e"},
    ):
        assert build_id(**other) != plain
    external = External("delta_table_input", storage=(("aws_access_key_id", "${env:A}"),))
    assert "A" not in str(public_pairs(external))


def test_two_external_tables_can_share_a_location() -> None:
    text = declared({"uri": "x"})
    project = compiled({"a.sql": f"{text}; {text.replace('TABLE t', 'TABLE u')}"})
    a, b = project.sources
    assert a.build_id == b.build_id
