"""Text → declarations: one module for each language, and what they share."""
