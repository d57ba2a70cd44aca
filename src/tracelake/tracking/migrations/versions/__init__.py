"""Revisions of the tracking store's schema, oldest first by name. A released revision never changes."""
