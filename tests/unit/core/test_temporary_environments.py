"""Environments that a pattern declares, for example those of pull requests."""

from __future__ import annotations

from pathlib import Path

import pytest

from persist_assets.core.errors import SettingsError
from persist_assets.core.settings.load import environments_of, load_settings

SETTINGS = """
[env.prod]
strict = true

[env."pr-*"]
reads = "prod"
parallel = 3
raw = { t = "small" }

[env."pr-big-*"]
reads = "pr-1"

[env.pr-7]
parallel = 7
"""


def write(root: Path, text: str = SETTINGS) -> Path:
    (root / "persist.toml").write_text(text)
    return root


@pytest.mark.proves("W12")
def test_every_name_that_matches_a_pattern_is_an_environment(tmp_path: Path) -> None:
    root = write(tmp_path)
    settings = load_settings(root, environment="pr-123")
    assert settings.environments == ("pr-123", "prod")
    assert (settings.parallel, settings.raws, settings.strict) == (3, (("t", "small"),), False)
    assert settings.declared == ("pr-7", "prod")
    assert environments_of(root) == ("dev", "pr-7", "prod")
    assert settings.is_temporary("pr-123")
    assert not settings.is_temporary("prod")


@pytest.mark.proves("W12")
def test_a_name_precedes_patterns_and_longer_patterns_precede_shorter_ones(tmp_path: Path) -> None:
    root = write(tmp_path)
    named = load_settings(root, environment="pr-7")
    assert (named.parallel, named.environments) == (7, ("pr-7",))
    assert not named.is_temporary("pr-7")
    longer = load_settings(root, environment="pr-big-1")
    assert longer.environments == ("pr-big-1", "pr-1", "prod")


def test_environments_of_a_pattern_have_no_views(tmp_path: Path) -> None:
    root = write(tmp_path, 'environment = "prod"\nviews = "{name}"\n[env."pr-*"]\n')
    assert load_settings(root, environment="prod").views == "{name}"
    assert load_settings(root, environment="pr-1").views == ""


@pytest.mark.parametrize(
    ("text", "environment", "says"),
    [
        (SETTINGS, "x", "unknown environment `x`\n    hint: known environments: dev, pr-*, pr-7"),
        (SETTINGS, "pr-*", "invalid environment name `pr-*`"),
        ('[env."*"]', "dev", "invalid environment name ``"),
        ('[env."p*r"]', "dev", "invalid environment name `p*r`"),
        ('[env."pr-*"]\nviews = "{name}"', "dev", 'persist.toml:2:1: `[env."pr-*"] views`'),
        ('[env."pr-*"]\nreads = "x"', "pr-1", "persist.toml:2:1: `[env.pr-1] reads` names `x`"),
        ('[env."pr-*"]\nreads = "pr-*"', "pr-1", "reads` names `pr-*`, which is not declared"),
        ('[env."pr-*"]\nreads = "pr-1"', "pr-1", "read each other in a cycle: pr-1 → pr-1"),
        ('[env."pr-*"]\nparallel = -1', "pr-1", "persist.toml:2:1: `parallel` must be"),
    ],
)
def test_invalid_environments_and_patterns_are_rejected(
    tmp_path: Path, text: str, environment: str, says: str
) -> None:
    with pytest.raises(SettingsError) as error:
        load_settings(write(tmp_path, text), environment=environment, environ={})
    assert says in str(error.value)
