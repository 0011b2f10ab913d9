"""External tables: the connectors that reach them, and the local copies that are kept of them."""
