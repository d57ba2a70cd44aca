"""JSON records with a checksum: encode, decode and verify.

`encode` writes and `decode` reads all JSON of a lake, in either store. The last field of a record, `xxh3`, is the
128-bit XXH3 of all bytes before it. A record that differs from its written bytes counts as damaged.

Some records are found only by their place, a path or a key, and no other record knows their content. Their checksum
is *turned*: XORed with the hash of the place. It matches nowhere else, so a record at another record's place counts
as damaged too.
"""

from __future__ import annotations

import re
import threading
from typing import Any, Final, Protocol, TypeVar

import msgspec
import xxhash

from tracelake._errors import DamageError, FormatError, UsageError

MALFORMED: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Exceptions of typed JSON decoding; msgspec has none for invalid UTF-8."""
_FIELD: Final = b',"xxh3":"%s"}'
_FIELD_BYTES: Final = len(_FIELD) - len(b"%s") + 32
_WRITTEN: Final = re.compile(rb',"xxh3":"([0-9a-f]{32})"\}')
_building: Final = threading.Lock()
_decoders: Final[dict[Any, msgspec.json.Decoder[Any]]] = {}


class Versioned(Protocol):
    """A record that states its format version."""

    @property
    def format_version(self) -> int:
        """Number of the format."""


class _Format(msgspec.Struct):
    format_version: int


KindT = TypeVar("KindT")
VersionedT = TypeVar("VersionedT", bound=Versioned)


def decoder(kind: type[KindT]) -> msgspec.json.Decoder[KindT]:
    """Return the thread-safe JSON decoder of a type.

    All records must use it instead of `msgspec.json.decode`. msgspec builds its class info at the first use of a class.
    If a second thread uses incomplete class info, the process crashes (msgspec 0.22). One thread therefore builds it
    while the others wait.
    """
    if kind not in _decoders:
        with _building:
            if kind not in _decoders:
                _decoders[kind] = msgspec.json.Decoder(kind)
    return _decoders[kind]


def encode(record: Versioned, place: str = "") -> bytes:
    """Return a record as JSON with its checksum; the same record always yields the same bytes.

    `place` is the path of a record that only its place identifies. Raises UsageError for a record that could not be
    decoded again, such as one with a number in place of a text.
    """
    try:
        data = msgspec.json.encode(record, order="deterministic")
        decoder(_Format).decode(data)
        decoder(type(record)).decode(data)
    except (*MALFORMED, TypeError, ValueError, OverflowError) as error:
        what = type(record).__name__.lower()
        raise UsageError(f"this {what} could not be read back, so it was not written: {error}") from error
    return turned(data[:-1] + _checksum(data[:-1]), place)


def turned(data: bytes, place: str) -> bytes:
    """Return a record with its checksum turned by its place, or turned back; other bytes stay unchanged.

    Only lower-case digits count, as they are written: another spelling of the same number is a flipped bit.
    """
    written = _WRITTEN.fullmatch(data[-_FIELD_BYTES:]) if place else None
    if written is None:
        return data
    # The store refuses a key that is not valid text, and reports it.
    number = int(written[1], 16) ^ xxhash.xxh3_128_intdigest(place.encode(errors="surrogatepass"))
    return data[:-_FIELD_BYTES] + _FIELD % f"{number:032x}".encode()


def is_intact(data: bytes, place: str = "") -> bool:
    """Return whether the bytes are a complete, unaltered record of any type for this place."""
    data = turned(data, place)
    return len(data) > _FIELD_BYTES and data[-_FIELD_BYTES:] == _checksum(data[:-_FIELD_BYTES])


def fields_of(data: bytes) -> frozenset[str]:
    """Return the field names of a JSON object, without a checksum test; empty for other text."""
    try:
        return frozenset(decoder(dict[str, Any]).decode(data))
    except MALFORMED:
        return frozenset()


def decode(
    kind: type[VersionedT],
    data: bytes,
    what: str,
    version: int,
    place: str = "",
    *,
    oldest: int | None = None,
) -> VersionedT:
    """Decode a record of this format version, or of one since `oldest`.

    Raises DamageError if the record is torn, altered, or of another format or place; the message calls it `what`.
    """
    if not is_intact(data, place):
        raise DamageError(
            f"{what} cannot be read: its checksum does not match its {len(data)} bytes and its place. Restore "
            "it from a backup."
        )
    plain = data[:-_FIELD_BYTES] + b"}"
    try:
        written = decoder(_Format).decode(plain).format_version
        if (version if oldest is None else oldest) <= written <= version:
            return decoder(kind).decode(plain)
    except MALFORMED as error:
        raise DamageError(f"{what} cannot be read: {error}. Restore it from a backup.") from error
    other = "the release that wrote it" if written < version else "the release that wrote it, or a newer one"
    raise FormatError(
        f"{what} has format {written}; this release reads {version}. It is not damaged: use {other}."
    )


def _checksum(data: bytes) -> bytes:
    return _FIELD % xxhash.xxh3_128_hexdigest(data).encode()
