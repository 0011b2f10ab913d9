"""Wants and build requests: what is due, its builds, and the graphs of other deployments."""
