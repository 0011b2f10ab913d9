"""`persist.toml` and the environment → one frozen `Settings`.

The invariant: everything that changes results is in `Settings.connection`, and nothing else is,
so that moving the project or tuning Spark rebuilds nothing.
"""
