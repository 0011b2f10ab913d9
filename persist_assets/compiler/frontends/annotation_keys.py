"""The keys of annotations: the reference in docs/ is made from this table."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from persist_assets.compiler.frontends.annotated_checks import read_check
from persist_assets.compiler.frontends.annotated_ops import (
    read_k8s,
    read_op_tags,
    read_pool,
    read_retries,
)
from persist_assets.compiler.frontends.annotation_values import (
    column_names,
    flag,
    moment,
    read_assume,
    read_automation,
    read_backfill,
    read_columns,
    read_duration,
    read_freshness,
    read_group,
    read_hard_deletes,
    read_merge,
    read_on_change,
    read_on_schema_change,
    read_owners,
    read_partition,
    read_refresh,
    read_strategy,
    read_tags,
    read_text,
    read_timezone,
    read_want,
    table_name,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from persist_assets.compiler.frontends.motly import Tag


class Key(NamedTuple):
    """A key of annotations.

    Attributes
    ----------
    field
        The field of `Annotation` that it becomes.
    read
        Validates a value and returns what the field holds.
    forms
        The forms of its value, each with its meaning, in Markdown; links are relative to docs/.
    """

    field: str | None
    read: Callable[[Tag, str], object]
    forms: tuple[tuple[str, str], ...]


KEYS: Mapping[str, Key] = {
    "persist": Key(
        "persist",
        flag,
        (
            (
                "",
                "the source has a table and is a Dagster asset. `CREATE MATERIALIZED VIEW` means "
                "the same; `-persist` undoes it",
            ),
        ),
    ),
    "name": Key(
        "name",
        table_name,
        (
            (
                '`name="daily"`',
                "replaces the source's name in the name of the table's directory, and names its "
                "view in the catalog (`views` in `persist.toml`)",
            ),
        ),
    ),
    "materialized": Key(
        "strategy",
        read_strategy,
        (
            (
                "`table`, `view`, `temporary`",
                "how the rows are stored: [more](annotations.md#materializations)",
            ),
        ),
    ),
    "time_column": Key(
        "time_column",
        read_text,
        (
            (
                "`time_column=flight_date`",
                "its greatest value is recorded as the watermark of every snapshot",
            ),
        ),
    ),
    "watermark": Key(
        "time_column",
        read_text,
        (
            (
                "`watermark=ts`",
                "another name for `time_column`",
            ),
        ),
    ),
    "refresh": Key(
        "refresh",
        read_refresh,
        (
            (
                "`auto`, `incremental`, `strict`, `whole`",
                "[which rows a build computes](annotations.md#incremental-builds)",
            ),
            (
                "`snapshot`",
                "the table [keeps versions of rows](annotations.md#versions-of-rows)",
            ),
        ),
    ),
    "lookback": Key(
        "lookback_s",
        read_duration,
        (
            (
                '`lookback="2 days"`',
                "with `assume=exact`: how late rows may arrive",
            ),
        ),
    ),
    "assume": Key(
        "assume",
        read_assume,
        (
            (
                "`exact`",
                "you assert that only rows past the watermark are new: "
                "[more](annotations.md#assumeexact)",
            ),
        ),
    ),
    "merge_key": Key(
        "merge",
        read_merge,
        (
            (
                "`merge_key=id`, or a list",
                "the table has one row per key, the latest by the watermark",
            ),
            (
                "`merge_key=id { on_tie=greatest }`",
                "if different rows of a key tie for the latest, take the greatest, comparing "
                "columns in order; by default a tie is an error",
            ),
        ),
    ),
    "by": Key(
        "by",
        column_names,
        (
            (
                '`by="customer_id"`, or a list',
                "on a Python function: you assert that the rows of a key follow only from the rows "
                "with this key in the inputs, so [builds compute only keys that "
                "changed](python.md#functions-by-key)",
            ),
        ),
    ),
    "partition": Key(
        "partition",
        read_partition,
        (
            (
                "`partition=daily` and `time_column`",
                "build the table [partition by partition](annotations.md#partitions): `hourly`, "
                "`daily`, `weekly`, `monthly`",
            ),
            (
                "`partition { day=daily origin=[EWR, JFK] }`",
                "the same with columns of any name, with listed values, or with two dimensions",
            ),
        ),
    ),
    "start": Key(
        "start",
        moment,
        (
            (
                '`start="2013-01-01"`',
                "the first window begins then, or as soon as possible after it",
            ),
        ),
    ),
    "end": Key(
        "end",
        moment,
        (
            (
                '`end="2014-01-01"`',
                "the last window ends then or before; without it, there is no last window",
            ),
        ),
    ),
    "timezone": Key(
        "timezone",
        read_timezone,
        (
            (
                '`timezone="Europe/Berlin"`',
                "the time zone in which windows of a day or longer begin; default `UTC`",
            ),
        ),
    ),
    "backfill": Key(
        "backfill",
        read_backfill,
        (
            (
                "`single_run`, `multi_run`",
                "whether a Dagster backfill is one run (the default) or one run per partition",
            ),
        ),
    ),
    "key": Key(
        "key",
        column_names,
        (
            (
                "`key=id`, or a list",
                "with `refresh=snapshot`: the columns that identify a row across versions",
            ),
        ),
    ),
    "watch": Key(
        "watch",
        column_names,
        (
            (
                "`watch=[a, b]`",
                "with `refresh=snapshot`: only changes of these columns create a new version",
            ),
        ),
    ),
    "hard_deletes": Key(
        "hard_deletes",
        read_hard_deletes,
        (
            (
                "`close`, `ignore`",
                "with `refresh=snapshot`: what happens to the current version of a key that is "
                "gone",
            ),
        ),
    ),
    "on_change": Key(
        "on_change",
        read_on_change,
        (
            (
                "`rebuild`, `continue`",
                "what happens to the table when [the query changes its "
                "meaning](annotations.md#keep-old-rows-when-the-query-changes)",
            ),
        ),
    ),
    "owner": Key(
        "owners",
        read_owners,
        (
            (
                '`owner="team:flights"`, or a list',
                "e-mail addresses or teams",
            ),
        ),
    ),
    "tags": Key(
        "tags",
        read_tags,
        (
            (
                "`tags=[nightly]`, `tags { tier=gold }`",
                "Dagster tags",
            ),
        ),
    ),
    "group": Key(
        "group",
        read_group,
        (
            (
                "`group=flights`",
                "Dagster group; default: the asset key without the source's name",
            ),
        ),
    ),
    "freshness": Key(
        "freshness",
        read_freshness,
        (
            (
                '`freshness.window="24h"`, `freshness.warn="12h"`',
                "a Dagster [freshness](annotations.md#freshness) policy; at least 60 seconds",
            ),
            (
                "`freshness.fallback=live`",
                "what readers get from a table older than its window. `stale_ok` (the default): "
                "the table, with a warning; `live`: the query, computed for them; `fail`: an "
                "error",
            ),
        ),
    ),
    "columns": Key(
        "columns",
        read_columns,
        (
            (
                '`columns { a=string n="bigint not null" }`',
                "a [contract](annotations.md#contracts): the table has these columns and no others",
            ),
        ),
    ),
    "on_schema_change": Key(
        "on_schema_change",
        read_on_schema_change,
        (
            (
                "`fail`, `append`, `sync`",
                "what happens if the new rows have other columns than the published table: "
                "[more](annotations.md#schema-changes)",
            ),
        ),
    ),
    "automation": Key(
        "automation",
        read_automation,
        (
            (
                '`eager`, `missing`, `"0 6 * * *"`',
                "when Dagster builds it automatically: [more](annotations.md#automation)",
            ),
        ),
    ),
    "want": Key(
        "want",
        read_want,
        (
            (
                '`want { every=daily sla="9h" ttl="365d" needs=["users:data/users"] }`',
                "wants are created for the source on a schedule: "
                "[more](annotations.md#scheduled-wants)",
            ),
        ),
    ),
    "retries": Key(
        "retries",
        read_retries,
        (
            (
                "`retries=3`",
                "how many times a failed step is retried: [more](annotations.md#steps)",
            ),
            (
                '`retries=3 { delay="30s" backoff=exponential jitter=full }`',
                "the delay before each attempt; `backoff` is `linear` or `exponential`, `jitter` "
                "`full` or `plus_minus`",
            ),
        ),
    ),
    "pool": Key(
        "pool",
        read_pool,
        (
            (
                "`pool=warehouse`",
                "Dagster runs at most as many such steps at once as the pool has slots, in all "
                "runs: [more](annotations.md#steps)",
            ),
        ),
    ),
    "op_tags": Key(
        "op_tags",
        read_op_tags,
        (
            (
                "`` op_tags { `dagster/priority`=3 } ``",
                "tags of the op, which executors read; `tags` are those of the asset",
            ),
        ),
    ),
    "k8s": Key(
        "k8s",
        read_k8s,
        (
            (
                "`k8s.container_config.resources.requests.memory=4Gi`",
                "the [configuration of dagster-k8s](annotations.md#kubernetes) for the step",
            ),
        ),
    ),
    "check": Key(
        "checks",
        read_check,
        (
            (
                "[more](annotations.md#checks)",
                "assertions about all rows, or about the rows of each partition",
            ),
        ),
    ),
}
"""Every key. A contract (`columns`) becomes checks too."""
