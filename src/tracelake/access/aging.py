"""Which records of the audit are old, or too many, whatever clocks did meanwhile. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tracelake import limits


def outlived(times_ns: Sequence[int], now_ns: int) -> Iterator[int]:
    """Yield which of these times, the newest first, are of records that are not to be kept any more.

    An age is the sum of what lies between a record, those after it, and now, and between two of them no more counts
    than AUDIT_GAP_MAX_NS: that so much time passed is believed where records of it are there. So a clock that jumps
    ahead by years removes what had that long to live, and no more. What was noted ahead of now, as before a clock went
    back, has no age, and is counted apart: else it would push out what is noted now.
    """
    age_ns, later_ns, ahead, others = 0, now_ns, 0, 0
    for at, time_ns in enumerate(times_ns):
        if time_ns > now_ns:
            ahead += 1
            if ahead > limits.AUDIT_RECORDS_MAX:
                yield at
            continue
        others += 1
        age_ns += min(later_ns - time_ns, limits.AUDIT_GAP_MAX_NS)
        later_ns = time_ns
        if others > limits.AUDIT_RECORDS_MAX or age_ns >= limits.AUDIT_KEPT_NS:
            yield at
