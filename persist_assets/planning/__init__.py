"""Planning: what to build and why, from a project and observed facts. Pure."""
