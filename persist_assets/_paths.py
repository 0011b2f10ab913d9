"""Where the package's own files lie: no other module derives a path from its own place."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).parent
MALLOY_BRIDGE = PACKAGE / "frontends" / "malloy_bridge" / "dist" / "bridge.cjs"
"""The bundle of Malloy's compiler, which `make bridge` makes."""
FAIR_SCHEDULER = PACKAGE / "fairscheduler.xml"
SPARK_FUNCTIONS = PACKAGE / "meaning" / "spark_functions.txt"
"""Written by `scripts/spark_functions.py`."""
WEB = PACKAGE / "service"
"""Templates and static files of the dashboard; what all pages share."""
SITE = PACKAGE / "site"
"""Templates and static files of the catalog site."""
