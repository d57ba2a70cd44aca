"""The heartbeat record of a replica, and every decision about its progress and status. Pure: no I/O, no clock.

Times are seconds since 1970 UTC, by the replica's clock. The rule is: *a replica that gets nothing done never counts as
running.* A retry or another poll is therefore no progress. Progress is a transaction that advances further than ever
before, the disappearance of the oldest pending input, or a poll that finds nothing to do.

After an error, only a stage that was not reached before counts, until a run succeeds. Otherwise, a writer that always
fails at the last stage would seem to progress each time it gets there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

import msgspec

from tracelake.limits import REPLICA_GONE_S, REPLICA_STUCK_S

FORMAT_VERSION: Final = 1


class SourceAccount(msgspec.Struct, frozen=True, kw_only=True):
    """A replica's report on one source that it polls."""

    name: str
    address: str
    """Empty for a built-in source."""
    id: str
    """Id of the record of a configured source; empty for others."""
    kind: str
    """files, buckets, kafka, inbox, outbox; empty if it was never opened."""
    state: str
    """active | paused | failing"""
    reason: str | None = None
    """Reason of the failure."""
    waiting: int | None = None
    """Amount of pending input at the last poll; None if unknown."""
    unit: str = ""
    """Unit of `waiting`: files, objects, segments, rows, messages."""
    waiting_bytes: int | None = None
    oldest_waiting_s: float | None = None
    """Arrival time of the oldest pending input."""
    looked_s: float | None = None
    """Time of the last successful poll."""
    taken_inputs: int = 0
    """Inputs of this source that this process recorded in the journal."""
    taken_bytes: int = 0
    bytes_per_s: float = 0.0
    """Throughput over about the last minute."""


class Replica(msgspec.Struct, frozen=True, kw_only=True):
    """The heartbeat record of one replica of the pipeline. It only serves display."""

    name: str
    instance: str
    """Random for each process, so that two replicas with the same name differ in it."""
    host: str
    pid: int
    started_s: float
    heartbeat_s: float
    """Time at which the record was written."""
    frontier: int = 0
    """The transaction that the replica works on, or waits to begin."""
    waiting_inputs: int = 0
    """Pending inbox segments and watched files that no transaction contains, as of the last poll."""
    waiting_bytes: int = 0
    oldest_waiting_s: float | None = None
    """Arrival time of the oldest pending input."""
    batches_won: int = 0
    """Batches of tables that this instance appended."""
    batches_of_peers: int = 0
    """Batches of completed transactions that other replicas appended."""
    rows_dropped: int = 0
    """Rows that it had read or shaped in vain, because a peer had already written their transaction."""
    moved_s: float
    """Time of the last progress. Only the main loop sets it; the heartbeat copies it."""
    doing: str | None = None
    """The current activity, None between two polls."""
    failing: bool = False
    """Whether no run succeeded since the last error."""
    waits_for: str | None = None
    """The unreadable sources and inputs of the last run, which took all others."""
    failures: int = 0
    last_error: str | None = None
    last_error_s: float | None = None
    namesake: str | None = None
    """Another live process with the same name."""
    sources: tuple[SourceAccount, ...] = ()
    format_version: int = FORMAT_VERSION


ReplicaStatus: TypeAlias = Literal["running", "idle", "waiting", "stuck", "gone"]
NOT_BEGUN: Final = -1


@dataclass(frozen=True, slots=True)
class Advance:
    """The furthest position of a replica so far, which distinguishes progress from repetition."""

    furthest: tuple[int, int, int] = (0, NOT_BEGUN, 0)
    """The furthest position: (transaction, stage, tasks done)."""
    oldest: str | None = None
    """The oldest pending input at the last poll."""
    failing: bool = False
    stage: int = NOT_BEGUN
    """The latest stage reached since the last successful run."""


def on_look(moves: Advance, frontier: int, oldest: str | None) -> tuple[Advance, bool]:
    """Return the position after a poll of the inputs, and whether the poll is progress. `oldest` is the oldest pending
    input."""
    moved = oldest is None or oldest != moves.oldest or frontier > moves.furthest[0]
    furthest = max(moves.furthest, (frontier, NOT_BEGUN, 0))
    return replace(moves, oldest=oldest, furthest=furthest), moved and not moves.failing


def on_stage(moves: Advance, transaction: int, stage: int, completed: int) -> tuple[Advance, bool]:
    """Return the position after a transaction reached a stage (0 is the first), and whether that is progress."""
    at = (transaction, stage, completed)
    moved = stage > moves.stage if moves.failing else at > moves.furthest
    return replace(moves, furthest=max(moves.furthest, at), stage=max(moves.stage, stage)), moved


def on_failure(moves: Advance) -> Advance:
    """Return the position after a failed run."""
    return replace(moves, failing=True)


def on_success(moves: Advance) -> tuple[Advance, bool]:
    """Return the position after a successful run, and whether it is progress, as it is after a failure."""
    return replace(moves, failing=False, stage=NOT_BEGUN), moves.failing


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """The status of a replica; the reason is empty if the status is self-explanatory."""

    word: ReplicaStatus
    reason: str = ""


def status(replica: Replica, now_s: float) -> ReplicaReport:
    """Return the status of a replica at a time, from its last record.

    - running: input is pending or work is in progress, and it advances.
    - idle: no input is pending.
    - waiting: some source or input was unreadable, and all others are ingested.
    - stuck: it fails, or made no progress for longer than REPLICA_STUCK_S.
    - gone: it wrote no heartbeat for longer than REPLICA_GONE_S.
    """
    silent_s = now_s - replica.heartbeat_s
    if silent_s > REPLICA_GONE_S:
        return ReplicaReport(
            "gone", f"no heartbeat for {silent_s:.0f} s: it was killed, paused or disconnected"
        )
    if replica.failing:
        return ReplicaReport("stuck", replica.last_error or "it fails")
    still_s = now_s - replica.moved_s
    if still_s > REPLICA_STUCK_S:
        return ReplicaReport(
            "stuck", f"no progress for {still_s:.0f} s: {replica.doing or 'between two looks'}"
        )
    if replica.waits_for is not None:
        return ReplicaReport("waiting", f"for {replica.waits_for}")
    return ReplicaReport("running" if replica.doing or replica.waiting_inputs else "idle")


def transactions_behind(replica: Replica, upper: int) -> int:
    """Return how many transactions in the tables the replica has not passed yet."""
    return max(0, upper - replica.frontier)


def oldest_age_s(replica: Replica, now_s: float) -> float | None:
    """Return the age of the oldest pending input, None if there is none."""
    return None if replica.oldest_waiting_s is None else max(0.0, now_s - replica.oldest_waiting_s)


def batches_of_peers(first: int, frontier: int, won: int, tables: int) -> int:
    """Return how many batches of the transactions [first, frontier) other replicas appended."""
    return max(0, (frontier - first) * tables - won)
