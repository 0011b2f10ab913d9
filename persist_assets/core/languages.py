"""The languages of sources, and what the trees of their queries have in common."""

from __future__ import annotations

SQL = "sql"
PYTHON = "python"
MALLOY = "malloy"

REFERENCE = "persist_reference"
"""The key in the `meta` of a table in a query's tree that holds the number of its reference."""
