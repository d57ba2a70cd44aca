"""Mutants that the tests in `tests/storage` notice."""
