"""Mutants that the tests in `tests/server` notice."""
