"""Replicas of a pipeline: their heartbeat records, and the status derived from them."""
