"""Everything Dagster: assets, checks, the IO manager and runs. Only public `dagster` names."""

import warnings
from collections.abc import Generator
from contextlib import contextmanager

import dagster as dg


@contextmanager
def beta() -> Generator[None]:
    """Use what Dagster calls beta without its warnings: we chose it knowingly, users did not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)
        yield
