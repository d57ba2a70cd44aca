"""Server."""

from typing import Final

from tracelake.limits.units import MIB

TLS_LOOK_S: Final = 10.0
"""Time for which a server trusts its certificate files as last read when a client connects. Beyond: it reads the
files again."""
INBOX_QUEUE_MAX_REQUESTS: Final = 1_000
"""Requests that wait for the next inbox segment. Beyond: the answer is 503."""
INBOX_QUEUE_MAX_BYTES: Final = 256 * MIB
"""Bytes of the requests that wait for it; a single request is always accepted. Beyond: the answer is 503."""
REQUESTS_MEMORY_MAX_BYTES: Final = 2048 * MIB
"""Memory of all requests together: as sent, decompressed and decoded. Beyond: the answer is 503, or 413 if a single
request takes more."""
REQUEST_APART_MAX_BYTES: Final = 256 * MIB
"""Traces of one request in a hot tier, which stores each with its resources and scopes. Beyond: the answer is 413."""
DISCARDED_BODY_MAX_BYTES: Final = 128 * MIB
"""Request body that is discarded before an answer that does not need it, such as 401 or 413. Beyond: the answer is
sent and the connection closed; as much again is discarded until the client closes it too."""
DISCARDED_BODY_MAX_S: Final = 30.0
"""Time to discard a request body, before the answer and again after it. Beyond: the answer is sent and the connection
closed, as for its bytes."""
COMPRESSED_MEMBERS_MAX: Final = 1_000
"""Members of one gzip body, or frames of one zstd body. Beyond: the answer is 400."""
ZSTD_WINDOW_MAX_BYTES: Final = 8 * MIB
"""Window of a zstd body, as RFC 8878 requires of every decoder. Beyond: the answer is 400."""
DECOMPRESSED_PIECE_BYTES: Final = 256 * 1024
"""Bytes decompressed before more memory is reserved. Beyond: the next piece."""
DECODE_THREADS_MAX: Final = 4
"""Requests that one Python process decompresses or decodes concurrently. Beyond: they wait."""
DECODED_AT_ONCE_MAX_BYTES: Final = 64 * 1024
"""Request decompressed or decoded on the event loop, which briefly blocks others. Beyond: a thread does it."""
SEGMENT_WAIT_S: Final = 0.05
"""Default time that a request waits for others to share its segment. Beyond: it is written."""
GATHERING_QUIET_TURNS: Final = 4
"""Consecutive turns of the event loop without a new request; a request takes three turns to be read and started.
Beyond: the gathered requests are written."""
INBOX_SEGMENT_MAX_BYTES: Final = 32 * MIB
"""Default payload of a segment; a single request may be larger. Beyond: the next segment takes the request."""
INBOX_SEGMENTS_MAX: Final = 10_000
"""Pending segments of the pipeline, without quarantined ones. Beyond: the answer is 503."""
INBOX_ACK_TIMEOUT_S: Final = 20.0
"""Time until a request is durable. Beyond: the answer is 503."""
READS_AT_ONCE_MAX: Final = 16
"""Concurrent reads of a server: pages, API, searches, exports, MLflow's searches. Beyond: they wait."""
READS_PER_KEY_MAX: Final = 6
"""Concurrent reads of one key or session, so that others get slots. Beyond: they wait."""
CHANGES_AT_ONCE_MAX: Final = 16
"""Concurrent changes of a server by requests other than OTLP. Beyond: they wait."""
CHANGES_PER_KEY_MAX: Final = 8
"""Concurrent changes of one key or session. Beyond: they wait."""
PROBES_AT_ONCE_MAX: Final = 4
"""Concurrent requests of `/readyz`, and of `/metrics`, each kind with separate threads. Beyond: they wait."""
PROBES_PER_KEY_MAX: Final = 2
"""Concurrent probes of one key or session. Beyond: they wait."""
PUBLIC_AT_ONCE_MAX: Final = 8
"""Concurrent requests for the sign-in page and static files, and of sign-ins through a provider. Beyond: they wait."""
REQUESTS_WAITING_PER_KEY_MAX: Final = 64
"""Requests of one key that wait for one kind of slot. Beyond: the answer is 503."""
REQUEST_WAIT_S: Final = 20.0
"""Wait of a request for a slot. Beyond: the answer is 503."""
READ_DEADLINE_S: Final = 60.0
"""Time until the response to a read begins. Beyond: the answer is 503, and interruptible work is cancelled; the slot
is freed when the work has really ended."""
THREADS_SPARE: Final = 8
"""Threads of a server in addition to one per concurrent request. Beyond: error responses wait."""
DESCRIPTORS_WANTED: Final = 65_536
"""Open files to which a server and the command line raise their soft limit, if the hard limit allows it. Beyond: the
limit stays."""
DESCRIPTORS_RESERVED: Final = 256
"""Open files reserved for stores, because DuckDB ends the process if it cannot open one. Beyond: reads get 503."""
DESCRIPTORS_RESERVED_SHARE: Final = 4
"""Divisor that caps this reserve under a low limit of open files. Beyond: the reserve is smaller."""
READY_SPACE_MIN_BYTES: Final = 64 * MIB
"""Free space of the lake's, the cache's and the temporary file system, where these are directories. Beyond: with less,
`/readyz` answers 503."""
ACCEPTED_AT_ONCE: Final = 8
"""HTTP connections that are accepted before those that are too many are ended: each has a descriptor. Beyond: they wait
in the backlog."""
