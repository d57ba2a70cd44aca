"""Real servers that tests start for themselves, and a proxy that cuts connections."""
