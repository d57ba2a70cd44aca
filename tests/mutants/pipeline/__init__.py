"""Mutants that the tests in `tests/pipeline` notice."""
