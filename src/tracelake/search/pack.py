"""One part as one object: the files of a tantivy index, one after another.

    magic "TLPACK01" | header length, 4 bytes little-endian | header, JSON | the files, in order

tantivy's `meta.json` is not among the files: what is needed of it stands in the header, and searchers write
one `meta.json` for all parts together.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from tracelake._errors import DamageError
from tracelake.formats import decoder
from tracelake.search.model import BUILD_ANEW
from tracelake.search.vector_index import FILE as VECTORS_FILE

MAGIC: Final = b"TLPACK01"
SEGMENT_SUFFIXES: Final = ("fast", "fieldnorm", "idx", "pos", "store", "term")
"""The files of one tantivy segment; a missing `pos` would open and fail on the first phrase."""
META_FILE: Final = "meta.json"
HEADER_FILE: Final = "pack.json"
"""Where an unpacked part keeps its header, beside the files."""

_LENGTH: Final = struct.Struct("<I")


class IndexSegment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tantivy segment as `meta.json` names it. Parts never hold deleted documents."""

    segment_id: Annotated[str, msgspec.Meta(pattern="^[0-9a-f-]{36}$")]
    max_doc: int
    deletes: None = None


class _Meta(msgspec.Struct, frozen=True):
    """What is needed of tantivy's `meta.json`."""

    segments: list[IndexSegment]
    schema: Any
    index_settings: Any


class PackedFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file of a pack."""

    name: Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{32}[.][a-z]+|vectors[.]block)$")]
    size_bytes: Annotated[int, msgspec.Meta(ge=0)]


class Header(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a pack says of itself. There is one segment, unless the heap did not suffice for the part."""

    format_version: Literal[1] = 1
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
        """True iff every file is in the directory with its size."""
        try:
            return all((directory / file.name).stat().st_size == file.size_bytes for file in self.files)
        except FileNotFoundError:
            return False


def read_meta(directory: Path) -> Header:
    """Return what a pack of the finished tantivy index in a directory says of itself."""
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
    """Return the finished tantivy index in a directory as one object, and its header."""
    header = read_meta(directory)
    contents = [(directory / file.name).read_bytes() for file in header.files]
    assert [len(data) for data in contents] == [file.size_bytes for file in header.files]
    encoded = msgspec.json.encode(header)
    return header, b"".join((MAGIC, _LENGTH.pack(len(encoded)), encoded, *contents))


def unpack(data: bytes, sha256: str, path: str, directory: Path) -> Header:
    """Write the files of a pack, and its header, into a directory that exists.

    Raises:
        DamageError: The bytes are not those that were packed; names `path`.
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
        (directory / file.name).write_bytes(view[body : body + file.size_bytes])
        body += file.size_bytes
    (directory / HEADER_FILE).write_bytes(msgspec.json.encode(header))
    return header


def _split(data: bytes, path: str) -> tuple[Header, int]:
    start = len(MAGIC) + _LENGTH.size
    try:
        if not data.startswith(MAGIC):
            raise ValueError(f"it begins with {data[: len(MAGIC)]!r}, not {MAGIC!r}")
        end = start + _LENGTH.unpack_from(data, len(MAGIC))[0]
        header = decoder(Header).decode(data[start:end])
        if end + sum(file.size_bytes for file in header.files) != len(data):
            raise ValueError(f"its files do not fill its {len(data)} bytes")
    except (ValueError, struct.error) as error:
        raise DamageError(
            f"index part {path} is not a pack of format 1: {error}; use the version that wrote it"
        ) from error
    return header, end


def read_header(directory: Path) -> Header | None:
    """Return the header of an unpacked part, or None where the part is not there completely."""
    try:
        header = decoder(Header).decode((directory / HEADER_FILE).read_bytes())
    except (FileNotFoundError, msgspec.MsgspecError):
        return None
    return header if header.present_in(directory) else None


def is_as_packed(directory: Path, sha256: str) -> bool:
    """Whether an unpacked part still is what was unpacked, by the checksum of the pack: reads all of it."""
    try:
        encoded = (directory / HEADER_FILE).read_bytes()
        digest = hashlib.sha256(b"".join((MAGIC, _LENGTH.pack(len(encoded)), encoded)))
        for packed in decoder(Header).decode(encoded).files:
            with (directory / packed.name).open("rb") as file:
                hashlib.file_digest(file, lambda: digest)  # goes on with it
    except (OSError, ValueError):
        return False
    return digest.hexdigest() == sha256


def write_meta(
    directory: Path, headers: Iterable[Header], deletes: Mapping[str, tuple[int, int]] | None = None
) -> None:
    """Write the `meta.json` that makes one tantivy index of the segments of all parts, in this order.

    `deletes` has, by segment, how many documents are left out and the number in the name of the file that says which.
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
