"""The query of a range of records, as SQLite and PostgreSQL have it. Pure."""

from __future__ import annotations

from tracelake.storage.names import check_scan_limit, encode_key, encode_text


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
    query += " ORDER BY key"
    if limit is not None:
        query += f" LIMIT {mark}"
        values.append(limit)
    return query, values
