"""Mutants that the tests in `tests/archive` notice."""
