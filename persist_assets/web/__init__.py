"""The graph over HTTP: its events, wants, partitions and deadlines, for programs and for people.

    graph.py        what is served: the ledger, the current sources, clients that wait for events
    access.py       permissions: tokens, sessions, limits, cross-site requests
    connections.py  limits of connections
    requests.py     the parameters and bodies of requests
    documents.py    the answers that no command prints
    api.py          `/api/v1`: one table of endpoints, which checks and describes requests
    metrics.py      metrics for Prometheus
    layout.py       templates of pages
    dashboard.py    pages
    app.py          all of it as one application, and its server
    site/           a project as a directory of static pages

It decides nothing: decisions about wants are made in `wants/requests.py`.
"""
