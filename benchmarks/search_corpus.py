"""What is searched: the text of real agents again and again, each time with other words, and queries made of it."""

from __future__ import annotations

import random
import re
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa

import tracelake
from benchmarks.search_measure import KINDS, Query
from tracelake.otlp.schema import SPANS_TABLE
from tracelake.search.analyzers import ENGLISH
from tracelake.search.documents import COLUMNS, document_text
from tracelake.search.tokenization import identifiers
from tracelake.shards.rows import ROW_ID
from tracelake.tasks.runners import InProcess

DATA: Final = Path(__file__).resolve().parents[2] / "shared" / "data" / "agents.otlp.jsonl.gz"
SPANS: Final = "spans.arrow"
"""The corpus as rows of table `spans`: what Tracelake indexes."""
FLAT: Final = "flat.arrow"
"""The same rows with nothing but what is searched: what the others index."""
QUERIES: Final = "queries.json"
FLAT_SCHEMA: Final = pa.schema(
    {
        "number": pa.int64(),
        "start": pa.int64(),
        "name": pa.list_(pa.string()),
        "service": pa.string(),
        "texts": pa.list_(pa.string()),
    }
)
VARIED: Final = 0.2
"""The share of words that are others in each copy."""
LONG_CHARS: Final = 40
"""Shorter texts are ids and names, and stay as they are."""
_SPANS_SCHEMA: Final = pa.schema([field for field in (*SPANS_TABLE, ROW_ID) if field.name in COLUMNS])


def make(folder: Path, documents: int, queries: int) -> None:
    """Write corpus and queries into a folder."""
    originals = _originals()
    words = [
        word for row in originals for text in document_text(row) for word in re.findall(r"[a-z]{2,}", text)
    ]
    with (
        pa.OSFile(str(folder / SPANS), "wb") as spans_file,
        pa.OSFile(str(folder / FLAT), "wb") as flat_file,
        pa.ipc.new_file(spans_file, _SPANS_SCHEMA) as spans,
        pa.ipc.new_file(flat_file, FLAT_SCHEMA) as flat,
    ):
        for first in range(0, documents, len(originals)):
            rows = [_copy(row, first + at, first, words) for at, row in enumerate(originals)]
            rows = rows[: documents - first]
            spans.write_table(pa.Table.from_pylist(rows, schema=_SPANS_SCHEMA))
            flat.write_table(pa.Table.from_pylist(list(_flat(rows)), schema=FLAT_SCHEMA))
    asked = _queries(originals[: min(documents, len(originals))], queries)
    (folder / QUERIES).write_bytes(msgspec.json.encode(asked))


def _originals() -> list[dict[str, Any]]:
    """Return the rows of the real file as `Table.from_pylist` and `document_text` take them."""
    with tempfile.TemporaryDirectory() as folder, tracelake.init(Path(folder) / "lake") as lake:
        lake.ingest(str(DATA), runner=InProcess())
        columns = ", ".join(field.name for field in _SPANS_SCHEMA if field.name != ROW_ID.name)
        rows = lake.sql(f"select {columns} from spans order by start_ns, trace_id, span_id").to_pylist()
    for row in rows:
        for owner in ("attributes", "resource"):
            row[owner] = dict(row[owner] or ())
        for event in row["events"] or ():
            event["attributes"] = dict(event["attributes"] or ())
        for link in row["links"] or ():
            link["attributes"] = dict(link["attributes"] or ())
    return rows


def _copy(row: dict[str, Any], number: int, copy: int, words: list[str]) -> dict[str, Any]:
    """Return a row with ids of its own, and other words wherever it has text."""

    def vary(text: str | None) -> str | None:
        if not copy or text is None or len(text) < LONG_CHARS:
            return text
        pieces = text.split(" ")
        chosen = random.Random(zlib.crc32(text.encode()) + copy)  # equal texts stay equal
        for at in chosen.sample(range(len(pieces)), int(VARIED * len(pieces))):
            pieces[at] = chosen.choice(words)
        return " ".join(pieces)

    events = [
        event | {"attributes": {key: vary(value) for key, value in event["attributes"].items()}}
        for event in row["events"] or ()
    ]
    return row | {
        "trace_id": f"{zlib.crc32(row['trace_id'].encode()):08x}{copy:024x}",
        "span_id": f"{number:016x}",
        "start_ns": 1_700_000_000_000_000_000 + 1_000_000 * number,
        "input": vary(row["input"]),
        "output": vary(row["output"]),
        "attributes": {key: vary(value) for key, value in row["attributes"].items()},
        "events": events,
        ROW_ID.name: number,
    }


def _flat(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield what others index of each row: the same texts, with the same parts of identifiers."""
    names = identifiers([row["name"] for row in rows])
    texts = [document_text(row) for row in rows]
    parts = identifiers(["\n".join(one) for one in texts])
    for at, row in enumerate(rows):
        yield {
            "number": row[ROW_ID.name],
            "start": row["start_ns"],
            "name": [row["name"], *names.get(at, ())],
            "service": row["service"],
            "texts": [*parts.get(at, ()), *texts[at]],
        }


def _queries(rows: list[dict[str, Any]], count: int) -> list[Query]:
    """Return so many queries of each kind, of words and phrases that are in the text, frequent and rare."""
    chosen = random.Random(7)
    texts = [" ".join(document_text(row)).lower() for row in rows]
    services = sorted({row["service"] for row in rows if row["service"]})
    sequences = [found for text in texts if len(found := re.findall(r"(?<= )[a-z]{4,12}(?= )", text)) > 5]
    neighbours = [
        found for text in texts if (found := re.findall(r"(?<= )([a-z]{3,12} [a-z]{3,12})(?= )", text))
    ]
    asked: list[Query] = []
    for kind in KINDS:
        while sum(query.kind == kind for query in asked) < count:
            words = chosen.sample(chosen.choice(sequences), 3)
            if kind == "phrase":
                words = chosen.choice(chosen.choice(neighbours)).split()
            elif kind == "prefix":
                words = [words[0][:4]]
                if not ENGLISH.words_of(words[0])[0].stem.startswith(words[0]):
                    continue
            elif kind != "boolean":
                words = words[:1]
            service = chosen.choice(services) if kind == "filtered" else None
            asked.append(Query(kind=kind, words=words, service=service))
    return asked
