"""Tracking and archive."""

from typing import Final

from tracelake.limits.input import MIB

TRACKING_NAME_MAX_CHARS: Final = 500
"""Name, model, session or user in a column of the tracking store. Beyond: the column is truncated; the span stays
complete."""
TRACKING_KEY_MAX_CHARS: Final = 250
"""Key of a tag, or an id that is not a trace id. Beyond: it is refused."""
EXPERIMENT_ID_MAX_BYTES: Final = 500
"""Id of an experiment in a request, as UTF-8. Beyond: it is refused."""
# With the longest workspace name it forms one index key, and PostgreSQL allows 2,704 bytes.
TRACKING_VALUE_MAX_CHARS: Final = 8_000
"""Value of a tag. Beyond: it is refused."""
EXPERIMENT_TAG_MAX_CHARS: Final = 5_000
"""Value of an experiment's tag. Beyond: it is refused."""
ANNOTATIONS_MAX: Final = 1_000
"""Tags, and assessments, of one trace or experiment. Beyond: one more is refused."""
ASSESSMENT_MAX_BYTES: Final = 64 * 1024
"""An assessment as JSON. Beyond: it is refused."""
TAGS_SHOWN_MAX: Final = 20
"""Tags of a trace that a page shows. Beyond: the API returns them."""
TAG_SHOWN_MAX_CHARS: Final = 200
"""Shown value of one tag. Beyond: it is truncated."""
TAGGED_TRACES_MAX: Final = 10_000
"""Traces that a tag filter may select. Beyond: it is refused; add more tags."""
EXPERIMENTS_SHOWN_MAX: Final = 1_000
"""Experiments in a list, the newest. Beyond: others can be opened by id and name."""
ERASED_IDS_S: Final = 90 * 86_400.0
"""Time for which the lake refuses late spans of an erased trace, by a salted hash of its id, and keeps the list of
erased trace ids for `tracelake erase verify`. Beyond: it forgets both, and a late span is stored as any other."""
ERASURE_INTERVAL_S: Final = 10.0
"""Seconds between attempts of a server to continue open erasures. Beyond: `tracelake erase run` continues them at
once."""
TRACKING_PREVIEW_MAX_CHARS: Final = 1_000
"""Input and output of a trace in lists. Beyond: they are truncated; the spans keep them whole."""
TRACKING_BUSY_TIMEOUT_S: Final = 10.0
"""Wait of a write for the tracking store, if others write or it does not reply. Beyond: an error, and 503 for a
request."""
TRACKING_SEARCH_TIMEOUT_S: Final = 20.0
"""Duration of an MLflow filter search in SQLite. Beyond: 400, with a suggestion."""
TRACKING_SEARCHES_MAX: Final = 4
"""Concurrent searches of this kind in a process; writers use the other connections. Beyond: a search waits."""
TRACKING_SEARCH_WAIT_S: Final = 5.0
"""Wait of such a search for its turn. Beyond: 503."""
TRACKING_IDS_AT_ONCE: Final = 500
"""Traces or outbox rows in one statement. Beyond: another statement."""
OUTBOX_ROWS_MAX: Final = 100_000
"""Pending outbox rows of a lake. Beyond: requests get 503 until the pipeline has taken some."""
UNCOMMITTED_TRACES_MAX: Final = 20_000
"""Partly or wholly uncommitted traces that lists show in addition to the tables. Beyond: the newest are shown, and
the list reports that others follow once they are committed; each can be read by id."""
UNCOMMITTED_LIST_MAX_BYTES: Final = 64 * MIB
"""Uncommitted OTLP of all such traces that lists read. Beyond: the newest are shown, and the list reports that others
follow once they are committed."""
UNCOMMITTED_LIST_TRACE_MAX_BYTES: Final = 4 * MIB
"""Uncommitted OTLP of one such trace. Beyond: lists show its committed state; it can be read by id."""
UNCOMMITTED_LIST_TRACE_MAX_SPANS: Final = 10_000
"""Committed spans of one such trace. Beyond: lists show its committed state; it can be read by id."""
UNCOMMITTED_LIST_MAX_SPANS: Final = 100_000
"""Committed spans of all such traces. Beyond: only the newest traces include uncommitted spans."""
UNCOMMITTED_ROWS_MAX_BYTES: Final = 256 * MIB
"""Memory of uncommitted rows in lists, and in searches, with resource and scope at each span. Beyond: lists show
the others in their committed state, and a search reports that it did not read them."""
UNCOMMITTED_PART_ROWS_MAX_BYTES: Final = 32 * MIB
"""Memory of one trace's rows from one request, if they expand much. Beyond: lists show the committed state, and a
search reports that it did not read them."""
UNCOMMITTED_LIST_WAIT_S: Final = 30.0
"""Wait of a list for the lists of others. Beyond: 503."""
HOT_TRACE_WAIT_S: Final = 30.0
"""Wait of such a read for others. Beyond: 503."""
UNCOMMITTED_SEARCH_ROWS_MAX: Final = 4_000
"""Outbox rows with such spans. Beyond: a result reports that the rest is not searched yet."""
UNCOMMITTED_SEARCH_STEP_BYTES: Final = 4 * MIB
"""Spans that one indexing step of a search covers. Beyond: another step, if time is left."""
UNCOMMITTED_RUN_GAP_MAX: Final = 64
"""Missing row numbers between two outbox rows of one run in a page token. Beyond: another run."""
UNCOMMITTED_RUNS_MAX: Final = 8
"""Runs of outbox rows in a page token. Beyond: the newest are searched, and the result reports that."""
TRACKING_LOOK_S: Final = 5.0
"""Interval at which a pipeline checks whether its lake has a tracking store. Beyond: the next check."""
INGEST_RETRY_AFTER_S: Final = 5
"""Retry delay that a 503 response requests. Beyond: the client may send again."""
FILTER_MAX_CHARS: Final = 10_000
"""Text of an MLflow filter. Beyond: 400."""
FILTER_CONDITIONS_MAX: Final = 20
"""Conditions of an MLflow filter. Beyond: 400."""
FILTER_VALUES_MAX: Final = 200
"""Values of one IN. Beyond: 400."""
MLFLOW_EXPERIMENTS_MAX: Final = 100
"""Experiments of one MLflow search. Beyond: 400."""
MLFLOW_PAGE_TRACES_MAX: Final = 500
"""Traces on a page of an MLflow search. Beyond: 400."""
MLFLOW_DELETED_TRACES_MAX: Final = 10_000
"""Traces that one MLflow request deletes. Beyond: 400 for ids; for a time, the oldest are deleted and counted."""
MLFLOW_BATCH_TRACES_MAX: Final = 100
"""Traces that one request reads with their spans. Beyond: 413."""
MLFLOW_BATCH_SPANS_MAX: Final = 20_000
"""Spans of all these traces, if there are several. Beyond: 413."""
MLFLOW_BATCH_MAX_BYTES: Final = 64 * 1024**2
"""Memory of these spans. Beyond: 413."""
TRACE_SUMMED_MAX_SPANS: Final = 500
"""Spans of a trace whose row is computed without a query. Beyond: a query computes it."""
ARCHIVE_ROWS_MAX_BYTES: Final = 16 * MIB
"""Memory for rows that layout `lake` compares with the tables at once. Beyond: the next comparison; a larger trace
is compared alone, if it can be read whole."""
ARCHIVE_FOLDER_MAX_CHARS: Final = 250
"""Name of an experiment's directory in layout `trace`; file systems allow 255. Beyond: the name is truncated and
gets a hash."""
TRACE_ARCHIVED_MAX_BYTES: Final = 1024 * MIB
"""Decompressed size of one archived trace. Beyond: the trace stays hot and is marked as not archivable; an archive
frame that declares more counts as damaged."""
VERIFY_ROWS_AT_ONCE: Final = 256
"""Metadata rows in PostgreSQL that `verify` reads at once. Beyond: the next read."""
ARCHIVE_RESTORE_TRIES_MAX: Final = 5
"""Restarts of a restore because a concurrent pass was faster. Beyond: the restore fails with an error."""
ARCHIVE_UPLOAD_GRACE_S: Final = 3600.0
"""Minimum age at which a sweep abandons an upload that was not finalized. Beyond: it is abandoned; a pass that
still works on it gets an error, and its traces stay hot."""
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
TRACKED_ROWS_MAX: Final = 1_000_000
"""Rows of `assessments` or `trace_experiments` that an SQL query reads. Beyond: the query is refused."""
