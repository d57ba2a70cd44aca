"""Tests with a real broker of Apache Kafka: `make test-kafka`."""
