"""Storage."""

from typing import Final

from tracelake.limits.units import MIB

KEY_MAX_BYTES: Final = 1_024
"""UTF-8 bytes of a partition or key in the key-value store. Beyond: it is refused."""
VALUE_MAX_BYTES: Final = 8 * MIB
"""One record of the key-value store. Beyond: it is refused; packages put data that may grow into objects."""
SQLITE_BUSY_TIMEOUT_S: Final = 30.0
"""Wait for SQLite's write lock. Beyond: the write fails, and nothing was written."""
SQLITE_LOOK_S: Final = 2.0
"""Time to wait for a SQLite file that looks damaged, because another process may be creating it. Beyond: it counts as
damaged."""
SQLITE_POLL_S: Final = 0.01
"""Retry interval of processes that create the same database concurrently. Beyond: the next attempt."""
CONDITIONAL_WRITE_TRIES_MAX: Final = 100
"""Consecutive conditional writes that one append or commit may lose. Beyond: it fails."""
SETTLE_READ_TRIES_MAX: Final = 6
"""Failed reads while the outcome of a conditional write is determined. Beyond: the outcome is reported as unknown."""
OBJECT_PATH_MAX_BYTES: Final = 1_024
"""UTF-8 bytes of an object's path. Beyond: it is refused."""
OBJECT_PATH_SEGMENT_MAX_BYTES: Final = 255
"""One name in a path, as file systems allow it. Beyond: the path is refused."""
SYNCED_DIRECTORIES_MAX: Final = 10_000
"""Directories that a file store remembers as durable. Beyond: it forgets them and syncs again."""
DIRECTORY_TRIES_MAX: Final = 10
"""Attempts to create a directory for a file while others remove it as empty. Beyond: an error."""
TEMPORARY_FILE_AGE_MAX_S: Final = 24 * 3600.0
"""Age of a temporary file; no write takes so long. Beyond: it is deleted as the leftover of a killed writer."""
SCRATCH_DELETE_TRIES_MAX: Final = 3
"""Attempts to delete a scratch directory. Beyond: the next process that creates one deletes it."""
SCRATCH_AGE_MIN_S: Final = 600.0
"""Age of an unused scratch directory. Beyond: it is deleted as the leftover of a killed process."""
SCRATCH_SWEEP_INTERVAL_S: Final = 3600.0
"""Interval at which a process that creates scratch directories looks for leftovers. Beyond: the next search."""
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
POSTGRES_STATEMENT_BYTES: Final = 16 * MIB
"""Records that one statement writes; a single larger one is allowed. Beyond: one more statement."""
POSTGRES_LOCK_TIMEOUT_S: Final = 10.0
"""Wait of a statement for a lock. Beyond: PostgreSQL cancels it."""
POSTGRES_IDLE_S: Final = 1.0
"""Idle time of a connection. Beyond: it is tested before use."""
POSTGRES_REPLY_TIMEOUT_S: Final = 30.0
"""Client's wait for a PostgreSQL reply, longer than the statement timeout. Beyond: the connection is closed."""
POSTGRES_POLL_S: Final = 0.1
"""Interval at which the wait for a reply checks the clock. Beyond: the next check."""
POSTGRES_TURN_TIMEOUT_S: Final = 35.0
"""Wait of a thread for a free connection, longer than the reply timeout. Beyond: it fails."""
OBJECT_REQUEST_TIMEOUT_S: Final = 120.0
"""One request to an object store, with its body. Beyond: the attempt fails."""
FOREIGN_BUCKETS_OPEN_MAX: Final = 16
"""Input buckets that a process keeps connections to. Beyond: the least recently used one is connected again when
needed."""
FOREIGN_OBJECT_TIMEOUT_S: Final = 6 * 3600.0
"""One request for an input in a bucket, with all its bytes. Beyond: the attempt fails."""
FOREIGN_READ_TIMEOUT_S: Final = 30.0
"""Time that such a request may deliver no data. Beyond: the attempt fails."""
OBJECTS_LISTED_AT_ONCE: Final = 1_000
"""Names in one listing request. Beyond: the next request."""
OBJECTS_AT_ONCE: Final = 16
"""Small objects that one call writes, reads or deletes concurrently. Beyond: they wait."""
OBJECTS_READ_AHEAD: Final = 256
"""Small objects that garbage collection prefetches. Beyond: the next batch."""
RECORD_VERSIONS_KEPT: Final = 16
"""Older versions of a record that a store of create-only files keeps. Beyond: the oldest are deleted, and a writer
that paused for so many versions cannot determine the outcome of its write."""
RECORD_NAME_KEY_BYTES: Final = 80
"""Bytes of a key that are spelled out in its object's name. Beyond: a hash replaces the rest."""
PARTS_AT_ONCE: Final = 8
"""Parts of a table or an index that one call copies to the local disk concurrently. Beyond: they wait."""
PART_COPY_LOCKS: Final = 64
"""Concurrent copies of a process, one for each of so many locks. Beyond: they wait."""
PART_COPIES_MAX_BYTES: Final = 16 * 1024 * MIB
"""Local copies of one remote lake's parts, in addition to those in use. Beyond: the least recently used are deleted."""
PART_COPY_IDLE_MIN_S: Final = 600.0
"""Time since a copy was last used; another process may be about to open it. Beyond: it may be deleted."""
