"""The values that flow through the product: declarations, sources, projects, plans, snapshots.

All are frozen and hold tuples and names, never live objects, so that equal things are equal,
can be keys, and can be sent to another process. The words are those of `docs/architecture/`.
"""
