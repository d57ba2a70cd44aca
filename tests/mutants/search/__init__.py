"""Mutants that the tests in `tests/search` notice."""
