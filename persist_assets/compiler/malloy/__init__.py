"""Malloy: its compiler, which runs in Node.js, and the declarations in its answers."""
