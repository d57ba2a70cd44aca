"""The test broker is a real one: it keeps its data when it is killed."""

from __future__ import annotations

from tests.kafka.broker import Broker
from tests.patience import wait_until


def test_a_broker_that_is_killed_has_what_was_sent_once_it_is_back(broker: Broker, topic: str) -> None:
    """After `kill -9`, the broker has all acknowledged messages, and partitions can be added."""
    broker.send(topic, [b"one", b"two"])
    broker.restart()
    broker.add_partitions(topic, 2)
    broker.send(topic, [b"three"], partition=1)
    assert [message.value() for message in broker.read(topic)] == [b"one", b"two", b"three"]


def test_records_can_be_removed_as_retention_does(broker: Broker, topic: str) -> None:
    """Tests can remove the beginning of a partition, as retention does."""
    broker.send(topic, [b"one", b"two", b"three"])
    broker.remove_below(topic, 0, 2)
    wait_until(
        lambda: [message.value() for message in broker.read(topic)] == [b"three"], "nothing was removed"
    )
