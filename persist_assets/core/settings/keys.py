"""The keys of `persist.toml`: the reference in docs/ is made from these tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


SETTINGS_FILE = "persist.toml"
LAYOUTS = ("file-and-name", "model-per-file")
"""The values of `layout`, the default first."""

KEEP_GOING = "PERSIST_KEEP_GOING"
"""The environment variable that, when ``true``, lets sound sources be built despite errors."""

CACHE = "PERSIST_CACHE"
"""The environment variable that names the user's cache directory (`user_cache`)."""

OUT_OF_PROJECT = "it leads outside the project"
"""The reason why a link among the sources is not followed."""

STATE = ".persist"
"""The directory in the project root for everything that no setting puts elsewhere."""


class Key(NamedTuple):
    """A key of `persist.toml`.

    Attributes
    ----------
    type
        The type of its value, as TOML has it.
    meaning
        What it is for, in Markdown; links are relative to docs/.
    default
        As it is written in `persist.toml`; empty if there is none.
    """

    type: type
    meaning: str
    default: str = ""


KEYS: Mapping[str, Key] = {
    "sources": Key(
        str,
        "the directory of the sources, inside the project",
        default='"sources"',
    ),
    "layout": Key(
        str,
        "`model-per-file`: a source with the name of its file has the file's path as its asset "
        "key, `staging/stg_orders`. `file-and-name`: all keys end in the file and the name. "
        "[More](settings.md#one-model-per-file)",
        default='"file-and-name"',
    ),
    "key_prefix": Key(
        str,
        "the beginning of all asset keys, with `/` between parts: "
        "[more](settings.md#several-projects)",
        default='""',
    ),
    "environment": Key(
        str,
        "the environment that is read and written; `PERSIST_ENV` and `--env` override it",
        default='"dev"',
    ),
    "warehouse": Key(
        str,
        "where tables are stored: a path or a URI ([object stores](settings.md#object-stores))",
        default='".persist/warehouse"',
    ),
    "ledger": Key(
        str,
        "the database of all state: a SQLite file, or [PostgreSQL](settings.md#the-ledger)",
        default='"sqlite:///.persist/ledger.db"',
    ),
    "timezone": Key(
        str,
        "the Spark session's time zone",
        default='"UTC"',
    ),
    "strict": Key(
        bool,
        "persisted sources are never computed inline; they have to be built first",
        default="false",
    ),
    "parallel": Key(
        int,
        "how many sources a run builds at once; `0`: as many as Spark runs tasks, at most 16",
        default="0",
    ),
    "approve_above": Key(
        int,
        "how many bytes of an [external table](external-tables.md#how-rows-get-here) a build "
        "may read at once without approval, when it first copies the table, needs more of it or"
        " copies it again. Larger reads need `persist external sync --approve`. `0`: no limit",
        default="0",
    ),
    "keep": Key(
        str,
        "how long `persist gc` keeps what a manifest has named, and so how far back a rollback "
        "reaches. Choose more than your longest query takes",
        default='"7 days"',
    ),
    "store_timeout": Key(
        str,
        "how long an object store may take to answer a request ([object "
        "stores](settings.md#object-stores))",
        default='"60s"',
    ),
    "store_retry": Key(
        str,
        "how long requests are repeated when an object store throttles them",
        default='"5m"',
    ),
    "functions": Key(
        list,
        "the names of the functions that the Spark session has besides Spark's built-in ones. A "
        "query that calls any other function is an error. Not needed with `spark.remote`, a Hive "
        "catalog, session extensions or JARs: then unknown functions are left to Spark",
        default="[]",
    ),
    "views": Key(
        str,
        "the names of catalog views for sources that have a `name`, in a catalog that outlives "
        'the session: `views = "{name}"` ([more](settings.md#views-in-the-catalog))',
    ),
    "spark": Key(
        dict,
        'settings of the Spark session: `"spark.driver.memory" = "4g"`',
    ),
    "variables": Key(
        dict,
        "values of SQL variables: [more](functions.md#variables)",
    ),
    "malloy": Key(
        dict,
        "how Malloy files are compiled: [more](settings.md#malloy)",
    ),
    "store": Key(
        dict,
        "how buckets are accessed: [more](settings.md#object-stores)",
    ),
    "upstream": Key(
        dict,
        "other graphs that wants wait for: [more](settings.md#other-graphs)",
    ),
    "sla": Key(
        dict,
        "`webhook`: the URL to which Dagster's sensor `persist_wants` sends missed deadlines, "
        "each as a JSON event. If it does not answer, the sensor tries again at its next tick",
    ),
    "alerts": Key(
        dict,
        "channels for alerts: [more](operations.md#alerts)",
    ),
    "cost": Key(
        dict,
        "prices, for `persist cost`: [more](operations.md#cost)",
    ),
    "service": Key(
        dict,
        "how the service identifies users behind a proxy: [more](service.md#users-of-a-proxy)",
    ),
    "roles": Key(
        dict,
        "who may do what in the service: [more](service.md#roles)",
    ),
    "retention": Key(
        dict,
        "how long events are kept: [more](settings.md#housekeeping)",
    ),
    "defaults": Key(
        dict,
        'annotations for the sources of whole directories: `[defaults."staging/**"]` '
        "([more](annotations.md#defaults-for-directories))",
    ),
    "selectors": Key(
        dict,
        "names for selections: `selector:NAME` ([more](cli.md#saved-selectors))",
    ),
    "env": Key(
        dict,
        "settings for single environments: [more](settings.md#environments)",
    ),
}
"""The keys of `persist.toml`."""

ENV_KEYS: Mapping[str, Key] = {
    "reads": Key(
        str,
        "the environment whose tables are read where this one has none of its own",
    ),
    "raw": Key(
        dict,
        "the locations of raw tables in this environment, by name or asset key",
    ),
    "warehouse": Key(
        str,
        "override the project's values. Settings of `spark`, variables, givens and virtual tables "
        "are overridden one by one, `harmless` and `build_ids` each as a whole",
    ),
    "strict": Key(
        bool,
        "override the project's values. Settings of `spark`, variables, givens and virtual tables "
        "are overridden one by one, `harmless` and `build_ids` each as a whole",
    ),
    "parallel": Key(
        int,
        "override the project's values. Settings of `spark`, variables, givens and virtual tables "
        "are overridden one by one, `harmless` and `build_ids` each as a whole",
    ),
    "views": Key(
        str,
        "override the project's values. Settings of `spark`, variables, givens and virtual tables "
        "are overridden one by one, `harmless` and `build_ids` each as a whole",
    ),
    "spark": Key(
        dict,
        "override the project's values. Settings of `spark`, variables, givens and virtual tables "
        "are overridden one by one, `harmless` and `build_ids` each as a whole",
    ),
    "variables": Key(
        dict,
        "override the project's values. Settings of `spark`, variables, givens and virtual tables "
        "are overridden one by one, `harmless` and `build_ids` each as a whole",
    ),
    "malloy": Key(
        dict,
        "override the project's values. Settings of `spark`, variables, givens and virtual tables "
        "are overridden one by one, `harmless` and `build_ids` each as a whole",
    ),
    "cost": Key(
        dict,
        "prices of this environment; they override the project's one by one",
    ),
    "publish": Key(
        dict,
        "where tables are published under fixed names: [more](publishing.md)",
    ),
}
"""The keys of `[env.NAME]`; those that the project has too are overridden there."""

MALLOY_KEYS: Mapping[str, Key] = {
    "connection": Key(
        str,
        "the name of the one connection that models may use",
        default='"spark"',
    ),
    "givens": Key(
        dict,
        "values of givens, for models that declare them: strings, numbers, booleans, dates, lists",
    ),
    "virtual": Key(
        dict,
        "the tables behind virtual sources: names of sources or raw tables",
    ),
    "databricks": Key(
        dict,
        "the connection of Malloy's own tools, so that they find tables in the manifest: `host`, "
        "`path`, `defaultCatalog`, `defaultSchema`, `setupSQL` as in its configuration "
        "([more](malloy.md#malloys-own-tools))",
    ),
}
"""The keys of `[malloy]`."""

DATABRICKS_KEYS: Mapping[str, Key] = {
    key: Key(str, "as in the configuration of Malloy's Databricks connection")
    for key in ("host", "path", "defaultCatalog", "defaultSchema", "setupSQL")
}
"""The keys of `[malloy.databricks]`, in the order in which Malloy's digest has them."""

PUBLISH_KEYS: Mapping[str, Key] = {
    "path": Key(
        str,
        "a directory or bucket outside the warehouse. Each source has a Delta table at "
        "`path/group/name` there, which follows builds, promotions and rollbacks",
    ),
    "catalog": Key(
        str,
        "a catalog or schema that outlives the Spark session. Each source has a view in it: "
        "`unity.analytics`",
    ),
    "select": Key(
        list,
        "the sources to publish, as [selections](cli.md#select-sources)",
        default="all persisted sources",
    ),
}
"""The keys of `[env.NAME.publish]`."""

UPSTREAM_KEYS: Mapping[str, Key] = {
    "url": Key(
        str,
        "the URL of its `persist serve`",
    ),
    "dagster": Key(
        str,
        "instead of `url`: the URL of a Dagster webserver, 1.11 or newer. Its partitions are "
        "named by the asset key with `/` between the parts, then `/` and the partition",
    ),
    "patterns": Key(
        list,
        "which of its partitions are followed: `*` is anything within one segment, `**` anything",
        default='["**"]',
    ),
    "token_env": Key(
        str,
        "the environment variable with the bearer token: `PERSIST_TOKEN_…`, or [one that you "
        "allow](settings.md#untrusted-projects)",
    ),
    "environment": Key(
        str,
        "the environment of the other graph whose events count",
        default="the one it serves",
    ),
    "silent_after": Key(
        str,
        "an [alert](operations.md#alerts) is sent if none of its partitions has arrived for this "
        'long: `"26h"`',
    ),
}
"""The keys of `[upstream.NAME]`."""

SLA_KEYS: Mapping[str, Key] = {
    "webhook": Key(
        str,
        "the URL to which Dagster's sensor `persist_wants` sends missed deadlines, each as a "
        "JSON event. If it does not answer, the sensor tries again at its next tick",
    ),
}
"""The keys of `[sla]`."""

ALERT_KEYS: Mapping[str, Key] = {
    "url_env": Key(
        str,
        "the environment variable with the [Apprise URL](https://github.com/caronc/apprise/wiki) "
        "of the channel: `PERSIST_SECRET_…`, or [one that you allow]"
        "(settings.md#untrusted-projects). Needs `pip install persist-assets[alerts]`",
    ),
    "webhook": Key(
        str,
        "instead of `url_env`: the URL to which alerts are posted as JSON, "
        "[signed](operations.md#webhooks)",
    ),
    "secret_env": Key(
        str,
        "the environment variable with the secret that signs what is posted to `webhook`",
    ),
    "kinds": Key(
        list,
        "which alerts it gets: `deadline`, `failed`, `stale`, `silent`",
        default="all",
    ),
    "select": Key(
        list,
        "only alerts about these sources: selections as on the command line. "
        "Alerts about other graphs are always sent",
        default="all",
    ),
    "environments": Key(
        list,
        "only alerts of these environments: names, or `pr-*`",
        default="all",
    ),
}
"""The keys of `[alerts.NAME]`."""

COST_KEYS: Mapping[str, Key] = {
    "currency": Key(
        str,
        "the currency of the prices, as it is printed",
        default='"USD"',
    ),
    "compute_hour": Key(
        float,
        "the price of an hour in which a run builds: of your cluster, for example. Builds of one "
        "run that run at the same time share it",
    ),
    "gb_written": Key(
        float,
        "the price of writing a gigabyte (10⁹ bytes)",
    ),
    "gb_month": Key(
        float,
        "the price of storing a gigabyte for a month (a twelfth of 365.25 days)",
    ),
}
"""The keys of `[cost]`."""

RETENTION_KEYS: Mapping[str, Key] = {
    "events": Key(
        str,
        "how long the ledger keeps events, at least an hour; older ones are archived and deleted "
        "by Dagster's schedule `persist_trim` and by `persist serve --build`",
        default="for ever",
    ),
    "archive": Key(
        str,
        "the directory of the archives: a path or a URI",
        default='".persist/archive"',
    ),
}
"""The keys of `[retention]`."""

SERVICE_KEYS: Mapping[str, Key] = {
    "user_header": Key(
        str,
        "the header in which a proxy that has authenticated a user names that user",
    ),
    "groups_header": Key(
        str,
        "the header in which it names the user's groups, separated by commas",
    ),
    "proxies": Key(
        list,
        "the addresses or networks of trusted proxies; `--proxy` adds more",
        default="[]",
    ),
}
"""The keys of `[service]`."""

ROLE_KEYS: Mapping[str, Key] = {
    "groups": Key(
        list,
        "the groups of users who have this role; `*`: all users",
        default="[]",
    ),
    "build": Key(
        list,
        "the sources that holders may want, build and taint: selections as on the command line",
        default="[]",
    ),
    "promote": Key(
        list,
        "the environments that holders may promote into and roll back",
        default="[]",
    ),
    "admin": Key(
        bool,
        "holders may do everything",
        default="false",
    ),
}
"""The keys of `[roles.NAME]`."""

SPARK_KEYS: Mapping[str, Key] = {
    "shared": Key(
        bool,
        "runs and the command line use one [Spark server](settings.md#shared-spark-server) that"
        " stays up on this machine; needs `pip install persist-assets[connect]`",
        default="false",
    ),
    "shared_port": Key(
        int,
        "the port of that server; `0` takes any free port",
        default="0",
    ),
    "shared_idle": Key(
        str,
        "the server stops after this long without a client",
        default='"30m"',
    ),
    "harmless": Key(
        list,
        "more settings that cannot change rows: [more](settings.md#spark-settings-and-buildids)",
        default="[]",
    ),
    "build_ids": Key(
        dict,
        "values of harmless settings that BuildIDs contain: "
        "[more](settings.md#spark-settings-and-buildids)",
    ),
}
"""The keys of `[spark]` that are not settings of Spark."""

STORE_KEYS: Mapping[str, Key] = {
    "endpoint": Key(
        str,
        "the URL of an S3-compatible server. It begins with `http://` (not encrypted) or "
        "`https://` and has no user, `?` or `#`. Default: `AWS_ENDPOINT_URL_S3`, "
        "`AWS_ENDPOINT_URL`, or Amazon's",
    ),
    "region": Key(
        str,
        "letters, digits, `-` and `_`. Default: `AWS_REGION` or `AWS_DEFAULT_REGION`; with an "
        "endpoint, `us-east-1`",
    ),
}
"""The keys of `[store."s3://BUCKET"]`."""
