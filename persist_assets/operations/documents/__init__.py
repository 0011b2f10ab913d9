"""JSON documents of the command line and the HTTP API: one model per document."""
