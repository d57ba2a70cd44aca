"""What a step records of many segments: runs of those whose paths differ by a number, instead of a range for each.

`folded` and `inputs_of` are inverse to one another, but for order, and for what was read of each input of a run: the
step keeps the sums of that. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from tracelake.journal.model import (
    RUN_DIGITS_MAX,
    SEGMENT_CONTENT,
    SEGMENT_SHA256_CHARS,
    Recorded,
    RecordedInput,
    RecordedRange,
    Segment,
    SegmentRun,
    add_checksums,
)

_TAIL: Final = ".segment"
_DIGITS: Final = "0123456789"
_SIZE_STOP: Final = 1 << 32
_Family: TypeAlias = tuple[str, int, str]
"""What paths of one run have in common: all before the number, its digits, all behind it."""


def folded(sources: Mapping[str, Sequence[RecordedRange]]) -> Recorded:
    """Return what a step records of inputs: runs first, then what is in none, in the order in which it came."""
    return {source: _folded(ranges) for source, ranges in sources.items()}


def inputs_of(ranges: Sequence[RecordedRange]) -> Iterator[RecordedInput]:
    """Yield each input that is recorded, those of a run one by one."""
    for recorded in ranges:
        if isinstance(recorded, SegmentRun):
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


def _run(family: _Family, members: Mapping[int, Segment]) -> SegmentRun:
    head, digits, tail = family
    stretches: list[tuple[int, int]] = []
    for number in sorted(members):
        if stretches and stretches[-1][1] == number - 1:
            stretches[-1] = (stretches[-1][0], number)
        else:
            stretches.append((number, number))
    segments = [members[number] for number in sorted(members)]
    return SegmentRun(
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
