"""Erasure of traces from a lake: `lake.erase` and `lake.erasures`.

A request is durable before it returns, and from then on no reader finds the traces. Their bytes are removed in steps.
Any process may take the next step, and a step may run twice (see `erasure.protocol`).

`ErasureScan` proves an erasure. It looks for trace ids, as hex digits and in OTLP's binary form, and for texts that the
caller names. It looks into Parquet columns, zstd frames, gzip streams and the rows of databases. It also searches index
parts for the ids.

A trace id occurs in text as 32 hex digits, and in OTLP after two bytes that are a tag and a length. The scan takes all
such places and compares them with the set of erased ids, so its time does not depend on the number of ids.
"""

from __future__ import annotations

import re
import sqlite3
import uuid
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard
from msgspec.structs import replace
from sqlalchemy import select

from tracelake import limits
from tracelake._errors import ContentionError, DamageError, NotFoundError, TracelakeError, UsageError
from tracelake.archive.service import open_archive
from tracelake.context import LakeContext
from tracelake.datasets.files import files_of_traces
from tracelake.datasets.runs import traces_of
from tracelake.erasure.protocol import ErasedSelection, ErasureRecord, ErasureStep, Observation, next_step
from tracelake.erasure.store import FOLDER
from tracelake.hot.tier import HotTier
from tracelake.indexing.redaction import REDACTIONS_S, IndexRedactor
from tracelake.journal.quarantine import QuarantineStore
from tracelake.journal.store import Journal
from tracelake.lake.maintenance import Maintenance
from tracelake.lake.prices import LakePrices
from tracelake.lake.retention import Retention
from tracelake.limits.input import MIB
from tracelake.location import in_memory
from tracelake.pipeline.outputs.builtin import upper_of
from tracelake.pipeline.sources.base import Input
from tracelake.pipeline.sources.deletions import fence_requests, pending_with
from tracelake.pipeline.staging import delete_staged
from tracelake.results import ErasureCheck, ErasureReport, Finding
from tracelake.scratch import delete_directory
from tracelake.shards.compaction import Collector
from tracelake.shards.rows import literal
from tracelake.storage import KeyValueStore, ObjectStore, open_key_value, open_objects, sweep_temporaries
from tracelake.storage.local import FileObjectStore
from tracelake.storage.ports import CopiedStore
from tracelake.tables.builtin import BUILT_IN, TABLE_SPANS
from tracelake.tables.redaction import TableRedactor
from tracelake.tasks.backoff import Throttle
from tracelake.tracking.erasure import ErasedTraces, erased_hash, scrub, scrub_sqlite
from tracelake.tracking.ingest_queue import PREFIX as INBOX
from tracelake.tracking.schema import metadata
from tracelake.tracking.store import TrackingStore
from tracelake.versions.branch_store import MAIN

_CHECKSUM: Final = re.compile("[0-9a-f]{64}")
_SQLITE: Final = "sqlite://"
_SHOWN_MAX: Final = 20
"""Quarantined inputs that a report names."""
_COLLECTIONS: Final = 3
"""Collections after which every object that no state names is deleted."""
OUT_OF_REACH: Final = (
    "files, topics and archives that the traces were ingested from",
    "outputs, such as Kafka topics, that already received the rows",
    "exports, backups and copies of the lake's storage or databases",
    "caches of index and table parts on other machines, which drop unused copies by themselves",
    "quarantined input until you discard it, and sources that deliver the traces again",
    "ids of dataset examples in the history of commits",
    "tables that users wrote",
)
"""Places that an erasure does not reach."""

_HEX_ID: Final = re.compile(rb"(?=([0-9a-f]{32}))")
_OTLP_ID: Final = re.compile(rb"(?=\x0a\x10(.{16}))", re.DOTALL)
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_GZIP: Final = b"\x1f\x8b\x08"
_PARQUET: Final = b"PAR1"
_ARROW_STREAM: Final = b"\xff\xff\xff\xff"
_UNPACKED_MAX_BYTES: Final = 1024 * MIB
"""Decompressed bytes of one frame that are scanned."""
_FILE_PIECE_BYTES: Final = 64 * MIB
"""Bytes of a database file that are read at a time."""
_OVERLAP_BYTES: Final = 4 * 1024


class ValueScanner:
    """Looks for erased values in bytes, and in what is compressed or encoded in them."""

    def __init__(self, trace_ids: Iterable[str], texts: Iterable[str]) -> None:
        ids = [trace_id.encode() for trace_id in trace_ids]
        self._hex = frozenset(ids)
        self._binary = frozenset(bytes.fromhex(each.decode()) for each in ids)
        self._texts = tuple(text.encode() for text in texts)
        self.size_bytes = 0
        """Scanned bytes, decompressed ones too."""

    def occurrences(self, data: bytes) -> set[str]:
        """Return the erased values in some bytes."""
        values = self._plain(data)
        if data.startswith(_PARQUET):
            values |= self._in_columns(data, _parquet_batches)
        if data.startswith(_ARROW_STREAM):
            values |= self._in_columns(data, _stream_batches)
        for unpacked in _unpacked(data):
            values |= self._plain(unpacked)
        return values

    def _plain(self, data: bytes) -> set[str]:
        self.size_bytes += len(data)
        values = {text.decode() for text in self._texts if text in data}
        if self._hex:
            values |= {each.decode() for each in _HEX_ID.findall(data) if each in self._hex}
        values |= {each.hex() for each in _OTLP_ID.findall(data) if each in self._binary}
        return values

    def _in_columns(self, data: bytes, batches: Callable[[bytes], Iterator[pa.RecordBatch]]) -> set[str]:
        values: set[str] = set()
        with suppress(pa.ArrowException):  # `tracelake verify` reports damage
            for batch in batches(data):
                for column in batch.columns:
                    for some in _column_bytes(column):
                        values |= self._plain(some)
        return values


def _column_bytes(column: pa.Array[Any]) -> Iterator[bytes]:
    """Yield the bytes of a column. Zeros separate its texts, because the end of one trace id and the begin of the next
    may form an erased id."""
    match column:
        case pa.StructArray():
            for number in range(column.type.num_fields):
                yield from _column_bytes(column.field(number))
        case pa.MapArray():
            yield from _column_bytes(column.keys)
            yield from _column_bytes(column.items)
        case pa.ListArray() | pa.LargeListArray():
            yield from _column_bytes(column.values)
        case pa.DictionaryArray():
            yield from _column_bytes(column.dictionary)
        case pa.StringArray() | pa.LargeStringArray() | pa.BinaryArray() | pa.LargeBinaryArray():
            yield b"\0".join(each for each in column.cast(pa.large_binary()).to_pylist() if each is not None)
        case _:
            yield from (buffer.to_pybytes() for buffer in column.buffers() if buffer is not None)


def _parquet_batches(data: bytes) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a Parquet file."""
    yield from pq.ParquetFile(pa.BufferReader(data)).iter_batches()


def _stream_batches(data: bytes) -> Iterator[pa.RecordBatch]:
    """Yield the rows of Arrow streams that follow each other, such as staged rows."""
    with pa.BufferReader(data) as source:
        while source.tell() < len(data):
            yield from pa.ipc.open_stream(source)


def _unpacked(data: bytes) -> Iterator[bytes]:
    """Yield the contents of all zstd frames in some bytes, and of a gzip stream that they begin with."""
    start = data.find(_ZSTD)
    while start >= 0:
        with suppress(zstandard.ZstdError):
            yield zstandard.ZstdDecompressor().decompressobj().decompress(data[start:])[:_UNPACKED_MAX_BYTES]
        start = data.find(_ZSTD, start + len(_ZSTD))
    if data.startswith(_GZIP):
        with suppress(zlib.error):
            yield zlib.decompressobj(wbits=31).decompress(data, _UNPACKED_MAX_BYTES)


class ErasureScan:
    """One scan of a lake."""

    def __init__(self, erasure_id: str, trace_ids: frozenset[str], texts: Iterable[str]) -> None:
        self._id = erasure_id
        self._trace_ids = trace_ids
        self._scanner = ValueScanner(trace_ids, texts)
        self._findings: list[Finding] = []
        self._objects = 0
        self._unread: list[str] = []

    def report(self) -> ErasureCheck:
        """Return the result."""
        return ErasureCheck(
            self._id, self._objects, self._scanner.size_bytes, tuple(self._findings), tuple(self._unread)
        )

    def check(self, what: str, path: str, data: bytes) -> None:
        """Scan one object, record or file."""
        self._objects += 1
        for value in sorted(self._scanner.occurrences(data)):
            self._findings.append(Finding("erased", what, path, f"it contains {value}"))

    def objects(self, what: str, objects: ObjectStore) -> None:
        """Scan all objects of a store, except the lists of erased trace ids."""
        for info in list(objects.list("")):
            if info.path.startswith(FOLDER):
                continue
            try:
                self.check(what, info.path, objects.get(info.path))
            except NotFoundError:
                continue  # deleted in the meantime
            except TracelakeError as error:
                self._unread.append(f"{info.path}: {error}")
        for file in objects.temporaries() if isinstance(objects, FileObjectStore) else ():
            with suppress(FileNotFoundError):
                self.check("file", str(file), file.read_bytes())

    def index(self, index: IndexRedactor) -> None:
        """Search all index parts for the trace ids, whose terms are compressed."""
        if count := index.count(self._trace_ids):
            self._findings.append(
                Finding("erased", "index", "search/", f"it has {count} documents of the traces")
            )

    def records(self, key_value: KeyValueStore, lake_id: str) -> None:
        """Scan the records of one lake in a database of metadata. Records that are objects are scanned as objects."""
        if not isinstance(key_value, CopiedStore):
            return
        scope = f"{lake_id}/".encode()
        with key_value.snapshot() as rows:
            for partition, key, value, _ in rows:
                if partition.startswith(scope):
                    path = f"{partition.decode()}/{key.decode(errors='replace')}"
                    self.check("record", path, key + b"\0" + value)

    def tracking(self, store: TrackingStore) -> None:
        """Scan all rows of the tracking store."""
        with store.database.reading() as connection:
            for table in metadata.sorted_tables:
                query = select(table)
                if "lake" in table.c:
                    query = query.where(table.c.lake == store.lake)
                for number, row in enumerate(connection.execute(query)):
                    data = b"\0".join(map(_as_bytes, row))
                    self.check("row of the tracking store", f"{table.name} {number}", data)

    def file(self, path: Path) -> None:
        """Scan a database file with its free pages, in pieces that overlap.

        The fields of a row follow each other without a separator. If clients count their trace ids, the end of one id
        and the begin of the next field may form an erased id, and the scan reports it.
        """
        for place in (path, path.with_name(f"{path.name}-wal")):
            with suppress(FileNotFoundError), place.open("rb") as file:
                before = b""
                while piece := file.read(_FILE_PIECE_BYTES):
                    self.check("file", str(place), before + piece)
                    before = piece[-_OVERLAP_BYTES:]


def _as_bytes(value: Any) -> bytes:
    if isinstance(value, bytes | memoryview):
        return bytes(value)
    return b"" if value is None else str(value).encode(errors="surrogatepass")


class Erasures:
    """Erasures of a lake: `lake.erasures`."""

    def __init__(self, opened: LakeContext, hot: HotTier) -> None:
        self._opened = opened
        self._hot = hot
        self._store = opened.erasures
        self._quarantine = QuarantineStore(opened.key_value, "main")
        self._throttle = Throttle(lambda: upper_of(opened.repository))
        places = opened.config.buckets, opened.key_value, opened.objects, self._throttle.pause
        self._redactors = {name: TableRedactor(table, *places) for name, table in BUILT_IN.items()}
        self._spans = self._redactors[TABLE_SPANS.name]
        self._index: dict[str, IndexRedactor] = {}
        self._clean_files: defaultdict[str, set[str]] = defaultdict(set)

    def erase(
        self,
        *,
        trace: str | None = None,
        session: str | None = None,
        user: str | None = None,
        where: str | None = None,
    ) -> ErasureReport:
        """Erase traces from the whole lake, in all workspaces and at every commit, and return the report.

        From then on, no reader finds them, and the server refuses late spans of them. The call also removes their
        bytes, unless the pipeline has not committed all earlier input yet. A later call of `run` continues then.

        Args:
            trace: a trace id.
            session: a session id; all traces with a span of it.
            user: a user id; all traces with a span of it.
            where: a DuckDB condition on table `spans`; all traces with a row, of any commit, that matches.

        Raises UsageError unless exactly one of these is given, and QueryError if DuckDB refuses the condition.
        """
        return self.run(self.request(trace=trace, session=session, user=user, where=where).id)[0]

    def request(
        self,
        *,
        trace: str | None = None,
        session: str | None = None,
        user: str | None = None,
        where: str | None = None,
    ) -> ErasureReport:
        """Accept an erasure, and hide the traces from all readers. Arguments and errors as in `erase`."""
        selection = ErasedSelection.of(trace=trace, session=session, user=user, where=where)
        trace_ids = frozenset(self._resolve(selection))
        erasure_id = uuid.uuid4().hex[:16]
        record = ErasureRecord(
            id=erasure_id,
            criterion=selection.criterion,
            value=selection.value,
            requested=_now(),
            traces=len(trace_ids),
            path=self._store.put_ids(erasure_id, trace_ids),
        )
        # Record before mask: a mask without a record would hide traces for ever.
        self._store.add(record)
        self._store.mask(erasure_id, record.path)
        self._opened.forget_view()
        self._delete_tracking(record)
        return self.get(erasure_id)

    def matching(
        self,
        *,
        trace: str | None = None,
        session: str | None = None,
        user: str | None = None,
        where: str | None = None,
    ) -> int:
        """Return the number of traces that an erasure would remove now. Arguments and errors as in `erase`."""
        return len(self._resolve(ErasedSelection.of(trace=trace, session=session, user=user, where=where)))

    def get(self, erasure_id: str) -> ErasureReport:
        """Return the report of an erasure. Raises NotFoundError for an unknown id."""
        return self._report(self._store.get(erasure_id))

    def all(self) -> list[ErasureReport]:
        """Return the reports of all erasures, the newest first."""
        records = sorted(self._store.all(), key=lambda record: record.requested, reverse=True)
        return [self._report(record) for record in records]

    def run(self, erasure_id: str | None = None) -> list[ErasureReport]:
        """Carry out open erasures as far as possible now: one, or all. Return their reports.

        An erasure waits if the pipeline has not committed all input from before the request. Run it again then.
        Raises NotFoundError for an unknown id.
        """
        if erasure_id is None:
            self._forget_expired()
        records = [self._store.get(erasure_id)] if erasure_id is not None else self._store.all()
        masking = self._store.masking()
        is_due = {each.id for each in records if each.state == "open" or each.id in masking}
        return [self._run(each) for each in records if erasure_id is not None or each.id in is_due]

    def _forget_expired(self) -> None:
        """Forget the lists of ids that have expired, so that late spans of these traces are accepted again. Forget old
        records of replaced index parts."""
        recent = {each.id for each in self._store.mask_now().finished}
        now = datetime.now(UTC)
        ages_s = {
            record.id: (now - datetime.fromisoformat(record.finished)).total_seconds()
            for record in (self._store.all() if recent else ())
            if record.id in recent and record.finished is not None
        }
        if old := [each for each, age_s in ages_s.items() if age_s > REDACTIONS_S]:
            self._redactor("").forget(old)
        if expired := [each for each, age_s in ages_s.items() if age_s > limits.ERASED_IDS_S]:
            self._store.forget(expired)

    def verify(self, erasure_id: str, values: Iterable[str] = ()) -> ErasureCheck:
        """Scan every byte of the lake, its databases and its archive repository for the erased trace ids, and for more
        values, such as the id of a user.

        Raises NotFoundError for an unknown id, or if the list of erased trace ids has expired.
        """
        opened, record = self._opened, self._store.get(erasure_id)
        scan = ErasureScan(record.id, self._store.ids(record.path), values)
        scan.objects("object", opened.objects)
        scan.index(self._redactor(""))
        if not in_memory(opened.location.records_url):
            with closing(open_key_value(opened.location.records_url)) as key_value:
                scan.records(key_value, opened.config.id)
        databases = [opened.location.records_url]
        if (store := self._hot.store) is not None:
            scan.tracking(store)
            databases += [f"{_SQLITE}{store.database.name}"] if store.database.is_sqlite else []
            if (location := open_archive(opened).settings().location) is not None:
                scan.objects(f"object of {location}", open_objects(location))
        for url in databases:
            if url.startswith(_SQLITE):
                scan.file(Path(url.removeprefix(_SQLITE)))
        return scan.report()

    def _run(self, record: ErasureRecord) -> ErasureReport:
        self._throttle.start()
        if record.state == "finished":
            self._store.unmask(record.id, record.checked)  # a crash may have come between record and mask
            if record.id not in self._store.masking():
                return self._report(record)
            # A pipeline has committed late spans, or is about to.
            record = self._put(record, state="open", finished=None, is_collected=False, barrier={})
        if record.id not in self._store.masking():  # a crash may have come between record and mask
            self._store.mask(record.id, record.path)
        take: dict[ErasureStep, Callable[[ErasureRecord], ErasureRecord]] = {
            ErasureStep.TRACKING: self._delete_tracking,
            ErasureStep.REQUESTS: self._finish_requests,
            ErasureStep.RESOLVE: self._apply_criterion,
            ErasureStep.TABLES: self._rewrite_tables,
            ErasureStep.INDEX: self._rewrite_index,
            ErasureStep.DATASETS: self._delete_examples,
            ErasureStep.COLLECT: self._collect,
            ErasureStep.PACKS: self._delete_tracking,
        }
        while record.state == "open":
            if not record.barrier:
                record = self._with_barrier(record)
            # Safety: read before the observation, so that no transaction in between escapes it.
            before, upper = record, upper_of(self._opened.repository)
            step = next_step(self._observe(record))
            if step is ErasureStep.WAIT:
                break
            try:
                record = self._finish(record, upper) if step is ErasureStep.FINISH else take[step](record)
            except ContentionError:  # another process takes this step
                return self._report(self._store.get(record.id))
            if record == before:
                break  # other processes are in the way; the next call continues
        return self._report(record)

    def _apply_criterion(self, record: ErasureRecord) -> ErasureRecord:
        """Add traces that matched after the request, because their input was not committed then."""
        trace_ids = self._store.ids(record.path)
        matching = trace_ids | self._resolve(ErasedSelection(record.criterion, record.value))
        path = self._store.put_ids(record.id, matching)
        self._store.mask(record.id, path)
        if self._hot.store is not None:
            self._tracking().refuse(matching)
        return self._put(
            record,
            path=path,
            traces=len(matching),
            is_resolved=True,
            barrier=record.barrier if matching == trace_ids else {},  # spans of the new traces may be pending
            # The value is no longer needed, and it may be a person's name.
            value=f"sha256:{erased_hash(self._opened.config.id, record.value)}",
        )

    def _rewrite_tables(self, record: ErasureRecord) -> ErasureRecord:
        trace_ids = self._store.ids(record.path)
        planned = dict(record.transactions)
        for t, rows in self._spans.rows_by_transaction(trace_ids).items():
            planned[str(t)] = max(rows, planned.get(str(t), 0))
        # Before the first replaced part: an eraser that continues after a crash must collect it.
        record = self._put(record, is_collected=False, transactions=planned)
        for redactor in self._redactors.values():
            result = redactor.rewrite(trace_ids, upper_of(self._opened.repository))
            counts = {"table rows": result.rows, "table parts": result.parts, "bytes": result.size_bytes}
            record = self._put(record, removed=_removed(record, **counts))
        return record

    def _rewrite_index(self, record: ErasureRecord) -> ErasureRecord:
        record = self._put(record, is_collected=False)
        result = self._index_of(record).rewrite(self._store.ids(record.path))
        counts = {"index documents": result.documents, "index parts": result.parts}
        return self._put(record, removed=_removed(record, **counts, bytes=result.size_bytes))

    def _delete_examples(self, record: ErasureRecord) -> ErasureRecord:
        """Delete the files of dataset examples and of their results. Readers of older commits skip them."""
        objects, trace_ids = self._opened.objects, self._store.ids(record.path)
        files = list(files_of_traces(objects, trace_ids, traces_of, self._clean_files[record.id]))
        for path, sha256 in files:
            self._store.erase_file(sha256)
            objects.delete(path)
        return self._put(record, removed=_removed(record, **{"dataset examples": len(files)}))

    def _collect(self, record: ErasureRecord) -> ErasureRecord:
        """Delete the objects that no state names, also those that readers with a lease may still read."""
        opened, maintenance = self._opened, Maintenance(self._opened)
        self._index_of(record).redactions.delete_replaced()
        find_erased = ValueScanner(self._store.ids(record.path), ()).occurrences
        if self._hot.store is not None:
            open_archive(opened).purge(find_erased)
        sweep_temporaries(opened.objects, find_erased)
        # Transactions from before the barrier are committed. Newer rows may be those of a deletion of the traces.
        delete_staged(opened.objects, record.barrier.get("staged_ms", 0) / 1000, find_erased)
        for _ in range(_COLLECTIONS):
            for name in BUILT_IN:
                Collector(opened.shard(name), opened.key_value, opened.objects, ignore_leases=True).retired()
            maintenance.gc(epoch_min_s=0)
        self._purge_caches(record)
        if self._hot.store is not None:
            scrub(self._hot.store.database)
        records = opened.location.records_url
        if records.startswith(_SQLITE):
            with closing(sqlite3.connect(records.removeprefix(_SQLITE), isolation_level=None)) as connection:
                scrub_sqlite(connection)
        return self._put(record, is_collected=True)

    def _purge_caches(self, record: ErasureRecord) -> None:
        """Delete this machine's copies of parts that no longer exist."""
        stores = self._opened.stores
        current = self._index_of(record).checksums()
        for place in stores.cache.glob("search/*"):
            if _CHECKSUM.fullmatch(place.name) and place.name not in current:
                delete_directory(place)
        for place in Path(stores.copies).glob("shards%2F*"):
            if stores.objects.head(unquote(place.name)) is None:
                place.unlink(missing_ok=True)

    def _finish(self, record: ErasureRecord, upper: int) -> ErasureRecord:
        """End the erasure after it found no rows of transactions below `upper`."""
        record = self._put(record, state="finished", finished=_now(), checked=upper)
        self._store.unmask(record.id, upper)
        self._index.pop(record.id, None)
        self._opened.forget_view()
        return record

    def _observe(self, record: ErasureRecord) -> Observation:
        """Look where data of the traces is left, up to the first place that has some."""
        trace_ids = self._store.ids(record.path)
        tracking = 0 if self._hot.store is None else self._tracking().count(trace_ids)
        waiting = 0 if tracking else self._waiting(record)
        requests = 0 if tracking or waiting else len(self._requests(record))
        is_free = not tracking and not waiting and not requests and record.is_resolved
        rows = sum(each.count(trace_ids) for each in self._redactors.values()) if is_free else 0
        documents = self._index_of(record).count(trace_ids) if is_free and not rows else 0
        examples = 0
        if is_free and not rows and not documents:
            clean = self._clean_files[record.id]
            examples = sum(1 for _ in files_of_traces(self._opened.objects, trace_ids, traces_of, clean))
        state = (record.is_resolved, record.is_collected, len(record.damaged_packs))
        return Observation(tracking, waiting, requests, rows, documents, examples, *state)

    def _requests(self, record: ErasureRecord) -> list[Input]:
        """Return the requests of other processes that list the traces."""
        find_erased = ValueScanner(self._store.ids(record.path), ()).occurrences
        return pending_with(self._opened.objects, find_erased)

    def _finish_requests(self, record: ErasureRecord) -> ErasureRecord:
        """Carry out the requests. A second commit of one changes nothing, so other processes may do the same."""
        count = len(self._requests(record))
        with suppress(UsageError):  # a client's transaction is open; the next run continues
            Retention(self._opened, self._hot).finish_pending()
            LakePrices(self._opened).finish_pending()
        count -= len(self._requests(record))
        return self._put(record, removed=_removed(record, requests=count))

    def _resolve(self, selection: ErasedSelection) -> set[str]:
        if selection.criterion == "trace":
            return {selection.value}
        matching = {str(each) for each in self._uncommitted(selection)}
        for table, redactor in self._redactors.items():
            # A user's session or user may be only in the row of its trace.
            if table == TABLE_SPANS.name or selection.criterion != "where":
                matching |= redactor.traces_matching(_condition_of(selection))
        return matching

    def _uncommitted(self, selection: ErasedSelection) -> set[str]:
        """Return the matching traces that are not committed yet."""
        if self._hot.store is None:
            return set()
        if selection.criterion in ("session", "user"):
            return self._tracking().traces_of(**{selection.criterion: selection.value})
        if not (newer := self._hot.newer().tables):
            return set()
        query = f"select distinct trace_id from spans where ({_condition_of(selection)}\n)"
        table = self._opened.read(MAIN, lambda view: view.sql(query, newer=newer))
        return {str(each) for each in table["trace_id"].to_pylist()}

    def _tracking(self) -> ErasedTraces:
        store = self._hot.required_store()
        return ErasedTraces(store.database, store.lake, store.lake_id)

    def _delete_tracking(self, record: ErasureRecord) -> ErasureRecord:
        """Refuse late spans of the traces, then delete their rows, payloads and archive objects."""
        if self._hot.store is None:
            return record
        trace_ids, tracking = self._store.ids(record.path), self._tracking()
        tracking.refuse(trace_ids)
        before = tracking.count(trace_ids)
        archive = open_archive(self._opened)
        packs = archive.packs_with(trace_ids)
        for other in sorted(set[str]().union(*packs.values())):
            with suppress(DamageError, NotFoundError):
                archive.restore(other)  # the next pass archives it again, in another object
        archive.delete(sorted(trace_ids))
        tracking.delete(trace_ids)
        # A pack is deleted after its last trace. The others cannot be read completely.
        damaged = tuple(sorted(archive.packs_with(trace_ids))) if packs else ()
        return self._put(
            record,
            damaged_packs=damaged,
            is_collected=record.is_collected and damaged == record.damaged_packs,
            removed=_removed(record, **{"tracking rows": before - tracking.count(trace_ids)}),
        )

    def _with_barrier(self, record: ErasureRecord) -> ErasureRecord:
        """Record the newest input that may contain spans of the traces."""
        fence_requests(self._opened.objects)  # of requests whose traces were chosen before the mask
        barrier = {"journal": self._last_transaction()}
        if self._hot.store is not None:
            barrier["outbox"] = self._tracking().newest_outbox_row()
        segments = self._opened.objects.list(INBOX)
        barrier["inbox_ms"] = int(max((info.modified_s for info in segments), default=0.0) * 1000)
        # The time by the clock of the store, after all earlier input was staged.
        self._store.put_ids(record.id, self._store.ids(record.path))
        info = self._opened.objects.head(record.path)
        barrier["staged_ms"] = 0 if info is None else int(info.modified_s * 1000)
        return self._put(record, barrier=barrier)

    def _last_transaction(self) -> int:
        """Return the last transaction of which the journal has input, or the last committed one."""
        journal, last = Journal(self._opened.key_value, "main"), upper_of(self._opened.repository) - 1
        while journal.read(last + 1).step is not None:
            last += 1
        return last

    def _waiting(self, record: ErasureRecord) -> int:
        """Count the input from before the request that is not committed. Quarantined input may never be."""
        quarantined = self._quarantine.quarantined_paths()
        barrier, masking = record.barrier, self._store.masking().get(record.id)
        last = max(barrier["journal"], -1 if masking is None else masking.until)
        waiting = max(0, last + 1 - upper_of(self._opened.repository))
        if "outbox" in barrier and self._hot.store is not None:
            waiting += self._tracking().pending_until(barrier["outbox"], quarantined)
        segments = (each for each in self._opened.objects.list(INBOX) if each.path not in quarantined)
        return waiting + sum(int(info.modified_s * 1000) <= barrier["inbox_ms"] for info in segments)

    def _index_of(self, record: ErasureRecord) -> IndexRedactor:
        if record.id not in self._index:
            self._index[record.id] = self._redactor(record.id)
        return self._index[record.id]

    def _redactor(self, id: str) -> IndexRedactor:
        epoch = self._opened.repository.epoch()
        return IndexRedactor(self._opened.key_value, self._opened.objects, epoch, id, self._throttle.pause)

    def _put(self, record: ErasureRecord, **changes: Any) -> ErasureRecord:
        """Change the record, and return it. Raises ContentionError if another process has changed it."""
        changed = replace(record, **changes)
        if changed != record:
            self._store.swap(record, changed)
        return changed

    def _report(self, record: ErasureRecord) -> ErasureReport:
        step, quarantined = None, self._quarantine.quarantined_paths()
        if record.state == "open":
            has_barrier = bool(record.barrier)
            step = next_step(self._observe(record)).value if has_barrier else "wait for `tracelake erase run`"
        return ErasureReport(
            id=record.id,
            criterion=record.criterion,
            value=record.value,
            state=record.state,
            step=step,
            traces=record.traces,
            requested=record.requested,
            finished=record.finished,
            removed=record.removed,
            not_removed=(
                *(
                    f"archive pack {path}: it is damaged, so the traces may still be in it. Restore it from a copy, or "
                    "delete it"
                    for path in record.damaged_packs
                ),
                *OUT_OF_REACH,
                *(f"quarantined {path}" for path in sorted(quarantined)[:_SHOWN_MAX]),
            ),
        )


def _condition_of(selection: ErasedSelection) -> str:
    """Return the DuckDB condition on table `spans`."""
    column = {"trace": "trace_id", "session": "session_id", "user": "user_id"}.get(selection.criterion)
    return selection.value if column is None else f"{column} = {literal(selection.value)}"


def _removed(record: ErasureRecord, **counts: int) -> dict[str, int]:
    """Return the removed data of a record, with more counts."""
    return dict(Counter(record.removed) + Counter(counts))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
