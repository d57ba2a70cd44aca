"""The archive: cold traces leave the tracking store, come back by restore, and go for good by delete."""
