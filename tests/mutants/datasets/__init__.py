"""Mutants that the tests in `tests/tables` notice."""
