"""Evaluation datasets, made from spans and versioned by the commits of the lake."""
