"""What operators do: one verb a file."""
