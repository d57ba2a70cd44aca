"""Pipeline."""

from typing import Final

from tracelake.limits.units import MIB

PIPELINE_POLL_MIN_S: Final = 0.01
"""How often a pipeline may look for new input. Beyond: a shorter interval is refused."""
PIPELINE_POLL_S: Final = 1.0
"""How often a pipeline looks for new input, by default. Beyond: it looks again."""
LOOK_TRANSACTIONS: Final = 4
"""Transactions, as large as they are by now, of whose input one look of a pipeline that goes on gives. Beyond: the next
look, which sees what has come to other sources, or was paused, meanwhile."""
SOURCES_MAX: Final = 100
"""Sources that users add to a lake. Beyond: one more is refused."""
NAME_MAX_CHARS: Final = 64
"""The name of a source or an output. Beyond: it is refused."""
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
CLIENTS_ENDED_MAX: Final = 50
"""Explicit transactions that are over and of which is known what became of them. Beyond: an older one is not known."""
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
MAINTENANCE_BEHIND_MAX: Final = 256
"""Transactions that a pipeline makes beside one pass of maintenance. Beyond: it waits for that."""
MAINTENANCE_TRIES: Final = 3
"""Times in a row that a disk, store or process which fails has ended the compaction of a table, or the merging of the
index. Beyond: what fails is passed by, as what is damaged is, and all else is done."""
MAINTENANCE_PAUSE_MAX_S: Final = 600.0
"""The longest pause before compaction or merges that failed are tried again; it doubles up to there. Beyond: they
are."""
TRY_NOTES_MAX: Final = 100
"""Notes of processes that died, or are at it. Beyond: the oldest are forgotten."""
ASIDE_REASON_MAX_CHARS: Final = 1_000
"""What is kept of the error for which an input was set aside. Beyond: it is cut."""
STRIPE_INPUT_BYTES: Final = 8 * MIB
"""Stored bytes of a file for each task that decodes it; each decompresses the whole file. Beyond: one more task."""
SMALL_SEGMENT_MAX_BYTES: Final = 256 * 1024
"""Bytes of a segment of the inbox, stored and decompressed, that are read at once. Beyond: it is read in pieces."""
STRIPES_MAX: Final = 16
"""Tasks that may share one file, so that they do not all but read the same bytes: of a file of gzip each reads for as
long as it decodes by then. Beyond: each of them decodes more of it."""
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
STAGED_ROWS_LOOK_EACH_S: Final = 3600.0
"""How often a pipeline looks for staged rows that are too old, a listing each. Beyond: the next run looks."""
SMALL_TRANSACTION_SPANS: Final = 20_000
"""Spans of a transaction that one task shapes, so that there is one index part. Beyond: several do."""
UPSERT_FEW_SPANS: Final = 500
"""Spans of new traces, each once, whose rows of table `traces` are made without a query. Beyond: by one."""
WRITTEN_TOGETHER_MAX_BYTES: Final = 16 * MIB
"""Arrow bytes of the new spans of a transaction that become one part for all buckets: a part costs as much as some
hundred rows. Beyond: each bucket has parts of its own."""
SHAPED_AT_ONCE_MAX_BYTES: Final = 256 * MIB
"""Arrow bytes of new spans that a task holds while it merges them, and of one part that it writes. Beyond: of such a
bucket it holds the keys and what the row of the trace is made of, and reads the rest again; and a transaction of more
is shaped by several tasks, one for each so many."""
SHAPE_TASKS_MIN: Final = 4
"""Tasks that shape a transaction that is not small: not the number of cores, for a replay must cut the index in the
same ranges. Beyond: as many as its spans and bytes need, one a bucket at most."""
SHAPE_TASK_SPANS: Final = 100_000
"""Spans of a large transaction for each such task. Beyond: one more task."""
PIPELINE_PAUSE_MAX_S: Final = 15.0
"""The longest pause of a pipeline between two tries, after runs that failed; it doubles up to there. Beyond: it tries
again."""
DISK_FULL_TOLD_EACH_S: Final = 300.0
"""How often a pipeline says in the log that a disk is full, while each of its tries finds that. Beyond: once more."""
PIPELINE_RESTART_S: Final = 1.0
"""How long a server waits before it starts the process of its pipeline again, which ended by itself; twice as long each
time that follows soon. Beyond: it starts it."""
PIPELINE_LIVED_S: Final = 60.0
"""How long that process has lived if its end is the first of its kind. Beyond: the pause is the shortest again."""
PIPELINE_STOP_MAX_S: Final = 60.0
"""What the transaction under way has to finish when a server ends the process of its pipeline. Beyond: it is killed,
and what it had not committed is taken again."""
PIPELINE_TOLD_EACH_S: Final = 1.0
"""How often that process tells its server how it is. Beyond: it tells again."""
PIPELINE_HANG_S: Final = 3600.0
"""How long that process may make no step, by default: longer than any wait below it, and than one task of a transaction
takes. Beyond: it is killed, and the server starts another."""
PIPELINE_HANG_MIN_S: Final = 60.0
"""What it may be told. Beyond: less is refused."""
PIPELINE_FIRST_TOLD_S: Final = 60.0
"""What it may take until it tells so for the first time; from then on REPLICA_GONE_S. Beyond: the server says that it
has told nothing."""
PIPELINE_KILLED_MAX_S: Final = 10.0
"""How long a server waits for that process to be gone once it has killed it. Beyond: the server ends without it."""
PIPELINE_LINE_MAX_BYTES: Final = 16 * MIB
"""One line that the two tell each other. Beyond: it is not understood, and left out."""
PIPELINE_LOG_MAX_CHARS: Final = 20_000
"""What that process logs at a time, and the same of a traceback. Beyond: it is cut."""
CLOCK_DIFFERENCE_MAX_S: Final = 60.0
"""How far the clocks of two machines may be apart. Beyond: a watched file that is dated later is taken at once."""
WATCHED_FILE_QUIET_S: Final = 2.0
"""How long nobody has changed a watched file. Beyond: it is taken."""
WATCHED_BUCKET_PAUSE_S: Final = 5.0
"""How long after a listing of a watched bucket that had nothing new. Beyond: it is listed again."""
LOOK_WAIT_S: Final = 2.0
"""How long a pipeline that goes on waits for a look at a source, and once it was late for none of that source until one
is quick. Beyond: it takes what others have, and what was seen when it looks again."""
LOOK_ONCE_MAX_S: Final = 600.0
"""The same for who looks only once, or for all that servers acknowledged before a client's end. Beyond: the source has
failed, and all others are taken."""
LOOK_STOP_S: Final = 0.1
"""How long it waits for an answer at a stretch. Beyond: it looks whether it is to stop, and waits for none then."""
LOOK_LATE_S: Final = 30.0
"""How long a look at a source may take before that is told. Beyond: it counts as failing until it answers."""
LOOKS_LEFT_MAX: Final = 50
"""Looks without an end at sources that are removed by now. Beyond: no new source is looked at until one ends."""
WALK_ENTRIES_MAX: Final = 1_000_000
"""Files and folders that one look at watched files goes through, or an ingest of a pattern. Beyond: the look takes what
it has met, and names what was left out; the ingest is refused."""
WALK_LINKS_MAX: Final = 1_000
"""Links to folders that it follows, after all else. Beyond: as above."""
WALK_MAX_S: Final = 60.0
"""How long it goes on. Beyond: as above."""
WALK_LEFT_OUT_TOLD: Final = 3
"""Folders that could not be looked at which it names. Beyond: they are counted."""
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
JOBS_OF_A_JVM_MAX: Final = 200_000
"""Jobs of Spark in a JVM of ours, each of which leaves some 180 bytes in it. Beyond: the next one has a new JVM."""
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
