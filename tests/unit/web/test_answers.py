"""What the HTTP API answers."""

from __future__ import annotations

import json

import pytest

from persist_assets.web.api import answer


@pytest.mark.proves("V59")
@pytest.mark.parametrize(
    "text",
    [
        "cannot connect to postgresql://me:hunter2@db/sales",
        "got a URI: 's3user:hunter2@bucket/f'",
        "GET https://account.blob/t?sig=hunter2&page=2 failed",
    ],
)
def test_answers_contain_no_secrets_of_quoted_addresses(text: str) -> None:
    document = {"error": text, "problems": [{"message": text}], "n": 1, "none": None}
    body = bytes(answer(document).body)
    assert b"hunter2" not in body
    assert json.loads(body)["n"] == 1
