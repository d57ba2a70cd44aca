"""Fewer changed pages for each request on SQLite: traces are in order of arrival, and checksums of previews and spans
replace copies of them (`migrate.add_mirrors`). Two indexes get all columns of their tables.

Revision ID: 0008
"""

from __future__ import annotations

from typing import Any
from zlib import crc32

import msgspec
import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_OLD = "tracelake_trace_info"
_NEW = "tracelake_trace_info_in_order"
_PREVIEWS = ("request_preview", "response_preview")
_OF_SPANS = (
    *("lake", "trace_id", "span_id", "workspace", "kind", "parent_span_id", "name", "status", "service"),
    *("start_ns", "end_ns", "session_id", "user_id", "model", "input_tokens", "output_tokens"),
)
_PLACE = ("lake", "spans_location", "experiment_id", "workspace", "start_ns", "trace_id", "archival_failure")


def upgrade() -> None:
    """Replace the indexes, and add the checksums. On SQLite, copy the table of traces into a new one."""
    op.drop_index("tracelake_trace_parts_by_sequence", "tracelake_trace_parts")
    op.create_index(
        "tracelake_trace_parts_by_sequence",
        "tracelake_trace_parts",
        ["sequence", "lake", "size_bytes", "trace_id", "spans"],
    )
    op.drop_index("tracelake_outbox_by_lake", "tracelake_outbox")
    op.create_index(
        "tracelake_outbox_by_lake", "tracelake_outbox", ["lake", "sequence", "size_bytes", "received_ns"]
    )
    op.add_column("tracelake_spans", _checksum("checksum"))
    if op.get_bind().dialect.name == "postgresql":
        op.add_column(_OLD, _checksum("previews_checksum"))
        return
    # SQLite allows one writer at a time, which is this migration, so no row is added in the meantime.
    driver: Any = op.get_bind().connection.driver_connection
    driver.create_function("checksum", -1, lambda *values: crc32(msgspec.json.encode(values)))
    op.execute(f"UPDATE tracelake_spans SET checksum = checksum({', '.join(_OF_SPANS)}) + sequence")
    columns = ", ".join(_make_table())
    op.execute(
        f"INSERT INTO {_NEW} ({columns}, previews_checksum) "
        f"SELECT {columns}, checksum({', '.join(_PREVIEWS)}) FROM {_OLD} ORDER BY updated_ns"
    )
    driver.create_function("checksum", -1, None)
    op.drop_table(_OLD)
    op.rename_table(_NEW, _OLD)
    op.create_index("tracelake_trace_info_by_place", _OLD, [*_PLACE, "archive_bytes"])


def _checksum(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.BigInteger(), nullable=False, server_default="-1")


def _make_table() -> list[str]:
    """Make the new table; return the columns that the old one has too."""
    number, name = sa.BigInteger, sa.String(length=500)
    columns: list[sa.Column[Any]] = [
        sa.Column("lake", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("trace_id", sa.String(length=64), autoincrement=False, nullable=False),
        sa.Column("workspace", name, nullable=False),
        sa.Column("experiment_id", sa.String(length=250), nullable=False),
        sa.Column("start_ns", number(), nullable=False),
        sa.Column("end_ns", number(), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        *(
            sa.Column(each, name)
            for each in ("name", "service", "session_id", "user_id", "client_request_id")
        ),
        *(sa.Column(each, sa.String(length=1000)) for each in _PREVIEWS),
        sa.Column("spans_location", sa.String(length=32), nullable=False),
        sa.Column("archive_location", sa.Text()),
        sa.Column("archive_bytes", number()),
        sa.Column("archive_sha256", sa.String(length=64)),
        sa.Column("archived_ns", number()),
        sa.Column("archival_failure", sa.String(length=64)),
        sa.Column("db_payload_generation", sa.Integer(), server_default="0", nullable=False),
        sa.Column("updated_ns", number(), nullable=False),
        sa.Column("given_up", sa.Boolean(), nullable=False, server_default=sa.false()),
    ]
    op.create_table(
        _NEW, *columns, _checksum("previews_checksum"), sa.PrimaryKeyConstraint("lake", "trace_id")
    )
    return [column.name for column in columns]


def downgrade() -> None:
    """Refuse to downgrade."""
    raise NotImplementedError("a newer tracking store is read by a newer release")
