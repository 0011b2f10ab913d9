"""What the command line and the HTTP API print as JSON: one model per document."""
