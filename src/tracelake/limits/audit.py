"""The audit."""

from typing import Final

AUDIT_KEPT_NS: Final = 400 * 86_400 * 10**9
"""Retention of audit records. Beyond: they are deleted."""
AUDIT_GAP_MAX_NS: Final = 30 * 86_400 * 10**9
"""Largest time between two records that counts towards their age, because a clock that jumps ahead would age all
records. Beyond: the gap counts as this much."""
AUDIT_RECORDS_MAX: Final = 20_000
"""Records of one kind (changes, annotations, sign-ins, counts) for the keys of one workspace. Beyond: the oldest are
deleted."""
AUDIT_TRIM_EACH: Final = 1_000
"""Records that a server writes between two trims of expired records. Beyond: it trims."""
AUDIT_TRIMMED_MAX: Final = 5_000
"""Records deleted in one trim. Beyond: the next trim."""
AUDIT_COUNTED_MAX: Final = 200
"""Distinct events that a server counts per minute, such as refused requests of one key. Beyond: all others share one
count."""
AUDIT_COUNTED_NS: Final = 60 * 10**9
"""Time for which equal events share one record. Beyond: a new record."""
AUDIT_TEXT_MAX_CHARS: Final = 200
"""Text of a record's action and object. Beyond: it is truncated."""
AUDIT_WAITING_MAX: Final = 10_000
"""Records that wait to be written. Beyond: the action is not executed, and the answer is 503."""
AUDIT_WAIT_MAX_S: Final = 30.0
"""Wait of a change for its record. Beyond: the change is not executed, and the answer is 503."""
AUDIT_SETTLE_MAX_S: Final = 1.0
"""Wait of an audit query for the server's unwritten records. Beyond: they are omitted."""
AUDIT_CLOSE_MAX_S: Final = 10.0
"""Time that a stopping server waits for its unwritten records. Beyond: the loss is logged."""
AUDIT_SHOWN_MAX: Final = 10_000
"""Records in one response. Beyond: the requested limit is refused."""
AUDIT_SHOWN_DEFAULT: Final = 100
"""Records in one response by default. Beyond: they are omitted."""
AUDIT_PAGE_RECORDS: Final = 500
"""Records in one read. Beyond: the next page."""
