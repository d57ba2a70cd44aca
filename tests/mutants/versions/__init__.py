"""Mutants that the tests in `tests/versions` notice."""
