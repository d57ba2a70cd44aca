"""Mutants that the tests in `tests/access` notice."""
