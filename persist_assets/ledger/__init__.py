"""The ledger: the database of events, builds, manifests and leases; the only mutable state."""
