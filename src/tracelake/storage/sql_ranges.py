"""The query of a range of records, as SQLite and PostgreSQL have it. Pure."""

from __future__ import annotations

from typing import Final

from tracelake.storage.names import check_scan_limit, encode_key, encode_text

_ALL: Final = 2**63 - 1


def in_range(
    selected: str, mark: str, partition: str, start: str, stop: str | None, limit: int | None
) -> tuple[str, list[bytes | int]]:
    """Return the query of what is selected of a partition, from start up to stop in key order, and its values.

    `mark` stands for a value. Raises UsageError for a limit below 0, LimitError for a key that is too long.
    """
    check_scan_limit(limit)
    query = f"{selected} AND key >= {mark}"
    values: list[bytes | int] = [encode_key("partition", partition), encode_text("start", start)]
    if stop is not None:
        query += f" AND key < {mark}"
        values.append(encode_text("stop", stop))
    return f"{query} ORDER BY key LIMIT {mark}", [*values, _ALL if limit is None else limit]
