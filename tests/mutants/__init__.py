"""Mutants of each package: for each broken rule, a named test fails."""
