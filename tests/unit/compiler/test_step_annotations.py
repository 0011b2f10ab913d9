"""Annotations of Dagster steps: retries, pools, op tags and the configuration of dagster-k8s."""

from __future__ import annotations

import json
from pathlib import Path

import dagster as dg
import pytest
from compiled import build_ids, loaded, sound

from persist_assets import load_sources
from persist_assets.core.errors import SettingsError, SourcesError
from persist_assets.core.model.annotations import K8S_PARTS, Annotation, Retries
from persist_assets.plugin.steps import step_options

RAW = "CREATE TABLE raw (a INT) USING parquet LOCATION 'raw';\n"
VIEW = "CREATE VIEW v AS SELECT a FROM raw;\n"


def annotation_of(root: Path, lines: str, settings: str = "") -> Annotation:
    project = sound(root, settings=settings, m=f"{RAW}--@ persist\n{lines}{VIEW}")
    return project.persisted[0].annotation


@pytest.mark.proves("U2")
def test_annotations_set_the_options_of_steps(tmp_path: Path) -> None:
    lines = (
        '--@ retries=3 { delay="30s" backoff=exponential jitter=full } pool=warehouse\n'
        "--@ op_tags { `dagster/priority`=3 queue=slow shares=[1, 2] }\n"
        "--@ k8s { container_config { resources { requests { memory=4Gi } } } }\n"
    )
    found = annotation_of(tmp_path, lines)
    assert found.retries == Retries(3, 30, "exponential", "full")
    options = step_options(found)
    assert options["retry_policy"] == dg.RetryPolicy(3, 30, dg.Backoff.EXPONENTIAL, dg.Jitter.FULL)
    assert options["pool"] == "warehouse"
    tags = options["tags"]
    assert json.loads(tags.pop("dagster-k8s/config")) == {
        "container_config": {"resources": {"requests": {"memory": "4Gi"}}}
    }
    assert tags == {"dagster/priority": "3", "queue": "slow", "shares": "[1, 2]"}
    assert step_options(annotation_of(tmp_path, "")) == {}
    assert step_options(annotation_of(tmp_path, "--@ retries { max=2 }\n")) == {
        "retry_policy": dg.RetryPolicy(2)
    }


@pytest.mark.proves("U2")
def test_ops_of_assets_have_the_annotated_options(tmp_path: Path) -> None:
    sound(tmp_path, m=f"{RAW}--@ persist retries=2 pool=w op_tags.queue=slow\n{VIEW}")
    definitions = load_sources(tmp_path / "sources")
    (op,) = (a.op for a in definitions.assets or () if isinstance(a, dg.AssetsDefinition))
    assert op.retry_policy == dg.RetryPolicy(2)
    assert op.pool == "w"
    assert op.tags["queue"] == "slow"


@pytest.mark.proves("U2")
def test_directories_have_defaults_for_steps_and_build_ids_are_the_same(tmp_path: Path) -> None:
    for name in ("plain", "defaults", "own"):
        (tmp_path / name / "sources").mkdir(parents=True)
    plain = sound(tmp_path / "plain", m=f"{RAW}--@ persist\n{VIEW}")
    settings = (
        '[defaults."**"]\nretries = 2\npool = "all"\n'
        '[defaults."m*"]\nretries = { max = 5, delay = "1m" }\nop_tags = { queue = "slow" }\n'
        "k8s.pod_spec_config.automount_service_account_token = false\n"
    )
    project = sound(tmp_path / "defaults", settings=settings, m=f"{RAW}--@ persist\n{VIEW}")
    found = project.persisted[0].annotation
    assert found.retries == Retries(5, 60)
    assert (found.pool, found.op_tags) == ("all", (("queue", "slow"),))
    assert json.loads(found.k8s or "") == {
        "pod_spec_config": {"automount_service_account_token": False}
    }
    assert build_ids(project) == build_ids(plain)
    own = sound(tmp_path / "own", settings=settings, m=f"{RAW}--@ persist pool=mine -k8s\n{VIEW}")
    assert own.persisted[0].annotation.pool == "mine"
    assert own.persisted[0].annotation.k8s is None
    assert own.persisted[0].annotation.retries == Retries(5, 60)


@pytest.mark.proves("U2")
@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("retries=0", "`retries` must be an integer from 1 to 100"),
        ("retries=often", "`retries` must be an integer from 1 to 100"),
        ('retries { delay="30s" }', "`retries` needs a number"),
        ("retries=1 { max=2 }", "`retries` has a number, and `retries.max`"),
        ("retries=1 { backoff=linear }", "`retries.backoff` changes a delay, but there is none"),
        ('retries=1 { delay="30s" backoff=quick }', "`retries.backoff` must be one of"),
        ("retries=1 { dealy=3 }", "`retries` has no property `dealy`"),
        ('pool="a b"', "invalid pool name `a b`"),
        ("op_tags=slow", "`op_tags` must be a block of tags"),
        ("op_tags { queue }", "`op_tags.queue` has no value"),
        ("op_tags { `dagster-k8s/config`=x }", "`op_tags` cannot have `dagster-k8s/config`"),
        ("k8s=big", "`k8s` must be a block"),
        ("k8s { container { } }", "`k8s` has no property `container`"),
        ("k8s { container_config=4Gi }", "`k8s.container_config` must be a block"),
        ("k8s { merge_behavior=NONE }", "`k8s.merge_behavior` must be one of"),
    ],
)
def test_invalid_values_are_errors_at_their_place(tmp_path: Path, lines: str, message: str) -> None:
    project = loaded(tmp_path, m=f"{RAW}--@ persist\n--@ {lines}\n{VIEW}").project
    (problem,) = project.errors
    assert problem.message.startswith(message)
    assert (problem.location.path, problem.location.line) == ("sources/m.sql", 3)


@pytest.mark.proves("U2")
def test_invalid_values_in_settings_are_errors_there(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="`retries` must be an integer") as error:
        loaded(tmp_path, settings='[defaults."**"]\nretries = "3"\n', m=VIEW)
    assert str(error.value.location) == "persist.toml:2:1"


@pytest.mark.proves("U2")
@pytest.mark.parametrize("key", ["retries=1", "pool=p", "op_tags.a=b", "k8s.job_config.a=b"])
def test_step_annotations_of_sources_without_a_table_are_errors(tmp_path: Path, key: str) -> None:
    problems = loaded(tmp_path, m=f"{RAW}--@ {key}\n{VIEW}").project.errors
    assert [p.message for p in problems] == [
        f"`{key.partition('=')[0].partition('.')[0]}` has no effect on a source that is not "
        "persisted"
    ]


@pytest.mark.proves("U2")
def test_keys_missing_in_the_schema_of_dagster_k8s_are_errors(tmp_path: Path) -> None:
    job = pytest.importorskip("dagster_k8s.job")
    assert {*K8S_PARTS} == {*job.USER_DEFINED_K8S_JOB_CONFIG_SCHEMA.fields}
    lines = "--@ k8s.container_config.resurces.requests.memory=4Gi\n"
    sound(tmp_path, m=f"{RAW}--@ persist\n{lines}{VIEW}")  # its structure is valid
    with pytest.raises(SourcesError, match="Unexpected keys in model class V1Container") as error:
        load_sources(tmp_path / "sources")
    (problem,) = error.value.problems
    assert (problem.location.path, problem.location.line) == ("sources/m.sql", 3)
