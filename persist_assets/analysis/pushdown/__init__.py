"""Which rows and columns of tables a query needs: a fold over the algebra. Pure.

For each place in which a query reads a table (an instance) the fold finds a predicate P such that
the query has the same rows over every part of the table that holds all rows of P: so the rows of
one place may stand beside those of another. Conditions go down from what reads to what is read:

- past filters, projections, inner joins, sources that are not persisted, CTEs;
- to all columns that a join makes equal, where values that are equal cannot be told apart;
- past groups and DISTINCT, about keys that are in every grouping set;
- past UNION ALL, into each of its branches;
- past outer joins, to the side that is preserved, to the other one from ON, and from above in
  addition where they reject NULLs;
- past windows, where the window itself saw them or they are about all of its partitions;
- never past LIMIT, FULL JOIN, EXCEPT, INTERSECT, generated rows and what draws lots.

Subqueries read places of their own. What a persisted source reads is that source's matter. Only
what cannot raise an error is pushed: comparisons, IN, IS NULL, LIKE, AND, OR, of columns, of times
cut down, and of the clock, with the conversions that Spark makes written out. The invariant: a
predicate is only ever wider than needed, and what was not pushed is told with its reason (`Kept`).
Columns that are not needed have to be there for a query's text, but may be NULL in all rows.
"""
