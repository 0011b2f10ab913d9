"""Make the environment: a virtual one with this project and everything it is developed with.

Works with and without `uv`; needs nothing but Python: where no Java is found,
the one that is installed here is used.
"""

import shutil
import subprocess
import sys
import venv
from pathlib import Path

EXTRAS = "demo,dev,malloy,postgres"


def main(target: Path) -> None:
    """Make `target`, an environment with the pinned versions of everything."""
    if sys.version_info < (3, 11):  # noqa: UP036 - whoever runs this may have an older one
        raise SystemExit(f"Python 3.11 or newer is needed, this is {sys.version.split()[0]}")
    python = target / "bin" / "python"
    uv = shutil.which("uv")
    arguments = ["-c", "requirements.lock", "-e", f".[{EXTRAS}]"]
    if uv:
        if not python.exists():
            subprocess.run([uv, "venv", "--python", sys.executable, str(target)], check=True)
        subprocess.run([uv, "pip", "install", "--python", str(python), *arguments], check=True)
    else:
        if not python.exists():
            venv.create(target, with_pip=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *arguments], check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
