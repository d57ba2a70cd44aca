"""Pure decisions of the pipeline: prefetch, fairness between sources, exactly-once outputs, and offset ranges.

Prefetched input is not recorded in the journal. Before the next transaction, the pipeline determines which inputs are
pending, taken by a peer, or quarantined, as if nothing had been prefetched. It uses the prefetched rows only if the
next inputs are exactly the prefetched ones, in the same order.

An output writes each transaction to the external system once:

| rows of the transaction | marker in the system | action |
|---|---|---|
| committed before the output began | any | none |
| none | any | none: no batch is empty |
| some | of this transaction or a later one | none: a peer wrote it, or this process before a crash |
| some | of an earlier transaction | write rows and marker in one step |

Each offset of a Kafka partition, from 0 up, is *taken* (committed or discarded), *held* (quarantined until the user
decides), or pending. The order in which ranges are taken or fail therefore does not matter. Some offsets have no
record: it was compacted away, belongs to an aborted transaction, or is a transaction marker. They are skipped as part
of their range. Offsets that retention removed before they were taken are *lost*: a separate range that fails with an
error.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from tracelake import limits
from tracelake.journal.protocol import Action, OpenInputs, ReadState
from tracelake.limits.input import MIB

KAFKA_RANGE_FIRST_MESSAGES: Final = 100
"""Messages in the first range of a partition, while their size is unknown."""
KAFKA_RANGE_MESSAGES_MAX: Final = 10_000
"""Messages in one range."""
KAFKA_RANGE_BYTES: Final = 4 * MIB
"""Target size of a range, by the mean message size of earlier ranges."""

OUTBOX_WAIT_S: Final = 5.0
"""Longest wait of outbox rows for more, on a busy server."""
QUIET_S: Final = 1.0
"""Time without a new row after which rows wait for no more."""
# Half of what searches and lists cover: more arrives while a transaction runs.
OUTBOX_ROWS: Final = limits.UNCOMMITTED_SEARCH_ROWS_MAX // 2
"""Pending rows that wait for no more."""
OUTBOX_TRACES: Final = limits.UNCOMMITTED_TRACES_MAX // 2
"""Trace parts of pending rows that wait for no more."""
OUTBOX_BYTES: Final = limits.UNCOMMITTED_LIST_MAX_BYTES // 2
"""OTLP of pending rows that waits for no more."""


def may_prefetch(*, is_new: bool, is_alone: bool, is_stopping: bool) -> bool:
    """Return whether the next input may be prefetched while a transaction is published.

    Args:
        is_new: this run read and recorded the transaction, and no task failed on it. A replay prefetches nothing.
        is_alone: its input is not suspected, and no other process works on it or has crashed on it.
    """
    return is_new and is_alone and not is_stopping


def is_due(
    *, since_last_s: float, since_newest_s: float, rows: int, traces: int, size_bytes: int, wait_s: float
) -> bool:
    """Return whether the pipeline takes the pending rows of an outbox now.

    Their spans can be read and searched already, and each transaction has a fixed cost. So busy servers get one
    transaction each `wait_s` seconds, or earlier for enough input; the first rows and a quiet server's do not wait.

    Args:
        since_last_s: time since rows were last due.
        since_newest_s: time since the newest row was first seen.
        rows, traces, size_bytes: pending rows, their trace parts and OTLP. Lists and searches read a limited number.
        wait_s: longest wait of a row.
    """
    return (
        since_last_s >= wait_s
        or since_newest_s >= min(wait_s, QUIET_S)
        or rows >= OUTBOX_ROWS
        or traces >= OUTBOX_TRACES
        or size_bytes >= OUTBOX_BYTES
    )


def may_delete(decided: int, newest: int) -> bool:
    """Return whether a deletion may remove a trace.

    Args:
        decided: the transaction as of which the deletion was decided.
        newest: the transaction of the trace's newest row. A row that the decision has not seen keeps the trace whole.
    """
    return newest <= decided


def keeps(action: Action) -> bool:
    """Return whether prefetched rows may still be used after this action. Any action other than opening the next new
    input makes them useless."""
    return isinstance(action, ReadState | OpenInputs)


def matches_prefetch(prefetched: Sequence[object], inputs: Sequence[object]) -> bool:
    """Return whether the prefetched inputs are exactly the inputs to read now."""
    return tuple(prefetched) == tuple(inputs)


def in_turn(costs: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """Return (source, number) of all inputs in the order in which they are taken, given their costs by source.

    Inputs are ordered by the cost that precedes them in their own source. Wherever a transaction ends in this order, it
    contains an equal share of every source. A source with less pending input leaves its share to the others. The order
    within a source is kept.
    """
    turns = []
    for source, of_source in enumerate(costs):
        before = 0
        for number, cost in enumerate(of_source):
            turns.append((before, source, number))
            before += cost
    return [(source, number) for _, source, number in sorted(turns)]


def counts(looked_at: str, now: str | None, *, is_paused: bool) -> bool:
    """Return whether input polled from a configured source may still be taken.

    `looked_at` is the id of the source's record before the poll, `now` the id afterwards, or None if the record was
    removed. Checking after the poll ensures that nothing is taken that arrived after a call to pause or remove
    returned.
    """
    return now == looked_at and not is_paused


NO_MARKER: Final = -1
"""Marker of a system that has nothing of an output yet."""


def is_to_be_written(transaction: int, since: int, rows: int, marker: int) -> bool:
    """Return whether to write a transaction's rows now. `marker` is the last transaction that the system has."""
    return transaction >= since and rows > 0 and transaction > marker


def begins_at(upper: int) -> int:
    """Return the first transaction of a new output. `upper` must have been read after the output's record was written.

    A peer that does not know the output yet may be publishing transaction `upper`. Transaction `upper` + 1 starts after
    that commit, so its publisher sees the output's record.
    """
    return upper + 1


Offsets: TypeAlias = tuple[int, int]
"""A half-open range: first offset, and the offset after the last."""


def united(ranges: Iterable[Offsets]) -> tuple[Offsets, ...]:
    """Return the ranges sorted, with touching and overlapping ones merged."""
    merged: list[Offsets] = []
    for start, stop in sorted(ranges):
        if start >= stop:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], stop))
        else:
            merged.append((start, stop))
    return tuple(merged)


def has_all(ingested: Sequence[Offsets], start: int, stop: int) -> bool:
    """Return whether all of a range is taken."""
    return any(first <= start and stop <= last for first, last in united(ingested))


def has_any(ingested: Sequence[Offsets], start: int, stop: int) -> bool:
    """Return whether some offsets of a range are taken. If so, a peer cut the range differently, and the rest of it is
    cut anew."""
    return any(start < last and first < stop for first, last in united(ingested))


def pending_ranges(ingested: Sequence[Offsets], end: int) -> list[Offsets]:
    """Return the ranges of offsets below `end` that are not taken."""
    gaps, at = [], 0
    for start, stop in united(ingested):
        if at < start:
            gaps.append((at, min(start, end)))
        at = stop
    return [gap for gap in [*gaps, (at, end)] if gap[0] < gap[1]]


def messages_at_once(mean_bytes: float | None) -> int:
    """Return the maximum number of messages in a range, from the mean message size so far (None before the first)."""
    if mean_bytes is None:
        return KAFKA_RANGE_FIRST_MESSAGES
    return max(1, min(KAFKA_RANGE_MESSAGES_MAX, int(KAFKA_RANGE_BYTES / max(1.0, mean_bytes))))


def mean_after(mean_bytes: float | None, size_bytes: int, messages: int) -> float | None:
    """Return the moving average of the message size after reading more messages."""
    if not messages:
        return mean_bytes
    now = size_bytes / messages
    return now if mean_bytes is None else (3 * mean_bytes + now) / 4


@dataclass(frozen=True, slots=True)
class Log:
    """Offsets of a partition, as a poll found them."""

    ingested: tuple[Offsets, ...]
    quarantined: tuple[Offsets, ...]
    low: int
    """The first offset that the broker still has."""
    end: int
    """The first offset that does not exist yet, or belongs to an unfinished Kafka transaction."""


def ranges(log: Log, at_once: int, ranges_max: int) -> list[Offsets]:
    """Return the ranges to read, lowest offsets first. A range never mixes lost offsets with others."""
    cut: list[Offsets] = []
    for start, stop in pending_ranges((*log.ingested, *log.quarantined), log.end):
        if start < log.low:
            cut.append((start, min(stop, log.low)))
        for first in range(max(start, log.low), stop, at_once):
            if len(cut) >= ranges_max:
                return cut[:ranges_max]
            cut.append((first, min(first + at_once, stop)))
    return cut[:ranges_max]


def lag(log: Log) -> int:
    """Return how many offsets are neither taken nor held."""
    return sum(stop - start for start, stop in pending_ranges((*log.ingested, *log.quarantined), log.end))


def blocking_ranges(ingested: Sequence[Offsets], suspects: Iterable[Offsets]) -> tuple[Offsets, ...]:
    """Return the quarantined ranges that no poll may take: those neither taken nor discarded."""
    return tuple(
        (start, stop) for start, stop in suspects if not has_any(ingested, start, min(start + 1, stop))
    )


def given_up(start: int, stop: int, low: int) -> Offsets:
    """Return the range to mark as taken when the user discards a range: its lost part, or all of it if nothing is
    lost."""
    return (start, min(stop, low)) if start < low else (start, stop)
