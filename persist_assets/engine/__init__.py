"""Spark: its session, the shared server, the running of statements, the measuring of rows."""
