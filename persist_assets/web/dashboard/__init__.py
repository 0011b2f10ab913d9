"""The dashboard: pages for people with a browser.

The invariant: everything works without JavaScript, which only keeps pages up to date, draws charts
and shows local times; and a table beside each picture shows the same facts.
"""

from persist_assets.web.dashboard.routes import pages

__all__ = ["pages"]
