"""Search: building parts, publishing them, and what queries find (PROTOCOLS §6)."""
