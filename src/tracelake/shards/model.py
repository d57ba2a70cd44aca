"""Records of a shard: its state, and the batches that the state names (PROTOCOLS §1).

The state record is small and changes by compare-and-set. Everything that it names is immutable.
"""

from __future__ import annotations

from typing import Final, TypeAlias, TypeVar

import msgspec

from tracelake.formats import decode, encode

FORMAT_VERSION: Final = 1
_SHARED_FORMAT_VERSION: Final = 2
"""Format of a batch with shared texts, so that earlier releases refuse it instead of reading null."""
SHARED_SCHEMA_VERSION: Final = 3
"""First version of a table's schema whose parts may share texts (see `shards.rows`)."""
Bound: TypeAlias = int | float | str
Ranges: TypeAlias = dict[str, tuple[Bound, Bound]]
"""Minimum and maximum of some columns, without nulls. Other columns may hold anything."""


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parquet object. The keys bound its rows, which are sorted by key; the row ids bound their insertion times."""

    path: str
    bucket: int
    """The bucket of its rows. In a small part of all buckets it is minus the number of buckets (`all_of`)."""
    rows: int
    size_bytes: int
    sha256: str
    first_key: str = ""
    last_key: str = ""
    ranges: Ranges = {}
    """Minimum and maximum of some columns."""
    first_row_id: int = 0
    last_row_id: int = 0
    relative: bool = False
    """Whether `_row_id` counts from 0 in the object, so that the part could be written before the time of its batch
    was known. Readers add `first_row_id`."""
    xxh3: str = ""
    """The 128-bit XXH3 of its bytes, with which readers check the part five times as fast as with SHA-256. Older
    parts have none."""
    footer_bytes: int = 0
    footer_xxh3: str = ""
    """Checksum of its last bytes, which are the Parquet footer, for readers of only some of the part."""
    schema_version: int = 1
    """Version of its table's schema. A later version only adds columns, which readers find null in this part."""


class Batch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Changes of the times [lower, upper): rows inserted and rows retracted. Older parts are never rewritten.

    An appended batch has parts and retractions. A compacted batch holds the same rows. Those that were inserted and
    retracted within it are in `history`, or dropped if no reader may go back that far.
    """

    lower: int
    upper: int
    id: str
    parts: tuple[Part, ...]
    """Rows with their `_row_id`."""
    retractions: tuple[Part, ...]
    """Rows (row_id, time): a row of an older batch, and the time of its retraction."""
    counts: dict[str, int]
    """Counts from the writer, such as spans read, new, replaced, repeated."""
    history: tuple[Part, ...] = ()
    """Rows that were inserted and retracted within the batch, with `_row_id`, and `_gone`, the time of the
    retraction."""
    epoch: int = 0
    """The shard's epoch when the first of its objects was written (see `protocol.may_append`)."""
    ingested_s: int = 0
    """Time of its transaction, in seconds since 1970, which determines its window; 0 for unknown."""
    format_version: int = FORMAT_VERSION

    @property
    def is_empty(self) -> bool:
        """Whether the batch changes no row."""
        return not self.parts and not self.retractions and not self.history

    def objects(self) -> tuple[Part, ...]:
        """Return every Parquet object that the batch names."""
        return (*self.parts, *self.retractions, *self.history)


class BatchRef(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Entry of a batch in the state: the location of its record, and its totals."""

    lower: int
    upper: int
    id: str
    path: str
    sha256: str
    rows: int
    """Rows inserted minus rows retracted."""
    parts: int
    size_bytes: int
    weight: int
    """Rows of all its objects: live rows, retractions and history. It measures the cost of compaction."""
    level: int = 0
    """Number of times that its rows were compacted."""
    ingested_s: int = 0
    """As in the batch."""


class Retired(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Batches that compaction replaced by publishing state number `seq`. Neither that state nor a later one names
    them."""

    seq: int
    batches: tuple[BatchRef, ...]


class Rolled(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Location of the rolled-up beginning of a long state: an object with its first batches and retired entries."""

    path: str
    sha256: str


class Write(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A user's append with an id, which makes it idempotent: a second append with the id is refused.

    The record is part of the state while the write is among the newest, then a separate record, which is kept as long
    as the table.
    """

    name: str
    """Hash of the caller's id."""
    number: int
    """Number in a series, such as the micro-batches of a query. All writes up to this one are appended. 0 for a
    single write."""
    counts: dict[str, int]
    """Counts from the writer."""
    format_version: int = FORMAT_VERSION


class ShardState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """State record of a shard. Batches cover [0, upper) in order; a time without a batch changed no row."""

    since: int = 0
    """The earliest readable time. Rows that were retracted at or before it are forgotten."""
    upper: int = 0
    batches: tuple[BatchRef, ...] = ()
    retired: tuple[Retired, ...] = ()
    """Replaced batches whose objects may still exist, oldest first."""
    recent: tuple[tuple[int, str], ...] = ()
    """(lower, id) of the most recently appended batches, even if compaction has replaced them since."""
    written: tuple[Write, ...] = ()
    """The newest writes with an id, only the newest of each series. It changes only together with `upper`."""
    seq: int = 0
    """The number of earlier states."""
    epoch: int = 0
    epoch_began_s: float = 0.0
    """Time at which the epoch began, in seconds since 1970."""
    rolled: Rolled | None = None
    """Rolled-up beginning. In the stored record, `batches` and `retired` only contain what follows it."""
    format_version: int = FORMAT_VERSION


class Beginning(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Object that `Rolled` refers to."""

    batches: tuple[BatchRef, ...]
    retired: tuple[Retired, ...]
    format_version: int = FORMAT_VERSION


class LeaseRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Claim of a reader on all parts that the state number `seq`, or a later one, names."""

    seq: int
    seconds: float
    """Its duration without renewal. A renewal changes the version of the record."""
    format_version: int = FORMAT_VERSION


class Moment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A point in time, by the steady clock of the garbage collector's machine and by the clock with which the
    store dates objects."""

    machine: str
    """Id of the steady clock, which changes with each boot of the machine."""
    steady_s: float
    store_s: float


class Sighting(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Record that a garbage collector saw a lease at this version, with the time of the first such look."""

    lease: str
    at: Moment
    format_version: int = FORMAT_VERSION


RecordT = TypeVar("RecordT", ShardState, Batch, Beginning, LeaseRecord, Sighting, Write)


def to_bytes(record: ShardState | Batch | Beginning | LeaseRecord | Sighting | Write) -> bytes:
    """Encode a record as JSON."""
    if isinstance(record, Batch):
        is_shared = any(part.schema_version >= SHARED_SCHEMA_VERSION for part in record.objects())
        format_version = _SHARED_FORMAT_VERSION if is_shared else FORMAT_VERSION
        record = msgspec.structs.replace(record, format_version=format_version)
    return encode(record)


def from_bytes(kind: type[RecordT], data: bytes, what: str) -> RecordT:
    """Decode a record. Raises DamageError, which names the record by `what`, if it is torn or of another format."""
    newest = _SHARED_FORMAT_VERSION if kind is Batch else FORMAT_VERSION
    return decode(kind, data, what, newest, oldest=FORMAT_VERSION)
