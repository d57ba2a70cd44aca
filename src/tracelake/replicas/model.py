"""The record that a replica keeps of itself. Times are seconds since 1970 UTC, by the replica's clock."""

from __future__ import annotations

from typing import Final

import msgspec

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
