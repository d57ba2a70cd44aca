"""Archive."""

from typing import Final

from tracelake.limits.units import MIB

ARCHIVE_BATCH_TRACES: Final = 1_024
"""Traces of one batch of a pass, and of one pack. Beyond: the next batch."""
ARCHIVE_BATCH_BYTES: Final = 32 * MIB
"""Their OTLP, uncompressed; a larger trace is a batch of its own. Beyond: the next batch."""
ARCHIVE_ROWS_MAX_BYTES: Final = 256 * MIB
"""What the rows of such traces take in memory that layout `lake` compares with the tables at once. Beyond: the next
ones; a trace of which they take more is compared alone, as far as it can be read whole."""
ARCHIVE_LOOK_TRACES: Final = 4_096
"""Traces that a pass looks for at once, the oldest, and makes batches of. Beyond: it looks again behind them."""
TASK_LAKES_OPEN_MAX: Final = 8
"""Lakes that a process keeps open for tasks of archive passes. Beyond: the oldest is opened anew."""
ARCHIVE_TASKS_AT_ONCE: Final = 64
"""Batches of a pass that are tasks of one job. Beyond: the next job, before which it is asked whether to stop."""
ARCHIVE_PASS_TRACES: Final = 20_000
"""Traces that one pass of a server's scheduler takes. Beyond: another follows at once, if this one archived some."""
ARCHIVE_FINALIZE_TRACES: Final = 64
"""Traces whose payloads one transaction clears, or that it deletes: writers wait. Beyond: the next transaction."""
ARCHIVE_FINALIZE_BYTES: Final = 8 * MIB
"""Their OTLP, uncompressed; a larger trace is cleared alone. Beyond: the next transaction."""
ARCHIVE_UPLOADS_AT_ONCE: Final = 8
"""Objects of one batch that are uploaded at a time. Beyond: they wait for their turn."""
ARCHIVE_FOLDER_MAX_CHARS: Final = 250
"""The name of an experiment's directory in layout `trace`; disks have up to 255. Beyond: it is cut, with a hash."""
TRACE_ARCHIVED_MAX_BYTES: Final = 1024 * MIB
"""What one archived trace unpacks to. Beyond: it stays hot, marked as one that cannot be archived; a frame that says so
is taken for damage."""
ARCHIVE_FAILURES_TOLD_MAX: Final = 20
"""Traces that stayed hot which a pass tells the reasons of. Beyond: they are counted."""
VERIFY_ALIKE_MAX: Final = 10
"""Traces that `verify` names for one thing that is wrong with many, and reads of the archive repository that may fail.
Beyond: the others are not named, and not read."""
BACKUP_TRIES_MAX: Final = 5
"""How often a backup takes its snapshot because an input was taken before it was copied. Beyond: it fails."""
VERIFY_ROWS_AT_ONCE: Final = 256
"""Rows of the metadata in PostgreSQL that `verify` reads at once. Beyond: it reads again."""
VERIFY_SPANS_AT_ONCE: Final = 100_000
"""Spans of archived traces that `verify` reads at once. Beyond: it reads again."""
ARCHIVE_RESTORE_TRIES_MAX: Final = 5
"""How often a restore begins again because a pass was faster. Beyond: it says so."""
ARCHIVE_UPLOAD_GRACE_S: Final = 3600.0
"""How old an upload that nobody has finalized must be for a sweep to give it up. Beyond: it does; who still works at it
is told, and its traces stay hot."""
ARCHIVE_GIVEN_UP_MAX: Final = 1_024
"""Objects that passes gave up and that are not deleted yet, as where the repository is away. Beyond: who archives a
batch deletes them first; where that fails, nothing is uploaded, and traces stay hot."""
ARCHIVE_DELETES_FAILED_S: Final = 30.0
"""Seconds for which objects cannot be deleted, one after the other, of those that are taken away at once. Beyond: the
others wait for the next sweep."""
ARCHIVE_SWEEP_EACH_S: Final = 21_600.0
"""Seconds between two sweeps that a server makes by itself; the first comes an interval of passes after its start.
Beyond: the next one begins."""
ARCHIVE_CUT_PAGES: Final = 200
"""Pages that one transaction of SQLite gives back to the disk after a pass. Beyond: the next one does."""
ARCHIVE_TRUNCATE_WAIT_S: Final = 0.5
"""How long the log of SQLite waits for readers, to be cut after a pass. Beyond: it is cut after the next one."""
ARCHIVE_CLEANING_MAX_S: Final = 3600.0
"""How long PostgreSQL may take to make the rows of one table reusable after a pass. Beyond: it is given up, and the
next pass tries."""
ARCHIVE_INTERVAL_S: Final = 300.0
"""Seconds between two archive passes of a server, where nobody says otherwise. Beyond: the next one begins."""
ARCHIVE_INTERVAL_MIN_S: Final = 1.0
"""The least of them that can be asked for. Beyond: less is refused."""
ARCHIVE_INTERVAL_MAX_S: Final = 86_400.0
"""The most of them that can be asked for. Beyond: more is refused."""
ARCHIVE_REQUEST_TRACES_MAX: Final = 500
"""Traces that one request restores or deletes. Beyond: 413."""
ARCHIVE_GRACE_MAX_S: Final = 31_536_000.0
"""The longest grace of a sweep, a year. Beyond: `UsageError`, and 400."""
ARCHIVE_LISTED_DEFAULT: Final = 20
"""Experiments, traces, operations that the page of the archive lists. Beyond: parameter `limit` asks for more."""
OPERATIONS_AT_ONCE: Final = 4
"""Passes, restores, deletions and sweeps that requests asked a server for and that are under way; of one kind one less.
Beyond: 503."""
OPERATIONS_KEPT: Final = 100
"""Of them, and of passes by interval, that a server tells of. Beyond: the oldest that is over is forgotten."""
OPERATION_ANSWER_WAIT_S: Final = 10.0
"""How long the answer to a request that began one waits for its end. Beyond: 202, with its id to ask again with."""
ARCHIVE_POLL_S: Final = 5.0
"""How long a server waits between looks for experiments that are marked archiveNow. Beyond: it looks."""
ARCHIVE_NOW_SEEN_S: Final = 600
"""How long a mark archiveNow that is not done is of the time when it was first seen. Beyond: it is of so long before
the pass."""
ARCHIVE_STOP_MAX_S: Final = 30.0
"""How long a server that stops waits for the batch of a pass that is under way. Beyond: it leaves it; the next pass, of
any server, goes on, and a sweep takes its uploads."""
