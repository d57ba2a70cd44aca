"""Records of the journal: which input made which transaction (PROTOCOLS §2). A format version is in each.

What a step records of many segments: runs of those whose paths differ by a number, instead of a range for each.

`folded` and `inputs_of` are inverse to one another, but for order, and for what was read of each input of a run: the
step keeps the sums of that. Pure.
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
"""Of the SHA-256 of a segment the journal keeps so many digits: nobody writes a segment but a server, and once."""
SEGMENT_CONTENT: Final = struct.Struct(f">I{SEGMENT_SHA256_CHARS // 2}s")
"""What a run has of each segment: its size, and the beginning of its SHA-256."""
RUN_DIGITS_MAX: Final = 18
"""So that all numbers of runs are whole numbers of 64 bits."""


class _Taken(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was read of one input, whatever it is.

    `checksum` is the sum of 64-bit hashes of its records (payloads) modulo 2^128, in hex: the order in which
    partitions read them makes no difference, and a record read twice does.
    """

    inputs: ClassVar[int] = 1

    size_bytes: int
    sha256: str
    """Of all its bytes, its beginning for a segment; empty where it was not read whole."""
    records: int
    checksum: str
    spans: int
    problems: tuple[tuple[int | None, int | None, str], ...] = ()
    """The first problems found: (line, offset, reason)."""
    problems_total: int = 0
    damaged: bool = False
    """Whether a record could not be read at all, beside spans that were read and refused."""


class WholeFile(_Taken, frozen=True, tag="file", forbid_unknown_fields=True):
    """The first `size_bytes` of a file: all that it had when it was seen first. Or an object of a bucket."""

    path: str


class Segment(_Taken, frozen=True, tag="segment", forbid_unknown_fields=True):
    """An object of the lake that is never written twice, as of the inbox."""

    path: str


class OffsetRange(_Taken, frozen=True, tag="offsets", forbid_unknown_fields=True):
    """Messages of one partition of a log, from `start` to before `stop`, hashed with their offsets one after the other.

    The cluster and the topic stand here by their ids, too: a topic that is made anew under its name is another.
    """

    cluster: str
    topic: str
    topic_id: str
    partition: int
    start: int
    stop: int

    @property
    def path(self) -> str:
        """What its source knows it by."""
        return f"kafka/{self.cluster}/{self.topic}/{self.topic_id}/{self.partition}/{self.start}-{self.stop}"


class SegmentOfRun(NamedTuple):
    """One input of a run, as far as the journal knows it alone."""

    path: str
    size_bytes: int
    sha256: str

    @property
    def damaged(self) -> bool:
        """Nothing that could not be read is in a run."""
        return False


class SegmentRange(msgspec.Struct, frozen=True, kw_only=True, tag="run", forbid_unknown_fields=True):
    """Segments whose paths differ by a number: of each its size and content, of all together what they had.

    Each was read whole, without problems. A path is `head`, the number in so many `digits`, `tail`.
    """

    head: str
    digits: int
    tail: str
    numbers: tuple[tuple[int, int], ...]
    """First and last numbers of stretches without a gap, in order."""
    contents: bytes
    """Of each its size in 4 bytes, and the first 8 bytes of its SHA-256."""
    records: int
    checksum: str
    spans: int

    def __post_init__(self) -> None:
        """Refuse what names no inputs, or other ones than it has contents of. Raises ValueError."""
        before, stop = -1, 10**self.digits if 0 < self.digits <= RUN_DIGITS_MAX else 0
        for first, last in self.numbers:
            if not before < first <= last < stop:
                raise ValueError(f"a run of segments goes from {first} to {last} after {before}")
            before = last
        if not self.inputs or self.inputs * SEGMENT_CONTENT.size != len(self.contents):
            raise ValueError(f"a run of {self.inputs} segments has {len(self.contents)} bytes of contents")

    @property
    def inputs(self) -> int:
        """How many there are."""
        return sum(last - first + 1 for first, last in self.numbers)

    @property
    def size_bytes(self) -> int:
        """Their bytes together."""
        return sum(size_bytes for size_bytes, _ in SEGMENT_CONTENT.iter_unpack(self.contents))

    def segments(self) -> Iterator[SegmentOfRun]:
        """Yield them in order."""
        numbers = (number for first, last in self.numbers for number in range(first, last + 1))
        for number, (size_bytes, content) in zip(
            numbers, SEGMENT_CONTENT.iter_unpack(self.contents), strict=True
        ):
            yield SegmentOfRun(f"{self.head}{number:0{self.digits}}{self.tail}", size_bytes, content.hex())


ReadRange: TypeAlias = WholeFile | Segment | OffsetRange
"""One input as it was read; always whole. Every kind has a `path`, unlike that of any other input of its source."""
Sources: TypeAlias = dict[str, tuple[ReadRange, ...]]
"""Source name → the inputs taken from it."""
RecordedRange: TypeAlias = ReadRange | SegmentRange
"""One input as it was read, or many in short."""
RecordedInput: TypeAlias = ReadRange | SegmentOfRun
"""One input as the journal names it: with path, size and content."""
Recorded: TypeAlias = dict[str, tuple[RecordedRange, ...]]
"""Source name → what is recorded of the inputs taken from it."""


class Step(msgspec.Struct, frozen=True, tag="step", forbid_unknown_fields=True):
    """One micro-batch of transaction T; it may have more of them."""

    transaction: int
    sources: Recorded
    transform: str
    """Fingerprint of the code that shapes rows: a change while T is unfinished is refused (J15)."""
    number: int = 0
    """Its place among the records of T, from 0."""
    client: str = ""
    """Which explicit transaction of a client T is; empty where it is none. The first step of T decides."""
    began_at: str = ""
    """When T was begun, ISO 8601, UTC: of its first step. Others, and those of before, do not say it."""
    format_version: int = FORMAT_VERSION


class Seal(msgspec.Struct, frozen=True, tag="seal", forbid_unknown_fields=True):
    """Transaction T is complete: from here its input is fixed for ever, and its output may be published.

    One that is set aside is sealed too, before it publishes that it changes nothing.
    """

    transaction: int
    records: int
    checksum: str
    sealed_at: str
    """ISO 8601, UTC. The commit of T carries this time, so that every replica builds the same commit."""
    format_version: int = FORMAT_VERSION


JournalRecord: TypeAlias = Step | Seal


class Floor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of transactions below all is done, and their records do not count any more, whether they are erased or not."""

    transaction: int
    format_version: int = FORMAT_VERSION


class QuarantineRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Transaction T is set aside: its outputs advance by nothing, and its inputs go the ways that stand here."""

    transaction: int
    reason: str
    tries: int
    by: Literal["pipeline", "user", "client"]
    set_aside_at: str
    """ISO 8601, UTC. The empty commit of T carries this time."""
    together: int
    """Its inputs are taken again, at most so many in one transaction; 0: the only one is at fault, and waits."""
    given_up: tuple[str, ...] = ()
    """Paths of inputs that are not taken again."""
    unread: tuple[str, ...] = ()
    """Paths of inputs that could not be read, for long: these wait for the user, and not the others."""
    format_version: int = FORMAT_VERSION


SuspectState: TypeAlias = Literal["offered", "set aside", "discarded", "taken"]


class QuarantinedInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An input that is not taken like others, as of a transaction that was set aside, and what is to become of it."""

    source: str
    path: str
    size_bytes: int
    sha256: str
    transaction: int
    """The last transaction that could not be done with it."""
    reason: str
    tries: int
    at: str
    """When it was set aside, ISO 8601, UTC."""
    state: SuspectState
    together: int = 0
    """Offered: it shares a transaction with others up to this number."""
    damaged: bool = False
    """Taken: its bytes are to be kept, since not all of them could be read."""
    unread: bool = False
    """Whether nobody could read it, for long: nothing is known to be wrong with it but that."""
    format_version: int = FORMAT_VERSION


def to_bytes(record: JournalRecord) -> bytes:
    """Encode a record as JSON."""
    return encode(record)


def from_bytes(data: bytes, where: str) -> JournalRecord:
    """Decode a record. Raises DamageError for one that is torn or of another format (J12)."""
    return decode(cast("type[JournalRecord]", JournalRecord), data, f"journal record {where}", FORMAT_VERSION)


def add_checksums(*parts: str) -> str:
    """Add checksums of disjoint parts of one input."""
    return f"{sum(int(part, 16) for part in parts) % CHECKSUM_MODULUS:032x}"


_TAIL: Final = ".segment"
_DIGITS: Final = "0123456789"
_SIZE_STOP: Final = 1 << 32
_Family: TypeAlias = tuple[str, int, str]
"""What paths of one run have in common: all before the number, its digits, all behind it."""


def compress(sources: Mapping[str, Sequence[RecordedRange]]) -> Recorded:
    """Return what a step records of inputs: runs first, then what is in none, in the order in which it came."""
    return {source: _folded(ranges) for source, ranges in sources.items()}


def inputs_of(ranges: Sequence[RecordedRange]) -> Iterator[RecordedInput]:
    """Yield each input that is recorded, those of a run one by one."""
    for recorded in ranges:
        if isinstance(recorded, SegmentRange):
            yield from recorded.segments()
        else:
            yield recorded


def _folded(ranges: Sequence[RecordedRange]) -> tuple[RecordedRange, ...]:
    families: dict[_Family, dict[int, Segment]] = {}
    alone: list[RecordedRange] = []
    for taken in ranges:
        if not isinstance(taken, Segment) or not _fits(taken):
            alone.append(taken)
            continue
        stem = taken.path.removesuffix(_TAIL)
        digits = stem[len(stem.rstrip(_DIGITS)) :][-RUN_DIGITS_MAX:]
        if not digits:
            alone.append(taken)
            continue
        family = (stem[: -len(digits)], len(digits), taken.path[len(stem) :])
        members = families.setdefault(family, {})
        assert int(digits) not in members, f"{taken.path} is taken twice"
        members[int(digits)] = taken
    runs = [_run(family, members) for family, members in families.items() if len(members) > 1]
    alone += [one for members in families.values() if len(members) == 1 for one in members.values()]
    return (*runs, *alone)


def _fits(segment: Segment) -> bool:
    """Whether a run has room for all that is known of a segment."""
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
