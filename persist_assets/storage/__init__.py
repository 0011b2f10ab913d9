"""Where rows are: raw tables that others write, and the Delta tables that we write."""
