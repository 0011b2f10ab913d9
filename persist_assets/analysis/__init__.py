"""Analysis of queries: binding, fingerprints, lineage, growth, pushdown. Pure."""
