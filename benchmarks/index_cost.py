"""Bytes and processor time of an index part, by field and by stage, and the floor of a bulk load.

    python -m benchmarks.index_cost                      # the two real files
    python -m benchmarks.index_cost FILE.otlp.jsonl.gz
    python -m benchmarks.index_cost --copies 19          # bytes at rest of 19 copies of the files, 2.05 GB

The rows come from a lake that ingests the file. tantivy's files end with a directory of fields, so bytes are counted
for each field, as they are and as a zstd frame. The processor time of a field is that of an index with this field
alone, minus that of an index without fields. The floor is the time of tantivy, Parquet and the decoder, each alone.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import random
import re
import struct
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import tantivy
import zstandard

import tracelake
from tracelake.search import analyzers, build, documents, model, part_cache
from tracelake.search.analyzers import ENGLISH
from tracelake.tasks.runners import InProcess

DATA: Final = Path(__file__).resolve().parents[2] / "shared" / "data"
FILES: Final = [str(DATA / name) for name in ("microservices.otlp.jsonl.gz", "agents.otlp.jsonl.gz")]
COMPOSITE: Final = ("term", "idx", "pos", "fieldnorm")
"""Suffixes of tantivy files with a directory of fields."""
NO_FIELD: Final = "all"
_ID: Final = re.compile(rb'("(?:traceId|spanId|parentSpanId)":")([0-9a-f]+)')
_TIME: Final = re.compile(rb'(TimeUnixNano":"|timeUnixNano":")([0-9]+)')
ROUNDS: Final = 1
"""Rounds of each measurement; the fastest counts. More than one takes minutes."""


def rows_of(file: str) -> tuple[pa.Table, dict[str, int], float]:
    """Ingest a file; return the rows of table `spans`, the bytes of the lake by kind, and the processor seconds of a
    second ingest."""
    for _ in range(2):
        with tempfile.TemporaryDirectory() as folder, tracelake.init(Path(folder) / "lake") as lake:
            seconds, _ = cpu(partial(lake.ingest, file, runner=InProcess()), rounds=1)
            sizes = Counter[str]()
            for path in Path(folder).rglob("*"):
                if path.is_file():
                    sizes[path.suffix] += path.stat().st_size
            parts = [path for path in sorted(Path(folder).rglob("*.parquet")) if _is_spans(path)]
            rows = pa.concat_tables(map(pq.read_table, parts)).combine_chunks()
    return rows, sizes, seconds


def _is_spans(part: Path) -> bool:
    return set(documents.COLUMNS) <= set(pq.read_schema(part).names)


def cpu(work: Callable[[], Any], rounds: int = ROUNDS) -> tuple[float, Any]:
    """Return the least processor seconds of this process for some work, and its result."""
    least_s, result = float("inf"), None
    for _ in range(rounds):
        before_s = time.process_time()
        result = work()
        least_s = min(least_s, time.process_time() - before_s)
    return least_s, result


def bytes_by_field(directory: Path) -> dict[tuple[str, str], tuple[int, int]]:
    """Return the bytes of a finished index by field and kind of file, as they are and compressed."""
    compress = zstandard.ZstdCompressor(level=part_cache.PACK_LEVEL).compress
    header = part_cache.read_meta(directory)
    names = [field["name"] for field in header.tantivy_schema]
    sizes = dict[tuple[str, str], tuple[int, int]]()
    for file in header.segment_files:
        kind, data = file.name.rpartition(".")[2], (directory / file.name).read_bytes()
        if kind not in COMPOSITE:
            sizes[NO_FIELD, kind] = len(data), len(compress(data))
            continue
        body = model._split(data)[0]
        for field, place in _fields(body):
            content = bytes(body[place])
            sizes[names[field], kind] = len(content), len(compress(content))
    return sizes


def _fields(body: memoryview) -> Iterator[tuple[int, slice]]:
    """Yield each field's number and place from a composite file of tantivy."""
    (length,) = struct.unpack_from("<I", body, len(body) - 4)
    end = len(body) - 4 - length
    directory = io.BytesIO(body[end : end + length])
    offset, places = 0, list[tuple[int, int]]()
    for _ in range(_number(directory)):
        offset += _number(directory)
        places.append((int.from_bytes(directory.read(4), "little"), offset))
        _number(directory)  # the file's number within the field
    ends = [*(first for _, first in places[1:]), end]
    for (field, first), last in zip(places, ends, strict=True):
        yield field, slice(first, last)


def _number(data: io.BytesIO) -> int:
    """Read a number of variable length, whose last byte has its highest bit set."""
    value = shift = 0
    while True:
        (byte,) = data.read(1)
        value |= (byte & 127) << shift
        shift += 7
        if byte & 128:
            return value


def documents_of(rows: pa.Table, fields: Collection[str]) -> list[tantivy.Document]:
    """Return documents of some fields."""
    made = list[tantivy.Document]()
    for batch in build._small_batches(rows):
        numbers = [each for each in documents._numbers(batch) if each[0] in fields]
        terms = documents._terms(batch, ENGLISH.span_term_digits)
        texts = [*documents._columns(batch), *terms, *documents._words(batch, ENGLISH)]
        texts = [each for each in texts if each[0] in fields]
        for row, document_id in enumerate(documents._ids(batch)):
            document = tantivy.Document()
            if "id" in fields:
                document.add_bytes("id", document_id)
            for field, values in numbers:
                if (value := values[row]) is not None:
                    document.add_integer(field, value)
            for field, written in texts:
                if text := written[row]:
                    document.add_text(field, text)
            made.append(document)
    return made


def write(made: list[tantivy.Document]) -> None:
    """Write an index of some documents."""
    with tempfile.TemporaryDirectory() as folder:
        index = tantivy.Index(analyzers.schema(), path=folder)
        analyzers.register_tokenizers(index, ENGLISH.tokenizer())
        writer = index.writer(heap_size=build.INDEX_HEAP_BYTES, num_threads=1)
        for document in made:
            writer.add_document(document)
        writer.commit()
        writer.wait_merging_threads()


def stages_of(rows: pa.Table) -> dict[str, float]:
    """Return processor seconds of the stages of a part."""
    batches = list(build._small_batches(rows))

    def each(make: Callable[[pa.RecordBatch], Any]) -> float:
        return cpu(lambda: [make(batch) for batch in batches])[0]

    values = each(
        lambda batch: [*documents._columns(batch), *documents._numbers(batch), *documents._ids(batch)]
    )
    words = each(lambda batch: list(documents._words(batch, ENGLISH)))
    terms = each(lambda batch: list(documents._terms(batch, ENGLISH.span_term_digits)))
    whole, made = cpu(lambda: [document for batch in batches for document in documents.documents(batch)])
    with tempfile.TemporaryDirectory() as folder:
        build.write_index(Path(folder), rows, ENGLISH)
        packed = cpu(lambda: part_cache.pack(Path(folder)))[0]
    return {
        "words": words,
        "terms": terms,
        "values": values,
        "documents": max(0.0, whole - words - terms - values),
        "tantivy": cpu(lambda: write(made))[0],
        "pack": packed,
    }


def content_of(file: str) -> bytes:
    """Return the decompressed content of a file."""
    with gzip.open(file) as opened:
        return opened.read()


def floor_of(file: str, rows: pa.Table) -> dict[str, float]:
    """Return processor seconds of Parquet and of parsing the JSON, each alone."""
    lines = content_of(file).splitlines()

    def parquet() -> None:
        pq.write_table(rows, pa.BufferOutputStream(), compression="zstd", compression_level=1)

    return {"Parquet": cpu(parquet)[0], "JSON": cpu(lambda: [json.loads(line) for line in lines])[0]}


def print_table(head: str, lines: Iterator[tuple[object, ...]]) -> None:
    """Print a table."""
    print(f"\n| {head} |\n|{'---|' * (head.count('|') + 1)}")
    for line in lines:
        print(f"| {' | '.join(f'{each:.2f}' if isinstance(each, float) else str(each) for each in line)} |")


def show(file: str) -> None:
    """Print the tables of one file."""
    rows, lake, ingest_s = rows_of(file)
    count, raw = rows.num_rows, len(content_of(file))
    pa.set_cpu_count(1)
    print(
        f"\n{Path(file).name}: {count:,} rows, {raw:,} bytes of JSON, lake {sum(lake.values()) / raw:.3f} of it"
    )
    with tempfile.TemporaryDirectory() as folder:
        build.write_index(Path(folder), rows, ENGLISH)
        sizes = bytes_by_field(Path(folder))
    empty_s = cpu(partial(write, documents_of(rows, ())))[0]
    fields = ["id", "row", *analyzers.KEYWORDS, *analyzers.LISTS, *analyzers.NUMBERS, *analyzers.TEXTS]
    times = {field: cpu(partial(write, documents_of(rows, (field,))))[0] - empty_s for field in fields}
    print_table(
        "field | bytes a span | compressed | µs a span",
        (
            (
                field,
                *(
                    sum(size[at] for (name, _), size in sizes.items() if name == field) / count
                    for at in (0, 1)
                ),
                1e6 * times.get(field, 0.0) / count,
            )
            for field in [*fields, NO_FIELD]
        ),
    )
    print_table(
        "file | field | bytes a span | compressed",
        (
            (kind, field, size / count, packed / count)
            for (field, kind), (size, packed) in sorted(sizes.items(), key=lambda each: -each[1][1])
            if packed / count > 0.1
        ),
    )
    stages = stages_of(rows)
    print_table("stage | µs a span", ((name, 1e6 * seconds / count) for name, seconds in stages.items()))
    alone = {"tantivy": stages["tantivy"], **floor_of(file, rows)}
    print_table("alone | µs a span", ((name, 1e6 * seconds / count) for name, seconds in alone.items()))
    print(
        f"\nIngest: {1e6 * ingest_s / count:.1f} µs a span, {ingest_s / sum(alone.values()):.2f} × the floor"
    )


def copy_of(files: Collection[str], number: int) -> bytes:
    """Return the JSON of the files with other trace and span ids, and times some days later."""
    chance = random.Random(number)
    masks = {width: chance.getrandbits(4 * width) if number else 0 for width in (16, 32)}
    later_ns = number * chance.randint(86_400, 90_000) * 10**9

    def other_id(match: re.Match[bytes]) -> bytes:
        width = len(match[2])
        return match[1] + f"{int(match[2], 16) ^ masks[width]:0{width}x}".encode()

    def later(match: re.Match[bytes]) -> bytes:
        return match[1] + str(int(match[2]) + later_ns).encode()

    data = _ID.sub(other_id, b"".join(map(content_of, files)))
    return _TIME.sub(later, data)


def show_rest(files: Collection[str], copies: int) -> None:
    """Print the bytes at rest of copies of the files, each a transaction, after maintenance and expiry."""
    raw_bytes = 0
    with tempfile.TemporaryDirectory() as folder, tracelake.init(Path(folder) / "lake") as lake:
        file = Path(folder) / "copy.otlp.jsonl"
        for number in range(copies):
            raw_bytes += file.write_bytes(copy_of(files, number))
            lake.ingest(file, runner=InProcess())
            print(f"{number + 1} of {copies} copies", flush=True)
        for _ in range(2):
            lake.maintenance.compact(runner=InProcess())
        time.sleep(61)  # the shortest age of history
        for _ in range(4):
            lake.maintenance.gc(epoch_min_s=0, history_age="1m", history_daily="none")
        spans, sizes = lake.table("spans").info().rows, Counter[str]()
        for info in lake.objects.list(""):
            folders, _, name = info.path.rpartition("/")
            sizes[f"{'/'.join(folders.split('/')[:2])} {Path(name).suffix}"] += info.size_bytes
    sizes["all"] = sizes.total()
    print(f"\n{spans:,} spans, {raw_bytes:,} bytes of JSON")
    print_table(
        "kind | bytes | a span | of the JSON",
        ((kind, size, size / spans, f"{size / raw_bytes:.4f}") for kind, size in sizes.most_common()),
    )


def main() -> None:
    """Print the tables of each file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", default=FILES)
    parser.add_argument("--copies", type=int, help="show the bytes at rest of this many copies instead")
    options = parser.parse_args()
    if options.copies:
        show_rest(options.files, options.copies)
        return
    for file in options.files:
        show(file)


if __name__ == "__main__":
    main()
