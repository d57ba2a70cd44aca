"""Records of the journal: the inputs of each transaction (PROTOCOLS §2). Each record has a format version.

A step does not store a record for each of many segments. Segments whose paths differ only by a number are compressed
to one range. Functions `compress` and `inputs_of` are inverse to each other, except for two losses: the order, and
the counts of each single input, of which a range stores the sums. Pure: no I/O, no clock.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Final, Literal, NamedTuple, TypeAlias, cast

import msgspec

from tracelake.formats import decode, encode

FORMAT_VERSION: Final = 3
CHECKSUM_MODULUS: Final = 1 << 128
SEGMENT_SHA256_CHARS: Final = 16
"""Number of SHA-256 digits that the journal stores for a segment. They suffice, because only a server writes a
segment, and only once."""
SEGMENT_CONTENT: Final = struct.Struct(f">I{SEGMENT_SHA256_CHARS // 2}s")
"""A segment in a range: its size, and the beginning of its SHA-256."""
DELETIONS: Final = "deletions"
"""Name of the source whose inputs are deletion requests, not spans."""
RUN_DIGITS_MAX: Final = 18
"""Limit that keeps all numbers of ranges within 64-bit integers."""


class _ReadInput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The result of reading one input of any kind.

    `checksum` is the sum of 64-bit hashes of its records (payloads) modulo 2^128, in hex. The order in which partitions
    read the records therefore does not matter, but a record that is read twice changes the checksum.
    """

    inputs: ClassVar[int] = 1

    size_bytes: int
    sha256: str
    """Hash of all bytes, shortened for a segment; empty if the input was not read completely."""
    records: int
    checksum: str
    spans: int
    problems: tuple[tuple[int | None, int | None, str], ...] = ()
    """The first problems: (line, offset, reason)."""
    problems_total: int = 0
    damaged: bool = False
    """Whether some record could not be read at all, as opposed to spans that were read and refused."""


class WholeFile(_ReadInput, frozen=True, tag="file", forbid_unknown_fields=True):
    """The first `size_bytes` of a file, its size when it was first seen; or an object of a bucket."""

    path: str


class Segment(_ReadInput, frozen=True, tag="segment", forbid_unknown_fields=True):
    """An immutable object of the lake, such as an inbox segment."""

    path: str


class OffsetRange(_ReadInput, frozen=True, tag="offsets", forbid_unknown_fields=True):
    """Messages of one log partition, from `start` to before `stop`, hashed in order with their offsets.

    Cluster and topic are also identified by their ids, because a topic that is recreated under the same name is a
    different one.
    """

    cluster: str
    topic: str
    topic_id: str
    partition: int
    start: int
    stop: int

    @property
    def path(self) -> str:
        """The identifier within its source."""
        return f"kafka/{self.cluster}/{self.topic}/{self.topic_id}/{self.partition}/{self.start}-{self.stop}"


class SegmentOfRun(NamedTuple):
    """One segment of a range, with the data that the journal stores for that segment alone."""

    path: str
    size_bytes: int
    sha256: str

    @property
    def damaged(self) -> bool:
        """Return False, because a range has no damaged inputs."""
        return False


class SegmentRange(msgspec.Struct, frozen=True, kw_only=True, tag="run", forbid_unknown_fields=True):
    """Segments whose paths differ by a number, with the size and content hash of each, and total counts.

    Each was read completely, without problems. A path is `head`, the number with `digits` digits, and `tail`.
    """

    head: str
    digits: int
    tail: str
    numbers: tuple[tuple[int, int], ...]
    """First and last numbers of contiguous stretches, in order."""
    contents: bytes
    """For each segment its size in 4 bytes, and the first 8 bytes of its SHA-256."""
    records: int
    checksum: str
    spans: int

    def __post_init__(self) -> None:
        """Raise ValueError if the numbers are invalid or do not match the contents."""
        before, stop = -1, 10**self.digits if 0 < self.digits <= RUN_DIGITS_MAX else 0
        for first, last in self.numbers:
            if not before < first <= last < stop:
                raise ValueError(f"a run of segments goes from {first} to {last} after {before}")
            before = last
        if not self.inputs or self.inputs * SEGMENT_CONTENT.size != len(self.contents):
            raise ValueError(f"a run of {self.inputs} segments has {len(self.contents)} bytes of contents")

    @property
    def inputs(self) -> int:
        """The number of segments."""
        return sum(last - first + 1 for first, last in self.numbers)

    @property
    def size_bytes(self) -> int:
        """Their total size."""
        return sum(size_bytes for size_bytes, _ in SEGMENT_CONTENT.iter_unpack(self.contents))

    def segments(self) -> Iterator[SegmentOfRun]:
        """Yield the segments in order."""
        numbers = (number for first, last in self.numbers for number in range(first, last + 1))
        for number, (size_bytes, content) in zip(
            numbers, SEGMENT_CONTENT.iter_unpack(self.contents), strict=True
        ):
            yield SegmentOfRun(f"{self.head}{number:0{self.digits}}{self.tail}", size_bytes, content.hex())


ReadRange: TypeAlias = WholeFile | Segment | OffsetRange
"""One input as it was read; always whole. Its `path` is unique within its source."""
Sources: TypeAlias = dict[str, tuple[ReadRange, ...]]
"""Mapping from a source's name to the inputs taken from it."""
RecordedRange: TypeAlias = ReadRange | SegmentRange
"""One input as it was read, or a compressed range of inputs."""
RecordedInput: TypeAlias = ReadRange | SegmentOfRun
"""One recorded input, with path, size and content hash."""
Recorded: TypeAlias = dict[str, tuple[RecordedRange, ...]]
"""Mapping from a source's name to the records of the inputs taken from it."""


class Step(msgspec.Struct, frozen=True, tag="step", forbid_unknown_fields=True):
    """One micro-batch of transaction T, which may have several."""

    transaction: int
    sources: Recorded
    transform: str
    """Fingerprint of the code that shapes rows. A change while T is unfinished is refused (J15)."""
    number: int = 0
    """Its position among the records of T, from 0."""
    client: str = ""
    """The explicit transaction of a client to which T belongs; empty for none. The first step of T decides."""
    began_at: str = ""
    """Start time of T, ISO 8601, UTC. Only the first step has it; steps of older versions do not."""
    prices: str = ""
    """Version of the lake's own prices by which its costs are computed; empty for none."""
    format_version: int = FORMAT_VERSION


class Seal(msgspec.Struct, frozen=True, tag="seal", forbid_unknown_fields=True):
    """Transaction T is complete: its input is now fixed forever, and its output may be published.

    A quarantined transaction is sealed too, before it publishes an empty result.
    """

    transaction: int
    records: int
    checksum: str
    sealed_at: str
    """ISO 8601, UTC. The commit of T has this time, so that every replica builds the same commit."""
    format_version: int = FORMAT_VERSION


JournalRecord: TypeAlias = Step | Seal


class Floor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Record of the journal's floor. Transactions below it are finished, and their records no longer count, even if
    they still exist."""

    transaction: int
    format_version: int = FORMAT_VERSION


class QuarantineRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Record that transaction T is quarantined: T publishes an empty result, and the record decides about T's
    inputs."""

    transaction: int
    reason: str
    tries: int
    by: Literal["pipeline", "user", "client"]
    set_aside_at: str
    """ISO 8601, UTC. The empty commit of T has this time."""
    together: int
    """Maximum number of its inputs per transaction when they are retried; 0: its only input is at fault, and waits."""
    given_up: tuple[str, ...] = ()
    """Paths of inputs that are not retried."""
    unread: tuple[str, ...] = ()
    """Paths of inputs that were unreadable for too long. Only these wait for the user."""
    format_version: int = FORMAT_VERSION


SuspectState: TypeAlias = Literal["offered", "set aside", "discarded", "taken"]


class QuarantinedInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An input of a quarantined transaction, with its state: offered again, set aside, discarded or taken."""

    source: str
    path: str
    size_bytes: int
    sha256: str
    transaction: int
    """The last transaction that failed with it."""
    reason: str
    tries: int
    at: str
    """Time of its quarantine, ISO 8601, UTC."""
    state: SuspectState
    together: int = 0
    """For an offered input: maximum number of inputs in the transaction that retries it."""
    damaged: bool = False
    """For a taken input: its bytes must be kept, because not all of them could be read."""
    unread: bool = False
    """Whether its only known problem is that it was unreadable for too long."""
    format_version: int = FORMAT_VERSION


def to_bytes(record: JournalRecord) -> bytes:
    """Encode a record as JSON."""
    return encode(record)


def from_bytes(data: bytes, where: str) -> JournalRecord:
    """Decode a record. Raises DamageError, which names the record by `where`, if the bytes are torn or have another
    format (J12)."""
    return decode(cast("type[JournalRecord]", JournalRecord), data, f"journal record {where}", FORMAT_VERSION)


def add_checksums(*parts: str) -> str:
    """Add the checksums of disjoint parts of one input."""
    return f"{sum(int(part, 16) for part in parts) % CHECKSUM_MODULUS:032x}"


_TAIL: Final = ".segment"
_DIGITS: Final = "0123456789"
_SIZE_STOP: Final = 1 << 32
_Family: TypeAlias = tuple[str, int, str]
"""The common part of the paths of one range: prefix, number of digits, suffix."""


def compress(sources: Mapping[str, Sequence[RecordedRange]]) -> Recorded:
    """Return the records of inputs for a step: ranges first, then all other inputs in their original order."""
    return {source: _folded(ranges) for source, ranges in sources.items()}


def inputs_of(ranges: Sequence[RecordedRange]) -> Iterator[RecordedInput]:
    """Yield each recorded input, expanding ranges."""
    for recorded in ranges:
        if isinstance(recorded, SegmentRange):
            yield from recorded.segments()
        else:
            yield recorded


def _folded(ranges: Sequence[RecordedRange]) -> tuple[RecordedRange, ...]:
    families: dict[_Family, dict[int, Segment]] = {}
    alone: list[RecordedRange] = []
    for recorded_range in ranges:
        if not isinstance(recorded_range, Segment) or not _fits(recorded_range):
            alone.append(recorded_range)
            continue
        stem = recorded_range.path.removesuffix(_TAIL)
        digits = stem[len(stem.rstrip(_DIGITS)) :][-RUN_DIGITS_MAX:]
        if not digits:
            alone.append(recorded_range)
            continue
        family = (stem[: -len(digits)], len(digits), recorded_range.path[len(stem) :])
        members = families.setdefault(family, {})
        assert int(digits) not in members, f"{recorded_range.path} is taken twice"
        members[int(digits)] = recorded_range
    runs = [_run(family, members) for family, members in families.items() if len(members) > 1]
    alone += [one for members in families.values() if len(members) == 1 for one in members.values()]
    return (*runs, *alone)


def _fits(segment: Segment) -> bool:
    """Return whether a range can represent a segment without loss."""
    return (
        not segment.problems_total
        and not segment.damaged
        and segment.size_bytes < _SIZE_STOP
        and len(segment.sha256) == SEGMENT_SHA256_CHARS
    )


def _run(family: _Family, members: Mapping[int, Segment]) -> SegmentRange:
    head, digits, tail = family
    stretches: list[tuple[int, int]] = []
    for number in sorted(members):
        if stretches and stretches[-1][1] == number - 1:
            stretches[-1] = (stretches[-1][0], number)
        else:
            stretches.append((number, number))
    segments = [members[number] for number in sorted(members)]
    return SegmentRange(
        head=head,
        digits=digits,
        tail=tail,
        numbers=tuple(stretches),
        contents=b"".join(
            SEGMENT_CONTENT.pack(segment.size_bytes, bytes.fromhex(segment.sha256)) for segment in segments
        ),
        records=sum(segment.records for segment in segments),
        checksum=add_checksums(*(segment.checksum for segment in segments)),
        spans=sum(segment.spans for segment in segments),
    )
