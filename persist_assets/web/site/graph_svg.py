"""Positions of sources in a picture of a graph, and the lines between them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

WIDTH, HEIGHT = 200, 28
_APART, _BELOW = 70, 10
_MARGIN = 8


@dataclass(frozen=True, slots=True)
class Node:
    """A box; its position is that of its upper left corner, in pixels."""

    name: str
    x: int
    y: int


@dataclass(frozen=True, slots=True)
class Picture:
    """A graph from left to right.

    Attributes
    ----------
    lines
        From each input to its reader, as SVG paths.
    """

    nodes: tuple[Node, ...]
    lines: tuple[str, ...]
    width: int
    height: int


def layers(reads: Mapping[str, Sequence[str]]) -> tuple[tuple[str, ...], ...]:
    """Return names in layers: each name in the layer after the last of its inputs.

    Parameters
    ----------
    reads
        The inputs of each name, in dependency order. Inputs that are not names here are ignored.

    Examples
    --------
    >>> layers({"a": [], "b": ["a"], "c": ["a", "b"], "d": []})
    (('a', 'd'), ('b',), ('c',))
    """
    depth: dict[str, int] = {}
    for name, read in reads.items():
        depth[name] = max((depth[r] + 1 for r in read if r in depth), default=0)
    layers: list[list[str]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for name in sorted(reads):
        layers[depth[name]].append(name)
    at: dict[str, float] = {}
    for layer in layers:
        # Near their inputs, so that few lines cross; ties are in the order of names.
        layer.sort(key=lambda name: _mean([at[r] for r in reads[name] if r in at]))
        at |= {name: n for n, name in enumerate(layer)}
    return tuple(map(tuple, layers))


def _mean(places: Sequence[float]) -> float:
    return sum(places) / len(places) if places else 0.0


def draw(layered: Sequence[Sequence[str]], reads: Mapping[str, Sequence[str]]) -> Picture:
    """Return a picture of layers of names.

    Examples
    --------
    >>> draw([["a"], ["b"]], {"a": [], "b": ["a"]}).lines
    ('M208 22C243 22 243 22 278 22',)
    """
    nodes = {
        name: Node(name, _MARGIN + x * (WIDTH + _APART), _MARGIN + y * (HEIGHT + _BELOW))
        for x, layer in enumerate(layered)
        for y, name in enumerate(layer)
    }
    lines: list[str] = []
    for name, node in nodes.items():
        for read in reads.get(name, ()):
            if read in nodes:
                lines.append(_line(nodes[read], node))
    tallest = max(map(len, layered), default=0)
    return Picture(
        tuple(nodes.values()),
        tuple(lines),
        2 * _MARGIN + max(len(layered) * (WIDTH + _APART) - _APART, 0),
        2 * _MARGIN + max(tallest * (HEIGHT + _BELOW) - _BELOW, 0),
    )


def _line(start: Node, end: Node) -> str:
    left, right = start.x + WIDTH, end.x
    above, below = start.y + HEIGHT // 2, end.y + HEIGHT // 2
    middle = (left + right) // 2
    return f"M{left} {above}C{middle} {above} {middle} {below} {right} {below}"
