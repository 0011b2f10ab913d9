"""The mutations of `make mutations` still match the code that they break."""

from __future__ import annotations

import pytest
from mutations import MUTATIONS, ROOT, Mutation


@pytest.mark.proves("T9")
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.rule)
def test_each_mutation_matches_the_code_exactly_once(mutation: Mutation) -> None:
    assert (ROOT / "persist_assets" / mutation.file).read_text().count(mutation.old) == 1
