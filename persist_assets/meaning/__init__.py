"""What a query means: which columns it has, what they are computed from, and its digest. Pure."""
