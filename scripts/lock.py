"""Write requirements.lock: the versions of everything, for all platforms and extras.

The file is used as constraints, which take no extras.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent

if __name__ == "__main__":
    command = [
        *("uv", "pip", "compile", "pyproject.toml", "--universal", "--all-extras"),
        *("--python-version", "3.11", "--no-header", "--no-annotate", "--no-emit-index-url"),
        *("--quiet", *sys.argv[1:]),
    ]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    (ROOT / "requirements.lock").write_text(re.sub(r"\[[^]]*\]", "", done.stdout))
