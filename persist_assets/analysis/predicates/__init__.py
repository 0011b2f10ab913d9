"""A small language of predicates on the rows of a table, a subset of Spark's SQL. Pure.

    predicate  TRUE | FALSE | AND | OR | comparison | IS [NOT] NULL | [NOT] IN | [NOT] LIKE
    value      column | literal | clock (NOW() - INTERVAL 6 MONTHS, …) | CAST | date_trunc | year …

A row satisfies a predicate if the predicate is TRUE, not if it is NULL. Terms are canonical from
their construction, so that the text of a term is the same in every process; `as_text` and
`from_text` are inverse to each other. Nothing in the language can raise an error, is
nondeterministic or depends on the order of rows. Clock functions stay symbols, until `evaluated`
replaces them by an instant.

The invariant: a claim of `implies` holds for every table; in doubt it returns False.
"""

from persist_assets.analysis.predicates.clock import (
    evaluated,
    evaluated_within,
    next_first,
    reads_clock,
)
from persist_assets.analysis.predicates.implication import (
    consistent,
    difference,
    implies,
    union,
    without_implied,
)
from persist_assets.analysis.predicates.terms import (
    FALSE,
    FLIPPED,
    LITERALS,
    NEGATED,
    NOW,
    OF_TEXT,
    SECONDS,
    TODAY,
    TRUE,
    UNITS,
    VARIABLES,
    Term,
    as_condition,
    as_double,
    as_text,
    cast,
    column,
    comparable,
    compared,
    conjuncts,
    disjuncts,
    every,
    is_calm,
    made_of,
    negated,
    not_true,
    number_literal,
    rebuilt,
    shifted,
    shifted_date,
    some,
    time_literal,
    variables,
    varies,
    weakened,
    within,
)
from persist_assets.analysis.predicates.text import UnreadableError, from_text, string_of
from persist_assets.core.digests import FORMAT

__all__ = [
    "FALSE",
    "FLIPPED",
    "FORMAT",
    "LITERALS",
    "NEGATED",
    "NOW",
    "OF_TEXT",
    "SECONDS",
    "TODAY",
    "TRUE",
    "UNITS",
    "VARIABLES",
    "Term",
    "UnreadableError",
    "as_condition",
    "as_double",
    "as_text",
    "cast",
    "column",
    "comparable",
    "compared",
    "conjuncts",
    "consistent",
    "difference",
    "disjuncts",
    "evaluated",
    "evaluated_within",
    "every",
    "from_text",
    "implies",
    "is_calm",
    "made_of",
    "negated",
    "next_first",
    "not_true",
    "number_literal",
    "reads_clock",
    "rebuilt",
    "shifted",
    "shifted_date",
    "some",
    "string_of",
    "time_literal",
    "union",
    "variables",
    "varies",
    "weakened",
    "within",
    "without_implied",
]
