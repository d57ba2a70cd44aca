"""The audit."""

from typing import Final

AUDIT_KEPT_NS: Final = 400 * 86_400 * 10**9
"""How long a record of who did what is kept. Beyond: it is removed."""
AUDIT_GAP_MAX_NS: Final = 30 * 86_400 * 10**9
"""What the time between two records counts for in their age, at most: else a clock that jumps ahead makes all of them
old. Beyond: it counts for this."""
AUDIT_RECORDS_MAX: Final = 20_000
"""Records of a kind (changes, annotations, sign-ins, counts) of the keys of one workspace. Beyond: the oldest
are removed."""
AUDIT_TRIM_EACH: Final = 1_000
"""Records that a server writes until it removes what is too old. Beyond: it does."""
AUDIT_TRIMMED_MAX: Final = 5_000
"""Records that are removed at once. Beyond: they are the next time."""
AUDIT_COUNTED_MAX: Final = 200
"""Different things that a server counts in one minute, such as refused requests of one key. Beyond: all others are
counted together."""
AUDIT_COUNTED_NS: Final = 60 * 10**9
"""How long like things are counted in one record. Beyond: in another."""
AUDIT_TEXT_MAX_CHARS: Final = 200
"""What was asked for, and of what, in a record. Beyond: it is cut."""
AUDIT_WAITING_MAX: Final = 10_000
"""Records that wait to be written. Beyond: what was asked for is not done, and the answer is 503."""
AUDIT_WAIT_MAX_S: Final = 30.0
"""How long a change waits for its record. Beyond: it is not done, and the answer is 503."""
AUDIT_SETTLE_MAX_S: Final = 1.0
"""How long who reads the audit of a server waits for what that has not written yet. Beyond: it is left out."""
AUDIT_CLOSE_MAX_S: Final = 10.0
"""How long a server that stops waits for what it has not written yet of the audit. Beyond: a line of the log tells."""
AUDIT_SHOWN_MAX: Final = 10_000
"""Records in one answer. Beyond: the limit is refused."""
AUDIT_SHOWN_DEFAULT: Final = 100
"""The same, where nobody says how many. Beyond: they are left out."""
AUDIT_PAGE_RECORDS: Final = 500
"""Records that are read at once. Beyond: they are read page by page."""
