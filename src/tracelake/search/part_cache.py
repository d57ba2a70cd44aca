"""Local cache of index parts. Each part is unpacked once and checked before its first use, so that tantivy can
memory-map it.

    <directory>/<sha256>/        the files of one part, and its header; shared by processes and manifests
    <directory>/open-…/          links to the files of all parts that a process has open; deleted when it closes them

Parts that were replaced by merges are deleted after a while without use. The directory therefore grows with the index,
not with the number of manifests. A process keeps an open part through its links.

Every file of every open part is memory-mapped, and Linux allows a process `vm.max_map_count` maps, by default 65,530.
With more maps, opening fails as if files were damaged, so the number of parts is checked first.

If the disk altered a cached file, tantivy raises ValueError, as for a query that it refuses, or panics. A panic is a
BaseException, which callers would not treat as an error. In both cases the cached parts are fetched again and the
query is retried, because the query is not at fault.

Pack format: the header and the files of a tantivy index, each a zstd frame, concatenated into one object.

    magic "TLPACK02" | length of the header's frame, 4 bytes little-endian | header, JSON | the files, in order

The header has the size of each frame, so that a file can be read by its range. In packs of format 1, magic "TLPACK01",
the header and the files are not compressed. Such packs are read, but not written.

tantivy's `meta.json` is not packed. The header contains the required parts of it, and searchers write one `meta.json`
for all parts together.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import struct
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Concatenate, Final, Literal, ParamSpec, Protocol, TypeVar

import msgspec
import xxhash
import zstandard

from tracelake._errors import DamageError, LimitError, NotFoundError
from tracelake.formats import decode, decoder, encode
from tracelake.limits import PART_COPY_IDLE_MIN_S, PARTS_AT_ONCE
from tracelake.scratch import scratch_directory
from tracelake.search.model import BUILD_ANEW, PartRef
from tracelake.search.query_compiler import refusal
from tracelake.search.query_parser import QuerySyntaxError
from tracelake.search.vector_index import FILE as VECTORS_FILE
from tracelake.storage.ports import ObjectStore

MAGIC: Final = b"TLPACK02"
EARLIER_MAGIC: Final = b"TLPACK01"
FORMAT_VERSION: Final = 2
PACK_LEVEL: Final = 3
"""Compression level of zstd. Level 9 takes four times as long, and makes a pack 4 % smaller."""
SEGMENT_SUFFIXES: Final = ("fast", "fieldnorm", "idx", "pos", "store", "term")
"""Suffixes of the files of a tantivy segment. Without `pos`, an index would open but fail on the first phrase."""
META_FILE: Final = "meta.json"
HEADER_FILE: Final = "pack.json"
"""File for the header of an unpacked part, next to the packed files."""

_LENGTH: Final = struct.Struct("<I")
_PIECE_BYTES: Final = 1 << 20
"""Bytes of a file that are read at a time to compute its checksum."""


class IndexSegment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """tantivy segment as in `meta.json`. Parts never hold deleted documents."""

    segment_id: Annotated[str, msgspec.Meta(pattern="^[0-9a-f-]{36}$")]
    max_doc: int
    deletes: None = None


class _Meta(msgspec.Struct, frozen=True):
    """The required part of tantivy's `meta.json`."""

    segments: list[IndexSegment]
    schema: Any
    index_settings: Any


class PackedFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """File of a pack."""

    name: Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{32}[.][a-z]+|vectors[.]block)$")]
    size_bytes: Annotated[int, msgspec.Meta(ge=0)]
    packed_bytes: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """Size of its frame; None if the pack is of format 1."""
    xxh3: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")] | None = None
    """128-bit XXH3 of its content; None if the pack is of format 1."""


class Header(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Header of a pack. There is one segment, unless the part outgrew the heap."""

    format_version: Literal[1, 2] = 1
    files: list[PackedFile]
    segments: list[IndexSegment]
    tantivy_schema: list[dict[str, Any]]
    index_settings: dict[str, Any]

    @property
    def documents(self) -> int:
        """The number of documents in the part."""
        return sum(segment.max_doc for segment in self.segments)

    @property
    def segment_files(self) -> list[PackedFile]:
        """The files that tantivy reads."""
        return [file for file in self.files if file.name != VECTORS_FILE]

    def present_in(self, directory: Path) -> bool:
        """Whether every file is in the directory with its size."""
        try:
            return all((directory / file.name).stat().st_size == file.size_bytes for file in self.files)
        except FileNotFoundError:
            return False


def read_meta(directory: Path) -> Header:
    """Return the pack header for the finished tantivy index in a directory."""
    meta = decoder(_Meta).decode((directory / META_FILE).read_bytes())
    names = [
        f"{segment.segment_id.replace('-', '')}.{suffix}"
        for segment in meta.segments
        for suffix in SEGMENT_SUFFIXES
    ]
    if (directory / VECTORS_FILE).exists():
        names.append(VECTORS_FILE)
    return Header(
        files=[PackedFile(name=name, size_bytes=(directory / name).stat().st_size) for name in names],
        segments=meta.segments,
        tantivy_schema=meta.schema,
        index_settings=meta.index_settings,
    )


def pack(directory: Path) -> tuple[Header, bytes]:
    """Pack the finished tantivy index in a directory; return the header and the object."""
    compress = zstandard.ZstdCompressor(level=PACK_LEVEL).compress
    header = read_meta(directory)
    files, frames = list[PackedFile](), list[bytes]()
    for file in header.files:
        content = (directory / file.name).read_bytes()
        assert len(content) == file.size_bytes, (len(content), file)
        frames.append(compress(content))
        checksum = xxhash.xxh3_128_hexdigest(content)
        files.append(msgspec.structs.replace(file, packed_bytes=len(frames[-1]), xxh3=checksum))
    header = msgspec.structs.replace(header, format_version=FORMAT_VERSION, files=files)
    encoded = compress(msgspec.json.encode(header))
    return header, b"".join((MAGIC, _LENGTH.pack(len(encoded)), encoded, *frames))


def unpack(data: bytes, sha256: str, path: str, directory: Path) -> Header:
    """Write the files of a pack and its header into an existing directory.

    Raises:
        DamageError: The bytes differ from those that were packed; the message names `path`.
    """
    actual = hashlib.sha256(data).hexdigest()
    if actual != sha256:
        raise DamageError(
            f"index part {path} is damaged: its SHA-256 is {actual} over {len(data)} bytes, not {sha256}; "
            f"restore it from a copy of the store, or {BUILD_ANEW}"
        )
    header, body = _split(data, path)
    view = memoryview(data)
    for file in header.files:
        end = body + _packed_bytes(file)
        content = view[body:end]
        if file.packed_bytes is not None:
            content = _decompressed(content, path)
        if len(content) != file.size_bytes:
            raise _not_a_pack(path, f"{file.name} has {len(content)} bytes, not {file.size_bytes}")
        (directory / file.name).write_bytes(content)
        body = end
    is_earlier = header.format_version < FORMAT_VERSION
    (directory / HEADER_FILE).write_bytes(
        msgspec.json.encode(header) if is_earlier else encode(header, sha256)
    )
    return header


def _packed_bytes(file: PackedFile) -> int:
    """Return the size of a file in its pack."""
    return file.size_bytes if file.packed_bytes is None else file.packed_bytes


def _decompressed(frame: memoryview, path: str) -> memoryview:
    try:
        return memoryview(zstandard.ZstdDecompressor().decompress(frame))
    except zstandard.ZstdError as error:
        raise _not_a_pack(path, error) from error


def _not_a_pack(path: str, reason: object) -> DamageError:
    return DamageError(
        f"index part {path} is not a pack of format 1 or {FORMAT_VERSION}: {reason}; use the version that wrote it"
    )


def _split(data: bytes, path: str) -> tuple[Header, int]:
    """Return the header of a pack, and the place of its first file."""
    start = len(MAGIC) + _LENGTH.size
    is_earlier = data.startswith(EARLIER_MAGIC)
    try:
        if not is_earlier and not data.startswith(MAGIC):
            raise ValueError(f"it begins with {data[: len(MAGIC)]!r}, not {MAGIC!r}")
        end = start + _LENGTH.unpack_from(data, len(MAGIC))[0]
        encoded = memoryview(data)[start:end]
        header = decoder(Header).decode(encoded if is_earlier else _decompressed(encoded, path))
        if header.format_version != (1 if is_earlier else FORMAT_VERSION):
            raise ValueError(f"its header is of format {header.format_version}")
        if end + sum(map(_packed_bytes, header.files)) != len(data):
            raise ValueError(f"its files do not fill its {len(data)} bytes")
    except (ValueError, struct.error) as error:
        raise _not_a_pack(path, error) from error
    return header, end


def read_header(directory: Path, sha256: str) -> Header | None:
    """Return the header of an unpacked part, or None if the part is incomplete. `sha256` is that of its pack."""
    try:
        header = _header_of((directory / HEADER_FILE).read_bytes(), sha256)
    except (FileNotFoundError, msgspec.MsgspecError, DamageError):
        return None
    return header if header.present_in(directory) else None


def _header_of(data: bytes, sha256: str) -> Header:
    """Decode the header file of an unpacked part. If the pack is of format 1, the file has no checksum."""
    fields = decoder(dict[str, Any]).decode(data)
    if fields.get("format_version") == FORMAT_VERSION:
        return decode(Header, data, HEADER_FILE, FORMAT_VERSION, sha256)
    return decoder(Header).decode(data)


def is_as_packed(directory: Path, sha256: str) -> bool:
    """Whether an unpacked part still matches the checksums of its pack. Reads all of its files."""
    try:
        encoded = (directory / HEADER_FILE).read_bytes()
        header = _header_of(encoded, sha256)
        if header.format_version == FORMAT_VERSION:
            return all(_checksum(directory / file.name) == file.xxh3 for file in header.files)
        digest = hashlib.sha256(b"".join((EARLIER_MAGIC, _LENGTH.pack(len(encoded)), encoded)))
        for packed in header.files:
            with (directory / packed.name).open("rb") as file:
                hashlib.file_digest(file, lambda: digest)  # continues the same digest
    except (OSError, ValueError, DamageError):
        return False
    return digest.hexdigest() == sha256


def _checksum(path: Path) -> str:
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def write_meta(
    directory: Path, headers: Iterable[Header], deletes: Mapping[str, tuple[int, int]] | None = None
) -> None:
    """Write the `meta.json` that combines the segments of all parts, in this order, into one tantivy index.

    `deletes` maps a segment to the number of omitted documents and the number in the name of its file of deletes.
    """
    parts: Sequence[Header] = list(headers)
    first = parts[0]
    assert all(
        (part.tantivy_schema, part.index_settings) == (first.tantivy_schema, first.index_settings)
        for part in parts
    )
    segments = [segment for part in parts for segment in part.segments]
    entries: list[dict[str, Any]] = msgspec.to_builtins(segments)
    for segment in entries:
        if deletes and segment["segment_id"] in deletes:
            count, number = deletes[segment["segment_id"]]
            segment["deletes"] = {"num_deleted_docs": count, "opstamp": number}
    meta = {
        "index_settings": first.index_settings,
        "segments": entries,
        "schema": first.tantivy_schema,
        "opstamp": 0,
    }
    (directory / META_FILE).write_text(json.dumps(meta))


INDEX_MAPS_KEPT_FREE: Final = 2_000
"""Memory maps reserved for uses other than index parts: libraries, threads, table files."""
_INDEX_SCRATCH_AGE_MAX_S: Final = 3600.0
"""Age of an index assembled for one search; no search takes so long."""
_INDEX_COPIES_SWEPT_EACH_S: Final = 60.0
"""Interval at which a process looks for unused unpacked index parts."""

TEMPORARY: Final = "open-"
_PART: Final = re.compile("[0-9a-f]{64}")


class PartCache:
    """Unpacked parts of any number of indexes in one directory. Processes may share it."""

    def __init__(self, objects: ObjectStore, directory: Path) -> None:
        """Use the directory, which is created with the first part."""
        self.directory = directory
        self._objects = objects
        self._swept_links = False
        self._compared_s: dict[str, float] = {}
        self._sweeps_next_s = float("-inf")

    def fetch(
        self, parts: Sequence[PartRef], cached: Mapping[str, Header], used: Iterable[PartRef] = ()
    ) -> list[Header]:
        """Fetch parts into the cache and return their headers. Parts in `cached`, by checksum, are already cached.

        `used` are other cached parts that the caller needs. All of these parts are protected from sweeps for some
        minutes.

        Raises:
            DamageError: A part is missing or altered; the message names it (F14).
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        new = {part.sha256: part for part in parts if part.sha256 not in cached}
        mine = {part.sha256 for part in (*parts, *used)}
        with ThreadPoolExecutor(PARTS_AT_ONCE) as pool:
            fetched = {sha256: pool.submit(self._fetch, part) for sha256, part in new.items()}
            pending = set(fetched.values())
            while pending := wait(pending, PART_COPY_IDLE_MIN_S / 4).not_done:  # keeps early ones
                self._note_use(mine)
        if not self._swept_links:  # of other processes, because this one has no links yet
            self._swept_links = True
            self._sweep_links()
        if time.monotonic() >= self._sweeps_next_s:
            self._sweeps_next_s = time.monotonic() + _INDEX_COPIES_SWEPT_EACH_S
            self._note_use(mine)
            self._sweep_parts()
        return [cached.get(part.sha256) or fetched[part.sha256].result() for part in parts]

    def _fetch(self, part: PartRef) -> Header:
        """Return the header of a part, after fetching it into the cache if necessary."""
        place = self.directory / part.sha256
        header = read_header(place, part.sha256)
        if header is not None and header.documents == part.documents and _touch(place):
            return header
        try:
            data = self._objects.get(part.path)
        except NotFoundError as error:
            raise DamageError(
                f"index part {part.path} is missing; restore it from a copy of the store, or {BUILD_ANEW}"
            ) from error
        with scratch_directory(TEMPORARY, self.directory) as target:
            header = unpack(data, part.sha256, part.path, target)
            try:
                target.rename(place)
            except OSError:
                # The directory exists: it holds the same part from another process, or its remains after a
                # power loss. Each file is replaced atomically by an intact one and is never absent, because
                # another process may be linking it.
                for file in target.iterdir():
                    file.replace(place / file.name)
        return header

    def drop_altered(self, parts: Iterable[PartRef]) -> int:
        """Delete those of these parts that fail their checksum, so that they are fetched again on demand. Return their
        number.

        All files of a part are read. A part that passed is not checked again for some minutes.
        """
        now_s, dropped = time.monotonic(), 0
        for sha256 in {part.sha256 for part in parts}:
            place = self.directory / sha256
            if now_s - self._compared_s.get(sha256, float("-inf")) < PART_COPY_IDLE_MIN_S:
                continue
            if is_as_packed(place, sha256):
                self._compared_s[sha256] = now_s
            else:
                dropped += 1
                with suppress(OSError):
                    self._drop(str(place))
        return dropped

    def _note_use(self, parts: Iterable[str]) -> None:
        for sha256 in parts:
            _touch(self.directory / sha256)

    def _sweep_links(self) -> None:
        """Delete directories of killed processes, which contain mostly links."""
        for path in self.directory.glob(TEMPORARY + "*"):
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > _INDEX_SCRATCH_AGE_MAX_S:
                    shutil.rmtree(path, ignore_errors=True)

    def _sweep_parts(self) -> None:
        """Delete parts that were not used for a while."""
        now_s = time.time()
        with os.scandir(self.directory) as entries:
            for entry in entries:
                with suppress(OSError):
                    if _PART.fullmatch(entry.name) and now_s - entry.stat().st_mtime > PART_COPY_IDLE_MIN_S:
                        self._drop(entry.path)

    def _drop(self, place: str) -> None:
        """Delete a part. It is renamed first, so that no reader finds an incomplete part."""
        doomed = self.directory / f"{TEMPORARY}{uuid.uuid4().hex}"
        Path(place).rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)


def _touch(place: Path) -> bool:
    """Record that a part is used now. Return False if the part is gone."""
    try:
        os.utime(place)
    except FileNotFoundError:
        return False
    except OSError:  # of another user, or on a read-only disk; it is still readable
        return True
    return True


def link(source: Path, target: Path) -> None:
    """Link a file to another path, or copy it if links are impossible."""
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links, or too many of them
        shutil.copyfile(source, target)


_ALLOWED: Final = Path("/proc/sys/vm/max_map_count")
_USED: Final = Path("/proc/self/maps")
MAPS_PER_PART: Final = len(SEGMENT_SUFFIXES)
MAPS_PER_BLOCK: Final = 1
"""Additional map of a part with vectors. The file is mapped on the first vector search."""
_NO_FILES: Final = re.compile(r"too many open files|os error (?:23|24)\b", re.IGNORECASE)
_NO_MAPS: Final = re.compile(r"cannot allocate memory|os error 12\b", re.IGNORECASE)


def ceiling(*, with_vectors: bool = False) -> int | None:
    """Return how many index parts a searcher can open here: each needs memory maps, and the system limits them.

    Parts with vectors need more maps. Return None if the system does not report its limit.
    """
    allowed = _allowed()
    return None if allowed is None else allowed // (MAPS_PER_PART + MAPS_PER_BLOCK * with_vectors)


def check_ceiling(parts: int, more: int) -> None:
    """Raise LimitError if an index of this many parts, `more` of them not open yet, cannot be opened here."""
    _check(parts, parts * MAPS_PER_PART, more * MAPS_PER_PART)


def check_blocks(blocks: int, more: int) -> None:
    """Raise LimitError if the vectors of this many parts, `more` of them not mapped yet, cannot be mapped in
    addition."""
    _check(blocks, blocks * (MAPS_PER_PART + MAPS_PER_BLOCK), more * MAPS_PER_BLOCK, with_vectors=True)


def too_many(parts: int, error: Exception | None = None, *, with_vectors: bool = False) -> LimitError:
    """Return the error for an index with more parts than this machine can open. `error` is the system's failure, if
    any."""
    if error is not None and _NO_FILES.search(str(error)):
        return LimitError(
            f"the index has {parts:,} parts, and this process has reached its limit of open files. Nothing is "
            "damaged: raise that limit (ulimit -n), or close files."
        )
    most = ceiling(with_vectors=with_vectors)
    allowed = f"{most:,} in a process" if most is not None else "fewer"
    maps = MAPS_PER_PART + MAPS_PER_BLOCK * with_vectors
    return LimitError(
        f"the index has {parts:,} parts, and this machine can open {allowed}, of all indexes together: each takes "
        f"{maps} memory maps. Nothing is damaged: {BUILD_ANEW}, or raise vm.max_map_count (Linux)."
    )


def is_exhausted(error: Exception) -> bool:
    """Whether opening failed because the system ran out of memory maps or files."""
    return bool(_NO_FILES.search(str(error)) or _NO_MAPS.search(str(error)))


def _allowed() -> int | None:
    """Return the number of memory maps that parts may use."""
    try:
        return max(0, int(_ALLOWED.read_text()) - INDEX_MAPS_KEPT_FREE)
    except (OSError, ValueError):
        return None


def _check(parts: int, maps: int, more: int, *, with_vectors: bool = False) -> None:
    """Raise LimitError if these parts need more maps than allowed, or if `more` maps are unavailable now."""
    allowed = _allowed()
    if allowed is None:
        return
    try:
        used = _USED.read_bytes().count(b"\n")
    except OSError:
        used = 0
    if maps > allowed or used + more > allowed + INDEX_MAPS_KEPT_FREE:
        raise too_many(parts, with_vectors=with_vectors)


_OF_DATA: Final = re.compile("An IO error|Data corrupted|An internal error|Failed to open|Schema error")
"""Beginnings of tantivy errors that no query causes."""
_OF_QUERY: Final = re.compile("An invalid argument was passed|Aborting aggregation")
"""Beginnings of tantivy errors that a query causes."""

P = ParamSpec("P")
AnswerT = TypeVar("AnswerT")


class RenewableIndex(Protocol):
    """Object whose index can be renewed after corruption."""

    def renew(self) -> bool:
        """Re-fetch altered files of the index; return False if no file was altered."""
        ...

    @property
    def described(self) -> str:
        """Description of the index for messages."""
        ...


class IndexCorrupt(ValueError):  # noqa: N818  never leaves the package
    """tantivy failed in a way that corrupt files may have caused."""

    def __init__(self, reason: str, else_: Exception | None = None) -> None:
        """Store the reason. `else_` is the error if no file was altered and tantivy names no cause."""
        super().__init__(reason)
        self.else_ = else_


SelfT = TypeVar("SelfT", bound=RenewableIndex)


@contextmanager
def stumbling() -> Iterator[None]:
    """Convert panics of tantivy inside the `with` block to IndexCorrupt."""
    try:
        yield
    except BaseException as error:
        if not _is_panic(error):
            raise
        raise IndexCorrupt(f"tantivy gave up: {error}") from error


def classify_error(query: str, error: ValueError) -> Exception:
    """Return the error for a rejected query, or IndexCorrupt if the files may be at fault."""
    if isinstance(error, QuerySyntaxError) or _OF_QUERY.match(str(error)):
        return refusal(query, error)
    if isinstance(error, IndexCorrupt):
        return error
    if _OF_DATA.match(str(error)):
        return IndexCorrupt(str(error))
    return IndexCorrupt(str(error), refusal(query, error))


def retry_after_reopen(
    ask: Callable[Concatenate[SelfT, P], AnswerT],
) -> Callable[Concatenate[SelfT, P], AnswerT]:
    """Decorate a method to be retried once if tantivy failed and cached files of the index were altered.

    If no file was altered, the method raises DamageError.
    """

    @wraps(ask)
    def wrapper(self: SelfT, /, *args: P.args, **kwargs: P.kwargs) -> AnswerT:
        try:
            with stumbling():
                return ask(self, *args, **kwargs)
        except (IndexCorrupt, ValueError) as error:  # panics, and errors of tantivy
            if not _is_of_data(error):
                raise
            if not self.renew():
                raise _search_error(self, error) from error
        try:
            with stumbling():
                return ask(self, *args, **kwargs)
        except ValueError as error:
            raise (_search_error(self, error) if _is_of_data(error) else error) from error

    return wrapper


def _is_of_data(error: ValueError) -> bool:
    return isinstance(error, IndexCorrupt) or bool(_OF_DATA.match(str(error)))


def _search_error(index: RenewableIndex, error: ValueError) -> Exception:
    if isinstance(error, IndexCorrupt) and error.else_ is not None:
        return error.else_
    return DamageError(
        f"{index.described} does not answer: {error}. Its copies on this machine are intact; run `tracelake "
        "verify`. If that finds nothing, restart this process, or rebuild the index with `tracelake index "
        "rebuild`"
    )


def _is_panic(error: BaseException) -> bool:
    """Whether this is a panic of Rust. Each library has a separate panic class, which it does not export."""
    return not isinstance(error, Exception) and type(error).__name__ == "PanicException"
