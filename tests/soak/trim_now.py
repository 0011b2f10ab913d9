"""`trim_now.py ROOT SECONDS`: trim a ledger to less than the hour that the command line permits."""

from __future__ import annotations

import sys
from pathlib import Path

from persist_assets.core.errors import PersistError
from persist_assets.core.settings.load import load_settings
from persist_assets.ledger.ledger import Ledger
from persist_assets.operations.trimming import trim


def main(root: Path, older_than_s: int) -> int:
    settings = load_settings(root)
    try:
        ledger = Ledger(settings.ledger)
        print(trim(settings, ledger, older_than_s))
        ledger.close()
    except PersistError as error:  # the database or the store is away
        print(error)
        return 5
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
