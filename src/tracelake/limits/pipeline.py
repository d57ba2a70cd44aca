"""Pipeline."""

from typing import Final

from tracelake.limits.units import MIB

PIPELINE_POLL_MIN_S: Final = 0.01
"""Shortest polling interval of a pipeline. Beyond: a shorter one is refused."""
PIPELINE_POLL_S: Final = 1.0
"""Default polling interval of a pipeline. Beyond: the next poll."""
LOOK_TRANSACTIONS: Final = 4
"""Transactions of the current size for which one poll of a continuous pipeline returns input. Beyond: the next poll,
which sees new input of other sources and sources paused since."""
SOURCES_MAX: Final = 100
"""Sources that users add to a lake. Beyond: one more is refused."""
NAME_MAX_CHARS: Final = 64
"""Name of a source or an output. Beyond: it is refused."""
SOURCE_ADDRESS_MAX_CHARS: Final = 4_096
"""Pattern or topic URL of an added source. Beyond: it is refused."""
SOURCES_TOLD_MAX: Final = 200
"""Sources that a replica reports in its status. Beyond: they are polled but not reported."""
SOURCE_RATE_S: Final = 60.0
"""Time over which the rate of a source is averaged. Beyond: older input counts little."""
TRANSACTION_INPUT_MAX_BYTES: Final = 64 * MIB
"""Stored (compressed) input of one transaction by default; a single input is always taken. Beyond: the next
transaction."""
TRANSACTION_INPUTS_MAX: Final = 5_000
"""Inputs of one transaction. Beyond: the next transaction."""
TRANSACTION_AIM_S: Final = 3.0
"""Target duration of a continuous pipeline's transaction while more input is pending. Beyond: the next transaction is
smaller."""
TRANSACTION_LEAST_MB: Final = 0.001
"""Smallest transaction size that a command line may set. Beyond: a smaller one is refused."""
TRANSACTION_FIRST_BYTES: Final = 2 * MIB
"""Input of a pipeline's first transaction, which is visible soon. Beyond: the next transaction; sizes then grow."""
TRANSACTION_FIRST_INPUTS: Final = 100
"""Inputs of a pipeline's first transaction. Beyond: the next transaction."""
TRANSACTION_LEAST_BYTES: Final = MIB // 4
"""Smallest input size of a transaction when all transactions are slow. Beyond: the next transaction."""
TRANSACTION_LEAST_INPUTS: Final = 10
"""Smallest number of inputs of a transaction when all are slow. Beyond: the next transaction."""
TRANSACTION_ARROW_MAX_BYTES: Final = 1024 * MIB
"""Memory for a transaction's rows in all its tasks, estimated from the previous one. Beyond: the next transaction is
smaller."""
STEP_RECORD_MAX_BYTES: Final = 4 * MIB
"""Journal record of a transaction's inputs; a single input is always taken. Beyond: the transaction takes half of
them."""
TRANSACTION_STEPS_MAX: Final = 1_000
"""Steps of one transaction. Beyond: it is sealed; a client's explicit transaction takes no more input before its
commit."""
TRANSACTION_ROWS_MAX: Final = 10_000_000
"""Span count at which a pipeline may be configured to seal a transaction. Beyond: more is refused."""
TRANSACTION_DELAY_S: Final = 10.0
"""Default time that a transaction waits for that span count. Beyond: it is sealed."""
TRANSACTION_DELAY_MAX_S: Final = 3600.0
"""Longest configurable wait for that span count. Beyond: a longer one is refused."""
CLIENT_TIMEOUT_S: Final = 300.0
"""Default silence of an explicit transaction's client. Beyond: the transaction is sealed or discarded, as the client
chose."""
CLIENT_TIMEOUT_MAX_S: Final = 6 * 3600.0
"""Longest timeout that a client may request; staged rows live longer. Beyond: more is refused."""
CLIENT_ID_MAX_CHARS: Final = 64
"""Id that a client gives its transaction; each step contains it. Beyond: it is refused."""
CLIENTS_ENDED_MAX: Final = 50
"""Finished explicit transactions whose outcome is remembered. Beyond: the outcome of an older one is unknown."""
CLIENT_SEEN_EACH: Final = 10
"""Keep-alives that an ingest sends per client timeout. Beyond: none, because the client counts as alive already."""
CLIENT_RUNS_MAX: Final = 60
"""Consecutive runs until a client's transaction is finished. Beyond: an error."""
JOURNAL_TRIM_EACH: Final = 100
"""Transactions after which a continuous pipeline trims its journal. Beyond: it checks whether enough can be trimmed."""
JOURNAL_TRIM_MAX: Final = 2_000
"""Transactions whose records one trim erases. Beyond: the next trim."""
TRANSACTION_NUMBER_MAX: Final = 10**15
"""Largest transaction number in a request. Beyond: the number is refused, because no such transaction exists."""
EXPLAINED_MAX: Final = 1_000
"""Inputs and parts that `explain` names for a transaction. Beyond: it reports their number."""
JOURNAL_TRANSACTIONS_KEPT: Final = 10_000
"""Newest transactions whose input the journal keeps by default. Beyond: `gc` erases the records of the oldest."""
TRANSACTION_TRIES_MAX: Final = 3
"""Failures of a task on the same inputs. Beyond: the transaction is bisected, and an input that fails alone is
quarantined."""
UNREAD_INPUT_MAX_S: Final = 15 * 60.0
"""Time for which a recorded or retried input may be unreadable. Beyond: it is quarantined and named, and the other
inputs of its transaction are taken."""
UNREAD_TRY_COUNTS_MAX_S: Final = 3 * 60.0
"""Time between two read attempts that counts as unreadable, so that a stopped pipeline does not count. Beyond: it
counts as this much."""
TRY_BEAT_S: Final = 3.0
"""Heartbeat interval of a process that reads input or runs a transaction. Beyond: the next heartbeat."""
TRY_LOOKS: Final = 5
"""Checks without a heartbeat, TRY_BEAT_S apart. Beyond: the process counts as dead."""
MAINTENANCE_BEHIND_MAX: Final = 256
"""Transactions that a pipeline commits during one maintenance pass. Beyond: it waits for the pass."""
MAINTENANCE_TRIES: Final = 3
"""Consecutive failures of a table's compaction or an index merge because of a disk, store or process. Beyond: the
failing part is skipped like a damaged one, and all other work is done."""
MAINTENANCE_PAUSE_MAX_S: Final = 600.0
"""Longest backoff before failed compactions or merges are retried; the backoff doubles up to it. Beyond: the next
attempt."""
TRY_NOTES_MAX: Final = 100
"""Crash markers of processes that died or are running. Beyond: the oldest are forgotten."""
ASIDE_REASON_MAX_CHARS: Final = 1_000
"""Error text recorded with a quarantined input. Beyond: it is truncated."""
STRIPE_INPUT_BYTES: Final = 8 * MIB
"""Stored bytes of a file per decode task; each task decompresses the whole file. Beyond: one more task."""
SMALL_SEGMENT_MAX_BYTES: Final = 256 * 1024
"""Size of an inbox segment, stored and decompressed, that is read at once. Beyond: it is read in pieces."""
STRIPES_MAX: Final = 16
"""Tasks that share one file; more would mostly read the same bytes. At this number, each task of a gzip file reads as
long as it decodes. Beyond: each task decodes more of the file."""
READ_TASK_INPUT_BYTES: Final = MIB
"""Stored bytes of small inputs, such as inbox segments, in one read task. Beyond: the next task."""
INPUTS_FETCHED_AT_ONCE: Final = 16
"""Inputs that one task fetches from a bucket concurrently. Beyond: they wait."""
SHARED_INPUT_MAX_BYTES: Final = 8 * MIB
"""Decompressed bytes of an input that a task holds until the input is complete, so that rows of several inputs are
staged together. Beyond: the input's rows are staged separately."""
STAGED_PIECE_MAX_BYTES: Final = 64 * MIB
"""Arrow bytes that a decode task holds. Beyond: it writes them as a staged slice."""
STAGED_TOGETHER_MAX_BYTES: Final = 4 * MIB
"""Arrow bytes of several buckets' rows in one staged stream. Beyond: each bucket has a separate stream."""
NEAR_WORK_MAX_BYTES: Final = 64 * MIB
"""Memory of the tasks that run in the pipeline's process, together. Beyond: Spark runs them."""
STORED_EXPANDS: Final = 8
"""Assumed ratio of memory to stored bytes, if unknown. Beyond: a task uses the memory that it needs."""
STAGED_ROWS_AGE_MAX_S: Final = 24 * 3600.0
"""Age of the staged rows of a transaction or a write; none takes so long. Beyond: garbage collection deletes them."""
STAGED_ROWS_LOOK_EACH_S: Final = 3600.0
"""Interval at which a pipeline lists expired staged rows. Beyond: the next run lists them."""
SMALL_TRANSACTION_SPANS: Final = 20_000
"""Spans of a transaction that one merge task handles, so that it writes one index part. Beyond: several tasks."""
UPSERT_FEW_SPANS: Final = 500
"""Spans of new traces, each seen once, whose `traces` rows are computed without a query. Beyond: a query computes
them."""
WRITTEN_TOGETHER_MAX_BYTES: Final = 16 * MIB
"""Arrow bytes of a transaction's new spans that become one part for all buckets; a part costs as much as some hundred
rows. Beyond: each bucket has separate parts."""
SHAPED_AT_ONCE_MAX_BYTES: Final = 256 * MIB
"""Arrow bytes of new spans that a task holds during a merge, and of one part that it writes. Beyond: the task holds
only a bucket's keys and its input for trace rows, and reads the rest again. Larger transactions use several tasks."""
SHAPE_TASKS_MIN: Final = 4
"""Merge tasks of a transaction that is not small. The number of cores does not count, because a replay must cut the
index in the same ranges. Beyond: as many as its spans and bytes need, at most one a bucket."""
SHAPE_TASK_SPANS: Final = 100_000
"""Spans of a large transaction per merge task. Beyond: one more task."""
PIPELINE_PAUSE_MAX_S: Final = 15.0
"""Longest backoff of a pipeline after failed runs; the backoff doubles up to it. Beyond: the next attempt."""
DISK_FULL_TOLD_EACH_S: Final = 300.0
"""How often a pipeline says in the log that a disk is full, while each of its tries finds that. Beyond: once more."""
PIPELINE_RESTART_S: Final = 1.0
"""Delay before a server restarts a pipeline process that exited; it doubles with each early exit. Beyond: the
restart."""
PIPELINE_LIVED_S: Final = 60.0
"""Uptime after which an exit of the pipeline process counts as the first. Beyond: the delay is the shortest again."""
PIPELINE_STOP_MAX_S: Final = 60.0
"""Time for the current transaction when a server stops its pipeline process. Beyond: the process is killed, and
uncommitted input is taken again."""
PIPELINE_TOLD_EACH_S: Final = 1.0
"""Interval at which the pipeline process reports its state to the server. Beyond: the next report."""
PIPELINE_HANG_S: Final = 3600.0
"""Default time without progress of the pipeline process, longer than any wait inside it and than one task. Beyond:
the server kills it and starts another."""
PIPELINE_HANG_MIN_S: Final = 60.0
"""Shortest configurable time without progress. Beyond: a shorter one is refused."""
PIPELINE_FIRST_TOLD_S: Final = 60.0
"""Time until the first report of the pipeline process; later reports have REPLICA_GONE_S. Beyond: the server reports
its silence."""
PIPELINE_KILLED_MAX_S: Final = 10.0
"""Time that a server waits for a killed pipeline process to exit. Beyond: the server stops without it."""
PIPELINE_LINE_MAX_BYTES: Final = 16 * MIB
"""One line of the protocol between server and pipeline process. Beyond: the line is ignored."""
PIPELINE_LOG_MAX_CHARS: Final = 20_000
"""One log message of the pipeline process, and one traceback. Beyond: it is truncated."""
CLOCK_DIFFERENCE_MAX_S: Final = 60.0
"""Clock skew between two machines. Beyond: a watched file with a later date is taken at once."""
WATCHED_FILE_QUIET_S: Final = 2.0
"""Time for which a watched file must not change. Beyond: it is taken."""
WATCHED_BUCKET_PAUSE_S: Final = 5.0
"""Pause after a listing of a watched bucket without new objects. Beyond: it is listed again."""
LOOK_WAIT_S: Final = 2.0
"""Time that a continuous pipeline waits for a source's poll. A source that was late is not waited for until it
answers in time. Beyond: the pipeline takes input of other sources, and late results at its next poll."""
LOOK_ONCE_MAX_S: Final = 600.0
"""Time for the poll of a single run, or for all input acknowledged before a client's commit. Beyond: the source
counts as failed, and all others are taken."""
LOOK_STOP_S: Final = 0.1
"""Longest uninterrupted wait for a source. Beyond: the pipeline checks for a stop request, and stops waiting then."""
LOOK_LATE_S: Final = 30.0
"""Duration of a poll before it is reported. Beyond: the source counts as failing until it answers."""
LOOKS_LEFT_MAX: Final = 50
"""Hanging polls of removed sources. Beyond: no new source is polled until one ends."""
WALK_ENTRIES_MAX: Final = 1_000_000
"""Files and folders that one poll of watched files, or the ingest of a pattern, visits. Beyond: the poll takes what
it found and reports the omitted folders; the ingest is refused."""
WALK_LINKS_MAX: Final = 1_000
"""Links to folders that it follows, after all else. Beyond: the poll is partial, or the ingest is refused."""
WALK_MAX_S: Final = 60.0
"""Duration of such a search for files. Beyond: the poll is partial, or the ingest is refused."""
WALK_LEFT_OUT_TOLD: Final = 3
"""Unreadable folders that it names. Beyond: they are counted."""
WATCHED_OBJECTS_AT_ONCE: Final = 1_000
"""New objects of a watched bucket that a continuous pipeline takes at a time, oldest first. Beyond: the next poll."""
OBJECTS_FOUND_MAX: Final = 1_000_000
"""Objects of a bucket that one pattern may match in an ingest or a single run. Beyond: the pattern is refused; use
several."""
JAVA_START_TIMEOUT_S: Final = 120.0
"""Start-up time of Spark's JVM. Beyond: it is killed, and the command fails with its output."""
JAVA_STOP_TIMEOUT_S: Final = 10.0
"""Shutdown time of Spark's JVM. Beyond: it is killed."""
JAVA_VERSION_TIMEOUT_S: Final = 30.0
"""Duration of `java -version`. Beyond: that Java is not used."""
JAVA_ENDED_WITHIN_S: Final = 5.0
"""Time between the closing of a JVM's sockets and its exit. Beyond: the error has another cause."""
JOBS_OF_A_JVM_MAX: Final = 200_000
"""Spark jobs of one of our JVMs; each leaks some 180 bytes there. Beyond: a new JVM runs the next job."""
JAVA_POLL_S: Final = 0.02
"""Polling interval for the start of the JVM. Beyond: the next poll."""
JAVA_HEAP_MIB: Final = 512
"""Heap of the driver's JVM; rows never pass through it. Beyond: Java fails with an error, and so does the run."""
SPARK_POLL_S: Final = 0.2
"""Polling interval for Spark's progress. Beyond: the next poll."""
SPARK_CONNECT_RETRIES: Final = 6
"""Retries of a Spark Connect server, within about half a minute. Beyond: the job fails."""
SPARK_IDLE_TIMEOUT_S: Final = 900.0
"""Time that a job may wait without an executor for any task. Beyond: it is cancelled with an explanation; input
waits."""
