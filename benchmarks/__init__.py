"""Side by side with peers: each result is a ratio from one run."""
