"""A project as a directory of static pages, for any web server or browser.

    catalog.py    the ledger's records of each source
    excerpts.py   the text of each source in its file
    graph_svg.py  the positions of sources in a picture of a graph
    pages.py      a project and the ledger's records → the text of every page
    directory.py  pages → a directory, replaced atomically

The invariant: equal projects and ledgers produce equal bytes, a page says nothing that is not in
them, and everything that others wrote is escaped.
"""
