"""Kafka."""

from typing import Final

from tracelake.limits.units import MIB

KAFKA_WAIT_S: Final = 10.0
"""Time for a reply of a Kafka broker, or for the next message of a range. Beyond: the input waits, or the output
fails; both are retried."""
KAFKA_ASKED_AGAIN_MAX_S: Final = 10 * 60.0
"""Longest backoff before an unreachable cluster is asked again about discarded offsets or consumer offsets to store;
the backoff doubles up to it. Beyond: the next attempt."""
KAFKA_RANGE_FIRST_MESSAGES: Final = 100
"""Messages in the first range of a partition, while their size is unknown. Beyond: the next range."""
KAFKA_RANGE_MESSAGES_MAX: Final = 10_000
"""Messages in one range. Beyond: the next range."""
KAFKA_RANGE_BYTES: Final = 4 * MIB
"""Target size of a range, by the mean message size of earlier ranges. Beyond: the next range; a single message is
always taken."""
KAFKA_RANGES_AT_ONCE: Final = 64
"""Ranges of one partition that one poll returns. Beyond: a later poll."""
KAFKA_READ_MESSAGES: Final = 1_000
"""Messages fetched from the client in one call. Beyond: the next call."""
KAFKA_READ_AHEAD_BYTES: Final = 16 * MIB
"""Bytes that a client prefetches. Beyond: it waits."""
KAFKA_TRANSACTION_MAX_S: Final = 120.0
"""Duration of a Kafka transaction. Beyond: it is aborted, and the output tries again."""
KAFKA_MESSAGE_MAX_BYTES: Final = 64 * MIB
"""Size of a sent message; a topic may allow less (max.message.bytes). Beyond: the row is omitted and reported."""
KAFKA_MESSAGE_OVERHEAD_BYTES: Final = 512
"""Size of a message apart from its value. Beyond: the broker refuses the message, and it is omitted."""
KAFKA_BATCH_MAX_BYTES: Final = 1_000_000
"""Messages sent in one batch, or less if the topic allows less. Beyond: the next batch."""
KAFKA_QUEUE_BYTES: Final = 64 * MIB
"""In-flight messages of an output, at least one message of maximum size. Beyond: the output waits."""
KAFKA_RECEIVE_MAX_BYTES: Final = 2**31 - 1
"""Size of a broker's response; a message larger than a range comes alone. Beyond: the client cannot be configured for
more."""
KAFKA_STATISTICS_S: Final = 1.0
"""Interval at which a client without messages checks its progress, for example past aborted messages. Beyond: the
next check."""
OUTPUT_LEFT_OUT_TOLD: Final = 3
"""Omitted rows of an output that one line of `status` names. Beyond: `output list --json` shows them."""
OUTPUT_LEFT_OUT_NAMED_MAX: Final = 100
"""Omitted rows of an output that are named, per transaction or among the last few. Beyond: they are counted."""
OUTPUT_PARTITIONS_TOLD_MAX: Final = 200
"""Partitions of an output whose offsets are recorded for a transaction. Beyond: only the number of messages is
recorded."""
KAFKA_MARKERS_READ: Final = 200
"""Offsets at the end of the marker topic that an output reads first. Beyond: it reads all of them."""
OUTPUT_MESSAGE_BYTES: Final = 512 * 1024
"""In-memory size of the rows in one output message. Beyond: the next message; a single row is always one message."""
OUTPUT_WRITE_TRIES_MAX: Final = 3
"""Attempts of one run to write a transaction to an output. Beyond: the run fails, and the next run continues."""
KAFKA_CLIENTS_KEPT_MAX: Final = 16
"""Kafka clients that a process keeps. Beyond: the least recently used one is closed."""
