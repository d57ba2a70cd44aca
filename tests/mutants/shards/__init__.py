"""Mutants that the tests in `tests/shards` notice."""
