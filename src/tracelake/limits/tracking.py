"""Tracking store."""

from typing import Final

from tracelake.limits.units import MIB

TRACKING_NAME_MAX_CHARS: Final = 500
"""Name, model, session or user in a column of the tracking store. Beyond: the column is truncated; the span stays
complete."""
TRACKING_KEY_MAX_CHARS: Final = 250
"""Key of a tag, or an id that is not a trace id. Beyond: it is refused."""
EXPERIMENT_ID_MAX_BYTES: Final = 500
"""Id of an experiment in a request, as UTF-8. With the longest workspace name it forms one index key, and PostgreSQL
allows 2,704 bytes. Beyond: it is refused."""
TRACKING_VALUE_MAX_CHARS: Final = 8_000
"""Value of a tag. Beyond: it is refused."""
EXPERIMENT_TAG_MAX_CHARS: Final = 5_000
"""Value of an experiment's tag. Beyond: it is refused."""
ANNOTATIONS_MAX: Final = 1_000
"""Tags, and assessments, of one trace or experiment. Beyond: one more is refused."""
ASSESSMENT_MAX_BYTES: Final = 64 * 1024
"""An assessment as JSON. Beyond: it is refused."""
TAGS_SHOWN_MAX: Final = 20
"""Tags of a trace that a page shows. Beyond: the API returns them."""
TAG_SHOWN_MAX_CHARS: Final = 200
"""Shown value of one tag. Beyond: it is truncated."""
TAGGED_TRACES_MAX: Final = 10_000
"""Traces that a tag filter may select. Beyond: it is refused; add more tags."""
EXPERIMENTS_SHOWN_MAX: Final = 1_000
"""Experiments in a list, the newest. Beyond: others can be opened by id and name."""
TRACKING_PREVIEW_MAX_CHARS: Final = 1_000
"""Input and output of a trace in lists. Beyond: they are truncated; the spans keep them whole."""
TRACKING_BUSY_TIMEOUT_S: Final = 10.0
"""Wait of a write for the tracking store, if others write or it does not reply. Beyond: an error, and 503 for a
request."""
TRACKING_POOL_MAX: Final = 16
"""Connections of one process to the tracking store. Beyond: threads wait for one."""
TRACKING_SEARCH_TIMEOUT_S: Final = 20.0
"""Duration of an MLflow filter search in SQLite. Beyond: 400, with a suggestion."""
TRACKING_SEARCH_POLL_STEPS: Final = 10_000
"""SQLite steps between two checks of that duration. Beyond: the next check."""
TRACKING_SEARCHES_MAX: Final = 4
"""Concurrent searches of this kind in a process; writers use the other connections. Beyond: a search waits."""
TRACKING_SEARCH_WAIT_S: Final = 5.0
"""Wait of such a search for its turn. Beyond: 503."""
TRACKING_IDS_AT_ONCE: Final = 500
"""Traces or outbox rows in one statement. Beyond: another statement."""
OUTBOX_IN_PARTS_MAX_SHARE: Final = 1.5
"""Size of a request split by trace, each with its resources, as a share of the size as sent. Beyond: the outbox
stores the request as sent."""
OUTBOX_ROWS_MAX: Final = 100_000
"""Pending outbox rows of a lake. Beyond: requests get 503 until the pipeline has taken some."""
OUTBOX_LOOK_MAX: Final = 2_000
"""Outbox rows that one poll of a pipeline returns. Beyond: the next poll."""
UNCOMMITTED_TRACES_MAX: Final = 500
"""Partly or wholly uncommitted traces that lists show in addition to the tables. Beyond: the newest are shown, and
the others once they are committed; each can be read by id."""
UNCOMMITTED_LIST_MAX_BYTES: Final = 32 * MIB
"""Uncommitted OTLP of all such traces that lists read. Beyond: the newest are shown, and the others once they are
committed."""
UNCOMMITTED_LIST_TRACE_MAX_BYTES: Final = 4 * MIB
"""Uncommitted OTLP of one such trace. Beyond: lists show its committed state; it can be read by id."""
UNCOMMITTED_LIST_TRACE_MAX_SPANS: Final = 10_000
"""Committed spans of one such trace. Beyond: lists show its committed state; it can be read by id."""
UNCOMMITTED_LIST_MAX_SPANS: Final = 100_000
"""Committed spans of all such traces. Beyond: only the newest traces include uncommitted spans."""
UNCOMMITTED_ROWS_MAX_BYTES: Final = 256 * MIB
"""Memory of uncommitted rows in lists, and in searches, with resource and scope at each span. Beyond: lists show the
others in their committed state, and a search reports that it did not read them."""
UNCOMMITTED_PART_ROWS_MAX_BYTES: Final = 32 * MIB
"""Memory of one trace's rows from one request, if they expand much, and of the rows that one search indexes itself.
Beyond: lists show the committed state, and a search reports that it did not read them."""
UNCOMMITTED_PART_GROWTH_MAX: Final = 8
"""Ratio of such rows to their OTLP; text takes two to three times. Beyond: the limit above applies, as for a large
resource with many small spans."""
UNCOMMITTED_LIST_WAIT_S: Final = 30.0
"""Wait of a list for the lists of others. Beyond: 503."""
HOT_TRACE_PARTS: Final = 64
"""Pieces of a hot trace, as received, that every read decodes. Beyond: only uncommitted pieces are decoded, by one
thread at a time; the rest comes from the tables."""
HOT_TRACE_BYTES: Final = MIB
"""OTLP bytes of a hot trace that every read decodes. Beyond: only uncommitted pieces are decoded, by one thread at a
time; the rest comes from the tables."""
HOT_TRACE_WAIT_S: Final = 30.0
"""Wait of such a read for others. Beyond: 503."""
UNCOMMITTED_SEARCH_MAX_BYTES: Final = 64 * MIB
"""OTLP of uncommitted spans that searches cover, the newest. Beyond: a result reports that the rest is not searched
yet."""
UNCOMMITTED_SEARCH_ROWS_MAX: Final = 4_000
"""Outbox rows with such spans. Beyond: a result reports that the rest is not searched yet."""
UNCOMMITTED_SEARCH_LEFT_BYTES: Final = MIB
"""OTLP of uncommitted spans that searches index while a pipeline is active. Beyond: new input is left to the
pipeline, which commits it soon; a search indexes only what its prefilter selects."""
UNCOMMITTED_SEARCH_SIFTED_MAX_BYTES: Final = MIB
"""OTLP of spans left to the pipeline that a search's prefilter selects and the search indexes. Beyond: it indexes the
newest, and reports that the rest is not searched yet."""
UNCOMMITTED_AT_WORK_S: Final = 5.0
"""Time since one of the oldest rows left the outbox, in which a pipeline counts as active. Beyond: the server indexes
all new input itself."""
UNCOMMITTED_OLDEST_ROWS: Final = 64
"""Oldest outbox rows, one of which must leave to show an active pipeline. Beyond: with so many stuck rows, the
pipeline counts as idle."""
UNCOMMITTED_SEARCH_BUILD_S: Final = 1.0
"""Time that a search spends on indexing new spans. Beyond: it reports what it did not search, and the next search
continues."""
UNCOMMITTED_SEARCH_WAIT_S: Final = 1.0
"""Wait of a search for others that index new spans. Beyond: it searches the existing index, and reports that."""
UNCOMMITTED_SEARCH_STEP_BYTES: Final = 4 * MIB
"""Spans that one indexing step of a search covers. Beyond: another step, if time is left."""
UNCOMMITTED_SEARCH_PARTS_MERGED: Final = 24
"""Index parts of similar size with such spans, and twice as many if only searches build them. Beyond: they are
merged, as far as a step has room."""
UNCOMMITTED_AHEAD_EVERY_S: Final = 0.25
"""Interval at which a server indexes new spans ahead of searches. Beyond: the next round; a search indexes itself."""
UNCOMMITTED_AHEAD_STEP_BYTES: Final = MIB
"""Spans that one step ahead of searches covers. Beyond: another step, after searches had a turn."""
UNCOMMITTED_AHEAD_TURN_S: Final = 0.02
"""Length of that turn. Beyond: the next step, unless a search is indexing."""
UNCOMMITTED_AHEAD_FOR_S: Final = 10.0
"""Time after a search for which indexing ahead continues. Beyond: it rests until the next search."""
UNCOMMITTED_AHEAD_FAILED_S: Final = 5.0
"""Rest after a failure of indexing ahead. Beyond: the next attempt."""
UNCOMMITTED_AHEAD_STOP_MAX_S: Final = 10.0
"""Time that a stopping server waits for the current step. Beyond: it abandons the step; nothing is lost."""
UNCOMMITTED_SEARCH_TRIES_MAX: Final = 3
"""Restarts of a search because its index was rebuilt with other settings. Beyond: it searches only commits, and
reports that."""
UNCOMMITTED_SEARCHES_KEPT: Final = 4
"""Searches whose uncommitted spans are kept for further pages. Beyond: the next page assembles them again."""
UNCOMMITTED_RUN_GAP_MAX: Final = 64
"""Missing row numbers between two outbox rows of one run in a page token. Beyond: another run."""
UNCOMMITTED_RUNS_MAX: Final = 8
"""Runs of outbox rows in a page token. Beyond: the newest are searched, and the result reports that."""
TRACKING_LOOK_S: Final = 5.0
"""Interval at which a pipeline checks whether its lake has a tracking store. Beyond: the next check."""
INGEST_RETRY_AFTER_S: Final = 5
"""Retry delay that a 503 response requests. Beyond: the client may send again."""
TRACE_PAGE_SPANS_MAX: Final = 2_000
"""Spans on one page of a trace in the web UI. Beyond: the next page."""
TRACE_API_SPANS_MAX: Final = 5_000
"""Spans of one trace in one answer of `/api/v1`. Beyond: the answer has `next_page` for the next spans."""
JSON_PIECE_SPANS_MAX: Final = 500
"""Spans that become JSON at once, where an answer has many. Beyond: the next piece."""
JSON_PIECE_MAX_BYTES: Final = 4 * MIB
"""Arrow bytes of these, on average. Beyond: the next piece."""
PAGE_ROWS_DEFAULT: Final = 50
"""Default rows of one page of a listing. Beyond: the next page."""
LIST_TEXT_MAX_CHARS: Final = 500
"""A text in a list, such as a name, a session, a facet value or a description. Beyond: it is cut, with an ellipsis;
reading the entry alone returns the whole text."""
PAGE_ROWS_MAX: Final = 1_000
"""Rows of one page of a listing. Beyond: the answer is 400; ask for several pages."""
NEWEST_AHEAD_MAX_S: Final = 86_400
"""Time in the future at which a trace or span may start and still rank among the newest. Beyond: it comes last."""
PAGE_OFFSET_MAX: Final = 2**62
"""Offset of a page of a listing, the largest that DuckDB can count to. Beyond: the answer is 400."""
PARAMETER_MAX_CHARS: Final = 1_000
"""One text in a URL, such as a service filter. Beyond: the answer is 400."""
PARAMETER_MAX_MS: Final = 1e12
"""Largest minimum duration in a filter, about thirty years. Beyond: the answer is 400."""
MEMORY_LOOK_S: Final = 5.0
"""Interval at which a server checks its memory. Beyond: the next check."""
MEMORY_GROWN_BYTES: Final = 32 * MIB
"""Memory growth since the server last returned free memory to the system. Beyond: it does so again."""
MEMORY_LOOKS_MAX: Final = 12
"""Checks without returning free memory. Beyond: the server returns it in any case."""
SHUTDOWN_MAX_S: Final = 30
"""Time for current requests when the server stops, longer than an acknowledgement takes. Beyond: they are cut off."""
LISTEN_BACKLOG: Final = 512
"""Connections that wait to be accepted. Beyond: the system refuses them or lets them wait."""
CONNECTIONS_MAX: Final = 1_000
"""Concurrent HTTP connections, also limited by a share of the files that the process may open. Beyond: the slowest is
closed."""
CONNECTIONS_SHARE: Final = 4
"""Divisor for that share of open files; gRPC has half as many connections. Beyond: the slowest is closed."""
STRANGERS_SHARE: Final = 2
"""Divisor for the share of connections whose client has not presented a valid key yet. Beyond: the slowest of them is
closed."""
CONNECTION_GRACE_S: Final = 20.0
"""Time for a client to send a request or read its response, in addition to the time for its bytes. Beyond: it is cut
off."""
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
GRPC_ACCEPTED_AT_ONCE: Final = 64
"""gRPC calls of one method that start within one or two turns of the event loop. Beyond: they wait for the next."""
GRPC_READING_MAX: Final = 64
"""gRPC calls whose messages are read concurrently. Beyond: they wait for their turn."""
GRPC_LOOK_S: Final = 0.125
"""Interval between checks of gRPC calls being read while others wait. Beyond: the next check."""
GRPC_LOOKS: Final = 4
"""Checks in which a call's message is still incomplete while others wait. Beyond: the slowest calls end with
RESOURCE_EXHAUSTED, and may be retried."""
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
GRPC_KEEPALIVE_S: Final = 60.0
"""Silence of a gRPC connection before a keep-alive ping. Beyond: the ping is sent."""
GRPC_KEEPALIVE_ANSWER_S: Final = 20.0
"""Time for the reply to that ping. Beyond: the connection is closed."""
KEYS_MAX: Final = 10_000
"""Keys of a lake, including revoked ones. Beyond: another is refused."""
KEY_NAME_MAX_CHARS: Final = 100
"""Name of a key or its workspace. Beyond: it is refused."""
KEY_TIME_MAX_NS: Final = 2**63
"""Latest expiry of a key. Beyond: it is refused."""
KEY_CHANGE_TRIES_MAX: Final = 20
"""Attempts to change a key while others change it. Beyond: an error."""
KEYS_LOOK_S: Final = 5.0
"""Age of a server's cached keys; a key revoked elsewhere may still work for so long. Beyond: it reads them again."""
KEYS_MISS_LOOK_S: Final = 1.0
"""Age of the cached keys when a request presents an unknown key. Beyond: the server reads them again."""
KEYS_STALE_MAX_S: Final = 60.0
"""Age of the cached keys while keys cannot be read. Beyond: the answer is 503."""
QUOTA_MAX: Final = 2**50
"""A quota. Beyond: it is refused; omit it for no quota."""
QUOTA_BURST_S: Final = 10.0
"""Burst of a key, in seconds of its spans-per-second quota. Beyond: the answer is 429."""
QUOTA_DAY_S: Final = 86_400.0
"""Time over which a daily quota refills. Beyond: more of it is available."""
SIGN_IN_MAX_S: Final = 43_200
"""Duration of a browser's sign-in. Beyond: it asks for the key again."""
SIGN_IN_MAX_BYTES: Final = 4_096
"""Body of a sign-in request. Beyond: the answer is 413."""
CORS_MAX_AGE_S: Final = 600
"""Time that a browser caches a site's permission to send (CORS). Beyond: it asks again."""
CONNECTION_LOOK_S: Final = 1.0
"""Interval at which the server checks for slow connections. Beyond: the next check."""
HEAD_MAX_BYTES: Final = 64 * 1024
"""Head of a request, or other bytes between two pieces of its body. Beyond: the connection is closed."""
REQUESTS_AHEAD_MAX: Final = 100
"""Pipelined requests that a client sends before the response to an earlier one. Beyond: the connection is closed."""
LOG_REPEAT_S: Final = 1.0
"""Time for which a logged message is not repeated. Beyond: it is logged again, with the number of omissions."""
LOG_THING_CHARS: Final = 40
"""Prefix of a log message that identifies it. Beyond: messages with the same prefix count as one."""
LOG_THINGS_MAX: Final = 1_000
"""Distinct messages remembered for that. Beyond: all are forgotten."""
FILTER_MAX_CHARS: Final = 10_000
"""Text of an MLflow filter. Beyond: 400."""
FILTER_CONDITIONS_MAX: Final = 20
"""Conditions of an MLflow filter. Beyond: 400."""
FILTER_VALUES_MAX: Final = 200
"""Values of one IN. Beyond: 400."""
MLFLOW_EXPERIMENTS_MAX: Final = 100
"""Experiments of one MLflow search. Beyond: 400."""
MLFLOW_PAGE_TRACES_MAX: Final = 500
"""Traces on a page of an MLflow search. Beyond: 400."""
MLFLOW_DELETED_TRACES_MAX: Final = 10_000
"""Traces that one MLflow request deletes. Beyond: 400 for ids; for a time, the oldest are deleted and counted."""
MLFLOW_BATCH_TRACES_MAX: Final = 100
"""Traces that one request reads with their spans. Beyond: 413."""
MLFLOW_BATCH_SPANS_MAX: Final = 20_000
"""Spans of all these traces, if there are several. Beyond: 413."""
MLFLOW_BATCH_MAX_BYTES: Final = 64 * 1024**2
"""Memory of these spans. Beyond: 413."""
TRACE_SUMMED_MAX_SPANS: Final = 500
"""Spans of a trace whose row is computed without a query. Beyond: a query computes it."""
