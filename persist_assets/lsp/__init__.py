"""The language server: what an editor shows of a project during editing.

    texts of the editor ──► compilation ──► diagnostics, completion, hover, definitions, renames

It runs no code of the project, and reaches no untrusted places outside it.
"""
