"""The record that a replica keeps of itself. Times are seconds since 1970 UTC, by the replica's clock.

Every decision about replicas: what counts as progress, and which word a record deserves. Pure.

The rule is: *a replica that gets nothing done never counts as running.* So neither trying again nor looking
again is progress. Progress is a transaction that goes further than it ever did, an input that is no longer
there, or a look that finds nothing to do. After an error even that is not enough: until a run goes well, only
a stage that was not reached before counts, else a writer that fails at the last stage for ever would seem to
move each time it gets there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

import msgspec

from tracelake.limits import REPLICA_GONE_S, REPLICA_STUCK_S

FORMAT_VERSION: Final = 1


class SourceAccount(msgspec.Struct, frozen=True, kw_only=True):
    """What a replica tells of one source that it looks at."""

    name: str
    address: str
    """Empty for one that every lake has."""
    id: str
    """Of the record of one that was added, else empty."""
    kind: str
    """files, buckets, kafka, inbox, outbox; empty where it was never opened."""
    state: str
    """active | paused | failing"""
    reason: str | None = None
    """Why it fails."""
    waiting: int | None = None
    """How much waited at the last look; None where nobody knows."""
    unit: str = ""
    """Of what: files, objects, segments, rows, messages."""
    waiting_bytes: int | None = None
    oldest_waiting_s: float | None = None
    """When the oldest of them came."""
    looked_s: float | None = None
    """When it was looked at last, and answered."""
    taken_inputs: int = 0
    """Inputs of it that this process recorded in the journal."""
    taken_bytes: int = 0
    bytes_per_s: float = 0.0
    """How fast, over the last minute or so."""


class Replica(msgspec.Struct, frozen=True, kw_only=True):
    """What one replica of the pipeline tells of itself. Nothing but display rests on it."""

    name: str
    instance: str
    """Random for each process: two of the same name differ in it."""
    host: str
    pid: int
    started_s: float
    heartbeat_s: float
    """When the record was written."""
    frontier: int = 0
    """The transaction that the replica works on, or waits to begin."""
    waiting_inputs: int = 0
    """Segments of the inbox and watched files that no transaction holds, as it last saw them."""
    waiting_bytes: int = 0
    oldest_waiting_s: float | None = None
    """When the oldest of them came."""
    batches_won: int = 0
    """Batches of tables that this instance appended."""
    batches_of_peers: int = 0
    """Batches of the transactions that it passed which were not its own."""
    rows_dropped: int = 0
    """Rows that it had read or shaped when their transaction turned out to be written."""
    moved_s: float
    """When its work last moved on; the main loop sets it and the heartbeat only copies it."""
    doing: str | None = None
    """What is under way, None between two looks."""
    failing: bool = False
    """Whether nothing went well since the last error."""
    waits_for: str | None = None
    """The sources and inputs that could not be read in the last run, which took all others."""
    failures: int = 0
    last_error: str | None = None
    last_error_s: float | None = None
    namesake: str | None = None
    """Another live process that uses the same name."""
    sources: tuple[SourceAccount, ...] = ()
    format_version: int = FORMAT_VERSION


ReplicaStatus: TypeAlias = Literal["running", "idle", "waiting", "stuck", "gone"]
NOT_BEGUN: Final = -1


@dataclass(frozen=True, slots=True)
class Advance:
    """How far a replica has come, to tell progress from repetition."""

    furthest: tuple[int, int, int] = (0, NOT_BEGUN, 0)
    """(transaction, stage, tasks done)."""
    oldest: str | None = None
    """The input that waited longest at the last look."""
    failing: bool = False
    stage: int = NOT_BEGUN
    """The latest stage reached since a run went well."""


def on_look(moves: Advance, frontier: int, oldest: str | None) -> tuple[Advance, bool]:
    """Note a look at the inputs, of which `oldest` waits longest; return whether that is progress."""
    moved = oldest is None or oldest != moves.oldest or frontier > moves.furthest[0]
    furthest = max(moves.furthest, (frontier, NOT_BEGUN, 0))
    return replace(moves, oldest=oldest, furthest=furthest), moved and not moves.failing


def on_stage(moves: Advance, transaction: int, stage: int, done: int) -> tuple[Advance, bool]:
    """Note that a transaction has come to a stage (0 is the first); return whether that is progress."""
    at = (transaction, stage, done)
    moved = stage > moves.stage if moves.failing else at > moves.furthest
    return replace(moves, furthest=max(moves.furthest, at), stage=max(moves.stage, stage)), moved


def on_failure(moves: Advance) -> Advance:
    """Note that a run failed."""
    return replace(moves, failing=True)


def on_success(moves: Advance) -> tuple[Advance, bool]:
    """Note that a run went well; after a failure that is progress."""
    return replace(moves, failing=False, stage=NOT_BEGUN), moves.failing


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """What a replica is, and why: the reason is empty where the word says it all."""

    word: ReplicaStatus
    reason: str = ""


def status(replica: Replica, now_s: float) -> ReplicaReport:
    """Return what a replica is at a time, from what it last told.

    running: something waits or is under way, and it moves. idle: nothing waits. waiting: some source or input could
    not be read, and all others are in. stuck: it fails, or nothing has moved for longer than REPLICA_STUCK_S. gone: it
    told nothing for longer than REPLICA_GONE_S.
    """
    silent_s = now_s - replica.heartbeat_s
    if silent_s > REPLICA_GONE_S:
        return ReplicaReport(
            "gone", f"no sign of life for {silent_s:.0f} s: it was killed, paused or cut off"
        )
    if replica.failing:
        return ReplicaReport("stuck", replica.last_error or "it fails")
    still_s = now_s - replica.moved_s
    if still_s > REPLICA_STUCK_S:
        return ReplicaReport(
            "stuck", f"nothing has moved for {still_s:.0f} s: {replica.doing or 'between two looks'}"
        )
    if replica.waits_for is not None:
        return ReplicaReport("waiting", f"for {replica.waits_for}")
    return ReplicaReport("running" if replica.doing or replica.waiting_inputs else "idle")


def transactions_behind(replica: Replica, upper: int) -> int:
    """Return how many transactions the tables hold that the replica has not passed."""
    return max(0, upper - replica.frontier)


def oldest_age_s(replica: Replica, now_s: float) -> float | None:
    """Return how long the oldest input has been waiting, None where none waits."""
    return None if replica.oldest_waiting_s is None else max(0.0, now_s - replica.oldest_waiting_s)


def batches_of_peers(first: int, frontier: int, won: int, tables: int) -> int:
    """Return how many batches of the transactions [first, frontier) a replica did not append itself."""
    return max(0, (frontier - first) * tables - won)
