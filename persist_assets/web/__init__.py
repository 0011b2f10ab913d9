"""The graph over HTTP: its events, wants, partitions and deadlines, for programs and for people.

    graph.py      what is served: the ledger, a fresh look at the sources, who waits for events
    access.py     who may do what: tokens, sessions, limits, requests that others' pages send
    api.py        `/api/v1`: one table of endpoints, from which requests are checked and described
    layout.py     how pages are made of templates
    dashboard.py  pages
    app.py        all of it as one application, and its server

It decides nothing: what is done about wants is in `requests.py`.
"""
