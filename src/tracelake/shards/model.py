"""Records of a shard: its state, and the batches that the state names (PROTOCOLS §1).

The state record is small and mutable by compare-and-set; all that it names is immutable.
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from tracelake.formats import decode, encode
from tracelake.shards.partitioning import Ranges

FORMAT_VERSION: Final = 1


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One Parquet object. The keys bound its rows, which are sorted by key; the row ids bound them in time."""

    path: str
    bucket: int
    """Of its rows; negative in a small part that has rows of all buckets, of which there are so many (`all_of`)."""
    rows: int
    size_bytes: int
    sha256: str
    first_key: str = ""
    last_key: str = ""
    ranges: Ranges = {}
    """Least and greatest value of some columns."""
    first_row_id: int = 0
    last_row_id: int = 0
    relative: bool = False
    """Whether `_row_id` counts from 0 in the object, so that it could be written before the time of its batch was
    known; `first_row_id` is to be added."""
    xxh3: str = ""
    """The 128-bit XXH3 of its bytes, with which readers compare it: five times as quick as SHA-256. Parts that are
    older have none."""
    footer_bytes: int = 0
    footer_xxh3: str = ""
    """Its last bytes are the footer of Parquet, with this checksum: for who reads some of the part and not all."""


class Batch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The changes of the times [lower, upper): rows inserted, and rows retracted. No older part is ever rewritten.

    A batch as it was appended has parts and retractions. One that compaction made holds the same rows: those
    that were inserted and retracted within it are in `history` or, where nobody may read that far back, nowhere.
    """

    lower: int
    upper: int
    id: str
    parts: tuple[Part, ...]
    """Rows with their `_row_id`."""
    retractions: tuple[Part, ...]
    """Rows (row_id, time): a row of an older batch, and when it was retracted."""
    counts: dict[str, int]
    """What the writer counted on the way, such as spans read, new, replaced, repeated."""
    history: tuple[Part, ...] = ()
    """Rows that were inserted and retracted within the batch, with `_row_id`, and `_gone`, the time of the latter."""
    epoch: int = 0
    """The shard's epoch when the first of its objects was written (see `protocol.may_append`)."""
    format_version: int = FORMAT_VERSION

    @property
    def is_empty(self) -> bool:
        """Whether the batch changes no row."""
        return not self.parts and not self.retractions and not self.history

    def objects(self) -> tuple[Part, ...]:
        """Return every Parquet object that the batch names."""
        return (*self.parts, *self.retractions, *self.history)


class BatchRef(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the state says of one batch: where its record is, and enough for totals without reading it."""

    lower: int
    upper: int
    id: str
    path: str
    sha256: str
    rows: int
    """Rows inserted less rows retracted."""
    parts: int
    size_bytes: int
    weight: int
    """Rows of all its objects: live ones, retractions and history. What it costs to compact it."""
    level: int = 0
    """How often its rows were compacted."""


class Retired(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Batches that compaction replaced in state number `seq`: no state from that one on names them."""

    seq: int
    batches: tuple[BatchRef, ...]


class Rolled(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the beginning of a long state lies, as an object: its first batches, and its first retired."""

    path: str
    sha256: str


class Write(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A write that its caller gave an id, and that was appended: it is told by it, and happens once.

    In the state while it is among the newest, then as a record of its own; kept as long as the table.
    """

    name: str
    """A hash of the caller's id."""
    number: int
    """Of a series, such as the micro-batches of a query: all up to this one are there. 0 for a write alone."""
    counts: dict[str, int]
    """What the writer counted on the way."""
    format_version: int = FORMAT_VERSION


class ShardState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The state record. Batches cover [0, upper) in order; a time without a batch changed no row."""

    since: int = 0
    """The earliest time that can be read: what was retracted by then is forgotten."""
    upper: int = 0
    batches: tuple[BatchRef, ...] = ()
    retired: tuple[Retired, ...] = ()
    """Replaced batches whose objects may still be there, oldest first."""
    recent: tuple[tuple[int, str], ...] = ()
    """(lower, id) of the batches that were appended last, whatever compaction has made of them since."""
    written: tuple[Write, ...] = ()
    """The newest writes with an id, of a series the newest only. It changes only as `upper` does."""
    seq: int = 0
    """How many states there were before."""
    epoch: int = 0
    epoch_began_s: float = 0.0
    """When the epoch began, in seconds since 1970."""
    rolled: Rolled | None = None
    """In the record as it is stored, `batches` and `retired` go on where this object ends."""
    format_version: int = FORMAT_VERSION


class Beginning(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The object that `Rolled` names."""

    batches: tuple[BatchRef, ...]
    retired: tuple[Retired, ...]
    format_version: int = FORMAT_VERSION


class LeaseRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A reader's claim on all parts that the state numbered `seq`, or any later one, names."""

    seq: int
    seconds: float
    """How long it lasts unless it is renewed, which gives the record another version."""
    format_version: int = FORMAT_VERSION


class Moment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a collector looked: by the steady clock of its machine, and by that by which the store dates objects."""

    machine: str
    """Whose steady clock; another one after each start of the machine."""
    steady_s: float
    store_s: float


class Sighting(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """That a collector saw a lease at this version of its record, first at this moment."""

    lease: str
    at: Moment
    format_version: int = FORMAT_VERSION


RecordT = TypeVar("RecordT", ShardState, Batch, Beginning, LeaseRecord, Sighting, Write)


def to_bytes(record: ShardState | Batch | Beginning | LeaseRecord | Sighting | Write) -> bytes:
    """Encode as JSON."""
    return encode(record)


def from_bytes(kind: type[RecordT], data: bytes, what: str) -> RecordT:
    """Decode a record. Raises DamageError, naming it as `what`, for one that is torn or of another format."""
    return decode(kind, data, what, FORMAT_VERSION)
