"""What to build and why: a plan follows from a project and from what was observed. Pure."""
