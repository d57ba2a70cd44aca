"""Tracking store."""

from typing import Final

from tracelake.limits.units import MIB

TRACKING_NAME_MAX_CHARS: Final = 500
"""A name, model, session or user in a column of the tracking store. Beyond: the column is cut, the span kept whole."""
TRACKING_KEY_MAX_CHARS: Final = 250
"""The key of a tag, or an id that is no trace's. Beyond: it is refused."""
EXPERIMENT_ID_MAX_BYTES: Final = 500
"""The id of an experiment that a request names, as UTF-8: with the longest name of a workspace it is in one key of an
index, of which PostgreSQL takes 2,704 bytes. Beyond: it is refused."""
TRACKING_VALUE_MAX_CHARS: Final = 8_000
"""The value of a tag. Beyond: it is refused."""
EXPERIMENT_TAG_MAX_CHARS: Final = 5_000
"""The value of a tag of an experiment. Beyond: it is refused."""
ANNOTATIONS_MAX: Final = 1_000
"""Tags, and assessments, of one trace or experiment. Beyond: one more is refused."""
ASSESSMENT_MAX_BYTES: Final = 64 * 1024
"""An assessment as JSON. Beyond: it is refused."""
TAGS_SHOWN_MAX: Final = 20
"""Tags of a trace that a page shows. Beyond: the API has them."""
TAG_SHOWN_MAX_CHARS: Final = 200
"""Of the value of one. Beyond: it is cut."""
TAGGED_TRACES_MAX: Final = 10_000
"""Traces that a filter by tags names. Beyond: it is refused; name more tags."""
EXPERIMENTS_SHOWN_MAX: Final = 1_000
"""Experiments in a list, the newest. Beyond: each is there by its id and name."""
TRACKING_PREVIEW_MAX_CHARS: Final = 1_000
"""Input and output of a trace as lists show them. Beyond: they are cut; the spans keep them whole."""
TRACKING_BUSY_TIMEOUT_S: Final = 10.0
"""How long a write waits for the tracking store, where others write or it does not answer. Beyond: an error, and for a
request the answer 503."""
TRACKING_POOL_MAX: Final = 16
"""Connections of one process to the tracking store. Beyond: who needs one waits."""
TRACKING_SEARCH_TIMEOUT_S: Final = 20.0
"""How long a search by MLflow's filters may take in SQLite. Beyond: 400, and what to ask for instead."""
TRACKING_SEARCH_POLL_STEPS: Final = 10_000
"""Steps of SQLite between two looks at that time. Beyond: another look."""
TRACKING_SEARCHES_MAX: Final = 4
"""Such searches of a process at once: writers have the other connections. Beyond: a search waits."""
TRACKING_SEARCH_WAIT_S: Final = 5.0
"""How long it waits for its turn. Beyond: 503."""
TRACKING_IDS_AT_ONCE: Final = 500
"""Traces or outbox rows that one statement names. Beyond: another statement."""
OUTBOX_IN_PARTS_MAX_SHARE: Final = 1.5
"""Of what was sent, that spans by trace, each trace with its resources, may take. Beyond: the outbox has that as it
came."""
OUTBOX_ROWS_MAX: Final = 100_000
"""Outbox rows of a lake that the pipeline has not taken. Beyond: requests are answered 503 until it has."""
OUTBOX_LOOK_MAX: Final = 2_000
"""Outbox rows that one look of a pipeline gives. Beyond: the next look."""
UNCOMMITTED_TRACES_MAX: Final = 500
"""Traces of the tracking store that no commit holds whole yet, and that lists show beside the tables. Beyond: the
newest are shown, and the others once they are committed; each can be read by its id."""
UNCOMMITTED_LIST_MAX_BYTES: Final = 32 * MIB
"""What waits of such traces, as OTLP, that lists take together. Beyond: as above."""
UNCOMMITTED_LIST_TRACE_MAX_BYTES: Final = 4 * MIB
"""What waits of one such trace, as OTLP. Beyond: lists show it as commits have it; it can be read by its id."""
UNCOMMITTED_LIST_TRACE_MAX_SPANS: Final = 10_000
"""Spans that a commit has of one such trace. Beyond: as above."""
UNCOMMITTED_LIST_MAX_SPANS: Final = 100_000
"""Spans that a commit has of all such traces. Beyond: the newest of them are shown with what waits."""
UNCOMMITTED_ROWS_MAX_BYTES: Final = 256 * MIB
"""What rows that no commit holds yet take in memory, resource and scope at each span, of all that lists show, and of
all that searches find. Beyond: lists show the others as commits have them, and a search says that it has not looked."""
UNCOMMITTED_PART_ROWS_MAX_BYTES: Final = 32 * MIB
"""The same of the spans of one trace that one request brought, where they grow much; and of what one search indexes for
itself. Beyond: as above."""
UNCOMMITTED_PART_GROWTH_MAX: Final = 8
"""How many times the OTLP of such spans their rows may take; text takes two to three times. Beyond: as above, where it
is much: a large resource of many small spans."""
UNCOMMITTED_LIST_WAIT_S: Final = 30.0
"""How long who lists them waits for the lists of others. Beyond: 503."""
HOT_TRACE_PARTS: Final = 64
"""Parts in which a hot trace came that every read decodes. Beyond: those that wait, and one thread at a time; the rest
is read of the tables."""
HOT_TRACE_BYTES: Final = MIB
"""The same in bytes, as OTLP. Beyond: as above."""
HOT_TRACE_WAIT_S: Final = 30.0
"""How long a read of such a trace waits for others. Beyond: 503."""
UNCOMMITTED_SEARCH_MAX_BYTES: Final = 64 * MIB
"""Spans, as OTLP, that searches find before a commit holds them, the newest. Beyond: a result says that the rest is not
searched yet."""
UNCOMMITTED_SEARCH_ROWS_MAX: Final = 4_000
"""Outbox rows with such spans. Beyond: as above."""
UNCOMMITTED_SEARCH_LEFT_BYTES: Final = MIB
"""Spans, as OTLP, that searches index before a commit holds them while a pipeline is at work. Beyond: what comes is
left to the pipeline, which has it in a moment, and of it a search indexes what its words may find."""
UNCOMMITTED_SEARCH_SIFTED_MAX_BYTES: Final = MIB
"""Spans of what is left to it, as OTLP, that may be found by a search, and are indexed for it. Beyond: the newest are,
and a result says that the rest is not searched yet."""
UNCOMMITTED_AT_WORK_S: Final = 5.0
"""How long after one of the oldest rows has left the outbox a pipeline is taken to be at work. Beyond: all that came is
made findable here."""
UNCOMMITTED_OLDEST_ROWS: Final = 64
"""The oldest rows, of which one has to leave. Beyond: that so many are stuck is taken for a pipeline that rests."""
UNCOMMITTED_SEARCH_BUILD_S: Final = 1.0
"""How long a search makes new spans findable. Beyond: it says what it has not searched, and the next search goes on."""
UNCOMMITTED_SEARCH_WAIT_S: Final = 1.0
"""How long a search waits for others that make them findable. Beyond: it searches what there is, and says so."""
UNCOMMITTED_SEARCH_STEP_BYTES: Final = 4 * MIB
"""Spans that are made findable at once. Beyond: another step, where there is time for one."""
UNCOMMITTED_SEARCH_PARTS_MERGED: Final = 24
"""Parts of alike sizes with such spans, and twice as many where searches alone make them. Beyond: they become one, as
far as a step has room."""
UNCOMMITTED_AHEAD_EVERY_S: Final = 0.25
"""How often a server makes findable what came, ahead of searches. Beyond: it does so again; a search does it itself."""
UNCOMMITTED_AHEAD_STEP_BYTES: Final = MIB
"""Spans that are made findable at once ahead of searches. Beyond: another step, once who searches had a turn."""
UNCOMMITTED_AHEAD_TURN_S: Final = 0.02
"""That turn. Beyond: the next step, unless a search is at it."""
UNCOMMITTED_AHEAD_FOR_S: Final = 10.0
"""How long after a search that goes on. Beyond: it rests until somebody searches."""
UNCOMMITTED_AHEAD_FAILED_S: Final = 5.0
"""How long it rests after a failure. Beyond: it tries again."""
UNCOMMITTED_AHEAD_STOP_MAX_S: Final = 10.0
"""How long a server that stops waits for the step that is under way. Beyond: it leaves it; nothing is lost by it."""
UNCOMMITTED_SEARCH_TRIES_MAX: Final = 3
"""How often a search begins anew, because its index is built with other settings meanwhile. Beyond: commits alone are
searched, and the result says so."""
UNCOMMITTED_SEARCHES_KEPT: Final = 4
"""Searches whose uncommitted spans are kept, for their next pages. Beyond: the next page puts them together again."""
UNCOMMITTED_RUN_GAP_MAX: Final = 64
"""Numbers of outbox rows that may lack between two that a page names as one run. Beyond: another run."""
UNCOMMITTED_RUNS_MAX: Final = 8
"""Runs of outbox rows that a page names. Beyond: the newest are searched, and the result says so."""
TRACKING_LOOK_S: Final = 5.0
"""How often a pipeline looks whether its lake has a tracking store by now. Beyond: it looks again."""
INGEST_RETRY_AFTER_S: Final = 5
"""What an answer of 503 asks a client to wait. Beyond: it may send again."""
TRACE_PAGE_SPANS_MAX: Final = 2_000
"""Spans on one page of a trace in the web UI. Beyond: the next page."""
TRACE_API_SPANS_MAX: Final = 5_000
"""Spans of one trace in one answer of `/api/v1`. Beyond: the answer has `next_page` for the next spans."""
JSON_PIECE_SPANS_MAX: Final = 500
"""Spans that become JSON at once, where an answer has many. Beyond: the next piece."""
JSON_PIECE_MAX_BYTES: Final = 4 * MIB
"""Arrow bytes of these, on average. Beyond: the next piece."""
PAGE_ROWS_DEFAULT: Final = 50
"""Rows of one page of a listing, unless the request says otherwise. Beyond: the next page."""
LIST_TEXT_MAX_CHARS: Final = 500
"""A text of a sender, such as a name or a session, in lists of traces, services and hits. Beyond: it is cut, with an
ellipsis; the trace and the span have the whole text."""
PAGE_ROWS_MAX: Final = 1_000
"""Rows of one page of a listing. Beyond: the answer is 400; ask for several pages."""
NEWEST_AHEAD_MAX_S: Final = 86_400
"""Seconds after now in which a trace or span may start and still come first among the newest. Beyond: it comes last."""
PAGE_OFFSET_MAX: Final = 2**62
"""Rows before a page of a listing: as many as DuckDB can count to. Beyond: the answer is 400."""
PARAMETER_MAX_CHARS: Final = 1_000
"""One text in a URL, such as a service to filter by. Beyond: the answer is 400."""
PARAMETER_MAX_MS: Final = 1e12
"""The least duration to filter by: about thirty years. Beyond: the answer is 400."""
MEMORY_LOOK_S: Final = 5.0
"""How often a server looks how much memory it has. Beyond: it looks again."""
MEMORY_GROWN_BYTES: Final = 32 * MIB
"""By how much it has grown since it last gave back what is free. Beyond: it does so again."""
MEMORY_LOOKS_MAX: Final = 12
"""Looks after which it gives back in any case. Beyond: as above."""
SHUTDOWN_MAX_S: Final = 30
"""What requests under way have to finish when the server stops: longer than an acknowledgement takes. Beyond: they
are cut off."""
LISTEN_BACKLOG: Final = 512
"""Connections that wait to be accepted. Beyond: the system refuses them, or lets them wait."""
CONNECTIONS_MAX: Final = 1_000
"""HTTP connections at one time, and no more than a share of the files that the process may open. Beyond: the slowest
makes room."""
CONNECTIONS_SHARE: Final = 4
"""This share is one of so many; gRPC has half as many connections. Beyond: the slowest makes room."""
STRANGERS_SHARE: Final = 2
"""Connections of clients whose key was not accepted yet are one of so many. Beyond: the slowest of them is ended."""
CONNECTION_GRACE_S: Final = 20.0
"""How long a client may take to send a request, or to read its answer, beside what its bytes take. Beyond: it is cut
off."""
CONNECTION_MIN_BYTES_PER_S: Final = 16 * 1024
"""What these may take: a second for so many. Beyond: it is cut off."""
HANDSHAKES_MAX: Final = 250
"""Connections whose TLS handshake is not done, and no more than a quarter of what there may be of connections. Beyond:
the slowest makes room."""
HANDSHAKE_MAX_S: Final = 10.0
"""How long a TLS handshake may take. Beyond: the connection is ended."""
PORT_MAX: Final = 65_535
"""The number of a port. Beyond: it is refused."""
GRPC_MESSAGE_MAX_BYTES: Final = 16 * MIB
"""One gRPC message as sent. Beyond: it is refused with RESOURCE_EXHAUSTED, before it is read."""
GRPC_STREAMS_MAX: Final = 100
"""Calls of one gRPC connection at one time. Beyond: they wait at the client."""
GRPC_ACCEPTED_AT_ONCE: Final = 64
"""gRPC calls of one method that one or two turns of the event loop begin with. Beyond: they wait for the next."""
GRPC_READING_MAX: Final = 64
"""gRPC calls whose message is read at one time. Beyond: they wait for their turn."""
GRPC_LOOK_S: Final = 0.125
"""How far looks are apart at gRPC calls that are read, while others wait. Beyond: the next look."""
GRPC_LOOKS: Final = 4
"""Looks in which the message of a call has not come while others wait. Beyond: the slowest are ended with
RESOURCE_EXHAUSTED, and may be made again."""
GRPC_WAITING_MAX: Final = 1_000
"""gRPC calls that wait for their turn. Beyond: they are refused with RESOURCE_EXHAUSTED, and may be made again."""
GRPC_READ_MAX_S: Final = 60.0
"""How long the message of a gRPC call may take to come. Beyond: the call is ended with DEADLINE_EXCEEDED."""
GRPC_METADATA_MAX_BYTES: Final = 16 * 1024
"""Metadata of a gRPC call. Beyond: it is refused."""
GRPC_HANDSHAKE_MAX_S: Final = 10.0
"""How long a connection may take to begin to speak gRPC. Beyond: it is ended."""
GRPC_IDLE_MAX_S: Final = 300.0
"""How long a gRPC connection may be without a call. Beyond: it is closed, and clients open another."""
GRPC_KEEPALIVE_S: Final = 60.0
"""How long a gRPC connection may be silent before its client is asked whether it is there. Beyond: it is asked."""
GRPC_KEEPALIVE_ANSWER_S: Final = 20.0
"""How long it may take to answer that. Beyond: the connection is ended."""
KEYS_MAX: Final = 10_000
"""Keys of a lake, with those that are revoked. Beyond: another is refused."""
KEY_NAME_MAX_CHARS: Final = 100
"""The name of a key, or of its workspace. Beyond: it is refused."""
KEY_TIME_MAX_NS: Final = 2**63
"""When a key may expire. Beyond: it is refused."""
KEY_CHANGE_TRIES_MAX: Final = 20
"""How often a change of a key is tried while others change it. Beyond: an error."""
KEYS_LOOK_S: Final = 5.0
"""How old what a server knows of keys may be: so long a key that was revoked elsewhere may still be used. Beyond: it
reads them again."""
KEYS_MISS_LOOK_S: Final = 1.0
"""The same, for a key that it does not know yet. Beyond: as above."""
KEYS_STALE_MAX_S: Final = 60.0
"""How long it goes on by what it knows while keys cannot be read. Beyond: the answer is 503."""
QUOTA_MAX: Final = 2**50
"""A quota. Beyond: it is refused; leave it out for none."""
QUOTA_BURST_S: Final = 10.0
"""Seconds of its spans a second that a key may send at once. Beyond: the answer is 429."""
QUOTA_DAY_S: Final = 86_400.0
"""Over how many seconds a quota of a day comes back. Beyond: more of it is there."""
SIGN_IN_MAX_S: Final = 43_200
"""How long a browser is signed in. Beyond: it asks for the key again."""
SIGN_IN_MAX_BYTES: Final = 4_096
"""What a browser sends to sign in. Beyond: the answer is 413."""
CORS_MAX_AGE_S: Final = 600
"""How long a browser remembers that a page of another site may send. Beyond: it asks again."""
CONNECTION_LOOK_S: Final = 1.0
"""How often the server looks whether a connection is too slow. Beyond: it looks again."""
HEAD_MAX_BYTES: Final = 64 * 1024
"""The head of a request, or what else comes between two pieces of its body. Beyond: the connection is ended."""
REQUESTS_AHEAD_MAX: Final = 100
"""Requests that a client sends before the answer to an earlier one. Beyond: the connection is ended."""
LOG_REPEAT_S: Final = 1.0
"""How long a thing that was logged is not logged again. Beyond: it is, with how often it was left out."""
LOG_THING_CHARS: Final = 40
"""The beginning of a message by which it is told from others in the log. Beyond: messages that begin alike are one."""
LOG_THINGS_MAX: Final = 1_000
"""Different things that are remembered for that. Beyond: all are forgotten."""
FILTER_MAX_CHARS: Final = 10_000
"""Of a filter in MLflow's words. Beyond: 400."""
FILTER_CONDITIONS_MAX: Final = 20
"""Conditions of one. Beyond: 400."""
FILTER_VALUES_MAX: Final = 200
"""Values of one IN. Beyond: 400."""
MLFLOW_EXPERIMENTS_MAX: Final = 100
"""Experiments of one search in MLflow's words. Beyond: 400."""
MLFLOW_PAGE_TRACES_MAX: Final = 500
"""Traces of a page of one. Beyond: 400."""
MLFLOW_DELETED_TRACES_MAX: Final = 10_000
"""Traces that one request deletes in MLflow's words. Beyond: by ids 400; by a time the oldest go, and are counted."""
MLFLOW_BATCH_TRACES_MAX: Final = 100
"""Traces that one request reads with their spans. Beyond: 413."""
MLFLOW_BATCH_SPANS_MAX: Final = 20_000
"""Spans of all of them, where they are several. Beyond: 413."""
MLFLOW_BATCH_MAX_BYTES: Final = 64 * 1024**2
"""Bytes of these spans in memory. Beyond: 413."""
TRACE_SUMMED_MAX_SPANS: Final = 500
"""Spans of a trace whose row is made of them without a query. Beyond: by one."""
