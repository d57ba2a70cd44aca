"""Server."""

from typing import Final

from tracelake.limits.units import MIB

TLS_LOOK_S: Final = 10.0
"""How long a server goes by what its certificate was when somebody connected. Beyond: it reads the files again."""
INBOX_QUEUE_MAX_REQUESTS: Final = 1_000
"""Requests that wait for the next inbox segment. Beyond: the answer is 503."""
INBOX_QUEUE_MAX_BYTES: Final = 256 * MIB
"""Their bytes; one request alone is always taken. Beyond: the answer is 503."""
REQUESTS_MEMORY_MAX_BYTES: Final = 2048 * MIB
"""What all requests together may take as sent, decompressed and decoded. Beyond: the answer is 503, or 413 where one
alone takes more."""
REQUEST_APART_MAX_BYTES: Final = 256 * MIB
"""The traces of one request, where a hot tier keeps each with its resources and scopes. Beyond: the answer is 413."""
DISCARDED_BODY_MAX_BYTES: Final = 128 * MIB
"""Request body that is discarded before an answer that does not need it, such as 401 or 413. Beyond: the answer
is sent, the connection is closed, and as much again is discarded until the client closes it too."""
DISCARDED_BODY_MAX_S: Final = 30.0
"""Time to discard a request body, before the answer and again after it. Beyond: as for its bytes."""
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
READS_AT_ONCE_MAX: Final = 16
"""Reads that a server answers at once: pages, API, searches, exports, MLflow's searches. Beyond: they wait."""
READS_PER_KEY_MAX: Final = 6
"""Those of one key or session, so that others get slots. Beyond: they wait."""
CHANGES_AT_ONCE_MAX: Final = 16
"""Changes that a server makes at once by requests, without OTLP. Beyond: they wait."""
CHANGES_PER_KEY_MAX: Final = 8
"""Those of one key or session. Beyond: they wait."""
PROBES_AT_ONCE_MAX: Final = 4
"""Requests of `/readyz`, and of `/metrics`, that a server answers at once, each with threads of its own. Beyond: they
wait."""
PROBES_PER_KEY_MAX: Final = 2
"""Those of one key or session. Beyond: they wait."""
PUBLIC_AT_ONCE_MAX: Final = 8
"""Requests of the sign-in page and static files that a server answers at once, and of sign-ins by a provider. Beyond:
they wait."""
REQUESTS_WAITING_PER_KEY_MAX: Final = 64
"""Requests of one key that wait for a slot of one kind. Beyond: the answer is 503."""
REQUEST_WAIT_S: Final = 20.0
"""How long a request waits for a slot. Beyond: the answer is 503."""
READ_DEADLINE_S: Final = 60.0
"""How long a read may take until its answer begins. Beyond: the answer is 503, and what can be interrupted is; the slot
is free when the work has really ended."""
THREADS_SPARE: Final = 8
"""Threads of a server beside one for each of these requests. Beyond: error answers wait."""
DESCRIPTORS_WANTED: Final = 65_536
"""Open files to which a server and the command line raise their soft limit, where the hard limit allows it. Beyond: the
limit stays."""
DESCRIPTORS_RESERVED: Final = 256
"""Open files that stay free for stores: DuckDB ends the process if it cannot open one. Beyond: reads get 503."""
DESCRIPTORS_RESERVED_SHARE: Final = 4
"""The reserve is no more than one of so many files of a low limit. Beyond: it is smaller."""
READY_SPACE_MIN_BYTES: Final = 64 * MIB
"""Free space of the lake's, the cache's and the temporary file system, where these are directories. Beyond: with less,
`/readyz` answers 503."""
ACCEPTED_AT_ONCE: Final = 8
"""HTTP connections that are accepted before those that are too many are ended: each has a descriptor. Beyond: they wait
in the backlog."""
