"""Every limit in one file: on inputs, queues, retries and waits. Units are the last word of a name."""

from typing import Final

MIB: Final = 1024 * 1024

# OTLP input
OTLP_LINE_MAX_BYTES: Final = 64 * MIB
"""One line of a JSON-lines file, or one framed protobuf message, decompressed."""
OTLP_PAYLOAD_MESSAGES_MAX: Final = 8_000_000
"""Spans, events, links, attributes, resources and scopes of such a line or message, together."""
OTLP_REQUEST_MAX_BYTES: Final = 32 * MIB
"""One HTTP request body, decompressed."""
OTLP_REQUEST_SPANS_MAX: Final = 100_000
"""Spans of one request, and of protobuf its resources and scopes with them."""
OTLP_REQUEST_MESSAGES_MAX: Final = 1_000_000
"""Spans, events, links, attributes, resources and scopes of one request, together."""
OTLP_TEXT_MAX_BYTES: Final = 16 * MIB
"""One string, bytes or nested value of an attribute; a span with a longer one is refused by name."""
OTLP_NESTING_MAX: Final = 32
"""Levels of arrays and maps inside one attribute value."""
OTLP_JSON_DEPTH_MAX: Final = 200
"""Brackets around anything in OTLP/JSON; what lies deeper is not looked at: no value that is taken is so deep."""
SPANS_EXPANDED_MAX_BYTES: Final = 1024 * MIB
"""Arrow bytes of one payload, with its resources repeated for every span; the spans beyond are refused."""
PROBLEMS_MAX: Final = 20
"""Problems described for one input; the rest are counted only."""
PROBLEM_MAX_CHARS: Final = 500
"""One such description."""

# Pipeline
TRANSACTION_INPUT_MAX_BYTES: Final = 64 * MIB
"""Input bytes, as stored (compressed), that one transaction takes by default."""
TRANSACTION_INPUTS_MAX: Final = 1_000
"""Inputs that one transaction takes."""
STEP_RECORD_MAX_BYTES: Final = 4 * MIB
"""The journal's record of what a transaction takes; of inputs that need more, it takes the first half."""
TRANSACTION_TRIES_MAX: Final = 3
"""Times that a task may fail on the same input before that is set aside: a transaction of several inputs is then
taken in halves, down to the one that fails alone."""
ASIDE_REASON_MAX_CHARS: Final = 1_000
"""What is kept of the error for which an input was set aside."""
STRIPE_INPUT_BYTES: Final = 8 * MIB
"""A file is decoded by one task for each so many stored bytes; each of them decompresses the whole file."""
STRIPES_MAX: Final = 16
"""Tasks that may share one file."""
STAGED_PIECE_MAX_BYTES: Final = 64 * MIB
"""Arrow bytes that a decode task holds before it writes a staged piece."""
SMALL_TRANSACTION_SPANS: Final = 20_000
"""Up to so many spans, one task shapes all buckets, so that there is one index part."""
SHAPED_AT_ONCE_MAX_BYTES: Final = 256 * MIB
"""Arrow bytes of new spans that a task holds while it merges them, and of one part that it writes; of a bucket with
more it holds the keys and what the row of the trace is made of, and reads the rest again. Also, up to so many bytes
one task shapes all buckets."""
BUCKETS_DEFAULT: Final = 8
"""Hash buckets of a new lake."""
ROW_GROUP_ROWS: Final = 16_384
"""Rows of one Parquet row group: small enough for point reads, large enough to compress."""
ROW_GROUP_MAX_BYTES: Final = 32 * MIB
"""Arrow bytes of one row group, unless it is a single row: who reads a group holds so much, and no more."""
FOOTERS_REMEMBERED_MAX_BYTES: Final = 64 * MIB
"""Footers of parts that a process keeps, so that who looks for keys reads each of them once."""
READ_THROUGH_MAX_BYTES: Final = 64 * 1024
"""What lies between two columns of a part, and is read with them rather than to ask twice."""
STATISTICS_TEXT_MAX_CHARS: Final = 40
"""A part keeps the least and greatest text of a column only where neither is longer."""
SPLIT_MIN_BYTES: Final = 32 * MIB
"""Parts are read by one task together until they have so many bytes, as stored."""
SPLIT_BATCH_ROWS: Final = 8_192
"""Rows of one Arrow batch that a task yields."""
STAGED_ROWS_MAX_BYTES: Final = 64 * MIB
"""Arrow bytes that a task that writes to a table of the user holds before it writes pieces."""
STAGED_ROWS_AGE_MAX_S: Final = 24 * 3600.0
"""Pieces that are older were left behind by a killed writer: no write takes so long."""
MERGE_THREADS_MAX: Final = 4
"""Parts of a table of the user that one writer writes at once, and no more than there are processors."""
COMPARED_KEYS_MAX: Final = 2_000_000
"""Keys of such a write that are compared at once with those that are stored; of one bucket, all."""
SMALL_PART_MAX_BYTES: Final = MIB // 4
"""A piece of a write that is not larger goes into one part with others of its bucket; a larger one is a part."""
SMALL_PARTS_MAX_BYTES: Final = 8 * MIB
"""What such pieces may have together, as stored."""
UPPER_MISMATCHES_MAX: Final = 100
"""Other writers that may be faster, one after the other, before such a write is given up."""
LISTEN_POLL_S: Final = 0.5
"""How often a listener looks for new commits."""
CHECK_THREADS_MAX: Final = 4
"""Parts that a reader compares with their checksums at once, and no more than there are processors."""
CHECKED_PARTS_MAX: Final = 100_000
"""Parts that a process remembers to have compared with their checksums; beyond that it compares them again."""
PIPELINE_PAUSE_MAX_S: Final = 15.0
"""The longest pause of a pipeline between two tries, after runs that failed."""
CLOCK_DIFFERENCE_MAX_S: Final = 60.0
"""How far the clocks of two machines may be apart: a watched file that is dated later than that is taken at once."""
WATCHED_FILE_QUIET_S: Final = 2.0
"""A watched file is taken when nobody has changed it for so long."""
REPLICA_HEARTBEAT_S: Final = 3.0
"""How often a replica writes what it does, beside once after each transaction."""
REPLICA_GONE_S: Final = 12.0
"""A replica that has written nothing for longer shows as gone."""
REPLICA_STUCK_S: Final = 120.0
"""A replica whose work has not moved for longer shows as stuck; one that fails, at once."""
REPLICA_FORGOTTEN_S: Final = 24 * 3600.0
"""The record of a replica that is gone is deleted after so long."""


# Shards
SHARD_STATE_INLINE_MAX_BYTES: Final = 64 * 1024
"""A longer state of a shard puts its beginning into an object."""
LEASE_S: Final = 3600.0
"""How long collectors look on while nobody renews a lease, before they take its reader for dead."""
LEASE_MARGIN_S: Final = 60.0
"""And so much longer: a reader renews in time, and its store may be slow."""
EPOCH_MIN_S: Final = 3600.0
"""The least time between two epochs of a shard: a writer has so long from its first upload to its append."""
COMPACTION_MEMORY_BYTES: Final = 512 * MIB
"""What one compaction task may hold before it uses the disk."""
COMPACTED_PART_MAX_BYTES: Final = 256 * MIB
"""Arrow bytes of one part that compaction writes; a part of half of it is left as it is, if no row of it went."""

# Versions
COMMIT_POLL_FIRST_S: Final = 0.0005
"""The first pause of a committer whose request another builds; it doubles."""
COMMIT_POLL_MAX_S: Final = 0.05
"""The longest of these pauses, where looking takes no time."""
COMMIT_POLL_CROWDED_MAX_S: Final = 0.25
"""The longest of all: where a look takes long, so many times longer are pauses as commits are being built."""
COMMIT_PATIENCE_POLLS: Final = 24
"""How often it looks without seeing progress, about a second in all, some seconds on a crowded store; then it builds
what is sealed itself."""
COMMIT_RECORDS_CACHED: Final = 1_024
"""Commits, metaranges and ranges that a process remembers."""
COMMITS_WITHOUT_METARANGE_MAX: Final = 15
"""Commits in a row, built together, that say only what they change; who reads one goes back as far."""
MERGE_ANCESTORS_MAX: Final = 64
"""How often one merge looks for the ancestors of its ancestors, where merges crossed; what lies deeper is unclear."""
BRANCH_SEALED_MAX_BYTES: Final = 2 * MIB
"""A longer record of a branch takes no further requests until some are built."""
BRANCH_SWEEP_MAX_REQUESTS: Final = 128
"""Requests that are built and answered at once: their answers share the record of the branch."""
ANSWER_DETAIL_MAX_BYTES: Final = 8 * 1024
"""What one such answer says of a refusal, as JSON; of paths in conflict, the first that have room."""
CONFLICTS_TOLD_MAX: Final = 100
"""Paths in conflict that an answer names."""
COMMIT_REQUEST_MAX_BYTES: Final = 64 * 1024
"""What one commit may put into the record of its branch: message, metadata, and changes that are few."""
CHANGES_INLINE_MAX: Final = 32
"""Changes that are few; more go into objects."""
CHANGE_SET_ENTRIES_MAX: Final = 10_000
"""Changes in one such object."""
ANSWERS_KEPT_EPOCHS: Final = 1_000
"""Garbage collections for which the id of a request is good: asked again by then, it gives the same commit."""
STAGED_LAYERS_MAX: Final = 4
"""Files that were staged at one path and token, one after the other, and are kept for where a newer one is gone."""
STAGING_READ_TRIES_MAX: Final = 10
"""How often a read of what is staged begins again because a commit came between."""
BRANCH_ANSWERS_KEPT: Final = 32
"""Answers that stay in the record of a branch, at least."""

# Datasets
DATASET_ADD_MAX: Final = 10_000
"""Examples that one call adds to a dataset, at most."""
DATASET_NOTES_MAX_CHARS: Final = 10_000
"""The description of a dataset, or the metadata that a caller notes on examples, keys and values together."""
DATASET_LOOKUP_SPANS: Final = 500
"""Spans whose texts are in memory together while they become examples."""
FILES_AT_ONCE: Final = 16
"""Files of entries, such as examples, that one call reads or writes at the same time."""
FILES_EXPIRED_TRIES_MAX: Final = 30
"""How often in a row files that expired before they were staged are written again, half as many at once each time."""
FILES_READ_AHEAD: Final = 64
"""Files that are in memory before they are asked for."""
EXPORT_BATCH_EXAMPLES: Final = 1_000
"""Examples of one Arrow batch, and of one row group of an export as Parquet."""

# Server
INBOX_QUEUE_MAX_REQUESTS: Final = 1_000
"""Requests that wait for the next inbox segment; beyond that the answer is 503."""
INBOX_QUEUE_MAX_BYTES: Final = 256 * MIB
"""Their bytes; one request alone is always taken."""
REQUESTS_MEMORY_MAX_BYTES: Final = 2048 * MIB
"""What all requests together may take as sent, decompressed and decoded; 503 beyond it, 413 where one alone does."""
COMPRESSED_MEMBERS_MAX: Final = 1_000
"""Members of one gzip body."""
DECODE_THREADS_MAX: Final = 4
"""Requests that are decompressed or decoded at one time."""
INBOX_SEGMENT_MAX_BYTES: Final = 32 * MIB
"""Payload bytes after which a segment takes no further request."""
INBOX_SEGMENTS_MAX: Final = 10_000
"""Segments that the pipeline has not taken, without those that are set aside; beyond that the answer is 503."""
INBOX_ACK_TIMEOUT_S: Final = 20.0
"""How long a request waits to be durable; then the answer is 503."""
INGEST_THREADS_MAX: Final = 64
"""Requests that wait for the inbox at one time."""
TRACE_PAGE_SPANS_MAX: Final = 2_000
"""Spans on one page of a trace in the web UI."""
PAGE_ROWS_MAX: Final = 1_000
"""Rows of one page of a listing."""
SHUTDOWN_MAX_S: Final = 30
"""What requests under way have to finish when the server stops: longer than an acknowledgement takes."""
LISTEN_BACKLOG: Final = 512
"""Connections that wait to be accepted."""
CONNECTIONS_MAX: Final = 1_000
"""Connections at one time, and no more than half of the files that the process may open; the slowest makes room."""
CONNECTION_GRACE_S: Final = 20.0
"""How long a client may take to send a request, or to read its answer, beside what its bytes take."""
CONNECTION_MIN_BYTES_PER_S: Final = 16 * 1024
"""What these may take: a second for so many."""
CONNECTION_LOOK_S: Final = 1.0
"""How often the server looks whether a connection is too slow."""
SEARCH_HITS_MAX: Final = 1_000
"""Hits of one search."""

# Search
INDEX_HEAP_BYTES: Final = 512 * MIB
"""What one index part may take in memory while it is built; a larger one becomes several segments."""
INDEX_NEWEST_PARTS_MAX: Final = 8
"""Parts that a manifest of the index names itself; older ones are in lists that manifests share."""
INDEX_REBUILT_PART_ROWS: Final = 200_000
"""Rows of one part when the index is built anew; with more, there are more parts, at most one a bucket."""
INDEX_REPLACED_SHARE_MAX: Final = 0.3
"""The share of documents whose rows were replaced, from which on `doctor` says that scores suffer."""
INDEX_MAPS_KEPT_FREE: Final = 2_000
"""Memory maps that a process needs for other things than parts of an index: libraries, threads, files of tables."""
QUERY_MAX_CHARS: Final = 4_096
"""Characters of one search query."""
QUERY_NESTING_MAX: Final = 100
"""Parentheses and NOTs around one word of a query."""
HIGHLIGHT_MAX_CHARS: Final = 200
"""One excerpt of a hit, with its marks."""

# Storage
KEY_MAX_BYTES: Final = 1_024
"""UTF-8 bytes of a partition or key of the key-value store."""
VALUE_MAX_BYTES: Final = 8 * MIB
"""One record of the key-value store."""
SQLITE_BUSY_TIMEOUT_S: Final = 30.0
"""How long a writer waits for the write lock of SQLite."""
CONDITIONAL_WRITE_TRIES_MAX: Final = 100
"""Conditional writes in a row that one append or commit may lose."""
SETTLE_READ_TRIES_MAX: Final = 6
"""Reads that may fail before the outcome of a conditional write is given up as unknown."""
OBJECT_PATH_MAX_BYTES: Final = 1_024
"""UTF-8 bytes of an object's path."""
OBJECT_PATH_SEGMENT_MAX_BYTES: Final = 255
"""What file systems take as one name."""
SYNCED_DIRECTORIES_MAX: Final = 10_000
"""Directories that a file store remembers as durable; beyond that it forgets them and syncs again."""
TEMPORARY_FILE_AGE_MAX_S: Final = 24 * 3600.0
"""A temporary file that is older was left behind by a killed writer."""
STORE_CONNECT_TIMEOUT_S: Final = 10.0
"""How long a connection to PostgreSQL or an object store may take to come about."""
STORE_TRIES_MAX: Final = 6
"""Requests to a store across a network for one operation, before it is given up."""
STORE_TRIES_TIMEOUT_S: Final = 120.0
"""How long after the first of them another may begin; the last has its own time-out from then."""
STORE_PAUSE_FIRST_S: Final = 0.05
"""The pause that doubles between them, with jitter."""
STORE_PAUSE_MAX_S: Final = 2.0
"""The longest pause between them."""
POSTGRES_CONNECTIONS_MAX: Final = 8
"""Connections of one process to PostgreSQL."""
POSTGRES_STATEMENT_TIMEOUT_S: Final = 20.0
"""How long PostgreSQL may work on one statement."""
POSTGRES_LOCK_TIMEOUT_S: Final = 10.0
"""How long a statement may wait for a lock."""
POSTGRES_IDLE_S: Final = 1.0
"""A connection that has been idle for longer is asked for a sign of life before it is used."""
POSTGRES_REPLY_TIMEOUT_S: Final = 30.0
"""How long this side waits for a reply: longer than the server may work on it."""
POSTGRES_TURN_TIMEOUT_S: Final = 35.0
"""How long a thread waits for one of the connections to be free: longer than who has it waits for a reply."""
OBJECT_REQUEST_TIMEOUT_S: Final = 120.0
"""One request to an object store, with its body."""
OBJECTS_AT_ONCE: Final = 16
"""Small objects that one call writes, reads or deletes at the same time."""
OBJECTS_READ_AHEAD: Final = 256
"""Small objects that garbage collection has in memory before it has looked at them."""
RECORD_VERSIONS_KEPT: Final = 16
"""Versions of a record that a store of create-only files keeps behind the newest."""
RECORD_NAME_KEY_BYTES: Final = 80
"""Bytes of a key that are spelled out in the name of its object; a hash stands for the rest."""
PART_COPIES_MAX_BYTES: Final = 16 * 1024 * MIB
"""Copies of the parts of one lake in a bucket that stay on the local disk beyond those in use."""
PART_COPY_IDLE_MIN_S: Final = 600.0
"""A copy that was used more recently is not removed: another process may be about to open it."""

# Doctor
DOCTOR_CHECK_TIMEOUT_S: Final = 40.0
"""How long `tracelake doctor` waits for one check: longer than SQLite waits for a lock, or PostgreSQL's reply takes."""
DOCTOR_SPARK_TIMEOUT_S: Final = 150.0
"""The same for the check that starts Spark."""
DOCTOR_RACES: Final = 10
"""Times that each pair of racing writes is tried."""
CLOCK_SKEW_MAX_S: Final = 5.0
"""What the clocks of this machine and of the store may be apart before `doctor` warns."""
CLOCK_SKEW_FAILED_S: Final = 900.0
"""Beyond this the check fails: stores refuse requests whose time is further off."""
FREE_SPACE_LOW_BYTES: Final = 2048 * MIB
"""Free space of a file system below which `doctor` warns."""
FREE_SPACE_MIN_BYTES: Final = 256 * MIB
"""Free space below which the check fails: a few transactions would fill it."""
FREE_FILES_MIN: Final = 1_000
"""Files that a file system can still take (its free inodes) below which the check fails."""
