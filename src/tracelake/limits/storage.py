"""Storage."""

from typing import Final

from tracelake.limits.units import MIB

KEY_MAX_BYTES: Final = 1_024
"""UTF-8 bytes of a partition or key of the key-value store. Beyond: it is refused."""
VALUE_MAX_BYTES: Final = 8 * MIB
"""One record of the key-value store. Beyond: it is refused; rooms put what may grow into objects."""
SQLITE_BUSY_TIMEOUT_S: Final = 30.0
"""How long a writer waits for the write lock of SQLite. Beyond: the write fails, and nothing was written."""
SQLITE_LOOK_S: Final = 2.0
"""How long a file of SQLite that looks damaged, and may be made this moment, is looked at. Beyond: it is damaged."""
SQLITE_POLL_S: Final = 0.01
"""How often who sets up the same database at the same time tries again. Beyond: it tries again."""
CONDITIONAL_WRITE_TRIES_MAX: Final = 100
"""Conditional writes in a row that one append or commit may lose. Beyond: it is given up."""
SETTLE_READ_TRIES_MAX: Final = 6
"""Reads that may fail while the outcome of a conditional write is sought. Beyond: it is given up as unknown."""
OBJECT_PATH_MAX_BYTES: Final = 1_024
"""UTF-8 bytes of an object's path. Beyond: it is refused."""
OBJECT_PATH_SEGMENT_MAX_BYTES: Final = 255
"""What file systems take as one name. Beyond: the path is refused."""
SYNCED_DIRECTORIES_MAX: Final = 10_000
"""Directories that a file store remembers as durable. Beyond: it forgets them and syncs again."""
DIRECTORY_TRIES_MAX: Final = 10
"""Times that a directory is made for a file while others remove it as an empty one. Beyond: an error."""
TEMPORARY_FILE_AGE_MAX_S: Final = 24 * 3600.0
"""Age of a temporary file: no write takes so long. Beyond: it was left behind by a killed writer, and is deleted."""
SCRATCH_DELETE_TRIES_MAX: Final = 3
"""Times that the deletion of a scratch directory is tried. Beyond: the next process that makes one does it."""
SCRATCH_AGE_MIN_S: Final = 600.0
"""Age of a scratch directory that nobody works in. Beyond: its process was killed, and it is deleted."""
SCRATCH_SWEEP_INTERVAL_S: Final = 3600.0
"""How long a process that makes scratch directories looks for none that were left. Beyond: it looks."""
STORE_CONNECT_TIMEOUT_S: Final = 10.0
"""How long a connection to PostgreSQL or an object store may take to come about. Beyond: the try has failed."""
STORE_TRIES_MAX: Final = 6
"""Requests to a store across a network for one operation. Beyond: it is given up."""
STORE_TRIES_TIMEOUT_S: Final = 120.0
"""How long after the first of them another may begin. Beyond: it is given up; the last has its own time-out."""
STORE_PAUSE_FIRST_S: Final = 0.05
"""The pause between them, which doubles, with jitter. Beyond: the next try."""
STORE_PAUSE_MAX_S: Final = 2.0
"""The longest pause between them. Beyond: the next try."""
POSTGRES_CONNECTIONS_MAX: Final = 8
"""Connections of one process to PostgreSQL. Beyond: threads wait for one."""
POSTGRES_STATEMENT_TIMEOUT_S: Final = 20.0
"""How long PostgreSQL may work on one statement. Beyond: PostgreSQL gives it up."""
POSTGRES_STATEMENT_BYTES: Final = 16 * MIB
"""Records that one statement writes, or a single one that is larger. Beyond: one more statement."""
POSTGRES_LOCK_TIMEOUT_S: Final = 10.0
"""How long a statement may wait for a lock. Beyond: PostgreSQL gives it up."""
POSTGRES_IDLE_S: Final = 1.0
"""How long a connection may be idle. Beyond: it is asked for a sign of life before it is used."""
POSTGRES_REPLY_TIMEOUT_S: Final = 30.0
"""How long this side waits for a reply: longer than the server may work on it. Beyond: the connection is closed."""
POSTGRES_POLL_S: Final = 0.1
"""How often the wait for a reply looks at the clock. Beyond: it looks again."""
POSTGRES_TURN_TIMEOUT_S: Final = 35.0
"""How long a thread waits for one of the connections to be free: longer than who has it waits for a reply. Beyond: it
fails."""
OBJECT_REQUEST_TIMEOUT_S: Final = 120.0
"""One request to an object store, with its body. Beyond: the try has failed."""
FOREIGN_BUCKETS_OPEN_MAX: Final = 16
"""Buckets of inputs that a process keeps connections to. Beyond: the one used longest ago is connected to anew."""
FOREIGN_OBJECT_TIMEOUT_S: Final = 6 * 3600.0
"""One request for an input in a bucket, with its bytes, however many they are. Beyond: the try has failed."""
FOREIGN_READ_TIMEOUT_S: Final = 30.0
"""How long such a request may bring nothing. Beyond: the try has failed."""
OBJECTS_LISTED_AT_ONCE: Final = 1_000
"""Names that one request for a listing brings. Beyond: the next request."""
OBJECTS_AT_ONCE: Final = 16
"""Small objects that one call writes, reads or deletes at the same time. Beyond: they wait."""
OBJECTS_READ_AHEAD: Final = 256
"""Small objects that garbage collection has in memory before it has looked at them. Beyond: the next so many."""
RECORD_VERSIONS_KEPT: Final = 16
"""Versions of a record that a store of create-only files keeps behind the newest. Beyond: the oldest are deleted, and
a writer that slept through so many cannot tell what became of its write."""
RECORD_NAME_KEY_BYTES: Final = 80
"""Bytes of a key that are spelled out in the name of its object. Beyond: a hash stands for the rest."""
PARTS_AT_ONCE: Final = 8
"""Parts of a table or an index that one call copies to the local disk at the same time. Beyond: they wait."""
PART_COPY_LOCKS: Final = 64
"""Copies that the threads of a process make at the same time, one for each of so many locks. Beyond: they wait."""
PART_COPIES_MAX_BYTES: Final = 16 * 1024 * MIB
"""Copies of the parts of one lake in a bucket that stay on the local disk beside those in use. Beyond: those used
longest ago are removed."""
PART_COPY_IDLE_MIN_S: Final = 600.0
"""How long a copy was not used: another process may be about to open it. Beyond: it may be removed."""
