"""Defaults of directories have the same effect as the same annotations in the files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from persist_assets.compiler.load import load_project, require, sound
from persist_assets.compiler.registry import FRONTENDS
from persist_assets.compiler.remarks import list_files, useless_defaults
from persist_assets.core.errors import SettingsError
from persist_assets.core.settings.load import load_settings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from persist_assets.core.model.annotations import Annotation
    from persist_assets.core.model.project import Project
    from persist_assets.core.model.sources import Source

    MakeProject = Callable[..., Path]

pytestmark = pytest.mark.proves("W11")
RAW = "CREATE TABLE t (a INT, b INT, day DATE) USING delta LOCATION 't';\n"
VIEW = "CREATE VIEW v AS SELECT a, b, day FROM t;\n"
READER = "--@ persist\nCREATE VIEW reader AS SELECT a FROM v;\n"


def sources(project: Project) -> dict[str, Source]:
    return {s.name: s for s in require(project).sources}


def annotated(root: Path, name: str = "v") -> Annotation:
    return sources(load_project(load_settings(root)))[name].annotation


@pytest.mark.parametrize(
    ("default", "line", "rest", "is_meant"),
    [
        ("persist = true", "persist", "", True),
        ('materialized = "view"', "materialized=view", "persist", False),
        ('materialized = "temporary"', "materialized=temporary", "persist", True),
        ('refresh = "snapshot"', "refresh=snapshot", "persist key=a", True),
        ('refresh = "strict"', "refresh=strict", "persist", False),
        ('hard_deletes = "ignore"', "hard_deletes=ignore", "persist refresh=snapshot key=a", True),
        ('on_change = "continue"', "on_change=continue", "persist refresh=incremental", False),
        ('on_schema_change = "fail"', "on_schema_change=fail", "persist", False),
        ('owner = "team:a"', 'owner="team:a"', "persist", False),
        ('owner = ["team:a", "team:b"]', 'owner=["team:a", "team:b"]', "persist", False),
        ('tags = ["nightly"]', "tags=[nightly]", "persist", False),
        ('tags = {tier = "gold"}', "tags { tier=gold }", "persist", False),
        ('tags.tier = "gold"', "tags { tier=gold }", "persist", False),
        ('group = "g"', "group=g", "persist", False),
        ('freshness.window = "24h"', 'freshness.window="24h"', "persist", False),
        ('automation = "eager"', "automation=eager", "persist", False),
        ('automation = "0 6 * * *"', 'automation="0 6 * * *"', "persist", False),
        (
            'want = {every = "daily", sla = "9h"}',
            'want { every=daily sla="9h" }',
            "persist",
            False,
        ),
        (
            'want = {sla = "9h"}',
            'want { sla="9h" }',
            'persist partition=daily time_column=day start="2024-01-01"',
            False,
        ),
        (
            'backfill = "multi_run"',
            "backfill=multi_run",
            'persist partition=daily time_column=day start="2024-01-01"',
            False,
        ),
    ],
)
def test_a_default_has_the_effect_of_an_annotation_in_the_file(
    make_project: MakeProject, default: str, line: str, rest: str, is_meant: bool
) -> None:
    def loaded(line: str, toml: str = "") -> dict[str, Source]:
        text = f"--@ {line}\n{VIEW}" if line else VIEW
        files = {"raw.sql": RAW, "m/v.sql": text, "m/reader.sql": READER}
        return {s.name: s for s in load_project(load_settings(make_project(files, toml))).sources}

    written = loaded(f"{rest} {line}".strip())
    by_default = loaded(rest, f'[defaults."m/v.sql"]\n{default}\n')
    without = loaded(rest)
    for name, source in written.items():
        other = by_default[name]
        assert other.annotation == source.annotation
        for fact in ("build_id", "definition", "persisted", "temporary", "marks", "growth"):
            assert getattr(other, fact) == getattr(source, fact)
    assert by_default["v"].annotation != without["v"].annotation

    def known(made: dict[str, Source]) -> list[object]:
        return [(s.build_id, s.definition, s.persisted, s.temporary) for s in made.values()]

    assert (known(by_default) != known(without)) == is_meant


def test_files_override_defaults_and_later_defaults_override_earlier_ones(
    make_project: MakeProject,
) -> None:
    root = make_project(
        {
            "raw.sql": RAW,
            "m/v.sql": VIEW,
            "m/deep/a.sql": "--@ tags=[own]\nCREATE VIEW a AS SELECT a FROM t;",
            "m/deep/b.sql": "--@ -tags -persist\nCREATE VIEW b AS SELECT a FROM t;",
            "m/deep/c.sql": "--@ -owner\nCREATE MATERIALIZED VIEW c AS SELECT a FROM t;",
            "n.sql": "CREATE VIEW n AS SELECT a FROM t;",
        },
        '[defaults."m/**"]\npersist = true\ntags = ["m"]\nowner = "team:m"\nautomation = "eager"\n'
        '[defaults."m/deep/*"]\ntags = ["deep"]\nautomation = false\n'
        '[defaults."m/deep/c.sql"]\npersist = false\n',
    )
    made = sources(load_project(load_settings(root)))
    tags = {name: [key for key, _ in s.annotation.tags] for name, s in made.items()}
    assert tags == {"t": [], "v": ["m"], "a": ["own"], "b": [], "c": ["deep"], "n": []}
    assert {n for n, s in made.items() if s.persisted} == {"v", "a", "c"}
    assert {n for n, s in made.items() if s.annotation.owners} == {"v", "a", "b"}
    assert {n for n, s in made.items() if s.annotation.automation} == {"v"}
    places = {key: str(place) for key, place in made["a"].annotation.keys}
    assert places == {
        "tags": "sources/m/deep/a.sql:1:5",
        "persist": "persist.toml:2:1",
        "owner": "persist.toml:4:1",
    }
    assert made["a"].annotation.defaults.keys() == {"persist", "owner"}


def test_a_default_applies_only_to_sources_that_can_have_it(make_project: MakeProject) -> None:
    files = {
        "raw.sql": RAW + "CREATE LOCAL VIEW hidden AS SELECT a FROM t;" + VIEW,
        "p.py": "from persist_assets import model, table\n@model\ndef p(t): return t\n"
        "@table\ndef q(t): return t\n",
        "m.malloy": "source: m is spark.table('t') -> { select: a }\n",
    }
    keys = (
        'owner = "team:a"\nfreshness.window = "1h"\non_change = "continue"\nbackfill = "multi_run"'
    )
    made = sources(
        load_project(
            load_settings(
                make_project(
                    files, f'[defaults."**"]\npersist = true\nhard_deletes="ignore"\n{keys}\n'
                )
            )
        )
    )
    assert {n for n, s in made.items() if s.persisted} == {"v", "q"}
    assert {n for n, s in made.items() if s.annotation.owners} == {*made}
    assert {n for n, s in made.items() if s.annotation.freshness} == {"v", "q"}
    assert not any(s.annotation.on_change for s in made.values())
    assert {s.annotation.backfill for s in made.values()} == {"single_run"}
    assert {s.annotation.hard_deletes for s in made.values()} == {"close"}


def test_annotations_that_depend_on_a_default_are_valid_with_it(make_project: MakeProject) -> None:
    text = f'--@ freshness.window="1h" on_change=continue\n{VIEW}'
    files = {"raw.sql": RAW, "m/v.sql": text}
    assert len(load_project(load_settings(make_project(files))).errors) == 2
    toml = '[defaults."m/**"]\npersist = true\nrefresh = "incremental"\n'
    assert annotated(make_project(files, toml)).goes_on


@pytest.mark.parametrize(
    ("default", "line", "message"),
    [
        ('refresh = "snapshot"', "persist", "refresh=snapshot needs a key"),
        (
            'refresh = "incremental"',
            'persist partition=daily time_column=day start="2024-01-01"',
            "`refresh` cannot be combined with `partition`: partitions are replaced",
        ),
        ('want = {sla = "9h"}', "persist", "`want` needs `every`"),
    ],
)
def test_a_default_that_is_invalid_for_a_source_is_an_error_of_the_source(
    make_project: MakeProject, default: str, line: str, message: str
) -> None:
    files = {"raw.sql": RAW, "m/v.sql": f"--@ {line}\n{VIEW}", "m/w.sql": VIEW.replace("v", "w")}
    project = load_project(load_settings(make_project(files, f'\n[defaults."m/*"]\n{default}\n')))
    (error,) = project.errors
    assert str(error.location) == "sources/m/v.sql:2:13"
    assert error.message == f"{message} (it has a default: persist.toml:3:1)"
    assert "v" not in {s.name for s in sound(project).sources}


def test_the_compiler_validates_defaults_like_annotations(make_project: MakeProject) -> None:
    text = "--@ persist\nCREATE VIEW v AS SELECT rand() AS a;\n"
    toml = '[defaults."**"]\nmaterialized = "view"\n'
    project = load_project(load_settings(make_project({"v.sql": text}, toml)))
    (error,) = project.errors
    assert str(error.location) == "sources/v.sql:2:13"
    assert "(it has a default: persist.toml:2:1)" in error.message
    assert not sound(project).sources


@pytest.mark.parametrize(
    ("toml", "place", "message", "hint"),
    [
        (
            '[defaults."m/**"]\nownr = "team:a"\n',
            "2:1",
            'unknown key `[defaults."m/**"] ownr`',
            "did you mean `owner`?",
        ),
        (
            '[defaults."m/**"]\nowner = "team:a"\nkey = "id"\n',
            "3:1",
            '`[defaults."m/**"] key` describes a single source',
            "write it in the file, above the source",
        ),
        (
            '[defaults."m/**"]\nrefresh = "incremntal"\n',
            "2:1",
            '`[defaults."m/**"] refresh`: ',
            "did you mean `incremental`?",
        ),
        (
            '[defaults."m/**".freshness]\nwindow = 5\n',
            "1:2",
            '`[defaults."m/**"] freshness`: ',
            None,
        ),
        (
            "[defaults]\nowner = 'team:a'\n",
            "2:1",
            "`defaults.owner` must be a table of annotations",
            '[defaults."staging/**"], and below it for example owner = "team:staging"',
        ),
    ],
)
def test_invalid_defaults_are_rejected_at_their_location(
    make_project: MakeProject, toml: str, place: str, message: str, hint: str | None
) -> None:
    root = make_project({"raw.sql": RAW}, toml)
    with pytest.raises(SettingsError) as caught:
        load_project(load_settings(root))
    assert str(caught.value.location) == f"persist.toml:{place}"
    assert caught.value.message.startswith(message)
    assert hint is None or caught.value.hint == hint


def test_defaults_without_effect_are_warned_about(make_project: MakeProject) -> None:
    root = make_project(
        {"raw.sql": RAW, "staging/v.sql": VIEW},
        '[defaults."stagin/**"]\npersist = true\nowner = "team:a"\n[defaults."sources/staging"]\n'
        'persist = true\n[defaults."staging/**"]\nfreshness.window = "1h"\nowner = "team:a"\n'
        '[defaults."*"]\nautomation = false\n',
    )
    settings = load_settings(root)
    project = load_project(settings)
    assert [
        (f"{p.location}: {p.severity}: {p.message}", p.hint)
        for p in useless_defaults(settings, project, list_files(settings))
    ] == [
        (
            'persist.toml:2:1: warning: `[defaults."stagin/**"]` matches no file of sources',
            "did you mean `staging/**`?",
        ),
        (
            'persist.toml:5:1: warning: `[defaults."sources/staging"]` matches no file of sources',
            'write "staging/**": patterns are paths below sources, with * and **',
        ),
        (
            'persist.toml:7:1: warning: `[defaults."staging/**"] freshness` has no effect',
            "no source that it matches is persisted",
        ),
    ]


@pytest.mark.proves("W11")
def test_a_default_that_later_patterns_always_override_is_reported(
    make_project: MakeProject,
) -> None:
    root = make_project(
        {"raw.sql": RAW, "staging/v.sql": VIEW, "staging/old/w.sql": VIEW.replace(" v ", " w ")},
        '[defaults."staging/**"]\npersist = true\nowner = "team:a"\n[defaults."staging/old/*"]\n'
        'owner = "team:b"\n[defaults."staging/*"]\nowner = "team:c"\n[defaults."**"]\n'
        'persist = false\n[defaults."raw.sql"]\nowner = "team:c"\n',
    )
    settings = load_settings(root)
    project = load_project(settings)
    assert not project.errors
    assert [
        (p.location.line, p.message, p.hint)
        for p in useless_defaults(settings, project, list_files(settings))
    ] == [
        (
            2,
            '`[defaults."staging/**"] persist` has no effect',
            '[defaults."**"] below it decides: write general patterns first',
        ),
        (
            3,
            '`[defaults."staging/**"] owner` has no effect',
            '[defaults."staging/*"] below it decides: write general patterns first',
        ),
    ]


@pytest.mark.proves("W11")
def test_the_persist_default_must_be_a_boolean(make_project: MakeProject) -> None:
    root = make_project({"v.sql": VIEW}, '[defaults."**"]\npersist = "yes"\n')
    with pytest.raises(SettingsError) as error:
        load_project(load_settings(root))
    assert error.value.hint == "write persist = true, or persist = false"


def test_changed_defaults_apply_to_cached_files(
    make_project: MakeProject, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PERSIST_CACHE", str(tmp_path / "cache"))
    parsed: list[str] = []
    parse = FRONTENDS[".sql"]
    monkeypatch.setitem(
        FRONTENDS, ".sql", lambda text, path, *rest: parsed.append(path) or parse(text, path, *rest)
    )
    flag = "##! experimental.persistence\n#@ persist\n"
    malloy = f"{flag}source: m is spark.table('v') -> {{ select: a }}\n"
    files = {"raw.sql": RAW, "m/v.sql": f"--@ key=a\n{VIEW}", "m/m.malloy": malloy}
    build_ids: list[str] = []
    for owner, refresh, reads in (
        ("a", "snapshot", ["sources/m/v.sql", "sources/raw.sql"]),
        ("b", "snapshot", []),
        ("b", "auto", ["sources/m/v.sql"]),  # its annotations are new
        ("a", "snapshot", ["sources/m/v.sql"]),  # only the latest result is cached
    ):
        parsed.clear()
        toml = f'[defaults."m/**"]\npersist = true\nowner = "team:{owner}"\nrefresh = "{refresh}"\n'
        project = load_project(load_settings(make_project(files, toml)))
        assert sorted({*parsed}) == reads
        made = {s.name: s for s in project.sources}
        assert {made[n].annotation.owners for n in "vm"} == {(f"team:{owner}",)}
        assert made["v"].keeps_history == (refresh == "snapshot")
        wrong = [] if refresh == "snapshot" else ["`key` has no effect on a source that keeps no"]
        assert [
            p.message.removesuffix(" versions") for p in project.errors if "m.m" not in str(p)
        ] == wrong
        build_ids.append(made["v"].build_id)
    assert build_ids[0] == build_ids[1] == build_ids[3] != build_ids[2]
