"""Pipeline."""

from typing import Final

from tracelake.limits.input import MIB

PIPELINE_POLL_MIN_S: Final = 0.01
"""Shortest polling interval of a pipeline. Beyond: a shorter one is refused."""
PIPELINE_POLL_S: Final = 1.0
"""Default polling interval of a pipeline. Beyond: the next poll."""
SOURCES_MAX: Final = 100
"""Sources that users add to a lake. Beyond: one more is refused."""
NAME_MAX_CHARS: Final = 64
"""Name of a source or an output. Beyond: it is refused."""
SOURCE_ADDRESS_MAX_CHARS: Final = 4_096
"""Pattern or topic URL of an added source. Beyond: it is refused."""
TRANSACTION_INPUT_MAX_BYTES: Final = 64 * MIB
"""Stored (compressed) input of one transaction by default; a single input is always taken. Beyond: the next
transaction."""
TRANSACTION_INPUTS_MAX: Final = 5_000
"""Inputs of one transaction. Beyond: the next transaction."""
TRANSACTION_LEAST_MB: Final = 0.001
"""Smallest transaction size that a command line may set. Beyond: a smaller one is refused."""
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
"""Default silence of an explicit transaction's client. Beyond: the transaction is sealed or discarded, as the
client chose."""
CLIENT_TIMEOUT_MAX_S: Final = 6 * 3600.0
"""Longest timeout that a client may request; staged rows live longer. Beyond: more is refused."""
CLIENT_ID_MAX_CHARS: Final = 64
"""Id that a client gives its transaction; each step contains it. Beyond: it is refused."""
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
MAINTENANCE_TRIES: Final = 3
"""Consecutive failures of a table's compaction or an index merge because of a disk, store or process. Beyond: the
failing part is skipped like a damaged one, and all other work is done."""
NEAR_WORK_MAX_BYTES: Final = 64 * MIB
"""Memory of the tasks that run in the pipeline's process while Spark starts, together. Beyond: Spark runs them."""
SMALL_WORK_MAX_BYTES: Final = 16 * MIB
"""Memory of the tasks that run in the pipeline's process beside a running Spark, together. Beyond: Spark runs them."""
STORED_EXPANDS: Final = 8
"""Assumed ratio of memory to stored bytes, if unknown. Beyond: a task uses the memory that it needs."""
STAGED_ROWS_AGE_MAX_S: Final = 24 * 3600.0
"""Age of the staged rows of a transaction or a write; none takes so long. Beyond: garbage collection deletes
them."""
SHAPED_AT_ONCE_MAX_BYTES: Final = 256 * MIB
"""Arrow bytes of new spans that a task holds during a merge, and of one part that it writes. Beyond: the task holds
only a bucket's keys and its input for trace rows, and reads the rest again. Larger transactions use several
tasks."""
PIPELINE_PAUSE_MAX_S: Final = 15.0
"""Longest backoff of a pipeline after failed runs; the backoff doubles up to it. Beyond: the next attempt."""
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
PIPELINE_LINE_MAX_BYTES: Final = 16 * MIB
"""One line of the protocol between server and pipeline process. Beyond: the line is ignored."""
CLOCK_DIFFERENCE_MAX_S: Final = 60.0
"""Clock skew between two machines. Beyond: a watched file with a later date is taken at once."""
WATCHED_FILE_QUIET_S: Final = 2.0
"""Time for which a watched file must not change. Beyond: it is taken."""
WALK_ENTRIES_MAX: Final = 1_000_000
"""Files and folders that one poll of watched files, or the ingest of a pattern, visits. Beyond: the poll takes what
it found and reports the omitted folders; the ingest is refused."""
WALK_LINKS_MAX: Final = 1_000
"""Links to folders that it follows, after all else. Beyond: the poll is partial, or the ingest is refused."""
WALK_MAX_S: Final = 60.0
"""Duration of such a search for files. Beyond: the poll is partial, or the ingest is refused."""
OBJECTS_FOUND_MAX: Final = 1_000_000
"""Objects of a bucket that one pattern may match in an ingest or a single run. Beyond: the pattern is refused; use
several."""
JAVA_START_TIMEOUT_S: Final = 120.0
"""Start-up time of Spark's JVM. Beyond: it is killed, and the command fails with its output."""
SPARK_IDLE_TIMEOUT_S: Final = 900.0
"""Time that a job may wait without an executor for any task. Beyond: it is cancelled with an explanation; input
waits."""
REPLICA_GONE_S: Final = 12.0
"""Time without a heartbeat of a replica. Beyond: it shows as gone."""
REPLICA_STUCK_S: Final = 120.0
"""Time without progress of a replica. Beyond: it shows as stuck; a failing one does so at once."""
PRICES_MAX: Final = 500
"""Own prices of a lake. Beyond: another one is refused."""
REPRICED_SPANS_MAX: Final = 10_000
"""Spans whose cost one transaction corrects; a trace is never divided. Beyond: the next transaction."""
