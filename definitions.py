from persist_assets import load_sources

defs = load_sources("examples/flights/sources")
