"""Storage."""

from typing import Final

from tracelake.limits.input import MIB

BUCKETS_DEFAULT: Final = 8
"""Default hash buckets of a new lake or table. Beyond: set more at creation; the number is fixed for its life."""
BUCKETS_MAX: Final = 4_096
"""Hash buckets of a lake or table. Beyond: its creation fails with an error."""
COMPARED_KEYS_MAX: Final = 2_000_000
"""Keys of a write that are compared with the stored keys at once; all keys of one bucket go together. Beyond: the
next buckets."""
WRITES_REMEMBERED: Final = 64
"""Writes that a state remembers by the caller's id. Beyond: older ones have separate records."""
LEASE_S: Final = 3600.0
"""Time that garbage collectors observe a lease without renewal. Beyond: its reader counts as dead."""
EPOCH_MIN_S: Final = 3600.0
"""Shortest time between two epochs of a shard. Beyond: the next collection begins one, and a writer that uploaded
before the previous one may not append."""
REF_NAME_MAX_CHARS: Final = 100
"""Name of a branch or tag. Beyond: it is refused."""
MERGE_ANCESTORS_MAX: Final = 64
"""Levels of common ancestors that one merge resolves, if merges crossed. Beyond: deeper history is unclear, and a
conflict if both sides changed it."""
ANSWER_DETAIL_MAX_BYTES: Final = 8 * 1024
"""Details of a refusal in one answer, as JSON. Beyond: they are truncated; the first conflicting paths have
room."""
CONFLICTS_TOLD_MAX: Final = 100
"""Conflicting paths that an answer names. Beyond: they are omitted."""
COMMIT_REQUEST_MAX_BYTES: Final = 64 * 1024
"""Contribution of one commit to its branch record: message, metadata, and inline changes. Beyond: it is refused."""
CHANGE_SET_ENTRIES_MAX: Final = 10_000
"""Changes in one such object. Beyond: the next object."""
STAGED_PATH_MAX_BYTES: Final = 960
"""UTF-8 bytes of a staged path; its key in the store also contains a token. Beyond: it is refused."""
DATASET_ADD_DEFAULT: Final = 1_000
"""Examples that one call adds to a dataset by default. Beyond: they are omitted."""
DATASET_ADD_MAX: Final = 10_000
"""Examples that one call may add to a dataset. Beyond: the call is refused; use several calls."""
EXAMPLE_TEXT_MAX_CHARS: Final = 1_000_000
"""Input and expected output of an example that a person writes or edits, together. Beyond: it is refused."""
EXAMPLES_COMPARED_MAX: Final = 2_000
"""Examples of a dataset that are searched for the same input when one is added. Beyond: duplicates go unnoticed."""
EVALUATION_TEXT_MAX_CHARS: Final = 200_000
"""Output, label or error of one example in an evaluation run. Beyond: it is cut, with an ellipsis."""
EVALUATION_NAME_MAX_CHARS: Final = 200
"""Name of an evaluation run. Beyond: it is refused."""
EVALUATION_CONCURRENCY_MAX: Final = 256
"""Examples that one evaluation runs at once. Beyond: it is refused."""
EVALUATION_SCORES_MAX: Final = 100
"""Scores that one scorer returns for an example. Beyond: the scorer fails for this example."""
DATASET_NOTES_MAX_CHARS: Final = 10_000
"""Description of a dataset, or metadata of its examples, keys and values together. Beyond: the call is refused."""
RETENTION_RULES_MAX: Final = 100
"""Retention rules of a lake, of all workspaces together. Beyond: a new rule is refused."""
DELETION_TRACES_MAX: Final = 10_000
"""Traces that one transaction deletes. Beyond: the next transaction."""
DELETION_SPANS_MAX: Final = 100_000
"""Spans of traces that one transaction deletes or prices again; a trace is never divided. Beyond: the next
transaction."""
RETENTION_INTERVAL_S: Final = 3_600.0
"""Time between two applications of the retention rules, by any server or pipeline. Beyond: the next one begins."""
KEY_MAX_BYTES: Final = 1_024
"""UTF-8 bytes of a partition or key in the key-value store. Beyond: it is refused."""
VALUE_MAX_BYTES: Final = 8 * MIB
"""One record of the key-value store. Beyond: it is refused; packages put data that may grow into objects."""
SQLITE_BUSY_TIMEOUT_S: Final = 30.0
"""Wait for SQLite's write lock. Beyond: the write fails, and nothing was written."""
SQLITE_POLL_S: Final = 0.01
"""Retry interval of processes that create the same database concurrently. Beyond: the next attempt."""
CONDITIONAL_WRITE_TRIES_MAX: Final = 100
"""Consecutive conditional writes that one append or commit may lose. Beyond: it fails."""
OBJECT_PATH_MAX_BYTES: Final = 1_024
"""UTF-8 bytes of an object's path. Beyond: it is refused."""
OBJECT_PATH_SEGMENT_MAX_BYTES: Final = 255
"""One name in a path, as file systems allow it. Beyond: the path is refused."""
TEMPORARY_FILE_AGE_MAX_S: Final = 24 * 3600.0
"""Age of a temporary file; no write takes so long. Beyond: it is deleted as the leftover of a killed writer."""
STORE_CONNECT_TIMEOUT_S: Final = 10.0
"""Time to connect to PostgreSQL or an object store. Beyond: the attempt fails."""
STORE_TRIES_MAX: Final = 6
"""Attempts of one operation on a remote store. Beyond: the operation fails."""
STORE_TRIES_TIMEOUT_S: Final = 120.0
"""Time after the first attempt in which another may begin. Beyond: the operation fails; the last attempt has a
separate timeout."""
STORE_PAUSE_FIRST_S: Final = 0.05
"""First backoff between attempts; it doubles, with jitter. Beyond: the next attempt."""
STORE_PAUSE_MAX_S: Final = 2.0
"""Longest backoff between attempts. Beyond: the next attempt."""
POSTGRES_CONNECTIONS_MAX: Final = 8
"""PostgreSQL connections of one process. Beyond: threads wait for one."""
POSTGRES_STATEMENT_TIMEOUT_S: Final = 20.0
"""Duration of one PostgreSQL statement. Beyond: PostgreSQL cancels it."""
POSTGRES_LOCK_TIMEOUT_S: Final = 10.0
"""Wait of a statement for a lock. Beyond: PostgreSQL cancels it."""
POSTGRES_REPLY_TIMEOUT_S: Final = 30.0
"""Client's wait for a PostgreSQL reply, longer than the statement timeout. Beyond: the connection is closed."""
POSTGRES_TURN_TIMEOUT_S: Final = 35.0
"""Wait of a thread for a free connection, longer than the reply timeout. Beyond: it fails."""
OBJECT_REQUEST_TIMEOUT_S: Final = 120.0
"""One request to an object store, with its body. Beyond: the attempt fails."""
FOREIGN_OBJECT_TIMEOUT_S: Final = 6 * 3600.0
"""One request for an input in a bucket, with all its bytes. Beyond: the attempt fails."""
FOREIGN_READ_TIMEOUT_S: Final = 30.0
"""Time that such a request may deliver no data. Beyond: the attempt fails."""
OBJECTS_LISTED_AT_ONCE: Final = 1_000
"""Names in one listing request. Beyond: the next request."""
PARTS_AT_ONCE: Final = 8
"""Parts of a table or an index that one call copies to the local disk concurrently. Beyond: they wait."""
PART_COPIES_MAX_BYTES: Final = 16 * 1024 * MIB
"""Local copies of one remote lake's parts, in addition to those in use. Beyond: the least recently used are
deleted."""
PART_COPY_IDLE_MIN_S: Final = 600.0
"""Time since a copy was last used; another process may be about to open it. Beyond: it may be deleted."""
