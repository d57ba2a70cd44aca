"""Archive repositories: the locations of archived traces, and verified reads. A read returns the whole trace, or an
error that names the object (A14).

| layout | object | location of a trace |
|---|---|---|
| `trace` | `<experiment>/traces/tr-<trace>/artifacts/<generation>-<attempt>/traces.pb` | its directory |
| `pack` | `packs/<attempt>.pack` | `…pack#<offset>+<length>` |

Each upload has a unique name, so an archiver that loses a race never changes the object of another one. An attempt
begins with a mark of its lake, so that lakes may share a repository.

A pack has many traces: one zstd frame per trace, followed by an index in a skippable zstd frame. A pack is therefore
also a zstd file of one `TracesData`, because concatenated protobuf messages merge. `zstd -dc` and `tracelake ingest`
can read it.

    frame of a trace | frame of a trace | … | 0x184D2A50 | length of the rest | index | its SHA-256 | its length | TLPK

Numbers are four bytes, little-endian. The index is JSON: for each trace id the offset, length and SHA-256 of its
frame.

In layout `lake`, the tables on `main` are the archive, and nothing is uploaded (A17, A18). A trace may be archived if
table `spans` has each of its spans in the winning version of the tracking store or a version that wins over it.
Versions are compared as in the upsert rule, last by a checksum of all columns.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal, Protocol
from urllib.parse import quote

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import zstandard
from google.protobuf.message import DecodeError
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from tracelake import limits
from tracelake._errors import DamageError, InputError, NotFoundError, StorageError
from tracelake.archive.model import HotSnapshot, LayoutName, StoredUpload
from tracelake.archive.retention import ArchiveOutcome
from tracelake.batching import batches
from tracelake.limits import ARCHIVE_ROWS_MAX_BYTES, TRACE_ARCHIVED_MAX_BYTES, TRACE_ROWS_MAX_BYTES
from tracelake.otlp.columns import SpanColumns
from tracelake.otlp.encode import encode as encode_traces
from tracelake.otlp.parse import rows_bytes
from tracelake.otlp.partition import add_rows
from tracelake.otlp.schema import SPANS
from tracelake.storage import ObjectStore
from tracelake.tables.upsert_rule import COLUMNS, KEY, KEY_COLUMNS, ORDER, drop_duplicates
from tracelake.tracking.schema import LAKE_LOCATION

_SKIPPABLE: Final = (0x184D2A50).to_bytes(4, "little")
_END: Final = b"TLPK"
_HASH_BYTES: Final = hashlib.sha256().digest_size
_TAIL_BYTES: Final = _HASH_BYTES + 4 + len(_END)
_INDEX_READ_BYTES: Final = 256 * 1024
"""Bytes at the end of a pack, which have the index of 1,024 traces."""


@dataclass(frozen=True, slots=True)
class Frame:
    """Location of a trace in a pack."""

    offset: int
    length: int
    sha256: str


def write_pack(traces: Iterable[tuple[str, bytes]]) -> tuple[bytes, dict[str, Frame]]:
    """Return a pack of the given trace frames, and the location of each trace in it."""
    parts: list[bytes] = []
    frames: dict[str, Frame] = {}
    offset = 0
    for trace_id, frame in traces:
        frames[trace_id] = Frame(offset, len(frame), hashlib.sha256(frame).hexdigest())
        parts.append(frame)
        offset += len(frame)
    index = json.dumps({id: [at.offset, at.length, at.sha256] for id, at in frames.items()}).encode()
    tail = index + hashlib.sha256(index).digest() + len(index).to_bytes(4, "little") + _END
    return b"".join([*parts, _SKIPPABLE, len(tail).to_bytes(4, "little"), tail]), frames


def read_index(pack: bytes, name: str) -> dict[str, Frame]:
    """Return the location of each trace in a pack. Raises DamageError, with the pack's name, if the index is
    damaged."""
    index = b""
    if pack.endswith(_END) and len(pack) > _TAIL_BYTES:
        tail = pack[-_TAIL_BYTES:]
        start = len(pack) - _TAIL_BYTES - int.from_bytes(tail[_HASH_BYTES : -len(_END)], "little")
        index = pack[max(0, start) : len(pack) - _TAIL_BYTES]
        if start < 0 or hashlib.sha256(index).digest() != tail[:_HASH_BYTES]:
            index = b""
    if not index:
        raise DamageError(
            f"{name} is not an intact pack: its index is truncated or damaged; restore the object from a copy"
        )
    return {id: Frame(*at) for id, at in json.loads(index).items()}


def traces_of_pack(objects: ObjectStore, path: str) -> Collection[str]:
    """Return the traces in a pack, also those whose archive it is not; empty if it is gone. Raises DamageError if its
    index is damaged."""
    size_bytes = 0
    with suppress(NotFoundError):
        info = objects.head(path)
        size_bytes = 0 if info is None else info.size_bytes
        for most in (min(_INDEX_READ_BYTES, size_bytes), size_bytes) if size_bytes else ():
            end = objects.get_range(path, size_bytes - most, most)
            length = int.from_bytes(end[-len(_END) - 4 : -len(_END)], "little") + _TAIL_BYTES
            if len(end) >= min(length, size_bytes):
                return read_index(end, path)
    return ()


def check_pack(pack: bytes, name: str) -> None:
    """Compare each byte of a pack with its index. Raises DamageError, with the pack's name, if they differ."""
    end = 0
    for trace_id, at in read_index(pack, name).items():
        if hashlib.sha256(pack[at.offset : at.offset + at.length]).hexdigest() != at.sha256:
            raise DamageError(f"{name} is altered where trace {trace_id} is; restore the object from a copy")
        end = at.offset + at.length
    if pack[end : end + 8] != _SKIPPABLE + (len(pack) - end - 8).to_bytes(4, "little"):
        raise DamageError(f"{name} is damaged before its index; restore the object from a copy")


def unpack(frame: bytes, name: str, max_bytes: int) -> bytes:
    """Return the trace in a frame. Raises DamageError, with the object's name, if the frame is damaged."""
    try:
        size_bytes = zstandard.frame_content_size(frame)
        if not 0 <= size_bytes <= max_bytes:
            raise DamageError(
                f"{name} says that it has {size_bytes} bytes, more than any trace; restore it from a copy"
            )
        return zstandard.ZstdDecompressor().decompress(frame)
    except zstandard.ZstdError as error:
        raise DamageError(f"{name} cannot be unpacked: {error}; restore it from a copy") from error


FILE: Final = "traces.pb"
_PACKS: Final = "packs/"
_OURS: Final = re.compile(
    r"packs/([0-9a-f]{32})\.pack|[^/]+/traces/tr-[^/]+/artifacts/[0-9]+-([0-9a-f]{32})/traces\.pb"
)
_MARK_CHARS: Final = 12
"""Length of the lake's mark in an attempt; the rest is random."""
_OURS_SOMEWHERE: Final = re.compile(rf"(?<=/)(?:{_OURS.pattern})\Z")
_IN_PACK: Final = re.compile(r"(.+\.pack)#([0-9]{1,15})\+([0-9]{1,15})", re.DOTALL)


def new_attempt(lake_id: str) -> str:
    """Return a new attempt id for uploads of a lake, in hex."""
    return _mark_of(lake_id) + uuid.uuid4().hex[_MARK_CHARS:]


def path_of(layout: LayoutName, experiment_id: str, trace_id: str, generation: int, attempt: str) -> str:
    """Return the path of a trace's object, or "" in layout `lake`. `attempt` is a new id in hex."""
    if layout == "lake":
        return ""
    if layout == "pack":
        return f"{_PACKS}{attempt}.pack"
    return f"{_folder_of(experiment_id)}/traces/tr-{trace_id}/artifacts/{generation}-{attempt}/{FILE}"


def _folder_of(experiment_id: str) -> str:
    """Return the directory of an experiment: its id; if that is too long for a disk, a prefix of it and a hash."""
    name = quote(experiment_id, safe="").replace(".", "%2E") or "_"
    if len(name) <= limits.ARCHIVE_FOLDER_MAX_CHARS:
        return name
    digest = hashlib.sha256(experiment_id.encode()).hexdigest()[:32]
    beginning = re.sub("%.?$", "", name[: limits.ARCHIVE_FOLDER_MAX_CHARS - len(digest) - 1])
    return f"{beginning}~{digest}"


def is_ours(path: str) -> bool:
    """Return whether an object's name is that of an upload. Attachments have other names (A11)."""
    return _OURS.fullmatch(path) is not None


def is_of(path: str, lake_id: str) -> bool:
    """Return whether an object's name is that of an upload of this lake, not of another that shares the repository."""
    match = _OURS.fullmatch(path)
    return match is not None and (match[1] or match[2]).startswith(_mark_of(lake_id))


def _mark_of(lake_id: str) -> str:
    return hashlib.sha256(lake_id.encode()).hexdigest()[:_MARK_CHARS]


def is_pack(path: str) -> bool:
    """Return whether an upload is a pack of many traces."""
    return path.startswith(_PACKS)


def encode(root: str, path: str, snapshots: list[HotSnapshot]) -> tuple[bytes, list[StoredUpload]]:
    """Return the bytes of an object with these traces, and the location of each in it."""
    if not is_pack(path):
        (snapshot,) = snapshots
        at = Frame(0, len(snapshot.data), hashlib.sha256(snapshot.data).hexdigest())
        return snapshot.data, [_stored(snapshot, f"{root}/{path.removesuffix('/' + FILE)}", at)]
    compress = zstandard.ZstdCompressor(write_checksum=True).compress
    pack, frames = write_pack((each.trace_id, each.frame or compress(each.data)) for each in snapshots)
    stored = []
    for snapshot in snapshots:
        frame = frames[snapshot.trace_id]
        stored.append(_stored(snapshot, f"{root}/{path}#{frame.offset}+{frame.length}", frame))
    return pack, stored


def _stored(snapshot: HotSnapshot, location: str, at: Frame) -> StoredUpload:
    return StoredUpload(
        snapshot.trace_id, snapshot.generation, snapshot.life, snapshot.path, location, at.length, at.sha256
    )


def path_in(objects: ObjectStore, location: str) -> str:
    """Return the path of the object that a location names in this repository.

    A lake may have been moved with its repository; its objects keep their unique names. Raises NotFoundError if the
    location is in another repository and this one lacks the object.
    """
    match = _IN_PACK.fullmatch(location)
    path = match[1] if match else f"{location}/{FILE}"
    if path.startswith(f"{objects.url}/"):
        return path.removeprefix(f"{objects.url}/")
    moved = _OURS_SOMEWHERE.search(path)
    if moved is None or objects.head(moved[0]) is None:
        raise NotFoundError(
            f"the archive at {location} is not in the repository {objects.url}; "
            "`tracelake archive retention --location` says where it is"
        )
    return moved[0]


def read_back(objects: ObjectStore, path: str, data: bytes) -> None:
    """Read back an upload. Raises DamageError if the repository returns other bytes, and StorageError if it fails."""
    try:
        is_there = objects.get(path) == data
    except NotFoundError:
        is_there = False
    if not is_there:
        raise DamageError(
            f"{objects.url}/{path} differs from what was uploaded, so nothing was cleared; check the "
            "repository"
        )


def read_archived(objects: ObjectStore, location: str, size_bytes: int, sha256: str) -> bytes:
    """Return an archived trace as a `TracesData`. Raises StorageError if the repository fails, and DamageError, with
    the object's name, if the trace is missing or altered (A9, A14)."""
    path = path_in(objects, location)
    match = _IN_PACK.fullmatch(location)
    try:
        data = objects.get_range(path, int(match[2]), int(match[3])) if match else objects.get(path)
    except NotFoundError:
        raise DamageError(
            f"the archive of this trace, {objects.url}/{path}, is missing; restore the object from a copy"
        ) from None
    if len(data) != size_bytes or hashlib.sha256(data).hexdigest() != sha256:
        what = "cut" if len(data) < size_bytes else "altered"
        raise DamageError(
            f"the archive of this trace at {location}, object {path}, is {what}: {len(data)} bytes where {size_bytes} "
            "with another checksum were stored; restore the object from a copy"
        )
    return unpack(data, location, TRACE_ARCHIVED_MAX_BYTES) if match else data


def count_spans(data: bytes, name: str) -> int:
    """Return the number of spans in a `TracesData`. Raises DamageError with `name` if it is invalid."""
    try:
        groups = TracesData.FromString(data).resource_spans
    except DecodeError as error:
        raise DamageError(f"{name} cannot be decoded: {error}; restore it from a copy") from error
    return sum(len(scope.spans) for group in groups for scope in group.scope_spans)


_BY_IDS: Final[Sequence[tuple[str, Literal["ascending"]]]] = (
    ("trace_id", "ascending"),
    ("span_id", "ascending"),
    ("workspace", "ascending"),
    ("kind", "ascending"),
)
_TOO_LARGE: Final = (
    f"its rows take more than {TRACE_ROWS_MAX_BYTES:,} bytes, with resource and scope at each of its spans; layouts "
    "trace and pack archive it"
)
_MEASURES = ", ".join(part.split()[0] for part in ORDER.split(", "))
_MISSING = f"""
with wanted as (select {KEY_COLUMNS}, {COLUMNS} from snapshot),
     greatest as (
         select * from wanted
         qualify row_number() over (partition by {KEY} order by {ORDER}) = 1),
     measured as (select {KEY_COLUMNS}, {COLUMNS} from stored),
     held as (select {KEY}, row({_MEASURES}) as claim from measured)
select g.trace_id, count(*) filter (where h.claim is null), count(*) filter (where h.claim < row({_MEASURES}))
from greatest g left join held h using ({KEY})
group by g.trace_id having count(*) filter (where h.claim is null or h.claim < row({_MEASURES})) > 0
"""


class Tables(Protocol):
    """The tables of the lake on `main`."""

    def spans(self, trace_ids: Sequence[str], claims: pa.Table | None = None) -> tuple[pa.Table, int]:
        """Return the rows of these traces, and the transaction that they reflect; -1 if there is none.

        With `claims`, rows of spans that are not in `claims` may be left out. Without it, raises LimitError if the rows
        take more memory than a full read of a trace may.
        """

    def transaction(self) -> int:
        """Return the last transaction on `main`; -1 if there is none."""


class TablesRepository:
    """`TraceRepository` of layout `lake`. It writes nothing and checks that the tables have the traces."""

    def __init__(self, tables: Tables, lake_id: str) -> None:
        self._tables = tables
        self._lake_id = lake_id
        self._as_of = -1

    def store(
        self, snapshots: Sequence[HotSnapshot]
    ) -> tuple[list[StoredUpload], dict[str, tuple[ArchiveOutcome, str]]]:
        """Implement `TraceRepository`. If rows of the tables are unreadable, only their traces stay hot."""
        stored: list[StoredUpload] = []
        outcomes: dict[str, tuple[ArchiveOutcome, str]] = {}
        for some in batches(snapshots, lambda each: rows_bytes(each.data), ARCHIVE_ROWS_MAX_BYTES):
            outcomes |= (outcomes_of_some := self._outcomes(some))
            location = f"{LAKE_LOCATION}{self._lake_id}#{self._as_of}"
            stored += [
                StoredUpload(each.trace_id, each.generation, each.life, "", location, 0, "")
                for each in some
                if each.trace_id not in outcomes_of_some
            ]
        return stored, outcomes

    def _outcomes(self, snapshots: Sequence[HotSnapshot]) -> dict[str, tuple[ArchiveOutcome, str]]:
        """Return the outcomes of traces that must stay hot, because the tables do not have all of their spans or are
        unreadable."""
        columns = SpanColumns()
        outcomes: dict[str, tuple[ArchiveOutcome, str]] = {}
        for snapshot in snapshots:
            try:
                if rows_bytes(snapshot.data) > TRACE_ROWS_MAX_BYTES:
                    raise InputError(_TOO_LARGE)
                add_rows(snapshot.data, columns)
            except InputError as error:
                outcomes[snapshot.trace_id] = (ArchiveOutcome.MALFORMED, str(error))
        claims = pa.Table.from_batches([columns.take()])
        try:
            committed, self._as_of = self._tables.spans([each.trace_id for each in snapshots], claims)
        except (StorageError, DamageError, OSError) as error:
            failed = (ArchiveOutcome.FAILED, str(error))
            return {snapshot.trace_id: outcomes.get(snapshot.trace_id, failed) for snapshot in snapshots}
        for trace_id, missing, older in self._differences(claims, committed):
            outcomes.setdefault(
                trace_id,
                (ArchiveOutcome.WAITING, f"{missing} of its spans are not in the tables, {older} are older"),
            )
        return outcomes

    def holds(self) -> bool:
        """Implement `TraceRepository`: return whether `main` still has the transaction that was compared."""
        return self._tables.transaction() >= self._as_of >= 0

    def _differences(self, snapshot: pa.Table, committed: pa.Table) -> list[tuple[str, int, int]]:
        """Return the traces that the tables lack, with the number of missing spans and of spans in an older version."""
        committed = committed.select(SPANS.names).cast(SPANS)
        if _are_same(snapshot, committed):  # the usual case
            return []
        both = drop_duplicates(pa.concat_tables([committed, snapshot]))
        if both is not None and not (both >= len(committed)).any():
            return []  # the tables have an identical row for each span of the snapshot
        with duckdb.connect() as db:
            db.register("snapshot", snapshot)
            db.register("stored", committed)
            return db.execute(_MISSING).fetchall()


def _are_same(one: pa.Table, other: pa.Table) -> bool:
    """Return whether two tables have the same rows in any order."""
    if len(one) != len(other):
        return False
    places = np.empty(len(one), np.int64)
    places[pc.sort_indices(other, _BY_IDS)] = pc.sort_indices(one, _BY_IDS)
    return bool(one.take(places).equals(other))


def traces_data(rows: pa.Table) -> bytes:
    """Return rows of table `spans` as one `TracesData`."""
    return encode_traces(rows).SerializeToString()
