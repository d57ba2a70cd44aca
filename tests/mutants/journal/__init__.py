"""Mutants that the tests in `tests/journal` notice."""
