"""Malloy: its compiler, which runs in Node.js, and what its answers say of a project."""
