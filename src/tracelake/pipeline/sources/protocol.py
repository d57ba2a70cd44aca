"""Decisions about the sources of a pipeline: whose turn it is, and whether what was seen still counts. Pure."""

from __future__ import annotations

from collections.abc import Sequence


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
