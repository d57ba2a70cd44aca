"""Pack format: the files of a tantivy index, concatenated into one object.

    magic "TLPACK01" | header length, 4 bytes little-endian | header, JSON | the files, in order

tantivy's `meta.json` is not packed. The header contains the required parts of it, and searchers write one `meta.json`
for all parts together.
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
"""Suffixes of the files of a tantivy segment. Without `pos`, an index would open but fail on the first phrase."""
META_FILE: Final = "meta.json"
HEADER_FILE: Final = "pack.json"
"""File for the header of an unpacked part, next to the packed files."""

_LENGTH: Final = struct.Struct("<I")


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


class PackedFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """File of a pack."""

    name: Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{32}[.][a-z]+|vectors[.]block)$")]
    size_bytes: Annotated[int, msgspec.Meta(ge=0)]


class Header(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Header of a pack. There is one segment, unless the part outgrew the heap."""

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
    header = read_meta(directory)
    contents = [(directory / file.name).read_bytes() for file in header.files]
    assert [len(data) for data in contents] == [file.size_bytes for file in header.files]
    encoded = msgspec.json.encode(header)
    return header, b"".join((MAGIC, _LENGTH.pack(len(encoded)), encoded, *contents))


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
    """Return the header of an unpacked part, or None if the part is incomplete."""
    try:
        header = decoder(Header).decode((directory / HEADER_FILE).read_bytes())
    except (FileNotFoundError, msgspec.MsgspecError):
        return None
    return header if header.present_in(directory) else None


def is_as_packed(directory: Path, sha256: str) -> bool:
    """Whether an unpacked part still matches the checksum of its pack. Reads all of its files."""
    try:
        encoded = (directory / HEADER_FILE).read_bytes()
        digest = hashlib.sha256(b"".join((MAGIC, _LENGTH.pack(len(encoded)), encoded)))
        for packed in decoder(Header).decode(encoded).files:
            with (directory / packed.name).open("rb") as file:
                hashlib.file_digest(file, lambda: digest)  # continues the same digest
    except (OSError, ValueError):
        return False
    return digest.hexdigest() == sha256


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
