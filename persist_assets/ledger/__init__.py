"""The only mutable state, in one database: builds, the manifest, wants, leases, copies, taints."""
