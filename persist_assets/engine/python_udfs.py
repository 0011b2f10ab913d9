"""Functions in Python that queries call, registered in the sessions that run these queries.

A registered name has a digest of the function's code. So sessions of several environments, and of
several versions of a project, never mix functions, and a name is registered once in a session.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from persist_assets.analysis.functions import PYTHON
from persist_assets.engine.python_functions import load_udf
from persist_assets.engine.session import translated

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from persist_assets.core.model.queries import PythonUdf


class Udfs:
    """The functions in Python that an engine may have to register.

    Parameters
    ----------
    root
        The project's root.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._known: dict[str, PythonUdf] = {}
        self._registered: WeakKeyDictionary[SparkSession, set[str]] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def define(self, functions: Iterable[PythonUdf]) -> None:
        """Learn functions; nothing is imported yet."""
        with self._lock:
            self._known |= {f.registered: f for f in functions}

    def register(self, session: SparkSession, *texts: str | None) -> None:
        """Register the functions that texts of SQL call, before a session runs these.

        Raises
        ------
        BuildError
            The file of one of them cannot be imported.
        """
        names = {match[0] for text in texts if text for match in PYTHON.finditer(text)}
        if not names:
            return
        with self._lock:
            present = self._registered.setdefault(session, set())
            for name in sorted(names & self._known.keys() - present):
                self._register(session, self._known[name])
                present.add(name)

    def _register(self, session: SparkSession, udf: PythonUdf) -> None:
        from pyspark.sql import functions as F

        function = load_udf(udf, self._root)
        with translated(f"registering `{udf.name}`"):
            made: Any = F.udf(function, udf.returns)
            made = made if udf.deterministic else made.asNondeterministic()
            session.udf.register(udf.registered, made)
