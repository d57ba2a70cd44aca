"""The archive: moves cold traces out of the tracking store, restores them, and deletes them permanently."""
