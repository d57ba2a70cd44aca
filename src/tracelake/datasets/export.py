"""Exports of examples to JSON lines, Parquet and Arrow. An exported file gets its name only when it is complete."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from tracelake._errors import UsageError
from tracelake.datasets.model import Example

_EXPORT_BATCH_EXAMPLES: Final = 1_000
"""Examples in one Arrow batch, and in one row group of a Parquet export."""


_FIELDS: Final[list[tuple[str, pa.DataType]]] = [
    ("id", pa.string()),
    ("input", pa.string()),
    ("expected_output", pa.string()),
    ("metadata", pa.map_(pa.string(), pa.string())),
    ("trace_id", pa.string()),
    ("span_id", pa.string()),
    ("commit", pa.string()),
]
SCHEMA: Final = pa.schema(_FIELDS)
"""The columns of an export."""
FORMATS: Final = ("jsonl", "parquet")


def format_of(path: str | os.PathLike[str], requested: str | None) -> str:
    """Return the requested format, or the one of the file's extension. Raises UsageError if it is unknown."""
    chosen = requested or Path(path).suffix.removeprefix(".")
    if chosen not in FORMATS:
        raise UsageError(
            f"{os.fspath(path)!r}: choose a format, jsonl or parquet, or use one as the file extension."
        )
    return chosen


def json_line(example: Example) -> bytes:
    """Return an example as a JSON line."""
    return msgspec.json.encode(example.to_row()) + b"\n"


def write(examples: Iterable[Example], path: Path, kind: str) -> int:
    """Write examples to a temporary file that finally replaces `path`; return their number.

    Raises OSError if the file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        count = (_write_jsonl if kind == "jsonl" else _write_parquet)(examples, temporary)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return count


def batches(examples: Iterable[Example]) -> Iterator[pa.RecordBatch]:
    """Yield examples as Arrow batches."""
    remaining = iter(examples)
    while some := list(islice(remaining, _EXPORT_BATCH_EXAMPLES)):
        yield pa.RecordBatch.from_pylist([_arrow_row(example) for example in some], SCHEMA)


def _arrow_row(example: Example) -> dict[str, Any]:
    row = example.to_row()
    return row | {"metadata": list(row["metadata"].items())}


def _write_jsonl(examples: Iterable[Example], path: Path) -> int:
    count = 0
    with path.open("wb") as file:
        for example in examples:
            file.write(json_line(example))
            count += 1
    return count


def _write_parquet(examples: Iterable[Example], path: Path) -> int:
    count = 0
    with pq.ParquetWriter(path, SCHEMA, compression="zstd") as writer:
        for batch in batches(examples):
            writer.write_batch(batch)
            count += batch.num_rows
    return count
