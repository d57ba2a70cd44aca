"""Archive."""

from typing import Final

from tracelake.limits.units import MIB

ARCHIVE_BATCH_TRACES: Final = 1_024
"""Traces in one batch of a pass, and in one pack. Beyond: the next batch."""
ARCHIVE_BATCH_BYTES: Final = 32 * MIB
"""Uncompressed OTLP in one batch; a larger trace is a batch by itself. Beyond: the next batch."""
ARCHIVE_ROWS_MAX_BYTES: Final = 256 * MIB
"""Memory for rows that layout `lake` compares with the tables at once. Beyond: the next comparison; a larger trace is
compared alone, if it can be read whole."""
ARCHIVE_LOOK_TRACES: Final = 4_096
"""Traces in one query of a pass for candidates, oldest first, before they are split into batches. Beyond: the next
query continues after them."""
TASK_LAKES_OPEN_MAX: Final = 8
"""Lakes that a process keeps open for archive tasks. Beyond: the oldest is closed and opened again when needed."""
ARCHIVE_TASKS_AT_ONCE: Final = 64
"""Batches of a pass that run as tasks of one job. Beyond: the next job, after a check for a stop request."""
ARCHIVE_PASS_TRACES: Final = 20_000
"""Traces in one pass of a server's scheduler. Beyond: another pass follows at once, if this one archived any."""
ARCHIVE_FINALIZE_TRACES: Final = 64
"""Traces that one transaction clears or deletes while writers wait. Beyond: the next transaction."""
ARCHIVE_FINALIZE_BYTES: Final = 8 * MIB
"""Uncompressed OTLP that one such transaction clears; a larger trace is cleared alone. Beyond: the next transaction."""
ARCHIVE_UPLOADS_AT_ONCE: Final = 8
"""Objects of one batch in concurrent upload. Beyond: they wait."""
ARCHIVE_FOLDER_MAX_CHARS: Final = 250
"""Name of an experiment's directory in layout `trace`; file systems allow 255. Beyond: the name is truncated and gets
a hash."""
TRACE_ARCHIVED_MAX_BYTES: Final = 1024 * MIB
"""Decompressed size of one archived trace. Beyond: the trace stays hot and is marked as not archivable; an archive
frame that declares more counts as damaged."""
ARCHIVE_FAILURES_TOLD_MAX: Final = 20
"""Traces whose failure reasons a pass reports. Beyond: they are only counted."""
VERIFY_ALIKE_MAX: Final = 10
"""Traces that `verify` names per problem, and failed reads of the archive repository. Beyond: the others are neither
named nor read."""
BACKUP_TRIES_MAX: Final = 5
"""How often a backup takes its snapshot because an input was taken before it was copied. Beyond: it fails."""
VERIFY_ROWS_AT_ONCE: Final = 256
"""Metadata rows in PostgreSQL that `verify` reads at once. Beyond: the next read."""
VERIFY_SPANS_AT_ONCE: Final = 100_000
"""Spans of archived traces that `verify` reads at once. Beyond: the next read."""
ARCHIVE_RESTORE_TRIES_MAX: Final = 5
"""Restarts of a restore because a concurrent pass was faster. Beyond: the restore fails with an error."""
ARCHIVE_UPLOAD_GRACE_S: Final = 3600.0
"""Minimum age at which a sweep abandons an upload that was not finalized. Beyond: it is abandoned; a pass that still
works on it gets an error, and its traces stay hot."""
ARCHIVE_GIVEN_UP_MAX: Final = 1_024
"""Abandoned objects that are not deleted yet, for example because the repository is unreachable. Beyond: the next
batch deletes them first; if that fails, nothing is uploaded and traces stay hot."""
ARCHIVE_DELETES_FAILED_S: Final = 30.0
"""Time during which consecutive deletions of abandoned objects fail. Beyond: the others wait for the next sweep."""
ARCHIVE_SWEEP_EACH_S: Final = 21_600.0
"""Time between two automatic sweeps of a server; the first runs one pass interval after its start. Beyond: the next
sweep starts."""
ARCHIVE_CUT_PAGES: Final = 200
"""Pages that one SQLite transaction returns to the disk after a pass. Beyond: the next transaction."""
ARCHIVE_TRUNCATE_WAIT_S: Final = 0.5
"""Wait for readers before SQLite's log is truncated after a pass. Beyond: it is truncated after the next pass."""
ARCHIVE_CLEANING_MAX_S: Final = 3600.0
"""Time that PostgreSQL may vacuum one table after a pass. Beyond: the vacuum is cancelled, and the next pass tries
again."""
ARCHIVE_INTERVAL_S: Final = 300.0
"""Default time between two archive passes of a server. Beyond: the next pass starts."""
ARCHIVE_INTERVAL_MIN_S: Final = 1.0
"""Shortest interval between passes. Beyond: a shorter one is refused."""
ARCHIVE_INTERVAL_MAX_S: Final = 86_400.0
"""Longest interval between passes. Beyond: a longer one is refused."""
ARCHIVE_REQUEST_TRACES_MAX: Final = 500
"""Traces that one request restores or deletes. Beyond: 413."""
ARCHIVE_GRACE_MAX_S: Final = 31_536_000.0
"""Longest grace period of a sweep, a year. Beyond: `UsageError`, and 400."""
ARCHIVE_LISTED_DEFAULT: Final = 20
"""Experiments, traces and operations that the archive page lists. Beyond: parameter `limit` asks for more."""
OPERATIONS_AT_ONCE: Final = 4
"""Concurrent passes, restores, deletions and sweeps that requests started on a server; one less of a single kind.
Beyond: 503."""
OPERATIONS_KEPT: Final = 100
"""Such operations, and scheduled passes, that a server remembers. Beyond: it forgets the oldest finished one."""
OPERATION_ANSWER_WAIT_S: Final = 10.0
"""Time that the response waits for an operation to finish. Beyond: 202 with the operation's id, for polling."""
ARCHIVE_POLL_S: Final = 5.0
"""Time between a server's checks for experiments marked archiveNow. Beyond: the next check."""
ARCHIVE_NOW_SEEN_S: Final = 600
"""Time for which an unfinished archiveNow mark covers the traces up to its first sighting. Beyond: the mark covers
traces up to this long before the pass."""
ARCHIVE_STOP_MAX_S: Final = 30.0
"""Time that a stopping server waits for the current batch of a pass. Beyond: it abandons the batch; the next pass of
any server continues, and a sweep removes its uploads."""
