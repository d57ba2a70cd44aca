"""Migrations of the tracking store, one file a revision; `migrating.py` runs them."""
