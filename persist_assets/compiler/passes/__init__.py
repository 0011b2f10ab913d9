"""The passes of a compilation, each a function of it.

Names are resolved, sources put in order, queries bound, digested and checked against their
annotations. The invariant: every problem of every file is found in one go, each is reported once,
and what depends on something broken is left out in silence.
"""
