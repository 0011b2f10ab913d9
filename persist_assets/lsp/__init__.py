"""The language server: what an editor shows of a project while somebody writes it.

    texts of the editor ──► compilation ──► diagnostics, completion, hover, definitions, renames

It runs no code of the project, and reaches no untrusted places outside it.
"""
