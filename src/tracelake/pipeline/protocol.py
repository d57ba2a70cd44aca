"""Overlap: what of the next transaction may be read while one is merged and published, and when it stands. Pure.

Input that is read ahead is recorded nowhere. At its turn all is decided as if nothing had been read: what waits, what
a peer has taken, what is set aside. Only where just these inputs are to be read then, in this order, the rows that
were read ahead take the place of reading them.

Decisions about the sources of a pipeline: whose turn it is, and whether what was seen still counts. Pure.

Outputs to other systems: what is done with a transaction there, once each. Pure.

| its rows | what the system has | then |
|---|---|---|
| of a transaction before the output began | whatever | nothing |
| none | whatever | nothing: no batch is empty |
| some | the marker of it, or of a later one | nothing: it was written by a peer, or by us before a crash |
| some | the marker of an earlier one | rows and marker are written in one step |

Which offsets of a partition are to be read. Pure: no clock, no broker, no store.

A partition has offsets from 0 up. Of each it is known whether it is *taken* (a commit holds it, or nothing of it is
to be taken), or *held* (set aside, for the user to decide). All others are to be read, wherever they stand: so it
makes no difference in which order ranges are taken, or which of them failed. Offsets without a record (compacted,
markers of transactions, aborted) are passed over with the range that they are in. What retention removed before it
was taken is *lost*: a range of its own, which fails by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from tracelake.journal.protocol import Action, OpenInputs, ReadState
from tracelake.limits import KAFKA_RANGE_BYTES, KAFKA_RANGE_FIRST_MESSAGES, KAFKA_RANGE_MESSAGES_MAX


def may_prefetch(*, is_new: bool, is_alone: bool, is_stopping: bool) -> bool:
    """Whether input is read beside a transaction that is about to be published.

    `is_new`: this run has read and recorded it, and no task failed on it. A replay reads nothing further.
    `is_alone`: nothing of it is suspected, and no other process is at it, or has died of it.
    """
    return is_new and is_alone and not is_stopping


def keeps(action: Action) -> bool:
    """Whether what was read ahead may still have its turn: not where anything but the next new input comes first."""
    return isinstance(action, ReadState | OpenInputs)


def stands_for(ahead: Sequence[object], inputs: Sequence[object]) -> bool:
    """Whether the rows of inputs that were read ahead are those of the inputs that are to be read now."""
    return tuple(ahead) == tuple(inputs)


def in_turn(costs: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """Return (source, number) of all inputs, in the order in which they are taken, from what each costs, by source.

    An input has its turn when as much of its own source was taken before it as of the others: so of any beginning of
    this order, whatever a transaction cuts off, each source has the same share, or all that waits there, and what one
    leaves of its share falls to the others. Within a source the order stays.
    """
    turns = []
    for source, of_source in enumerate(costs):
        before = 0
        for number, cost in enumerate(of_source):
            turns.append((before, source, number))
            before += cost
    return [(source, number) for _, source, number in sorted(turns)]


def counts(looked_at: str, now: str | None, *, is_paused: bool) -> bool:
    """Whether what was seen of a source that users have added may be taken.

    It is asked with the record as it is once all was seen: `now` is the id there, None where there is none. Then
    nothing is taken that came after a pause, or the removal, had returned.
    """
    return now == looked_at and not is_paused


NO_MARKER: Final = -1
"""What a system says that has nothing of an output yet."""


def is_to_be_written(transaction: int, since: int, rows: int, marker: int) -> bool:
    """Whether the rows of a transaction are to be written now. `marker` is the last that the system has."""
    return transaction >= since and rows > 0 and transaction > marker


def begins_at(upper: int) -> int:
    """Return the first transaction of an output that is added, from an upper that was read after its record was there.

    Somebody may be publishing that one and not know of the output. The one after it begins later than its commit, so
    whoever publishes it sees the record.
    """
    return upper + 1


Offsets: TypeAlias = tuple[int, int]
"""From the first to before the second."""


def united(ranges: Iterable[Offsets]) -> tuple[Offsets, ...]:
    """Return ranges in order, none of which touches another."""
    whole: list[Offsets] = []
    for start, stop in sorted(ranges):
        if start >= stop:
            continue
        if whole and start <= whole[-1][1]:
            whole[-1] = (whole[-1][0], max(whole[-1][1], stop))
        else:
            whole.append((start, stop))
    return tuple(whole)


def has_all(taken: Sequence[Offsets], start: int, stop: int) -> bool:
    """Whether all of a range is taken."""
    return any(first <= start and stop <= last for first, last in united(taken))


def has_any(taken: Sequence[Offsets], start: int, stop: int) -> bool:
    """Whether some of a range is taken: then another cut it otherwise, and what is left of it is cut anew."""
    return any(start < last and first < stop for first, last in united(taken))


def left(taken: Sequence[Offsets], end: int) -> list[Offsets]:
    """Return what of [0, end) is not taken."""
    gaps, at = [], 0
    for start, stop in united(taken):
        if at < start:
            gaps.append((at, min(start, end)))
        at = stop
    return [gap for gap in [*gaps, (at, end)] if gap[0] < gap[1]]


def messages_at_once(mean_bytes: float | None) -> int:
    """Return how many messages one range has at most, from what one had so far, None where none was seen."""
    if mean_bytes is None:
        return KAFKA_RANGE_FIRST_MESSAGES
    return max(1, min(KAFKA_RANGE_MESSAGES_MAX, int(KAFKA_RANGE_BYTES / max(1.0, mean_bytes))))


def mean_after(mean_bytes: float | None, size_bytes: int, messages: int) -> float | None:
    """Return what a message has in the mean after some more were read: it follows, and does not jump."""
    if not messages:
        return mean_bytes
    now = size_bytes / messages
    return now if mean_bytes is None else (3 * mean_bytes + now) / 4


@dataclass(frozen=True, slots=True)
class Log:
    """A partition as a look sees it."""

    taken: tuple[Offsets, ...]
    held: tuple[Offsets, ...]
    low: int
    """The first offset that the broker still has."""
    end: int
    """The first that is not there yet, or belongs to a transaction that is not over."""


def ranges(log: Log, at_once: int, ranges_max: int) -> list[Offsets]:
    """Return what is to be read, the first offsets first, cut into ranges. What is lost is never in one with others."""
    cut: list[Offsets] = []
    for start, stop in left((*log.taken, *log.held), log.end):
        if start < log.low:
            cut.append((start, min(stop, log.low)))
        for first in range(max(start, log.low), stop, at_once):
            if len(cut) >= ranges_max:
                return cut[:ranges_max]
            cut.append((first, min(first + at_once, stop)))
    return cut[:ranges_max]


def lag(log: Log) -> int:
    """Return how many offsets are neither taken nor held."""
    return sum(stop - start for start, stop in left((*log.taken, *log.held), log.end))


def still_held(taken: Sequence[Offsets], suspects: Iterable[Offsets]) -> tuple[Offsets, ...]:
    """Return which suspects hold their offsets back: not one that is taken by now, or was given up.

    Of one that was given up only what is lost is taken, and always its beginning; the rest is read then.
    """
    return tuple((start, stop) for start, stop in suspects if not has_any(taken, start, min(start + 1, stop)))


def given_up(start: int, stop: int, low: int) -> Offsets:
    """Return what is taken once the user gives a range up: what of it is lost, or all of it where nothing is."""
    return (start, min(stop, low)) if start < low else (start, stop)
