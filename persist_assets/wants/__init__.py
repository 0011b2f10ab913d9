"""Wants and requests: what is due, what is done about it, and graphs of other deployments."""
