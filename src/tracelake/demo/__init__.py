"""Demo: trace a small real workload, and show Tracelake's view of it."""
