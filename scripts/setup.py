"""Make the environment: a virtual one with this project and everything it is developed with.

Works with and without `uv`; needs nothing but Python and Java to be there.
"""

import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

EXTRAS = "demo,dev,malloy,postgres"
JAVA_HINT = (
    "install Java 17 or 21 (Debian: apt-get install openjdk-17-jre-headless; "
    "macOS: brew install openjdk@17), or set JAVA_HOME to it"
)


def check_java() -> None:
    """Say so in one sentence if Spark cannot run."""
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java")
    if not java or not Path(java).exists():
        raise SystemExit(f"Spark needs Java, and there is none: {JAVA_HINT}")
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', said)
    if version and int(version[1]) < 17:
        raise SystemExit(f"Spark needs Java 17 or 21, {java} is Java {version[1]}: {JAVA_HINT}")


def main(target: Path) -> None:
    """Make `target`, an environment with the pinned versions of everything."""
    if sys.version_info < (3, 11):  # noqa: UP036 - whoever runs this may have an older one
        raise SystemExit(f"Python 3.11 or newer is needed, this is {sys.version.split()[0]}")
    check_java()
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
