"""A build hook: no wheel without Malloy's compiler in it."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Complete(BuildHookInterface):
    """Refuses to build a wheel that lacks what `make bridge` makes."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Look for the bundle and the licences of what is in it."""
        dist = Path(self.root) / "persist_assets" / "frontends" / "malloy_bridge" / "dist"
        missing = [n for n in ("bridge.cjs", "NOTICES.txt") if not (dist / n).exists()]
        if missing and version != "editable":
            raise SystemExit(f"{' and '.join(missing)} not there: make bridge")
