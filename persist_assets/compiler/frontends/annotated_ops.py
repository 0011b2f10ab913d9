"""Options of Dagster for the step of a source: retries, a pool, tags, Kubernetes."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast, get_args

from persist_assets.compiler.frontends.annotation_values import (
    Bad,
    one_of,
    read_duration,
    read_known,
    read_text,
    refuse,
)
from persist_assets.core.errors import did_you_mean
from persist_assets.core.model.annotations import (
    K8S_PARTS,
    K8S_TAG,
    Backoff,
    Jitter,
    Retries,
)

if TYPE_CHECKING:
    from persist_assets.compiler.frontends.motly import Tag

_MERGES = ("DEEP", "SHALLOW")
_OURS = {
    K8S_TAG: "k8s { … }",
    "dagster/concurrency_key": "pool=…",
}
"""Tags of Dagster that have a key of their own here."""


def read_retries(tag: Tag, key_name: str) -> Retries:
    """Return how often a failed step is tried again, and after which delays."""
    example = f'for example, {key_name}=3 {{ delay="30s" backoff=exponential }}'
    parts: dict[str, Any] = {}
    for name, below in read_known(tag, key_name, ("max", "delay", "backoff", "jitter")):
        if name == "max":
            if tag.value is not None:
                raise Bad(
                    f"`{key_name}` has a number, and `{key_name}.max`", below.location, example
                )
            parts[name] = _number(below, f"{key_name}.max", example)
        elif name == "delay":
            parts[name] = read_duration(below, f"{key_name}.delay")
        else:
            choices = get_args(Backoff if name == "backoff" else Jitter)
            parts[name] = one_of(choices, below, f"{key_name}.{name}")
    if tag.value is not None:
        parts["max"] = _number(tag, key_name, example)
    if "max" not in parts:
        raise Bad(f"`{key_name}` needs a number", tag.location, example)
    if "delay" not in parts:
        for name in ("backoff", "jitter"):
            if name in parts:
                message = f"`{key_name}.{name}` changes a delay, but there is none"
                raise Bad(message, tag.location, 'add delay="30s"')
    return Retries(parts["max"], parts.get("delay"), parts.get("backoff"), parts.get("jitter"))


def _number(tag: Tag, key_name: str, example: str) -> int:
    value = tag.value
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 100:
        raise Bad(f"`{key_name}` must be an integer from 1 to 100", tag.location, example)
    return value


def read_pool(tag: Tag, key_name: str) -> str:
    """Return the name of a pool of Dagster."""
    pool = read_text(tag, key_name)
    if re.search(r"\s", pool):
        raise Bad(f"invalid pool name `{pool}`", tag.location, "remove the spaces")
    return pool


def read_op_tags(tag: Tag, key_name: str) -> tuple[tuple[str, str], ...]:
    """Return the tags of the op, sorted; values that are not strings become JSON."""
    example = f"for example, {key_name} {{ `dagster/priority`=3 }}"
    if tag.value is not None or not tag.properties:
        raise Bad(f"`{key_name}` must be a block of tags", tag.location, example)
    tags: dict[str, str] = {}
    for name, below in tag.properties.items():
        if name in _OURS:
            raise Bad(f"`{key_name}` cannot have `{name}`", below.location, f"write {_OURS[name]}")
        if not below.deleted:
            value = _plain(below, f"{key_name}.{name}")
            tags[name] = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return tuple(sorted(tags.items()))


def read_k8s(tag: Tag, key_name: str) -> str:
    """Return the value of the tag ``dagster-k8s/config`` as JSON."""
    example = f"for example, {key_name}.container_config.resources.requests.memory=4Gi"
    if tag.value is not None or not tag.properties:
        raise Bad(f"`{key_name}` must be a block", tag.location, example)
    config: dict[str, object] = {}
    for name, below in tag.properties.items():
        if name == "merge_behavior":
            config[name] = one_of(_MERGES, below, f"{key_name}.{name}")
            continue
        if name not in K8S_PARTS:
            hint = did_you_mean(name, K8S_PARTS) or f"known properties: {', '.join(K8S_PARTS)}"
            raise Bad(f"`{key_name}` has no property `{name}`", below.location, hint)
        if not below.deleted:
            config[name] = _plain(below, f"{key_name}.{name}")
            if not isinstance(config[name], dict):
                raise Bad(f"`{key_name}.{name}` must be a block", below.location, example)
    return json.dumps(config, sort_keys=True)


def _plain(tag: Tag, key_name: str) -> object:
    """Return a value as JSON has it."""
    if tag.properties is not None:
        refuse(None if tag.value is None else tag.properties, key_name)
        live = {name: t for name, t in tag.properties.items() if not t.deleted}
        return {name: _plain(t, f"{key_name}.{name}") for name, t in live.items()}
    if isinstance(tag.value, list):
        return [_plain(element, key_name) for element in tag.value]
    if tag.value is None:
        raise Bad(f"`{key_name}` has no value", tag.location, "write @true for a Boolean")
    return cast("object", tag.value)


def with_booleans(tag: Tag, value: object) -> Tag:
    """Return a tag made of a value of TOML in which false is a value and removes nothing."""
    if isinstance(value, dict):
        below = tag.properties or {}
        pairs = cast("dict[str, object]", value).items()
        return replace(tag, properties={k: with_booleans(below[k], v) for k, v in pairs})
    if isinstance(value, list):
        tags = cast("list[Tag]", tag.value)
        pairs = zip(tags, cast("list[object]", value), strict=True)
        return replace(tag, value=[with_booleans(t, v) for t, v in pairs])
    return replace(tag, value=False, deleted=False) if value is False else tag
