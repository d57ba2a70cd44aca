"""The tables of the tracking store: hot traces of many lakes in one SQLite file or PostgreSQL database.

Every key begins with `lake`, a small number that table `lakes` assigns to a lake's id. Times are nanoseconds since
1970. Each change here needs a migration (`migrations/versions`); HEAD names the last. There are no foreign keys,
because PostgreSQL checks each of them row by row. Related rows are deleted in one transaction instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from zlib import crc32

import msgspec
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
)

from tracelake import limits

HEAD: Final = "0008"
"""The revision that this release reads and writes."""
VERSION_TABLE: Final = "tracelake_version"

TRACKING_STORE: Final = "TRACKING_STORE"
ARCHIVE_REPO: Final = "ARCHIVE_REPO"
INCOMPLETE: Final = "INCOMPLETE_TRACE"
"""Mark of a trace whose spans the tables may permanently lack, because an outbox row was discarded or damaged."""
DELETED_KEY: Final = "tracelake.deleted_ns"
"""Tombstone of a deleted trace, as a metadata key. It applies while the trace has no row in `trace_info`."""
ERASED_KEY: Final = "tracelake.erased_until_ns"
"""Refusal of an erased trace, as a metadata key. The row has the salted hash of the trace's id in place of the id."""
RESTORED_SEQUENCE: Final = 0
"""Sequence of the part that a restore creates. No outbox row has it, because the tables have the archived spans."""
DEFAULT_EXPERIMENT: Final = "0"
DEFAULT_WORKSPACE: Final = "default"
LAKE_LOCATION: Final = "lake:"
"""Prefix of the archive location if the lake's own tables are the archive."""

PREVIEWS: Final = ("request_preview", "response_preview")
"""Columns of `trace_info` that a checksum protects."""


NO_CHECKSUM: Final = -1
"""Checksum of rows that an earlier release wrote on PostgreSQL."""


def previews_checksum(previews: Sequence[str | None]) -> int:
    """Return the checksum of a trace's PREVIEWS."""
    return crc32(msgspec.json.encode(previews))


def span_checksum(row: Sequence[Any]) -> int:
    """Return the checksum of a row of `spans`, from its columns in order without the checksum.

    Each outbox number adds itself, so that SQL can copy a row to another number.
    """
    sequence: int = row[_SEQUENCE_OF_SPAN]
    return crc32(msgspec.json.encode((*row[:_SEQUENCE_OF_SPAN], *row[_SEQUENCE_OF_SPAN + 1 :]))) + sequence


_SEQUENCE_OF_SPAN: Final = 3


metadata: Final = MetaData()

_Number: Final = BigInteger().with_variant(Integer, "sqlite")
"""SQLite assigns row numbers only for a key of type INTEGER."""
_Name: Final = String(limits.TRACKING_NAME_MAX_CHARS)
_TraceId: Final = String(64).with_variant(String(64, collation="C"), "postgresql")
"""Byte order as in Python, whatever the database's collation: Danish sorts `aa` after all letters."""


def _key(name: str, type_: Any) -> Column[Any]:
    return Column(name, type_, primary_key=True, autoincrement=False)


def _of_trace(*columns: Column[Any]) -> list[Any]:
    """Return the columns of a table whose rows belong to a trace and are deleted with it."""
    return [_key("lake", Integer), _key("trace_id", _TraceId), *columns]


lakes: Final = Table(
    "tracelake_lakes",
    metadata,
    Column("lake", Integer, primary_key=True),
    Column("lake_id", String(64), nullable=False, unique=True),
)
workspaces: Final = Table(
    "tracelake_workspaces",
    metadata,
    _key("lake", Integer),
    _key("workspace", _Name),
    Column("trace_archival_location", Text),
    Column("trace_archival_retention", String(limits.TRACKING_VALUE_MAX_CHARS)),
)
experiments: Final = Table(
    "tracelake_experiments",
    metadata,
    _key("lake", Integer),
    _key("experiment_id", String(limits.TRACKING_KEY_MAX_CHARS)),
    Column("workspace", _Name, nullable=False),
    Column("name", _Name, nullable=False),
    Column("created_ns", BigInteger, nullable=False),
    UniqueConstraint("lake", "workspace", "name"),
)
experiment_tags: Final = Table(
    "tracelake_experiment_tags",
    metadata,
    _key("lake", Integer),
    _key("experiment_id", String(limits.TRACKING_KEY_MAX_CHARS)),
    _key("key", String(limits.TRACKING_KEY_MAX_CHARS)),
    Column("value", Text, nullable=False),
)
trace_info: Final = Table(
    "tracelake_trace_info",
    metadata,
    _key("lake", Integer),
    _key("trace_id", _TraceId),
    Column("workspace", _Name, nullable=False),
    Column("experiment_id", String(limits.TRACKING_KEY_MAX_CHARS), nullable=False),
    Column("start_ns", BigInteger, nullable=False),
    Column("end_ns", BigInteger, nullable=False),
    Column("state", String(32), nullable=False),
    Column("name", _Name),
    Column("service", _Name),
    Column("session_id", _Name),
    Column("user_id", _Name),
    Column("client_request_id", _Name),
    Column("request_preview", String(limits.TRACKING_PREVIEW_MAX_CHARS)),
    Column("response_preview", String(limits.TRACKING_PREVIEW_MAX_CHARS)),
    Column("spans_location", String(32), nullable=False),
    Column("archive_location", Text),
    Column("archive_bytes", BigInteger),
    Column("archive_sha256", String(64)),
    Column("archived_ns", BigInteger),
    Column("archival_failure", String(64)),
    Column("db_payload_generation", Integer, nullable=False, server_default="0"),
    Column("updated_ns", BigInteger, nullable=False),
    # Permanent, unlike the mark: the tables will never have all spans of the trace.
    Column("given_up", Boolean, nullable=False, server_default=false()),
    # Of both previews. `verify` compares it, and all other columns with their mirror.
    Column("previews_checksum", BigInteger, nullable=False, server_default=str(NO_CHECKSUM)),
    # Covers the selection of archive passes, in their order. The last two columns allow counts from the index
    # alone.
    Index(
        "tracelake_trace_info_by_place",
        "lake",
        "spans_location",
        "experiment_id",
        "workspace",
        "start_ns",
        "trace_id",
        "archival_failure",
        "archive_bytes",
    ),
)
"""SQLite stores its rows in order of arrival: in order of the random trace ids, each new row changes another page."""
trace_tags: Final = Table(
    "tracelake_trace_tags",
    metadata,
    *_of_trace(
        _key("workspace", _Name),
        _key("key", String(limits.TRACKING_KEY_MAX_CHARS)),
        Column("value", Text, nullable=False),
    ),
    sqlite_with_rowid=False,
)
"""Workspaces that share a trace each have their tags."""
trace_metadata: Final = Table(
    "tracelake_trace_metadata",
    metadata,
    *_of_trace(_key("key", String(limits.TRACKING_KEY_MAX_CHARS)), Column("value", Text, nullable=False)),
    sqlite_with_rowid=False,
)
assessments: Final = Table(
    "tracelake_assessments",
    metadata,
    *_of_trace(
        _key("assessment_id", String(limits.TRACKING_KEY_MAX_CHARS)),
        Column("span_id", String(16)),
        Column("name", _Name),
        Column("body", Text, nullable=False),
        Column("updated_ns", BigInteger, nullable=False),
        Column("workspace", _Name, nullable=False, server_default=DEFAULT_WORKSPACE),
    ),
)
trace_parts: Final = Table(
    "tracelake_trace_parts",
    metadata,
    *_of_trace(
        _key("sequence", BigInteger),
        Column("spans", Integer, nullable=False),
        Column("size_bytes", BigInteger, nullable=False),
        Column("payload", LargeBinary, nullable=False),
    ),
    # Used to trim the outbox; `size_bytes` allows the total size to be read from the index alone. On SQLite all
    # columns make it the mirror of the table (`migrate.add_mirrors`).
    Index("tracelake_trace_parts_by_sequence", "sequence", "lake", "size_bytes", "trace_id", "spans"),
)
"""Payload: one trace's spans from one transaction, as OTLP `TracesData` compressed with zstd."""
spans: Final = Table(
    "tracelake_spans",
    metadata,
    *_of_trace(
        _key("span_id", String(16)),
        _key("sequence", BigInteger),
        _key("workspace", _Name),
        _key("kind", String(32)),
        Column("parent_span_id", String(16)),
        Column("name", _Name, nullable=False),
        Column("status", String(32)),
        Column("service", _Name),
        Column("start_ns", BigInteger, nullable=False),
        Column("end_ns", BigInteger, nullable=False),
        Column("session_id", _Name),
        Column("user_id", _Name),
        Column("model", _Name),
        Column("input_tokens", BigInteger),
        Column("output_tokens", BigInteger),
        # Of all other columns, in place of a mirror.
        Column("checksum", BigInteger, nullable=False, server_default=str(NO_CHECKSUM)),
    ),
    sqlite_with_rowid=False,
)
"""Columns for filters: a row for each received version of a span. They stay when the payload is archived."""
outbox: Final = Table(
    "tracelake_outbox",
    metadata,
    Column("sequence", _Number, primary_key=True),
    Column("lake", Integer, nullable=False),
    Column("payload", LargeBinary, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("received_ns", BigInteger, nullable=False),
    # It has all columns for the same reason.
    Index("tracelake_outbox_by_lake", "lake", "sequence", "size_bytes", "received_ns"),
    # The journal identifies a row by its number, so numbers are never reused.
    sqlite_autoincrement=True,
)
"""Requests as received, in the format of inbox segments, until a commit on `main` has them."""
archive_objects: Final = Table(
    "tracelake_archive_objects",
    metadata,
    _key("lake", Integer),
    _key("path", Text),
    Column("state", String(16), nullable=False),
    Column("traces", Integer, nullable=False),
    Column("began_ns", BigInteger, nullable=False),
)
"""Objects of the archive repository, from before their upload until after their deletion."""
archive_settings: Final = Table(
    "tracelake_archive_settings", metadata, _key("lake", Integer), Column("settings", Text, nullable=False)
)
"""Archive settings of a lake, as JSON."""
