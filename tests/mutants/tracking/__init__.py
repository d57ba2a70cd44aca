"""Mutants that the tests in `tests/tracking` notice."""
