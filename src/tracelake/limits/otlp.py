"""OTLP input."""

from typing import Final

from tracelake.limits.units import MIB

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
OTLP_REQUEST_VALUES_MAX: Final = 5_000_000
"""Objects, arrays and commas of one JSON request; they are counted before it is parsed. Beyond: the answer is 413."""
OTLP_CAREFUL_VALUES_MAX: Final = 1_000_000
"""The same, or messages and other fields of protobuf, of a request that the fast decoder refuses, so that the careful
one reads it. Fields of protobuf that are no messages are bounded by it, and one for each message, in any request.
Beyond: the answer is 413."""
OTLP_COUNTED_MIN: Final = 100_000
"""Opening braces or tags of protobuf that a request may have before its structure is counted. Beyond: it is counted."""
DECOMPRESSED_AT_ONCE_MAX_BYTES: Final = 2 * 1024
"""A compressed request that is decompressed without going to a thread. Beyond: a thread does it."""
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
