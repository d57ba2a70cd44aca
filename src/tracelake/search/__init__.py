"""Full-text search over spans. Index parts are built separately and published together (PROTOCOLS §6)."""
