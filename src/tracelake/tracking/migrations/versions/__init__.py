"""The revisions, oldest first by name. What is released never changes."""
