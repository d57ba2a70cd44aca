"""Kafka."""

from typing import Final

from tracelake.limits.units import MIB

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
OUTPUT_PARTITIONS_TOLD_MAX: Final = 200
"""Partitions of an output whose offsets are kept of a transaction. Beyond: only how many messages there are in all."""
KAFKA_MARKERS_READ: Final = 200
"""Offsets at the end of its markers that an output looks at first. Beyond: it looks at all of them."""
OUTPUT_MESSAGE_BYTES: Final = 512 * 1024
"""Rows of one message of an output, as they are in memory. Beyond: the next message; a row alone is one."""
OUTPUT_WRITE_TRIES_MAX: Final = 3
"""How often one run tries to write a transaction to an output. Beyond: it fails, and the next run goes on."""
KAFKA_CLIENTS_KEPT_MAX: Final = 16
"""Clients that a process keeps for clusters of Kafka. Beyond: the one that was used least recently is let go."""
