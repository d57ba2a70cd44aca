"""Full-text search over spans: parts built apart, published together (PROTOCOLS §6)."""
