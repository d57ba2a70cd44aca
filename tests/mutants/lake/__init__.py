"""Mutants that the tests in `tests/lake` notice."""
