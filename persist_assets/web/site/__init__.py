"""All that is known of a project as a directory of pages, which any web server or browser shows.

    passages.py   what a source says in its file, and which problems are its own
    picture.py    which source stands where in a picture of a graph
    pages.py      a project and what its ledger knows → the text of every page
    directory.py  pages → a directory, all at once

The invariant: equal projects and ledgers make equal bytes, and a page says nothing that is not in
them; everything that others wrote is escaped.
"""
