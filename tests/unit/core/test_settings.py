"""Settings from persist.toml and environment variables."""

from __future__ import annotations

from pathlib import Path

import pytest

from persist_assets.core.errors import SettingsError
from persist_assets.core.settings.durations import parse_duration
from persist_assets.core.settings.load import find_root, load_settings
from persist_assets.core.settings.places import find_place
from persist_assets.core.settings.spark import is_harmless
from persist_assets.core.settings.user import make_private, user_cache
from persist_assets.core.settings.values import Prices


def write(root: Path, text: str) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    (root / "persist.toml").write_text(text)
    return root


def test_settings_have_defaults(tmp_path: Path) -> None:
    settings = load_settings(tmp_path, environ={})
    assert settings.environment == "dev"
    assert settings.sources == "sources"
    assert settings.warehouse == str(tmp_path / ".persist" / "warehouse")
    assert settings.ledger == f"sqlite:///{tmp_path / '.persist' / 'ledger.db'}"
    assert settings.manifest_path == tmp_path / ".persist" / "manifests" / "dev.json"


def test_the_environment_comes_from_the_option_then_the_variable_then_the_file(
    tmp_path: Path,
) -> None:
    root = write(tmp_path, 'environment = "a"')
    assert load_settings(root, environ={}).environment == "a"
    assert load_settings(root, environ={"PERSIST_ENV": "b"}).environment == "b"
    assert load_settings(root, environment="c", environ={"PERSIST_ENV": "b"}).environment == "c"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("warehuose = 'x'", "unknown key `warehuose`\n    hint: did you mean `warehouse`?"),
        ("strict = 1", "`strict` must be true or false, got 1"),
        ("[upstream.users]", "needs either `url` or `dagster`"),
        ("[upstream.u]\nurl = 'http://a'\ndagster = 'http://b'", "needs either `url` or `dagster`"),
        ("[upstream.u]\nurl = 'ftp://a'", "`ftp://a` is not an HTTP URL"),
        ("[upstream.u]\nurl = 'http://[a'", "is not a URL"),
        ("[upstream.u]\nurl = 'http://me:pw@a'", "contains a password"),
        ("[upstream.u]\nurl = 'http://a'\npatterns = [1]", "patterns` must be a list of strings"),
        ("[upstream.u]\nurl = 'http://a'\npatterns = 'x'", "patterns` must be a list, got"),
        ("[upstream.u]\nulr = 'http://a'", "did you mean `url`?"),
        ("[upstream.'a b']\nurl = 'http://a'", "invalid upstream name `a b`"),
        ("[sla]\nwebhook = 'x'", "`x` is not an HTTP URL"),
        ("[alerts]\nx = 1", "`alerts.x` must be a table"),
        ("[alerts.'a b']\n", "invalid channel name `a b`"),
        ("[alerts.x]\n", "`[alerts.x]` needs either `url_env` or `webhook`"),
        ("[alerts.x]\nwebhook = 'https://h/x'", "`[alerts.x]` needs both `webhook` and"),
        ("[alerts.x]\nurl_env = 'slack://a/b'", "`[alerts.x] url_env` must be the name of"),
        ("[alerts.x]\nurl_env = 'X'\nkinds = ['late']", "unknown kind `late`"),
        ("[alerts.x]\nurl_env = 'X'\nkinds = []", "`[alerts.x] kinds` must be a list of"),
        ("[alerts.x]\nurl_env = 'X'\nselect = ['state:stale']", "cannot use `state:`"),
        ("[upstream.u]\nurl = 'http://h'\nsilent_after = 'x'", "silent_after`: `x` is not a"),
        ("[cost]\ncompute_hour = -1", "`compute_hour` must be a price of zero or more, got -1"),
        ("[cost]\ncompute_hour = '2 EUR'", "`[cost] compute_hour` must be a number, got '2 EUR'"),
        ("[cost]\ngb_month = nan", "`gb_month` must be a price of zero or more"),
        ("[cost]\ncurrency = 'two words'", "`currency` must be a short code"),
        ("[env.dev.cost]\nhour = 1", "unknown key `[env.dev.cost] hour`"),
        ("timezone = 'Mars/Olympus'", "unknown time zone `Mars/Olympus`"),
        ("sources = '../elsewhere'", "is outside the project"),
        ("sources = '/etc'", "is outside the project"),
        ("ledger = 'ledger.db'", "`ledger` is not a database URL: ledger.db"),
        ("ledger = 'sqlite://'", "`ledger` must be a plain path to a SQLite file"),
        ("ledger = 'sqlite:///:memory:'", "`ledger` must be a plain path to a SQLite file"),
        ("ledger = 'sqlite:///file:x?uri=true'", "`ledger` must be a plain path to a SQLite file"),
        ("environment = 'a/b'", "invalid environment name `a/b`"),
        ("x = ", "invalid TOML"),
        ("[spark]\nshared = 1", "`[spark] shared` must be true or false, got 1"),
        ("[spark]\nshared_port = true", "`[spark] shared_port` must be an integer, got True"),
        ("[spark]\nshared_port = 65536", "`[spark] shared_port` = 65536 is not a port"),
        ("[spark]\nshared_idle = 30", "`[spark] shared_idle` must be a string, got 30"),
        ("[spark]\nshared_idle = 'soon'", "`[spark] shared_idle`: `soon` is not a duration"),
        ("[spark]\nshared_prot = 1", "unknown key `[spark] shared_prot`\n    hint: did you mean"),
        (
            "[spark]\n'spark.sql.parquet.datetimeRebaseModeInWrite' = 'legacy'",
            "must not be LEGACY",
        ),
        ("[spark]\nharmless = 'x'", "`[spark] harmless` must be a list"),
        ("[spark]\nharmless = [1]", "1 is not the name of a Spark SQL setting"),
        ("[spark]\nharmless = ['spark.sql.*']", "'spark.sql.*' is not the name of a Spark"),
        ("[spark]\nharmless = ['spark.sql.ansi.*']", "`spark.sql.ansi.enabled` can change rows"),
        ("[spark.build_ids]\n'spark.sql.ansi.enabled' = 1", "enabled` can change rows"),
        ("[spark]\nshared = true\nremote = 'sc://h'", "cannot be combined"),
        ('[spark]\n"spark.x" = [1]', '`[spark] "spark.x"` must be a string or number'),
        ("[env.dev]\nreads = 'prd'\n[env.prod]", "`[env.dev] reads` names `prd`, which is not"),
        ("[env.dev]\nreads = 'dev'", "read each other in a cycle: dev → dev"),
        ("[env.dev]\nreads = 'a'\n[env.a]\nreads = 'dev'", "in a cycle: dev → a → dev"),
        (
            "[env.dev]\nraed = 'prod'",
            "unknown key `[env.dev] raed`\n    hint: did you mean `reads`",
        ),
        ("[env.dev]\nreads = 1", "`[env.dev] reads` must be a string, got 1"),
        ("[env.dev.raw]\nt = 1", "`[env.dev.raw] t` must be a location, got 1"),
        ("[env.'a/b']", "invalid environment name `a/b`"),
        ("env.dev = 1", "`env.dev` must be a table"),
    ],
)
def test_invalid_settings_are_reported(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(SettingsError) as error:
        load_settings(write(tmp_path, text), environ={})
    assert says in str(error.value)


def test_the_project_root_is_found_in_parent_directories(tmp_path: Path) -> None:
    root = write(tmp_path / "p", "")
    below = root / "a" / "b"
    below.mkdir(parents=True)
    assert find_root(below) == root
    with pytest.raises(SettingsError, match=r"no persist\.toml"):
        find_root(tmp_path)


def test_only_settings_that_change_results_are_part_of_the_connection(tmp_path: Path) -> None:
    plain = load_settings(write(tmp_path / "a", ""), environ={})
    tuned = load_settings(
        write(
            tmp_path / "b", '[spark]\n"spark.executor.memory" = "4g"\nsql.shuffle.partitions = 7'
        ),
        environ={},
    )
    changed = load_settings(
        write(tmp_path / "c", '[spark]\n"spark.sql.ansi.enabled" = false'), environ={}
    )
    elsewhere = load_settings(write(tmp_path / "d", 'timezone = "Europe/Berlin"'), environ={})
    assert plain.connection == tuned.connection
    assert dict(tuned.spark)["spark.sql.shuffle.partitions"] == "7"
    assert plain.connection != changed.connection != elsewhere.connection
    assert dict(changed.connection)["spark.sql.ansi.enabled"] == "false"
    assert not is_harmless("spark.sql.something.new")
    # It decides whether NaN of pandas becomes NULL.
    assert not is_harmless("spark.sql.execution.arrow.pyspark.enabled")
    assert is_harmless("spark.sql.execution.arrow.maxRecordsPerBatch")


@pytest.mark.proves("S14")
@pytest.mark.parametrize(
    "key",
    [
        "spark.kubernetes.container.image",
        "spark.yarn.queue",
        "spark.cores.max",
        "spark.default.parallelism",
        "spark.executorEnv.HOME",
        "spark.metrics.conf",
        "spark.extraListeners",
        "spark.files",
        "spark.databricks.delta.preview.enabled",
        "spark.hadoop.fs.s3a.access.key",
        "spark.sql.catalog.lake",
        "spark.sql.catalog.lake.token",
        "spark.sql.extensions",
        "spark.sql.queryExecutionListeners",
        "spark.sql.broadcastTimeout",
        "spark.sql.hive.metastore.jars",
        "spark.sql.sources.commitProtocolClass",
    ],
)
def test_a_setting_that_cannot_change_rows_does_not_affect_build_ids(
    tmp_path: Path, key: str
) -> None:
    plain = load_settings(write(tmp_path / "a", ""), environ={})
    more = load_settings(write(tmp_path / "b", f'[spark]\n"{key}" = "x"'), environ={})
    assert dict(more.spark)[key] == "x"
    assert plain.connection == more.connection


@pytest.mark.parametrize(
    "key",
    [
        "spark.sql.parquet.binaryAsString",
        "spark.sql.files.ignoreCorruptFiles",
        "spark.sql.extensionsOfMine",
        "spark.sql.legacy.timeParserPolicy",
        "spark.sql.mapKeyDedupPolicy",
        "spark.sql.optimizer.excludedRules",
    ],
)
def test_any_other_spark_sql_setting_affects_build_ids(tmp_path: Path, key: str) -> None:
    settings = load_settings(write(tmp_path, f'[spark]\n"{key}" = "x"'), environ={})
    assert dict(settings.connection)[key] == "x"


@pytest.mark.proves("S14")
def test_projects_can_declare_more_settings_harmless(tmp_path: Path) -> None:
    text = """
        [spark]
        harmless = ["spark.sql.ours.*", "spark.sql.one"]
        "spark.sql.ours.x" = 1
        "spark.sql.one" = 2
        "spark.sql.one.more" = 3
    """
    settings = load_settings(write(tmp_path, text), environ={})
    assert dict(settings.changing).keys() - {*dict(load_settings(tmp_path / "-").changing)} == {
        "spark.sql.one.more"
    }
    assert settings.formerly_counted == (("spark.sql.one", "2"), ("spark.sql.ours.x", "1"))


@pytest.mark.proves("S14")
def test_persist_toml_can_preserve_the_build_ids_of_an_older_release(
    tmp_path: Path,
) -> None:
    text = """
        [spark]
        "spark.kubernetes.container.image" = "spark:1"
        "spark.executor.memory" = "4g"
    """
    new = load_settings(write(tmp_path / "a", text), environ={})
    assert new.formerly_counted == (("spark.kubernetes.container.image", "spark:1"),)
    kept = text.replace("spark:1", "spark:2") + (
        '[spark.build_ids]\n"spark.kubernetes.container.image" = "spark:1"\n'
    )
    old = load_settings(write(tmp_path / "b", kept), environ={})
    assert old.formerly_counted == ()
    assert dict(old.spark)["spark.kubernetes.container.image"] == "spark:2"
    # The pairs that earlier releases included in BuildIDs.
    assert old.connection == (
        ("dialect", "spark"),
        ("spark.kubernetes.container.image", "spark:1"),
        ("spark.sql.ansi.enabled", "true"),
        ("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS"),
        ("spark.sql.session.timeZone", "UTC"),
    )


def test_shared_server_settings_are_not_passed_to_spark_or_in_build_ids(tmp_path: Path) -> None:
    own = load_settings(write(tmp_path / "a", ""), environ={})
    text = '[spark]\nshared = true\n"spark.shared_port" = 15002\nshared_idle = "1h 30m"'
    shared = load_settings(write(tmp_path / "b", text), environ={})
    assert (own.shared, own.shared_port, own.shared_idle_s) == (False, 0, 1800)
    assert (shared.shared, shared.shared_port, shared.shared_idle_s) == (True, 15002, 5400)
    assert shared.spark == own.spark
    assert shared.connection == own.connection


def test_relative_locations_become_absolute_in_a_shared_ledger(tmp_path: Path) -> None:
    own = load_settings(write(tmp_path / "a", ""), environ={})
    shared = load_settings(
        write(tmp_path / "b", f'ledger = "sqlite:///{tmp_path}/ledger.db"'), environ={}
    )
    assert own.place("data/t") == "data/t"
    assert shared.place("data/t") == str(tmp_path / "b" / "data" / "t")
    assert own.place("s3://bucket/t") == shared.place("s3://bucket/t") == "s3://bucket/t"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("caseSensitive", "true"),
        ("timestampType", "TIMESTAMP_NTZ"),
        ("groupByOrdinal", "false"),
        ("legacy.setopsPrecedence.enabled", "true"),
        ("legacy.ctePrecedencePolicy", "LEGACY"),
        ("preserveCharVarcharTypeInfo", "true"),
        ("legacy.charVarcharAsString", "true"),
    ],
)
def test_settings_that_change_the_meaning_of_queries_are_rejected(
    tmp_path: Path, key: str, value: str
) -> None:
    root = write(tmp_path, f'[spark]\n"spark.sql.{key}" = "{value}"')
    with pytest.raises(SettingsError, match=f"`spark.sql.{key}` must be"):
        load_settings(root)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("24h", 86_400),
        ("90 min", 5_400),
        ("1 day 6h", 108_000),
        ("1.5 hours", 5_400),
        ("2w", 1_209_600),
    ],
)
def test_durations_are_parsed(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "3", "0s", "3 fortnights", "1h tomorrow", "-1h"])
def test_invalid_durations_are_not_parsed(text: str) -> None:
    assert parse_duration(text) is None


def test_undeclared_environments_are_rejected(tmp_path: Path) -> None:
    root = write(tmp_path, "[env.prod]")
    assert load_settings(root, environment="dev", environ={}).environment == "dev"
    with pytest.raises(SettingsError, match=r"unknown environment `prd`\n.*`prod`"):
        load_settings(root, environment="prd", environ={})


def test_an_environment_can_override_settings(tmp_path: Path) -> None:
    text = (
        "strict = true\nwarehouse = 'w'\n[spark]\ndriver.memory = '1g'\nshared = true\n"
        "[env.prod]\n[env.stage]\nreads = 'prod'\n"
        "[env.dev]\nreads = 'stage'\nstrict = false\nwarehouse = 'v'\nraw.t = 'sample'\n"
        "spark.driver.memory = '2g'\n"
    )
    root = write(tmp_path, text)
    dev, prod = (load_settings(root, environment=e, environ={}) for e in ("dev", "prod"))
    assert dev.environments == ("dev", "stage", "prod")
    assert prod.environments == ("prod",)
    assert (dev.strict, prod.strict) == (False, True)
    assert (dev.shared, prod.shared) == (True, True)
    assert dict(dev.spark)["spark.driver.memory"] == "2g"
    assert dict(prod.spark)["spark.driver.memory"] == "1g"
    assert dev.raws == (("t", "sample"),)
    assert (dev.table_name("x"), prod.table_name("x")) == (f"{root}/v/x", "x")
    assert prod.table_root(dev.table_name("x")) == f"{root}/v/x"
    assert dev.table_root("x") == f"{root}/w/x"


@pytest.mark.proves("S7")
def test_the_state_directory_is_private_and_ignored_by_git(tmp_path: Path) -> None:
    state = tmp_path / ".persist"
    state.mkdir(mode=0o755)
    make_private(state / "manifests" / "x")
    for path in (state, state / "manifests", state / "manifests" / "x"):
        assert path.stat().st_mode & 0o777 == 0o700
    assert (state / ".gitignore").read_text() == "*\n"
    state.chmod(0o750)
    make_private(state / "manifests")
    assert state.stat().st_mode & 0o777 == 0o750, "who opened it is not overruled"


@pytest.mark.proves("S7")
def test_a_symbolic_link_as_gitignore_is_not_followed(tmp_path: Path) -> None:
    state, victim = tmp_path / ".persist", tmp_path / "victim"
    state.mkdir()
    (state / ".gitignore").symlink_to(victim)
    make_private(state)
    assert not victim.exists()


@pytest.mark.proves("S7")
@pytest.mark.parametrize("place", ["", "ledger.db", "spark.log", "manifests", "manifests/dev.json"])
def test_symbolic_links_in_the_state_directory_are_rejected(tmp_path: Path, place: str) -> None:
    link = tmp_path / "project" / ".persist" / place
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SettingsError, match=r"^\.persist.* is a symbolic link"):
        load_settings(tmp_path / "project", environ={})


@pytest.mark.proves("S7")
def test_only_files_inside_the_project_are_read(tmp_path: Path) -> None:
    root = write(tmp_path / "project", "")
    (tmp_path / "secret").write_text("secret")
    (root / "link").symlink_to(tmp_path / "secret")
    settings = load_settings(root, environ={})
    for path in ("link", "../secret", str(tmp_path / "secret")):
        with pytest.raises(OSError, match="outside the project"):
            settings.read_text(path)
    assert settings.read_text("persist.toml") == ""


def test_the_cache_directory_follows_environment_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert user_cache({}) == tmp_path / ".cache" / "persist_assets"
    assert user_cache({"XDG_CACHE_HOME": "not/absolute"}) == user_cache({})
    assert user_cache({"XDG_CACHE_HOME": "/c"}) == Path("/c/persist_assets")
    assert user_cache({"XDG_CACHE_HOME": "/c", "PERSIST_CACHE": "/d"}) == Path("/d")


PLACES = '''environment = "dev"
text = """
parallel = "not a key"
"""

[env.prod]
  parallel = "4"

[env.prod.spark]
"sql.shuffle.partitions" = [1]

[spark]
shared_idle = "soon"
"spark.sql.caseSensitive" = true

[store."s3://lake"]
sort = "s3"
[upstream.users]
url = "users.example.com"
'''


@pytest.mark.parametrize(
    ("keys", "environment", "place"),
    [
        (("environment",), "dev", (1, 1)),
        (("text",), "dev", (2, 1)),
        (("parallel",), "prod", (7, 3)),
        (("env", "prod", "parallel"), "", (7, 3)),
        (("parallel",), "dev", (1, 1)),
        (("spark", "sql.shuffle.partitions"), "prod", (10, 1)),
        (("spark", "shared_idle"), "prod", (13, 1)),
        (("spark", "spark.sql.caseSensitive"), "dev", (14, 1)),
        (("store", "s3://lake", "sort"), "dev", (17, 1)),
        (("store", "s3://lake", "region"), "dev", (16, 2)),
        (("upstream", "users", "url"), "dev", (19, 1)),
        (("nowhere",), "dev", (1, 1)),
    ],
)
def test_the_location_of_a_key_is_found(
    keys: tuple[str, ...], environment: str, place: tuple[int, int]
) -> None:
    found = find_place(PLACES, keys, environment)
    assert (found.line, found.column) == place


@pytest.mark.proves("H4")
@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('strict = false\n\n[env.prod]\nparallel = "4"\n', (4, 1)),
        ("strict = false\nparalel = 4\n", (2, 1)),
        ("strict = false\nparallel = -4\n", (2, 1)),
        ("strict = false\nparallel = = 4\n", (2, 12)),
        ('\ntimezone = "Mars/Olympus"\n', (2, 1)),
        ('[spark]\n"spark.sql.session.timeZone" = "Mars"\n', (2, 1)),
        ('[spark]\n"spark.sql.caseSensitive" = true\n', (2, 1)),
        ('[spark]\n\n  shared_idle = "soon"\n', (3, 3)),
        ('[upstream.users]\nurl = "users"\n', (2, 1)),
        ('[env.a]\nreads = "b"\n[env.b]\nreads = "a"\n', None),
        ("\n[env.prod.raw]\nt = 1\n", (3, 1)),
        ('\nkey_prefix = "a-b"\n', (2, 1)),
        ('\n\nledger = "there"\n', (3, 1)),
        ('\nkeep = "long"\n', (2, 1)),
        ('\n[store."s3://b"]\nsort = "s3"\n', (3, 1)),
        ("\n[malloy.virtual]\nt = 3\n", (3, 1)),
    ],
)
def test_errors_in_persist_toml_have_a_location(
    tmp_path: Path, text: str, place: tuple[int, int] | None
) -> None:
    (tmp_path / "persist.toml").write_text(text)
    with pytest.raises(SettingsError) as error:
        load_settings(tmp_path, environment="a" if place is None else None, environ={})
    location = error.value.location
    assert location is not None
    assert (location.line, location.column) == (place or (4, 1)), str(error.value)


def test_settings_errors_are_reported_without_persist_toml(tmp_path: Path) -> None:
    root = tmp_path / "x%20y"
    root.mkdir()
    with pytest.raises(SettingsError, match="the warehouse cannot be"):
        load_settings(root, environ={})


@pytest.mark.proves("Y2")
def test_a_secret_in_persist_toml_is_not_repeated_in_errors(tmp_path: Path) -> None:
    for key in ("url_env", "secret_env"):
        other = 'webhook = "https://h/x"\n' if key == "secret_env" else ""
        (tmp_path / "persist.toml").write_text(f'[alerts.x]\n{other}{key} = "slack://t0ken/x"\n')
        with pytest.raises(SettingsError) as caught:
            load_settings(tmp_path)
        assert "t0ken" not in str(caught.value)


@pytest.mark.proves("Y1")
def test_an_environment_overrides_prices_one_by_one(tmp_path: Path) -> None:
    text = (
        "[cost]\ncurrency = 'EUR'\ncompute_hour = 2\ngb_month = 0.1\n[env.dev.cost]\ngb_month = 0"
    )
    (tmp_path / "persist.toml").write_text(text)
    assert load_settings(tmp_path).prices == Prices("EUR", 2.0, None, 0.0)
