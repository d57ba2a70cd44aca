"""The broker, started once per run, and topics that no other test uses."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from tests.kafka.broker import Broker


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Broker that tests may kill; they leave it running."""
    broker = Broker(tmp_path_factory.mktemp("kafka") / "broker")
    yield broker
    broker.close()


@pytest.fixture
def topic(broker: Broker) -> str:
    """A topic of one partition."""
    return broker.make_topic(f"spans-{uuid.uuid4().hex}")
