"""Which projects share a Spark server, and what is said where none can be. Starts none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from persist_assets.errors import SettingsError
from persist_assets.server import _escaped, count_clients, find_server, server_directory
from persist_assets.server import stop_server as stop
from persist_assets.session import create_session
from persist_assets.settings import Settings, load_settings


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PERSIST_SPARK_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def settings(root: Path, spark: str) -> Settings:
    root.mkdir(exist_ok=True)
    (root / "persist.toml").write_text(f"[spark]\nshared = true\n{spark}\n")
    return load_settings(root, environ={})


def test_projects_share_a_server_unless_a_jvm_has_to_start_differently(tmp_path: Path) -> None:
    def place(name: str, spark: str) -> Path:
        return server_directory(settings(tmp_path / name, spark))

    plain = place("a", "")
    assert plain == place("b", "")
    assert plain == place("c", '"spark.sql.shuffle.partitions" = 7\nshared_idle = "1h"')
    assert plain == place("d", '"spark.sql.ansi.enabled" = false\n"spark.app.name" = "d"')
    other = [
        "driver.memory = '3g'",
        "master = 'local[1]'",
        "shared_port = 15002",
        "sql.extensions = 'x'",
    ]
    assert len({plain, *(place("e", text) for text in other)}) == 5


def test_where_nothing_was_started_nothing_runs_and_nothing_is_made(
    tmp_path: Path, home: Path
) -> None:
    place = server_directory(settings(tmp_path / "p", ""))
    assert find_server(place) is None
    assert count_clients(place) == 0
    assert not stop(place)
    assert not home.exists()


def test_a_state_that_a_dead_server_left_is_none(tmp_path: Path) -> None:
    place = server_directory(settings(tmp_path / "p", ""))
    place.mkdir(parents=True)
    (place / "supervisor.lock").touch()
    for text in (
        "",
        "{",
        "[]",
        '{"pid": 1}',
        '{"pid":1,"jvm":1,"port":1,"token":"","started_at":0}',
    ):
        (place / "server.json").write_text(text)
        assert find_server(place) is None


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("local[*]", "local\\u005b*\\u005d"),
        ("-Da=b c\\d", "-Da\\u003db\\u0020c\\u005cd"),
        ("é\n😀", "\\u00e9\\u000a\\ud83d\\ude00"),
    ],
)
def test_properties_of_java_say_any_text(text: str, escaped: str) -> None:
    assert _escaped(text) == escaped


def test_without_its_packages_one_sentence_says_what_to_install(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql.connect.session", None)
    with pytest.raises(SettingsError, match=r"pip install persist-assets\[connect\]"):
        create_session(settings(tmp_path / "p", ""))
    assert not home.exists()
