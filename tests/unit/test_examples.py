"""The examples in docstrings print the output that they document."""

from __future__ import annotations

import doctest
import importlib

import pytest
from conftest import ROOT

PACKAGE = ROOT / "persist_assets"
MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in sorted(PACKAGE.rglob("*.py"))
    if ">>> " in path.read_text()
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_print_the_documented_output(name: str) -> None:
    failed, tried = doctest.testmod(importlib.import_module(name))
    assert failed == 0
    assert tried > 0
