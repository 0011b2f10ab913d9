"""The places of the package's own files: no other module derives a path from its own place."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).parent
MALLOY_BRIDGE = PACKAGE / "compiler" / "malloy" / "bridge_js" / "dist" / "bridge.cjs"
"""The bundle of Malloy's compiler, which `make bridge` makes."""
FAIR_SCHEDULER = PACKAGE / "engine" / "fairscheduler.xml"
SPARK_FUNCTIONS = PACKAGE / "analysis" / "spark_functions.txt"
"""Written by `scripts/spark_functions.py`."""
TEMPLATE = PACKAGE / "template"
"""The files of a new project."""
WEB = PACKAGE / "web"
"""Templates and static files that all pages share."""
DASHBOARD = WEB / "dashboard"
"""Templates and static files of the dashboard."""
VENDORED = WEB / "vendor" / "dist"
"""The style sheet and the charts that `make vendor` fetches; pages also work without them."""
SITE = WEB / "site"
"""Templates and static files of the catalog site."""
