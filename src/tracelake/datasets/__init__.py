"""Datasets for evaluation, cut from spans and versioned by the commits of the lake."""
