"""Mutants that the tests in `tests/faults` notice."""
