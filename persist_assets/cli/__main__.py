"""`python -m persist_assets.cli`."""

from persist_assets.cli import main

main()
