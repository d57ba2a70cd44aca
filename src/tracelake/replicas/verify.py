"""Reading back what replicas tell of themselves, for `tracelake verify`."""

from __future__ import annotations

from collections.abc import Iterator

from tracelake.replicas.heartbeat import PARTITION
from tracelake.results import Finding
from tracelake.storage import KeyValueStore
from tracelake.storage.verify import check_records


def check_heartbeats(key_value: KeyValueStore) -> Iterator[Finding]:
    """Yield the records of replicas that are not whole."""
    return check_records(key_value, [PARTITION])
