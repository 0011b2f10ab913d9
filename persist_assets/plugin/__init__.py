"""All that uses Dagster: assets, checks, the IO manager and runs. Only public `dagster` names."""

import warnings
from collections.abc import Generator
from contextlib import contextmanager

import dagster as dg


@contextmanager
def beta() -> Generator[None]:
    """Suppress Dagster's beta warnings: we chose these features knowingly, users did not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)
        yield
