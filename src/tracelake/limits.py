"""Every limit in one file: on inputs, queues, retries and waits, by section. Units are the last word of a name.

Each docstring says what is bounded, and behind "Beyond:" what becomes of what is more, or later.
"""

from typing import Final

MIB: Final = 1024 * 1024

# OTLP input
OTLP_LINE_MAX_BYTES: Final = 64 * MIB
"""One line of a JSON-lines file, or one framed protobuf message, decompressed. Beyond: the file is refused from
there on."""
OTLP_PAYLOAD_MESSAGES_MAX: Final = 8_000_000
"""Spans, events, links, attributes, resources and scopes of such a line or message, together. Beyond: it is refused."""
OTLP_REQUEST_MAX_BYTES: Final = 32 * MIB
"""One HTTP request body, decompressed. Beyond: the answer is 413."""
OTLP_REQUEST_SPANS_MAX: Final = 100_000
"""Spans of one request, and of protobuf its resources and scopes with them. Beyond: the answer is 413."""
OTLP_REQUEST_MESSAGES_MAX: Final = 1_000_000
"""Spans, events, links, attributes, resources and scopes of one request, together. Beyond: the answer is 413."""
OTLP_TEXT_MAX_BYTES: Final = 16 * MIB
"""One string, bytes or nested value of an attribute. Beyond: its span is refused, by name."""
OTLP_NESTING_MAX: Final = 32
"""Levels of arrays and maps inside one attribute value. Beyond: its span is refused, by name."""
OTLP_JSON_DEPTH_MAX: Final = 200
"""Brackets around anything in OTLP/JSON. Beyond: it is not looked at; no value that is taken is so deep."""
OTLP_JSON_NUMBER_MAX_CHARS: Final = 100
"""Digits of an integer in JSON that is taken as one. Beyond: it is taken as a float, and no field of OTLP holds it."""
OTLP_BLOCK_BYTES: Final = MIB
"""What is read, decompressed or looked at in one piece. Beyond: the next piece."""
GZIP_READ_BYTES: Final = 16 * 1024
"""What is given to gzip at a time: what lies behind the end of a member is copied, and a file may have a member for
every 20 bytes. Beyond: the next piece."""
ZSTD_READ_BYTES: Final = 1024
"""What is given to zstd at a time: it gives out all that it holds, up to 32 MiB for 1 KiB. Beyond: the next piece."""
SPANS_EXPANDED_MAX_BYTES: Final = 1024 * MIB
"""Arrow bytes of one payload, with its resources repeated for every span. Beyond: the further spans are refused."""
PROBLEMS_MAX: Final = 20
"""Problems described for one input. Beyond: they are counted only."""
PROBLEM_MAX_CHARS: Final = 500
"""One such description, or what went wrong in a task or a check. Beyond: it is cut."""
ERROR_MAX_CHARS: Final = 1_000
"""What a store or a replica says of a failure. Beyond: it is cut."""
LOG_TAIL_MAX_CHARS: Final = 2_000
"""The end of the log of a process that failed to start, which the error repeats. Beyond: its beginning is left out."""
QUOTED_MAX_CHARS: Final = 100
"""What an error repeats of a query, condition or page token, or of an id. Beyond: it is cut."""
NAME_QUOTED_MAX_CHARS: Final = 40
"""What an error repeats of a key, path or name that is too long. Beyond: it is cut."""
REQUESTS_TOLD_MAX: Final = 10
"""Requests of a branch that an error names. Beyond: the others are not."""

# Pipeline
PIPELINE_POLL_MIN_S: Final = 0.01
"""How often a pipeline may look for new input. Beyond: a shorter interval is refused."""
PIPELINE_POLL_S: Final = 1.0
"""How often a pipeline looks for new input, by default. Beyond: it looks again."""
LOOK_TRANSACTIONS: Final = 4
"""Transactions, as large as they are by now, of whose input one look of a pipeline that goes on gives. Beyond: the next
look, which sees what has come to other sources, or was paused, meanwhile."""
SOURCES_MAX: Final = 100
"""Sources that users add to a lake. Beyond: one more is refused."""
SOURCE_ADDRESS_MAX_CHARS: Final = 4_096
"""A pattern, or the URL of a topic, that is added as a source. Beyond: it is refused."""
SOURCES_TOLD_MAX: Final = 200
"""Sources of which a replica tells others. Beyond: it looks at them, and says nothing of them."""
SOURCE_RATE_S: Final = 60.0
"""Over how long it is told how fast a source is taken. Beyond: it counts little."""
TRANSACTION_INPUT_MAX_BYTES: Final = 64 * MIB
"""Input, as stored (compressed), that one transaction takes by default; one input alone is always taken.
Beyond: the next transaction takes it."""
TRANSACTION_INPUTS_MAX: Final = 5_000
"""Inputs that one transaction takes. Beyond: the next transaction takes them."""
TRANSACTION_AIM_S: Final = 3.0
"""What a transaction of a pipeline that goes on is to take, where more waits. Beyond: the next one is smaller."""
TRANSACTION_LEAST_MB: Final = 0.001
"""Input of one transaction, as a command line may set it. Beyond: less is refused."""
TRANSACTION_FIRST_BYTES: Final = 2 * MIB
"""Input of its first transaction, which is visible soon. Beyond: the next transaction takes it, and they grow."""
TRANSACTION_FIRST_INPUTS: Final = 100
"""Inputs of its first transaction. Beyond: the same."""
TRANSACTION_LEAST_BYTES: Final = MIB // 4
"""Input that a transaction takes where all of them are slow. Beyond: the next transaction takes it."""
TRANSACTION_LEAST_INPUTS: Final = 10
"""Inputs that a transaction takes then. Beyond: the same."""
TRANSACTION_ARROW_MAX_BYTES: Final = 1024 * MIB
"""Rows of a transaction in memory of all its tasks, to judge by the one before. Beyond: the next one is smaller."""
STEP_RECORD_MAX_BYTES: Final = 4 * MIB
"""The journal's record of what a transaction takes; one input alone is always taken. Beyond: it takes half of them."""
TRANSACTION_STEPS_MAX: Final = 1_000
"""Steps of one transaction. Beyond: it is sealed; one that a client has begun takes no more before its commit."""
TRANSACTION_ROWS_MAX: Final = 10_000_000
"""Spans with which a pipeline may be told to seal a transaction. Beyond: more is refused."""
TRANSACTION_DELAY_S: Final = 10.0
"""How long a transaction waits for so many spans, by default. Beyond: it is sealed."""
TRANSACTION_DELAY_MAX_S: Final = 3600.0
"""What it may be told to wait. Beyond: longer is refused."""
CLIENT_TIMEOUT_S: Final = 300.0
"""How long the client of an explicit transaction may show nothing of itself, by default. Beyond: it is sealed, or
discarded, as the client has said."""
CLIENT_TIMEOUT_MAX_S: Final = 6 * 3600.0
"""What it may ask for: what is staged lives longer. Beyond: more is refused."""
CLIENT_ID_MAX_CHARS: Final = 64
"""Of the id that a client gives its transaction: each step names it. Beyond: it is refused."""
CLIENT_SEEN_EACH: Final = 10
"""So often in its timeout an ingest shows that its client lives. Beyond: nothing, for it is shown already."""
CLIENT_RUNS_MAX: Final = 60
"""Runs, each a look after the one before, until the transaction of a client is over. Beyond: an error says so."""
JOURNAL_TRIM_EACH: Final = 100
"""Transactions after which a pipeline that goes on trims its journal. Beyond: it looks whether there is enough to."""
JOURNAL_TRIM_MAX: Final = 2_000
"""Transactions of which it erases the records at a time. Beyond: the next time erases them."""
TRANSACTION_NUMBER_MAX: Final = 10**15
"""Number of a transaction, as a request may name it. Beyond: there is none, and it is refused."""
EXPLAINED_MAX: Final = 1_000
"""Inputs, and parts, that an account of a transaction names. Beyond: it says how many there are."""
JOURNAL_TRANSACTIONS_KEPT: Final = 10_000
"""Newest transactions whose input the journal tells, by default. Beyond: `gc` erases the records of the oldest."""
TRANSACTION_TRIES_MAX: Final = 3
"""Times that a task may fail on the same inputs. Beyond: the transaction is taken in halves, and an input that fails
alone is set aside."""
UNREAD_INPUT_MAX_S: Final = 15 * 60.0
"""How long a recorded input, or one that is offered again, may not be readable. Beyond: it is set aside, by name, and
the others of its transaction are taken."""
UNREAD_TRY_COUNTS_MAX_S: Final = 3 * 60.0
"""What the time between two tries to read it counts for, at most: else a stop of the pipeline would. Beyond: it counts
for this."""
TRY_BEAT_S: Final = 3.0
"""How long a process that reads input or does a transaction shows nothing of it. Beyond: it shows that it lives."""
TRY_LOOKS: Final = 5
"""Looks, each TRY_BEAT_S after the one before, in which a process shows nothing. Beyond: it is taken for dead."""
TRY_NOTES_MAX: Final = 100
"""Notes of processes that died, or are at it. Beyond: the oldest are forgotten."""
ASIDE_REASON_MAX_CHARS: Final = 1_000
"""What is kept of the error for which an input was set aside. Beyond: it is cut."""
STRIPE_INPUT_BYTES: Final = 8 * MIB
"""Stored bytes of a file for each task that decodes it; each decompresses the whole file. Beyond: one more task."""
SMALL_SEGMENT_MAX_BYTES: Final = 256 * 1024
"""Bytes of a segment of the inbox, stored and decompressed, that are read at once. Beyond: it is read in pieces."""
STRIPES_MAX: Final = 16
"""Tasks that may share one file. Beyond: each of them decodes more of it."""
READ_TASK_INPUT_BYTES: Final = MIB
"""Stored bytes of small inputs, such as segments of the inbox, that one task reads. Beyond: the next task."""
INPUTS_FETCHED_AT_ONCE: Final = 16
"""Inputs of one task that are on their way from a bucket at the same time. Beyond: they wait."""
SHARED_INPUT_MAX_BYTES: Final = 8 * MIB
"""Decompressed bytes of an input that a task holds until it has read all of it, so that rows of several inputs can be
staged together. Beyond: the rows of an input are staged alone."""
STAGED_PIECE_MAX_BYTES: Final = 64 * MIB
"""Arrow bytes that a decode task holds. Beyond: it writes them as a staged piece."""
STAGED_TOGETHER_MAX_BYTES: Final = 4 * MIB
"""Arrow bytes of rows of several buckets that are staged in one stream. Beyond: each bucket has a stream of its own."""
NEAR_WORK_MAX_BYTES: Final = 64 * MIB
"""What tasks have in memory that run in the process of the pipeline itself, together. Beyond: Spark runs them."""
STORED_EXPANDS: Final = 8
"""How much more stored bytes are taken to have in memory, where nobody knows. Beyond: a task takes what it takes."""
STAGED_ROWS_AGE_MAX_S: Final = 24 * 3600.0
"""Age of staged rows, of a transaction or of a write: none takes so long. Beyond: garbage collection deletes them."""
SMALL_TRANSACTION_SPANS: Final = 20_000
"""Spans of a transaction that one task shapes, so that there is one index part. Beyond: several do."""
WRITTEN_TOGETHER_MAX_BYTES: Final = 16 * MIB
"""Arrow bytes of the new spans of a transaction that become one part for all buckets: a part costs as much as some
hundred rows. Beyond: each bucket has parts of its own."""
SHAPED_AT_ONCE_MAX_BYTES: Final = 256 * MIB
"""Arrow bytes of new spans that a task holds while it merges them, and of one part that it writes. Beyond: of such a
bucket it holds the keys and what the row of the trace is made of, and reads the rest again; and a transaction of more
is shaped by several tasks."""
SHAPE_TASKS_MIN: Final = 4
"""Tasks that shape a transaction that is not small: not the number of cores, for a replay must cut the index in the
same ranges. Beyond: as many as its spans need, one a bucket at most."""
SHAPE_TASK_SPANS: Final = 500_000
"""Spans of a large transaction for each such task. Beyond: one more task."""
PIPELINE_PAUSE_MAX_S: Final = 15.0
"""The longest pause of a pipeline between two tries, after runs that failed; it doubles up to there. Beyond: it tries
again."""
CLOCK_DIFFERENCE_MAX_S: Final = 60.0
"""How far the clocks of two machines may be apart. Beyond: a watched file that is dated later is taken at once."""
WATCHED_FILE_QUIET_S: Final = 2.0
"""How long nobody has changed a watched file. Beyond: it is taken."""
WATCHED_BUCKET_PAUSE_S: Final = 5.0
"""How long after a listing of a watched bucket that had nothing new. Beyond: it is listed again."""
WATCHED_BUCKET_WAIT_S: Final = 2.0
"""How long a pipeline that goes on waits for such a listing. Beyond: it does other work, and takes what was found
when it looks again."""
WATCHED_OBJECTS_AT_ONCE: Final = 1_000
"""New objects of a watched bucket that a pipeline that goes on takes at a time, the oldest first.
Beyond: the next look gives them."""
OBJECTS_FOUND_MAX: Final = 1_000_000
"""Objects of a bucket that one pattern may match, when they are ingested, or taken once. Beyond: it is refused;
name them by several patterns."""
JAVA_START_TIMEOUT_S: Final = 120.0
"""How long Spark's JVM may take to start. Beyond: it is killed, and the command fails with what it said."""
JAVA_STOP_TIMEOUT_S: Final = 10.0
"""How long it may take to end. Beyond: it is killed."""
JAVA_VERSION_TIMEOUT_S: Final = 30.0
"""How long a `java -version` may take. Beyond: that Java is not used."""
JAVA_ENDED_WITHIN_S: Final = 5.0
"""How long after its sockets a JVM that is ending has ended. Beyond: the error is taken for another one."""
JAVA_POLL_S: Final = 0.02
"""How often a start looks whether the JVM is up. Beyond: it looks again."""
JAVA_HEAP_MIB: Final = 512
"""Heap of the driver's JVM: rows never pass it. Beyond: Java ends with its own error, and the run fails."""
SPARK_POLL_S: Final = 0.2
"""How often progress is asked of Spark. Beyond: it is asked again."""
SPARK_CONNECT_RETRIES: Final = 6
"""How often a server of Spark Connect is tried again, within half a minute or so. Beyond: the job fails."""
SPARK_IDLE_TIMEOUT_S: Final = 900.0
"""How long a job may wait with no executor on any of its tasks. Beyond: it is ended, and says why; input waits."""

# Kafka
KAFKA_WAIT_S: Final = 10.0
"""How long a broker of Kafka may take to answer, or to send the next message of a range. Beyond: the input waits, or
the output fails, and is tried again."""
KAFKA_ASKED_AGAIN_MAX_S: Final = 10 * 60.0
"""The longest pause until a cluster that did not answer is asked again of what was given up, or is to be kept; it
doubles up to there. Beyond: it is asked."""
KAFKA_RANGE_FIRST_MESSAGES: Final = 100
"""Messages of the first range of a partition, before it is known how large they are. Beyond: the next range."""
KAFKA_RANGE_MESSAGES_MAX: Final = 10_000
"""Messages of one range. Beyond: the next range."""
KAFKA_RANGE_BYTES: Final = 4 * MIB
"""What a range is to have, by the mean of those before. Beyond: the next range; a message alone is always taken."""
KAFKA_RANGES_AT_ONCE: Final = 64
"""Ranges of one partition that one look gives. Beyond: a later look does."""
KAFKA_READ_MESSAGES: Final = 1_000
"""Messages that are taken from the client in one piece. Beyond: the next piece."""
KAFKA_READ_AHEAD_BYTES: Final = 16 * MIB
"""What a client fetches before it is asked. Beyond: it waits."""
KAFKA_TRANSACTION_MAX_S: Final = 120.0
"""How long a transaction of Kafka may take. Beyond: it is given up, and the output tries again."""
KAFKA_MESSAGE_MAX_BYTES: Final = 64 * MIB
"""A message that is sent; a topic may take less (max.message.bytes). Beyond: the row is left out, by name."""
KAFKA_MESSAGE_OVERHEAD_BYTES: Final = 512
"""What a message takes beside its value, at most. Beyond: the broker refuses it, and it is left out."""
KAFKA_BATCH_MAX_BYTES: Final = 1_000_000
"""Messages that are sent in one batch, and less where the topic takes less. Beyond: the next one."""
KAFKA_QUEUE_BYTES: Final = 64 * MIB
"""Messages of an output that are on their way, or as much as one message may have. Beyond: it waits."""
KAFKA_RECEIVE_MAX_BYTES: Final = 2**31 - 1
"""An answer of a broker: a message that is larger than a range comes alone. Beyond: the client has no word for it."""
KAFKA_STATISTICS_S: Final = 1.0
"""How often a client that gets no message looks whether it moves on, as over what was aborted. Beyond: once more."""
OUTPUT_LEFT_OUT_TOLD: Final = 3
"""Rows that an output left out which a line of `status` names. Beyond: `output list --json` does."""
OUTPUT_LEFT_OUT_NAMED_MAX: Final = 100
"""Rows that an output left out of a transaction, or of the last few, that are named. Beyond: they are counted."""
KAFKA_MARKERS_READ: Final = 200
"""Offsets at the end of its markers that an output looks at first. Beyond: it looks at all of them."""
OUTPUT_NAME_MAX_CHARS: Final = 64
"""The name of an output. Beyond: it is refused."""
OUTPUT_MESSAGE_BYTES: Final = 512 * 1024
"""Rows of one message of an output, as they are in memory. Beyond: the next message; a row alone is one."""
OUTPUT_WRITE_TRIES_MAX: Final = 3
"""How often one run tries to write a transaction to an output. Beyond: it fails, and the next run goes on."""
KAFKA_CLIENTS_KEPT_MAX: Final = 16
"""Clients that a process keeps for clusters of Kafka. Beyond: the one that was used least recently is let go."""

# Replicas
REPLICA_HEARTBEAT_S: Final = 3.0
"""How often a replica writes what it does, beside once after each transaction. Beyond: it writes again."""
REPLICA_GONE_S: Final = 12.0
"""How long a replica may write nothing. Beyond: it shows as gone."""
REPLICA_STUCK_S: Final = 120.0
"""How long the work of a replica may not move. Beyond: it shows as stuck; one that fails, at once."""
REPLICA_FORGOTTEN_S: Final = 24 * 3600.0
"""How long the record of a replica that is gone is kept. Beyond: it is deleted."""

# Reading
ROW_GROUP_ROWS: Final = 16_384
"""Rows of one Parquet row group: small enough for point reads, large enough to compress. Beyond: the next group."""
ROW_GROUP_MAX_BYTES: Final = 32 * MIB
"""Arrow bytes of one row group, which who reads it holds. Beyond: the next group, unless it is a single row."""
FOOTERS_REMEMBERED_MAX_BYTES: Final = 64 * MIB
"""Footers of parts that a process keeps, so that who looks for keys reads each once. Beyond: they are read again."""
READ_THROUGH_MAX_BYTES: Final = 64 * 1024
"""What lies between two columns of a part, and is read with them. Beyond: the store is asked twice."""
STATISTICS_TEXT_MAX_CHARS: Final = 40
"""The least and greatest text of a column. Beyond: a part keeps neither, and is pruned by other columns."""
DICTIONARY_SAMPLE_ROWS: Final = 1_024
"""Rows of a row group that are looked at to choose an encoding. Beyond: rows are taken to be alike."""
DICTIONARY_DISTINCT_MAX: Final = 0.98
"""Share of distinct values among them. Beyond: a dictionary would be as long as the rows, and the column has none."""
PLAIN_PART_MAX_BYTES: Final = 16 * 1024
"""Arrow bytes of a part that is written without compression. Beyond: it is compressed."""
SPLIT_MIN_BYTES: Final = 32 * MIB
"""Parts, as stored, that one task reads together. Beyond: the next task."""
SPLIT_BATCH_ROWS: Final = 8_192
"""Rows of one Arrow batch that a task yields. Beyond: the next batch."""
LISTEN_POLL_S: Final = 0.5
"""How often a listener looks for new commits. Beyond: it looks again."""
CHECK_THREADS_MAX: Final = 4
"""Parts that a reader compares with their checksums at once, and no more than there are processors. Beyond: they
wait."""
CHECKED_PARTS_MAX: Final = 100_000
"""Parts that a process remembers to have compared with their checksums. Beyond: it compares them again."""
CONDITIONS_REMEMBERED_MAX: Final = 16
"""Parsed conditions that a process remembers. Beyond: the one used longest ago is parsed again."""
CONDITION_KEYS_MAX: Final = 10_000
"""Keys of one condition whose buckets are computed. Beyond: all buckets are read, which they would be in anyway."""
QUERY_DATABASES_MAX: Final = 4
"""Databases, each locked to its files, that a process keeps for queries of users. Beyond: one is opened anew."""

# Tables of the user
BUCKETS_DEFAULT: Final = 8
"""Hash buckets of a new lake or table. Beyond: name more when it is made; they are fixed for its life."""
BUCKETS_MAX: Final = 4_096
"""Hash buckets of a lake or table. Beyond: it is not made, and the error says so."""
STAGED_ROWS_MAX_BYTES: Final = 64 * MIB
"""Arrow bytes that a task that writes to a table of the user holds. Beyond: it writes pieces."""
MERGE_THREADS_MAX: Final = 4
"""Parts that one writer writes at once, and no more than there are processors. Beyond: they wait."""
COMPARED_KEYS_MAX: Final = 2_000_000
"""Keys of a write that are compared at once with those that are stored; of one bucket, all. Beyond: the next
buckets."""
SMALL_PART_MAX_BYTES: Final = MIB // 4
"""A piece of a write that goes into one part with others of its bucket. Beyond: it is a part."""
SMALL_PARTS_MAX_BYTES: Final = 8 * MIB
"""What such pieces may have together, as stored. Beyond: the next part."""
UPPER_MISMATCHES_MAX: Final = 100
"""Other writers that may be faster, one after the other. Beyond: the write is given up, and nothing was written."""
KEYS_TOLD_MAX: Final = 3
"""Keys that an error names. Beyond: it says how many more there are."""
KEY_TOLD_MAX_CHARS: Final = 80
"""One of these keys. Beyond: it is cut."""

# Shards
SHARD_STATE_INLINE_MAX_BYTES: Final = 64 * 1024
"""The state of a shard in one record. Beyond: its beginning goes into an object."""
SHARD_STATE_INLINE_BATCHES: Final = 8
"""Batches that stay in the record then. Beyond: they are in the object."""
SHARD_READ_TRIES_MAX: Final = 5
"""Reads of a state whose object went between two looks, as newer states came. Beyond: it is damaged, says the error."""
COMPACTION_FAN_OUT: Final = 8
"""Adjacent batches of a shard that count as equally large, by the logarithm of their rows to this base. Beyond:
compaction makes one of them, so batches grow with the logarithm of the rows."""
APPENDS_REMEMBERED: Final = 64
"""Appends that a state remembers by their ids. Beyond: whether an older one is in stays unknown, and is said so."""
WRITES_REMEMBERED: Final = 64
"""Writes that a state remembers by the ids that callers gave. Beyond: older ones have records of their own."""
LEASE_S: Final = 3600.0
"""How long collectors look on while nobody renews a lease. Beyond: they take its reader for dead."""
LEASE_MARGIN_S: Final = 60.0
"""And so much longer: a reader renews in time, and its store may be slow. Beyond: the same."""
EPOCH_MIN_S: Final = 3600.0
"""The least time between two epochs of a shard. Beyond: the next collection begins one, and a writer that uploaded
before the last one may not append."""
COMPACTION_TRIES_MAX: Final = 10
"""Other compactions that may be faster in a row. Beyond: this one is given up, and the error says to try again."""
COMPACTION_MEMORY_BYTES: Final = 512 * MIB
"""What one compaction task may hold. Beyond: it uses the disk."""
COMPACTED_AT_HAND_ROWS: Final = 20_000
"""Rows of a compaction that is done in a database which its process keeps open. Beyond: one of its own is opened."""
COMPACTED_AT_HAND_MAX_BYTES: Final = 8 * MIB
"""Stored bytes of such a compaction. Beyond: the same."""
TAKEN_APART_MAX_BYTES: Final = 64 * MIB
"""Stored bytes of a compaction whose one task takes parts of all buckets apart. Beyond: a task for each bucket reads
all of them."""
COMPACTED_PART_MAX_BYTES: Final = 256 * MIB
"""Arrow bytes of one part that compaction writes. Beyond: the next part; a part of half of it is left as it is, if no
row of it was retracted."""

# Versions
REF_NAME_MAX_CHARS: Final = 100
"""The name of a branch or tag. Beyond: it is refused."""
COMMIT_POLL_FIRST_S: Final = 0.0005
"""The first pause of a committer whose request another builds. Beyond: it looks, and the pause doubles."""
COMMIT_POLL_MAX_S: Final = 0.05
"""The longest of these pauses, where looking takes no time. Beyond: it looks."""
COMMIT_POLL_CROWDED_MAX_S: Final = 0.25
"""The longest of all: where a look takes long, so many times longer are pauses as commits are being built. Beyond: it
looks."""
COMMIT_PATIENCE_POLLS: Final = 24
"""How often it looks without seeing progress, about a second in all, some seconds on a crowded store. Beyond: it
builds what is sealed itself."""
COMMIT_RECORDS_CACHED: Final = 1_024
"""Commits, metaranges and ranges that a process remembers. Beyond: it reads them again."""
COMMITS_WITHOUT_METARANGE_MAX: Final = 15
"""Commits in a row, built together, that say only what they change; who reads one goes back as far. Beyond: the next
has a metarange."""
RANGE_ENTRIES_MEAN: Final = 256
"""Entries of a range, on average: it ends behind a path whose hash says so. Beyond: the next range."""
RANGE_ENTRIES_MAX: Final = 8 * RANGE_ENTRIES_MEAN
"""Entries of a range without such a path; one in three thousand is so long. Beyond: it is cut there."""
MERGE_ANCESTORS_MAX: Final = 64
"""How often one merge looks for the ancestors of its ancestors, where merges crossed. Beyond: what lies deeper is
unclear, and a conflict where both sides changed it."""
BRANCH_SEALED_MAX_BYTES: Final = 2 * MIB
"""The record of a branch. Beyond: it takes no further requests until some are built."""
BRANCH_SWEEP_MAX_REQUESTS: Final = 128
"""Requests that are built and answered at once: their answers share the record of the branch. Beyond: the
next sweep."""
ANSWER_DETAIL_MAX_BYTES: Final = 8 * 1024
"""What one such answer says of a refusal, as JSON. Beyond: it is cut; of paths in conflict, the first have room."""
CONFLICTS_TOLD_MAX: Final = 100
"""Paths in conflict that an answer names. Beyond: they are left out."""
COMMIT_REQUEST_MAX_BYTES: Final = 64 * 1024
"""What one commit may put into the record of its branch: message, metadata, and changes that are few. Beyond: it is
refused."""
CHANGES_INLINE_MAX: Final = 32
"""Changes that are few. Beyond: they go into objects."""
CHANGE_SET_ENTRIES_MAX: Final = 10_000
"""Changes in one such object. Beyond: the next object."""
ANSWERS_KEPT_EPOCHS: Final = 1_000
"""Garbage collections for which the id of a request is good: asked again by then, it gives the same commit. Beyond:
it is a new request."""
STAGED_PATH_MAX_BYTES: Final = 960
"""UTF-8 bytes of a path that is staged: its key in the store has a token, too. Beyond: it is refused."""
DAMAGED_ENTRIES_TOLD_MAX: Final = 3
"""Staged entries that cannot be read, in one message. Beyond: they are counted."""
STAGED_LAYERS_MAX: Final = 4
"""Files staged at one path and token, one after the other, that are kept for where a newer one is gone. Beyond: the
oldest is dropped."""
STAGING_READ_TRIES_MAX: Final = 10
"""How often a read of what is staged begins again because a commit came between. Beyond: it is given up."""
BRANCH_ANSWERS_KEPT: Final = 32
"""Answers that stay in the record of a branch, at least. Beyond: older ones have records of their own."""

# Datasets
DATASET_ADD_DEFAULT: Final = 1_000
"""Examples that one call adds to a dataset, unless it says otherwise. Beyond: they are left out."""
DATASET_ADD_MAX: Final = 10_000
"""Examples that one call adds to a dataset. Beyond: the call is refused; make several."""
DATASET_NOTES_MAX_CHARS: Final = 10_000
"""The description of a dataset, or the metadata that a caller notes on examples, keys and values together. Beyond:
the call is refused."""
DATASET_LOOKUP_SPANS: Final = 500
"""Spans whose texts are in memory together while they become examples. Beyond: the next so many."""
FILES_AT_ONCE: Final = 16
"""Files of entries, such as examples, that one call reads or writes at the same time. Beyond: they wait."""
FILES_EXPIRED_TRIES_MAX: Final = 30
"""How often in a row files that expired before they were staged are written again, half as many at once each time.
Beyond: the call fails."""
FILES_READ_AHEAD: Final = 64
"""Files that are in memory before they are asked for. Beyond: they are read when there is room."""
EXPORT_BATCH_EXAMPLES: Final = 1_000
"""Examples of one Arrow batch, and of one row group of an export as Parquet. Beyond: the next one."""

# Server
INBOX_QUEUE_MAX_REQUESTS: Final = 1_000
"""Requests that wait for the next inbox segment. Beyond: the answer is 503."""
INBOX_QUEUE_MAX_BYTES: Final = 256 * MIB
"""Their bytes; one request alone is always taken. Beyond: the answer is 503."""
REQUESTS_MEMORY_MAX_BYTES: Final = 2048 * MIB
"""What all requests together may take as sent, decompressed and decoded. Beyond: the answer is 503, or 413 where one
alone takes more."""
COMPRESSED_MEMBERS_MAX: Final = 1_000
"""Members of one gzip body, or frames of one of zstd. Beyond: the answer is 400."""
ZSTD_WINDOW_MAX_BYTES: Final = 8 * MIB
"""What a zstd body looks back on: as RFC 8878 asks every decoder to take. Beyond: the answer is 400."""
DECOMPRESSED_PIECE_BYTES: Final = 256 * 1024
"""What is decompressed before more memory is asked for. Beyond: the next piece."""
DECODE_THREADS_MAX: Final = 4
"""Requests that are decompressed or decoded at one time, in one process of Python. Beyond: they wait."""
DECODED_AT_ONCE_MAX_BYTES: Final = 64 * 1024
"""What is decompressed or decoded where it is read, and keeps others waiting for a moment. Beyond: a thread does it."""
SEGMENT_WAIT_S: Final = 0.05
"""How long a request waits for others that come to share its segment, by default. Beyond: it is written."""
GATHERING_QUIET_TURNS: Final = 4
"""Turns of the event loop in a row that bring no request: one takes three to be read and begun. Beyond: those that have
gathered are written."""
INBOX_SEGMENT_MAX_BYTES: Final = 32 * MIB
"""Payload of a segment, by default; one request alone may have more. Beyond: the next segment takes the request."""
INBOX_SEGMENTS_MAX: Final = 10_000
"""Segments that the pipeline has not taken, without those that are set aside. Beyond: the answer is 503."""
INBOX_ACK_TIMEOUT_S: Final = 20.0
"""How long a request waits to be durable. Beyond: the answer is 503."""

# Tracking store
TRACKING_NAME_MAX_CHARS: Final = 500
"""A name, model, session or user in a column of the tracking store. Beyond: the column is cut, the span kept whole."""
TRACKING_KEY_MAX_CHARS: Final = 250
"""The key of a tag, or an id that is no trace's. Beyond: it is refused."""
TRACKING_VALUE_MAX_CHARS: Final = 8_000
"""The value of a tag. Beyond: it is refused."""
EXPERIMENT_TAG_MAX_CHARS: Final = 5_000
"""The value of a tag of an experiment. Beyond: it is refused."""
ANNOTATIONS_MAX: Final = 1_000
"""Tags, and assessments, of one trace or experiment. Beyond: one more is refused."""
ASSESSMENT_MAX_BYTES: Final = 64 * 1024
"""An assessment as JSON. Beyond: it is refused."""
TAGGED_TRACES_MAX: Final = 10_000
"""Traces that a filter by tags names. Beyond: it is refused; name more tags."""
EXPERIMENTS_SHOWN_MAX: Final = 1_000
"""Experiments in a list, the newest. Beyond: each is there by its id and name."""
TRACKING_PREVIEW_MAX_CHARS: Final = 1_000
"""Input and output of a trace as lists show them. Beyond: they are cut; the spans keep them whole."""
TRACKING_BUSY_TIMEOUT_S: Final = 10.0
"""How long a write waits for the tracking store, where others write or it does not answer. Beyond: an error, and for a
request the answer 503."""
TRACKING_POOL_MAX: Final = 16
"""Connections of one process to the tracking store. Beyond: who needs one waits."""
TRACKING_IDS_AT_ONCE: Final = 500
"""Traces or outbox rows that one statement names. Beyond: another statement."""
OUTBOX_ROWS_MAX: Final = 100_000
"""Outbox rows of a lake that the pipeline has not taken. Beyond: requests are answered 503 until it has."""
OUTBOX_LOOK_MAX: Final = 2_000
"""Outbox rows that one look of a pipeline gives. Beyond: the next look."""
UNCOMMITTED_TRACES_MAX: Final = 500
"""Traces of the tracking store that no commit holds whole yet, and that lists show beside the tables. Beyond: the
newest are shown, and the others once they are committed; each can be read by its id."""
UNCOMMITTED_LIST_MAX_BYTES: Final = 32 * MIB
"""Spans of such traces, as OTLP, that one list reads. Beyond: as above."""
UNCOMMITTED_LIST_TRACE_MAX_BYTES: Final = 4 * MIB
"""Spans of one such trace, as OTLP. Beyond: lists show it as commits have it; it can be read by its id."""
UNCOMMITTED_LIST_TRACE_MAX_SPANS: Final = 10_000
"""Spans that a commit has of one such trace. Beyond: as above."""
UNCOMMITTED_SEARCH_MAX_BYTES: Final = 64 * MIB
"""Spans, as OTLP, that searches find before a commit holds them, the newest. Beyond: a result says that the rest is not
searched yet."""
UNCOMMITTED_SEARCH_ROWS_MAX: Final = 4_000
"""Outbox rows with such spans. Beyond: as above."""
UNCOMMITTED_SEARCH_BUILD_S: Final = 1.0
"""How long a search makes new spans findable. Beyond: it says what it has not searched, and the next search goes on."""
UNCOMMITTED_SEARCH_STEP_BYTES: Final = 4 * MIB
"""Spans that are made findable at once. Beyond: another step, where there is time for one."""
UNCOMMITTED_SEARCH_PARTS_MERGED: Final = 8
"""Parts of alike sizes with such spans. Beyond: they become one."""
UNCOMMITTED_SEARCH_TRIES_MAX: Final = 3
"""How often a search begins anew, because its index is built with other settings meanwhile. Beyond: commits alone are
searched, and the result says so."""
UNCOMMITTED_SEARCHES_KEPT: Final = 4
"""Searches whose uncommitted spans are kept, for their next pages. Beyond: the next page puts them together again."""
UNCOMMITTED_RUN_GAP_MAX: Final = 64
"""Numbers of outbox rows that may lack between two that a page names as one run. Beyond: another run."""
UNCOMMITTED_RUNS_MAX: Final = 8
"""Runs of outbox rows that a page names. Beyond: the newest are searched, and the result says so."""
TRACKING_LOOK_S: Final = 5.0
"""How often a pipeline looks whether its lake has a tracking store by now. Beyond: it looks again."""
INGEST_RETRY_AFTER_S: Final = 5
"""What an answer of 503 asks a client to wait. Beyond: it may send again."""
TRACE_PAGE_SPANS_MAX: Final = 2_000
"""Spans on one page of a trace in the web UI. Beyond: the next page."""
PAGE_ROWS_DEFAULT: Final = 50
"""Rows of one page of a listing, unless the request says otherwise. Beyond: the next page."""
PAGE_ROWS_MAX: Final = 1_000
"""Rows of one page of a listing. Beyond: the answer is 400; ask for several pages."""
PAGE_OFFSET_MAX: Final = 2**62
"""Rows before a page of a listing: as many as DuckDB can count to. Beyond: the answer is 400."""
PARAMETER_MAX_CHARS: Final = 1_000
"""One text in a URL, such as a service to filter by. Beyond: the answer is 400."""
PARAMETER_MAX_MS: Final = 1e12
"""The least duration to filter by: about thirty years. Beyond: the answer is 400."""
SHUTDOWN_MAX_S: Final = 30
"""What requests under way have to finish when the server stops: longer than an acknowledgement takes. Beyond: they
are cut off."""
LISTEN_BACKLOG: Final = 512
"""Connections that wait to be accepted. Beyond: the system refuses them, or lets them wait."""
CONNECTIONS_MAX: Final = 1_000
"""Connections at one time, and no more than half of the files that the process may open. Beyond: the slowest makes
room."""
CONNECTION_GRACE_S: Final = 20.0
"""How long a client may take to send a request, or to read its answer, beside what its bytes take. Beyond: it is cut
off."""
CONNECTION_MIN_BYTES_PER_S: Final = 16 * 1024
"""What these may take: a second for so many. Beyond: it is cut off."""
PORT_MAX: Final = 65_535
"""The number of a port. Beyond: it is refused."""
GRPC_MESSAGE_MAX_BYTES: Final = 16 * MIB
"""One gRPC message as sent. Beyond: it is refused with RESOURCE_EXHAUSTED, before it is read."""
GRPC_STREAMS_MAX: Final = 100
"""Calls of one gRPC connection at one time. Beyond: they wait at the client."""
GRPC_READING_MAX: Final = 64
"""gRPC calls whose message is not here yet. Beyond: the slowest is ended with RESOURCE_EXHAUSTED, and
may be made again."""
GRPC_READ_MAX_S: Final = 60.0
"""How long the message of a gRPC call may take to come. Beyond: the call is ended with DEADLINE_EXCEEDED."""
GRPC_METADATA_MAX_BYTES: Final = 16 * 1024
"""Metadata of a gRPC call. Beyond: it is refused."""
GRPC_HANDSHAKE_MAX_S: Final = 10.0
"""How long a connection may take to begin to speak gRPC. Beyond: it is ended."""
GRPC_IDLE_MAX_S: Final = 300.0
"""How long a gRPC connection may be without a call. Beyond: it is closed, and clients open another."""
GRPC_KEEPALIVE_S: Final = 60.0
"""How long a gRPC connection may be silent before its client is asked whether it is there. Beyond: it is asked."""
GRPC_KEEPALIVE_ANSWER_S: Final = 20.0
"""How long it may take to answer that. Beyond: the connection is ended."""
KEYS_MAX: Final = 10_000
"""Keys of a lake, with those that are revoked. Beyond: another is refused."""
KEY_NAME_MAX_CHARS: Final = 100
"""The name of a key, or of its workspace. Beyond: it is refused."""
KEY_TIME_MAX_NS: Final = 2**63
"""When a key may expire. Beyond: it is refused."""
KEY_CHANGE_TRIES_MAX: Final = 20
"""How often a change of a key is tried while others change it. Beyond: an error."""
KEYS_LOOK_S: Final = 5.0
"""How old what a server knows of keys may be: so long a key that was revoked elsewhere may still be used. Beyond: it
reads them again."""
KEYS_MISS_LOOK_S: Final = 1.0
"""The same, for a key that it does not know yet. Beyond: as above."""
KEYS_STALE_MAX_S: Final = 60.0
"""How long it goes on by what it knows while keys cannot be read. Beyond: the answer is 503."""
QUOTA_MAX: Final = 2**50
"""A quota. Beyond: it is refused; leave it out for none."""
QUOTA_BURST_S: Final = 10.0
"""Seconds of its spans a second that a key may send at once. Beyond: the answer is 429."""
QUOTA_DAY_S: Final = 86_400.0
"""Over how many seconds a quota of a day comes back. Beyond: more of it is there."""
SIGN_IN_MAX_S: Final = 43_200
"""How long a browser is signed in. Beyond: it asks for the key again."""
SIGN_IN_MAX_BYTES: Final = 4_096
"""What a browser sends to sign in. Beyond: the answer is 413."""
CORS_MAX_AGE_S: Final = 600
"""How long a browser remembers that a page of another site may send. Beyond: it asks again."""
CONNECTION_LOOK_S: Final = 1.0
"""How often the server looks whether a connection is too slow. Beyond: it looks again."""
HEAD_MAX_BYTES: Final = 64 * 1024
"""The head of a request, or what else comes between two pieces of its body. Beyond: the connection is ended."""
REQUESTS_AHEAD_MAX: Final = 100
"""Requests that a client sends before the answer to an earlier one. Beyond: the connection is ended."""
LOG_REPEAT_S: Final = 1.0
"""How long a thing that was logged is not logged again. Beyond: it is, with how often it was left out."""
LOG_THING_CHARS: Final = 40
"""The beginning of a message by which it is told from others in the log. Beyond: messages that begin alike are one."""
LOG_THINGS_MAX: Final = 1_000
"""Different things that are remembered for that. Beyond: all are forgotten."""

# Archive
ARCHIVE_BATCH_TRACES: Final = 256
"""Traces of one batch of a pass, and of one pack. Beyond: the next batch."""
ARCHIVE_BATCH_BYTES: Final = 64 * MIB
"""Their OTLP, uncompressed; a larger trace is a batch of its own. Beyond: the next batch."""
TASK_LAKES_OPEN_MAX: Final = 8
"""Lakes that a process keeps open for tasks of archive passes. Beyond: the oldest is opened anew."""
ARCHIVE_TASKS_AT_ONCE: Final = 64
"""Batches of a pass that are tasks of one job. Beyond: the next job, before which it is asked whether to stop."""
ARCHIVE_PASS_TRACES: Final = 20_000
"""Traces that one pass of a server's scheduler takes. Beyond: another follows at once, if this one archived some."""
ARCHIVE_FINALIZE_TRACES: Final = 64
"""Traces whose payloads one transaction clears: writers wait for it. Beyond: the next transaction."""
ARCHIVE_FINALIZE_BYTES: Final = 8 * MIB
"""Their OTLP, uncompressed; a larger trace is cleared alone. Beyond: the next transaction."""
ARCHIVE_UPLOADS_AT_ONCE: Final = 8
"""Objects of one batch that are uploaded at a time. Beyond: they wait for their turn."""
TRACE_ARCHIVED_MAX_BYTES: Final = 1024 * MIB
"""What one archived trace unpacks to. Beyond: its frame is taken for damage."""
ARCHIVE_FAILURES_TOLD_MAX: Final = 20
"""Traces that stayed hot which a pass tells the reasons of. Beyond: they are counted."""
VERIFY_ALIKE_MAX: Final = 10
"""Traces that `verify` names for one thing that is wrong with many. Beyond: the others are not named."""
VERIFY_SPANS_AT_ONCE: Final = 100_000
"""Spans of archived traces that `verify` reads at once. Beyond: it reads again."""
ARCHIVE_RESTORE_TRIES_MAX: Final = 5
"""How often a restore begins again because a pass was faster. Beyond: it says so."""
ARCHIVE_UPLOAD_GRACE_S: Final = 3600.0
"""How old an upload that nobody has finalized must be for a sweep to give it up. Beyond: it does; who still works at it
is told, and its traces stay hot."""
ARCHIVE_CUT_PAGES: Final = 200
"""Pages that one transaction of SQLite gives back to the disk after a pass. Beyond: the next one does."""
ARCHIVE_TRUNCATE_WAIT_S: Final = 0.5
"""How long the log of SQLite waits for readers, to be cut after a pass. Beyond: it is cut after the next one."""
ARCHIVE_INTERVAL_S: Final = 300.0
"""Seconds between two archive passes of a server, where nobody says otherwise. Beyond: the next one begins."""
ARCHIVE_INTERVAL_MIN_S: Final = 1.0
"""The least of them that can be asked for. Beyond: less is refused."""
ARCHIVE_INTERVAL_MAX_S: Final = 86_400.0
"""The most of them that can be asked for. Beyond: more is refused."""
ARCHIVE_REQUEST_TRACES_MAX: Final = 500
"""Traces that one request restores or deletes. Beyond: 413."""
ARCHIVE_GRACE_MAX_S: Final = 31_536_000.0
"""The longest grace of a sweep that a request asks for, a year. Beyond: 400."""
ARCHIVE_LISTED_DEFAULT: Final = 20
"""Traces and operations that the page of the archive lists of each kind. Beyond: parameter `limit` asks for more."""
OPERATIONS_AT_ONCE: Final = 4
"""Passes, restores, deletions and sweeps that requests asked a server for and that are under way; of one kind one less.
Beyond: 503."""
OPERATIONS_KEPT: Final = 100
"""Of them, and of passes by interval, that a server tells of. Beyond: the oldest that is over is forgotten."""
OPERATION_ANSWER_WAIT_S: Final = 10.0
"""How long the answer to a request that began one waits for its end. Beyond: 202, with its id to ask again with."""
ARCHIVE_POLL_S: Final = 5.0
"""How long a server waits between looks for experiments that are marked archiveNow. Beyond: it looks."""
ARCHIVE_STOP_MAX_S: Final = 30.0
"""How long a server that stops waits for the batch of a pass that is under way. Beyond: it leaves it; the next pass, of
any server, goes on, and a sweep takes its uploads."""

# Search
SEARCH_HITS_DEFAULT: Final = 20
"""Hits of one search, unless it says otherwise. Beyond: they are left out."""
SEARCH_HITS_MAX: Final = 1_000
"""Hits of one search. Beyond: it is refused."""
QUERIES_KEPT: Final = 256
"""Queries that a process keeps as they were read. Beyond: the one that was asked longest ago is read again."""
SEARCH_RANKED_BEYOND_HITS: Final = 6
"""Hits of a ranked list beyond the page that is cut from it. Beyond: where all of these are as good as the page's last,
a list of `SEARCH_RANKED_FIRST_HITS`."""
SEARCH_RANKED_FIRST_HITS: Final = 100
"""Hits of the list that the first pages are cut from then. Beyond: a list of `SEARCH_RANKED_STEP_HITS`."""
SEARCH_RANKED_STEP_HITS: Final = 1_000
"""Hits by which the ranked list grows that pages are cut from. Beyond: a list of the next length."""
SEARCH_OFFSET_MAX_HITS: Final = 100_000
"""Hits before a page of a search. Beyond: it is refused."""
FACETS_MAX: Final = 20
"""Facets of one request. Beyond: it is refused."""
FACET_VALUES_MAX: Final = 20
"""Values of a facet that are told, the most frequent, or of days the last. Beyond: they are counted together."""
FACET_VALUES_COUNTED_MAX: Final = 60_000
"""Different values that a facet counts in one part of the index. Beyond: the rarest are others, and it is not exact."""
HIGHLIGHT_TERMS_MAX: Final = 32
"""Different words and phrases of a query that are marked in excerpts. Beyond: the first of them are."""
HIGHLIGHT_SPELLINGS_MAX_CHARS: Final = 20_000
"""Characters of a text that are looked through for words written otherwise. Beyond: they are not marked."""
LIKE_WORDS_MAX: Final = 25
"""Words by which spans are found that are like another one, those that tell most. Beyond: they count for nothing."""
LIKE_WORDS_READ_MAX: Final = 500
"""Different words of a span that are looked at for that, the first of its text. Beyond: they count for nothing."""
LIKE_TEXT_MAX_CHARS: Final = 20_000
"""Characters of a span that are looked at for that. Beyond: they count for nothing."""
LIKE_WEIGHT_SHARE: Final = 0.25
"""What a word tells at least, as a share of the one that tells most. Beyond: it counts for nothing."""
LIKE_SHARE: Final = 0.3
"""Share of these words that a span must have to be like another. Beyond: it is, the more the better."""
LIKE_SPANS_KEPT: Final = 8
"""Spans whose texts a searcher keeps for that. Beyond: they are read again."""
INDEX_HEAP_BYTES: Final = 512 * MIB
"""What one index part may take in memory while it is built. Beyond: it becomes several segments."""
INDEX_BATCH_ROWS: Final = 8_192
"""Spans that are made documents at a time. Beyond: the next so many."""
INDEX_WORD_MAX_BYTES: Final = 100
"""One word of a text: a SHA-256 in hex is one, a SHA-512 is not. Beyond: it is not indexed."""
INDEX_CONTENTS_MAX_VALUES: Final = 32
"""Services that a part of the index is said to have, and workspaces. Beyond: it may have any, and is asked for all."""
INDEX_PRUNED_KEPT: Final = 8
"""Sets of some parts that a searcher keeps open, beside all of them. Beyond: the oldest is opened again when it is
asked."""
INDEX_VALUE_MAX_CHARS: Final = 128
"""The value of one attribute that is found as a whole. Beyond: it is found by its words, and that it is there."""
IDENTIFIER_MAX_BYTES: Final = 64
"""One identifier with capitals inside, such as `refundPolicy`. Beyond: it is found as a whole only."""
INDEX_IDENTIFIERS_KEPT: Final = 16_384
"""Identifiers whose parts a process remembers. Beyond: the longest unused is forgotten."""
INDEX_PATHS_KEPT: Final = 4_096
"""Paths of attributes whose terms a process remembers. Beyond: the longest unused is forgotten."""
INDEX_NEWEST_PARTS_MAX: Final = 8
"""Parts that a manifest of the index names itself. Beyond: older ones are in lists that manifests share."""
INDEX_REBUILT_PART_ROWS: Final = 200_000
"""Rows of one part when the index is built anew. Beyond: there are more parts, at most one a bucket."""
INDEX_REBUILT_BATCH_ROWS: Final = 2_048
"""Rows that are read at a time for it: with prompts of a MiB in each, more would not fit into one column of Arrow.
Beyond: the next so many."""
INDEX_MERGED_MAX_BYTES: Final = 512 * MIB
"""Parts of the index together that a task merges without their rows; it takes twice as much. Beyond: they are built of
the rows, in several parts."""
INDEX_FAN_OUT: Final = 8
"""Adjacent parts of the index that count as equally large, by the logarithm of their documents. Beyond: they become
one."""
INDEX_REWRITTEN_SHARE: Final = 0.2
"""The share of documents whose rows were replaced. Beyond: parts of the index are written again without them."""
INDEX_REPLACED_MIN: Final = 1_000
"""Documents whose rows were replaced that stay until their parts are merged. Beyond: the share decides."""
INDEX_REPLACED_SHARE_MAX: Final = 0.3
"""The share of documents whose rows were replaced. Beyond: `doctor` says that scores suffer."""
INDEX_MAPS_KEPT_FREE: Final = 2_000
"""Memory maps that a process needs for other things than parts of an index: libraries, threads, files of tables.
Beyond: the search fails, and says how to allow more."""
INDEX_COMMITS_BACK_MAX: Final = 100
"""Commits before one whose index is damaged that are asked which vectors it had. Beyond: it is built without."""
VECTOR_DIMENSIONS_MAX: Final = 8_192
"""Numbers of one vector. Beyond: the settings are refused."""
VECTOR_NAME_MAX_CHARS: Final = 200
"""The name of the function or attribute that vectors come from, and its version. Beyond: the settings are refused."""
VECTOR_PART_MAX_BYTES: Final = 128 * MIB
"""Vectors of one part when the index is built anew. Beyond: there are more parts, at most one a bucket."""
EMBEDDED_TEXT_MAX_CHARS: Final = 8_000
"""Characters of a span that its vector is made of. Beyond: they are left out."""
EMBEDDING_BATCH_TEXTS: Final = 128
"""Texts that the function of the user is given at a time. Beyond: the next so many."""
EMBEDDING_CALL_MAX_S: Final = 60.0
"""How long one call of it may take. Beyond: it failed, and nobody waits for it any more."""
EMBEDDING_FAILURES_MAX: Final = 20
"""Failed calls of it while one part is built. Beyond: it is not called, and the other spans have no vector."""
EMBEDDING_FAILED_MAX_S: Final = 60.0
"""What its failed calls may take together while one part is built. Beyond: the same."""
SEMANTIC_HITS_MAX: Final = 1_000
"""Spans nearest in meaning that a search ranks, and hits of words that it ranks them with. Beyond: they are not in the
result."""
VECTORS_AT_ONCE: Final = 1_024
"""Vectors that are compared or copied at a time: their numbers stay in the cache of a processor. Beyond: the next."""
SEMANTIC_FARTHER: Final = 4
"""How many times more of the nearest are looked at, where too few meet the conditions. Beyond: again so many times."""
VECTOR_PARAMETER_MAX_CHARS: Final = 32 * 1024
"""A vector in the address of a request, as text. Beyond: it is refused."""
SEMANTIC_RESULTS_KEPT: Final = 8
"""Results of searches by meaning that a searcher keeps for their further pages. Beyond: they are ranked again."""
SEMANTIC_FILTERED_MAX_ROWS: Final = 50_000
"""Spans that conditions leave which are listed before any vector is looked at. Beyond: the nearest of all are looked
at, until enough of them meet the conditions."""
INDEX_SCRATCH_AGE_MAX_S: Final = 3600.0
"""Age of an index that was put together for a search: no search takes so long. Beyond: the next process deletes it."""
SCRATCH_DELETE_TRIES_MAX: Final = 3
"""Times that the deletion of a scratch directory is tried. Beyond: it is left to the system's own cleaning."""
QUERY_MAX_CHARS: Final = 4_096
"""One search query. Beyond: it is refused."""
QUERY_NESTING_MAX: Final = 50
"""Parentheses and NOTs around one word of a query. Beyond: it is refused."""
QUERY_OPEN_WORDS_MAX: Final = 32
"""Words of a query with * or ~, each of which may stand for all words of the index. Beyond: it is refused."""
QUERY_SLOP_MAX: Final = 100
"""Words that may stand between those of a phrase. Beyond: it is refused."""
COMPLETIONS_MAX: Final = 20
"""Completions of a query that is being typed. Beyond: the less frequent are left out."""
HIGHLIGHT_MAX_CHARS: Final = 200
"""One excerpt of a hit, with its marks. Beyond: it is cut."""
HIGHLIGHT_CONTEXT_CHARS: Final = 40
"""What an excerpt shows before its first match. Beyond: it is left out."""
HIGHLIGHT_MATCHES_MAX: Final = 200
"""Places of one text that are looked at. Beyond: they are not; the best excerpt is nearly always among the first."""

# Storage
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
TEMPORARY_FILE_AGE_MAX_S: Final = 24 * 3600.0
"""Age of a temporary file: no write takes so long. Beyond: it was left behind by a killed writer, and is deleted."""
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

# Doctor
DOCTOR_CHECK_TIMEOUT_S: Final = 40.0
"""How long `tracelake doctor` waits for one check: longer than SQLite waits for a lock, or PostgreSQL's reply takes.
Beyond: the check has failed."""
DOCTOR_SPARK_TIMEOUT_S: Final = 150.0
"""The same for the check that starts Spark. Beyond: it has failed."""
DOCTOR_CLUSTER_TIMEOUT_S: Final = 600.0
"""The same for the check of a cluster, which may have to start executors. Beyond: it has failed."""
DOCTOR_CLUSTER_TASKS: Final = 8
"""Tasks by which `doctor` first looks for executors of a cluster. Beyond: twice as many, while more are found."""
DOCTOR_CLUSTER_TASKS_MAX: Final = 8_192
"""Tasks by which it looks at most. Beyond: executors that none of them met are not told of."""
DOCTOR_CLUSTER_WAIT_S: Final = 0.2
"""How long such a task stays, so that others go elsewhere. Beyond: it ends."""
DOCTOR_PROBLEMS_MAX: Final = 10
"""Problems of executors that are named. Beyond: their number is."""
DOCTOR_RACES: Final = 10
"""Times that each pair of racing writes is tried. Beyond: the store is taken to be right."""
CLOCK_SKEW_MAX_S: Final = 5.0
"""What the clocks of this machine and of the store may be apart. Beyond: `doctor` warns."""
CLOCK_SKEW_FAILED_S: Final = 900.0
"""The same, where stores begin to refuse requests. Beyond: the check has failed."""
FREE_SPACE_LOW_BYTES: Final = 2048 * MIB
"""Free space of a file system. Beyond: with less, `doctor` warns."""
FREE_SPACE_MIN_BYTES: Final = 256 * MIB
"""Free space that a few transactions would fill. Beyond: with less, the check has failed."""
FREE_FILES_MIN: Final = 1_000
"""Files that a file system can still take (its free inodes). Beyond: with less, the check has failed."""

# Command line and demo
SQL_ROWS_SHOWN: Final = 100
"""Rows of a query that a terminal shows, by default. Beyond: they are counted; `--json` has all."""
EXAMPLES_SHOWN: Final = 20
"""Examples of a dataset that `dataset show` shows, by default. Beyond: they are left out, which `--limit` changes."""
DIFF_ENTRIES_SHOWN: Final = 1_000
"""Entries that `diff` shows, by default. Beyond: they are left out, which `--limit` changes."""
PROGRESS_POLL_S: Final = 0.2
"""How often a command that waits looks again. Beyond: it looks again."""
DEMO_START_TIMEOUT_S: Final = 60.0
"""How long the server of the demo may take to start. Beyond: the demo fails with the end of its log."""
DEMO_STOP_TIMEOUT_S: Final = 30.0
"""How long it may take to end. Beyond: it is killed."""
DEMO_EXPORT_TIMEOUT_S: Final = 15
"""How long the exporter of the demo may take to send what it has. Beyond: it gives up, and spans are missing."""
DEMO_COMMIT_TIMEOUT_S: Final = 90.0
"""How long the spans of the demo may take to be committed. Beyond: the demo fails, and says what to try."""
DEMO_POLL_S: Final = 0.5
"""How often the demo looks for them. Beyond: it looks again."""
