"""Input."""

from typing import Final

MIB: Final = 1024 * 1024

OTLP_LINE_MAX_BYTES: Final = 64 * MIB
"""One line of a JSON-lines file, or one framed protobuf message, decompressed. Beyond: the file is refused from
there on."""
OTLP_PAYLOAD_MESSAGES_MAX: Final = 8_000_000
"""Spans, events, links, attributes, resources and scopes of such a line or message, together. Beyond: it is
refused."""
OTLP_REQUEST_MAX_BYTES: Final = 32 * MIB
"""One HTTP request body, decompressed. Beyond: the answer is 413."""
OTLP_REQUEST_SPANS_MAX: Final = 100_000
"""Spans of one request; for protobuf, resources and scopes count too. Beyond: the answer is 413."""
OTLP_REQUEST_MESSAGES_MAX: Final = 1_000_000
"""Spans, events, links, attributes, resources and scopes of one request, together. Beyond: the answer is 413."""
OTLP_REQUEST_VALUES_MAX: Final = 5_000_000
"""Objects, arrays and commas of one JSON request; they are counted before it is parsed. Beyond: the answer is
413."""
OTLP_CAREFUL_VALUES_MAX: Final = 1_000_000
"""The same, or fields of protobuf, of an invalid request, which is decoded span by span. Beyond: the answer is 413."""
OTLP_TEXT_MAX_BYTES: Final = 16 * MIB
"""One string, bytes or nested value of an attribute. Beyond: its span is refused and named."""
MESSAGES_MAX: Final = 1_000
"""Messages that columns `input` and `output` take from numbered attributes or events of a span. Beyond: the column
lacks them; they stay in attributes and events."""
MESSAGE_PARSED_MAX_BYTES: Final = MIB
"""A message that an event carries as JSON text and that is parsed. Beyond: the text is the message's content."""
MESSAGE_WRAPPERS_MAX: Final = 6
"""Objects inside of each other around the messages of a request or a state. Beyond: they are not read as messages."""
OTLP_NESTING_MAX: Final = 32
"""Levels of arrays and maps inside one attribute value. Beyond: its span is refused and named."""
OTLP_JSON_DEPTH_MAX: Final = 200
"""Nesting depth of OTLP/JSON. Beyond: the value is ignored; no accepted value is so deep."""
OTLP_JSON_NUMBER_MAX_CHARS: Final = 100
"""Digits of a JSON integer. Beyond: it is read as a float, which no OTLP field accepts."""
OTLP_BLOCK_BYTES: Final = MIB
"""Bytes read, decompressed or scanned in one piece. Beyond: the next piece."""
ZSTD_READ_BYTES: Final = 1024
"""Input passed to zstd at a time. Its output is unbounded, up to 32 MiB for 1 KiB. Beyond: the next piece."""
SPANS_EXPANDED_MAX_BYTES: Final = 1024 * MIB
"""Arrow bytes of one payload, with its resources repeated for every span. Beyond: the remaining spans are
refused."""
PROBLEMS_MAX: Final = 20
"""Problems described for one input. Beyond: they are only counted."""
PROBLEM_MAX_CHARS: Final = 500
"""Description of one problem, or of a failed task or check. Beyond: it is truncated."""
ERROR_MAX_CHARS: Final = 1_000
"""Error message of a store or a replica. Beyond: it is truncated."""
LOG_TAIL_MAX_CHARS: Final = 2_000
"""Log tail of a process that failed to start, as quoted in the error. Beyond: the beginning is omitted."""
QUOTED_MAX_CHARS: Final = 100
"""Query, condition, page token or id quoted in an error. Beyond: it is truncated."""
NAME_QUOTED_MAX_CHARS: Final = 40
"""Overlong key, path or name quoted in an error. Beyond: it is truncated."""
KAFKA_WAIT_S: Final = 10.0
"""Time for a reply of a Kafka broker, or for the next message of a range. Beyond: the input waits, or the output
fails; both are retried."""
KAFKA_TRANSACTION_MAX_S: Final = 120.0
"""Duration of a Kafka transaction. Beyond: it is aborted, and the output tries again."""
KAFKA_MESSAGE_MAX_BYTES: Final = 64 * MIB
"""Size of a sent message; a topic may allow less (max.message.bytes). Beyond: the row is omitted and reported."""
OUTPUT_LEFT_OUT_NAMED_MAX: Final = 100
"""Omitted rows of an output that are named, per transaction or among the last few. Beyond: they are counted."""
