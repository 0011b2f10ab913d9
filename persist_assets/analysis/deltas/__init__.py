"""Deltas: how the rows of a query change when its tables change. Pure.

    algebra of a query ─► staged (`staging.py`) ─► rules (`rules.py`) ─► Spark SQL (`printing.py`)

`change_of` returns statements over the old and the new version of the tables that changed, and over
their changed rows. Run by an engine, they give the rows to remove from the query's table and those
to add. Where a node of the query has no rule, `NoRule` says which one and why.

The rules follow Gupta & Mumick, *Maintenance of materialized views* (1995), and Budiu et al.,
*DBSP* (2023): rows have weights, a change is a relation with positive and negative weights, and the
change of a join is a sum with one term for each input that changed. Nodes that are not linear
(groups, windows, outer joins) are computed again for the keys that the change touches.
"""
