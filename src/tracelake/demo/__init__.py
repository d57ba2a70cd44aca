"""The demo: a small real workload, traced, and what Tracelake then shows of it."""
