"""Records as JSON with a checksum: write one, read one, or say what is wrong with it.

All that a lake keeps as JSON, in either store, is written by `encode` and read by `decode`. The last field of a
record, `xxh3`, is the 128-bit XXH3 of all bytes before it: a record is read as it was written, or it is damaged.

A record that is found by its place, a path or a key, and by nothing that knows its content, is kept with its checksum
*turned*: XORed with the hash of the place. Anywhere else it does not fit, so a record that came to the place of another
is damaged, too.
"""

from __future__ import annotations

import re
import threading
from typing import Any, Final, Protocol, TypeVar

import msgspec
import xxhash

from tracelake._errors import DamageError, FormatError, UsageError

MALFORMED: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What reading JSON as a type may raise: a text that is no UTF-8 is no error of msgspec's own."""
_FIELD: Final = b',"xxh3":"%s"}'
_FIELD_BYTES: Final = len(_FIELD) - len(b"%s") + 32
_WRITTEN: Final = re.compile(rb',"xxh3":"([0-9a-f]{32})"\}')
_building: Final = threading.Lock()
_decoders: Final[dict[Any, msgspec.json.Decoder[Any]]] = {}


class Versioned(Protocol):
    """A record that says in which format it was written."""

    @property
    def format_version(self) -> int:
        """The number of the format."""


class _Format(msgspec.Struct):
    format_version: int


KindT = TypeVar("KindT")
VersionedT = TypeVar("VersionedT", bound=Versioned)


def decoder(kind: type[KindT]) -> msgspec.json.Decoder[KindT]:
    """Return what reads JSON as this type; threads may share it.

    All records are read through it, and none by `msgspec.json.decode`. What msgspec has to know of a class it builds
    when it meets the class first, and a second thread that meets it at that moment takes what is half there and
    crashes the process (msgspec 0.22). So here one thread builds, and the others wait.
    """
    if kind not in _decoders:
        with _building:
            if kind not in _decoders:
                _decoders[kind] = msgspec.json.Decoder(kind)
    return _decoders[kind]


def encode(record: Versioned, place: str = "") -> bytes:
    """Return a record as JSON with its checksum: the same record always gives the same bytes.

    `place` is the path where it is kept, for one that nothing else tells from others.

    Raises UsageError for a record that nobody could read again, as where a text is a number: it passes its own decoder
    before anything of it is written.
    """
    try:
        data = msgspec.json.encode(record, order="deterministic")
        decoder(_Format).decode(data)
        decoder(type(record)).decode(data)
    except (*MALFORMED, TypeError, ValueError, OverflowError) as error:
        what = type(record).__name__.lower()
        raise UsageError(f"this {what} could not be read again, and is not written: {error}") from error
    return turned(data[:-1] + _checksum(data[:-1]), place)


def turned(data: bytes, place: str) -> bytes:
    """Return a record with its checksum turned by its place, or turned back; what is no record stays as it is.

    Digits count in lower case only, as they are written: another spelling of the same number is a flipped bit.
    """
    written = _WRITTEN.fullmatch(data[-_FIELD_BYTES:]) if place else None
    if written is None:
        return data
    # A key that is no text is refused by the store, which says so.
    number = int(written[1], 16) ^ xxhash.xxh3_128_intdigest(place.encode(errors="surrogatepass"))
    return data[:-_FIELD_BYTES] + _FIELD % f"{number:032x}".encode()


def is_whole(data: bytes, place: str = "") -> bool:
    """Tell whether these are the bytes of a record of any kind, all of them, as they were written for this place."""
    data = turned(data, place)
    return len(data) > _FIELD_BYTES and data[-_FIELD_BYTES:] == _checksum(data[:-_FIELD_BYTES])


def fields_of(data: bytes) -> frozenset[str]:
    """Return the names of the fields of a JSON object without a look at its checksum; none for another text."""
    try:
        return frozenset(decoder(dict[str, Any]).decode(data))
    except MALFORMED:
        return frozenset()


def decode(kind: type[VersionedT], data: bytes, what: str, version: int, place: str = "") -> VersionedT:
    """Read a record of this format.

    Raises DamageError, naming the record as `what`, for one that is torn, altered, of another format or of another
    place.
    """
    if not is_whole(data, place):
        raise DamageError(
            f"{what} cannot be read: its checksum does not fit its {len(data)} bytes and its place. "
            "Restore it from a backup."
        )
    plain = data[:-_FIELD_BYTES] + b"}"
    try:
        written = decoder(_Format).decode(plain).format_version
        if written == version:
            return decoder(kind).decode(plain)
    except MALFORMED as error:
        raise DamageError(f"{what} cannot be read: {error}. Restore it from a backup.") from error
    other = "the release that wrote it" if written < version else "the release that wrote it, or a newer one"
    raise FormatError(
        f"{what} has format {written}; this release reads {version}. It is not damaged: use {other}."
    )


def _checksum(data: bytes) -> bytes:
    return _FIELD % xxhash.xxh3_128_hexdigest(data).encode()
