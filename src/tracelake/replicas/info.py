"""Records of replicas as the public API shows them."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from tracelake.replicas.heartbeat import replicas
from tracelake.replicas.model import Replica
from tracelake.replicas.protocol import oldest_age_s, status, transactions_behind
from tracelake.results import ReplicaInfo
from tracelake.storage import KeyValueStore


def describe_all(store: KeyValueStore, upper: int) -> list[ReplicaInfo]:
    """Return all replicas as they are now, by name, the tables being at `upper`."""
    return [describe(replica, upper, time.time()) for replica in replicas(store)]


def describe(replica: Replica, upper: int, now_s: float) -> ReplicaInfo:
    """Return what a record says at a time, the tables being at `upper`."""
    answer = status(replica, now_s)
    return ReplicaInfo(
        name=replica.name,
        status=answer.word,
        reason=answer.reason,
        frontier=replica.frontier,
        transactions_behind=transactions_behind(replica, upper),
        waiting_inputs=replica.waiting_inputs,
        waiting_bytes=replica.waiting_bytes,
        oldest_waiting_s=oldest_age_s(replica, now_s),
        batches_won=replica.batches_won,
        batches_of_peers=replica.batches_of_peers,
        rows_dropped=replica.rows_dropped,
        doing=replica.doing,
        moved_at=_iso(replica.moved_s),
        failures=replica.failures,
        last_error=replica.last_error,
        last_error_at=None if replica.last_error_s is None else _iso(replica.last_error_s),
        instance=replica.instance,
        host=replica.host,
        pid=replica.pid,
        started_at=_iso(replica.started_s),
        heartbeat_at=_iso(replica.heartbeat_s),
        namesake=replica.namesake,
    )


def _iso(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).isoformat(timespec="milliseconds")
