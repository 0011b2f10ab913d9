"""One build: read its inputs, compute its rows by a strategy, check, commit and publish them."""
