"""Rows and columns of tables that a query needs: a fold over the algebra. Pure.

For each place in which a query reads a table (an instance), the fold finds a predicate P such that
the query has the same rows over every part of the table that holds all rows of P; the rows of one
place may therefore be stored beside those of another. Conditions are pushed from readers to their
inputs:

- past filters, projections, inner joins, sources that are not persisted, CTEs;
- to all columns that a join makes equal, where equal values are indistinguishable;
- past groups and DISTINCT, on keys that are in every grouping set;
- past UNION ALL, into each of its branches; past EXCEPT and INTERSECT, where equal values of the
  columns are indistinguishable;
- from one input of a join to another, through equal columns, also if they are filters of a source
  that is not persisted (`facts.py`);
- from a query into a subquery or a LATERAL query, through the columns that this compares; from
  both sides of ``a IN (SELECT b …)`` to the other, if it is a filter;
- past outer joins: to the preserved side; to the other side from ON; from above too, if a condition
  rejects NULLs of that side, and then as past an inner join;
- past windows, if the window itself saw them or they hold for whole partitions of it;
- never past LIMIT, generated rows and nondeterministic relations.

Subqueries read places of their own. The inputs of a persisted source are its own concern. Only
conditions that cannot raise an error are pushed: comparisons, IN, IS NULL, LIKE, AND, OR, of
columns, their fields, truncated times, and the clock, with Spark's conversions made explicit.
Constants are computed; a condition on a CASE or `coalesce` becomes one on its tests and values; a
comparison that is not pushed still needs that its columns are not NULL. Where two conditions
exclude each other, nothing is needed below. The invariant: a predicate is never narrower than
needed, and every condition that is not pushed is reported with its reason (`Kept`). Columns that
are not needed must exist for the query's text, but may be NULL in all rows.
"""
