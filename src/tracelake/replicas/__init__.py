"""Replicas of a pipeline: what each one tells of itself, and what that says about it."""
