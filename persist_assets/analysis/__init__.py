"""What a query means: bound, fingerprinted, traced to its inputs, pushed down. Pure."""
