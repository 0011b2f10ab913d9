"""Projects of dbt and SQLMesh, written as projects of ours.

    the files of a project ─► drafts of sources, checks, tests ─► compiled ─► a new project
    (dbt.py, sqlmesh.py)      (drafts.py, translation.py)          (writing.py)

Nothing is lost silently: whatever is not carried is in the report, with its file and line.
"""
