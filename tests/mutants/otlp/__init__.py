"""Mutants that the tests in `tests/otlp` notice."""
