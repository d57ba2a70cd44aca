"""Mutants that the tests in `tests/cli` notice."""
