"""Tests with a real broker of Apache Kafka: `python -m tests.campaigns kafka`."""
