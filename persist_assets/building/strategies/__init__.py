"""Ways to compute the rows of a build."""
