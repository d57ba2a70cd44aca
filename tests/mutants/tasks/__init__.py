"""Mutants that the tests in `tests/tasks` notice."""
