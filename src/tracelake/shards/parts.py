"""Parts: written as immutable Parquet objects, and checked before their rows are believed."""

from __future__ import annotations

import hashlib
import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tracelake._errors import DamageError
from tracelake.limits import CHECKED_PARTS_MAX, ROW_GROUP_ROWS
from tracelake.shards.model import Part
from tracelake.shards.statistics import ranges_of
from tracelake.storage import ObjectStore


def write_part(objects: ObjectStore, shard: str, bucket: int, rows: pa.Table, key: str | None) -> Part:
    """Write rows as a part, durable on return. They must be sorted by column `key` where one is named."""
    sink = pa.BufferOutputStream()
    pq.write_table(
        rows,
        sink,
        compression="zstd",
        compression_level=1,
        row_group_size=ROW_GROUP_ROWS,
        write_page_index=True,
        write_page_checksum=True,
        store_schema=True,
    )
    data = sink.getvalue().to_pybytes()
    path = f"shards/{shard}/parts/{bucket:04d}-{uuid.uuid4().hex}.parquet"
    objects.put(path, data)
    keys = rows[key] if key is not None and len(rows) else None
    return Part(
        path=path,
        bucket=bucket,
        rows=len(rows),
        size_bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        first_key=keys[0].as_py() if keys is not None else "",
        last_key=keys[-1].as_py() if keys is not None else "",
        ranges=ranges_of(rows),
    )


_checked: set[tuple[str, str, int, int]] = set()


def check_part(file: str, part: Part) -> None:
    """Compare a file with what was written as the part, once in a process for each state of the file.

    Readers of Parquet notice less than half of all flipped bits, and return wrong rows for the others.

    Raises DamageError where the file is gone, or another.
    """
    try:
        status = Path(file).stat()
        state = (file, part.sha256, status.st_size, status.st_mtime_ns)
        if state in _checked:
            return
        with Path(file).open("rb") as opened:
            sha256 = hashlib.file_digest(opened, "sha256").hexdigest()
    except FileNotFoundError as error:
        raise DamageError(f"part {part.path} is gone. `tracelake verify` names all that is wrong.") from error
    if sha256 != part.sha256:
        raise DamageError(
            f"part {part.path} is not what was written: its checksum differs. "
            "`tracelake verify` names all that is wrong."
        )
    if len(_checked) >= CHECKED_PARTS_MAX:
        _checked.clear()
    _checked.add(state)
