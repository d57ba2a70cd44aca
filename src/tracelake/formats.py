"""Records as JSON: read one, or say what is wrong with it."""

from __future__ import annotations

import threading
from typing import Any, Final, Protocol, TypeVar

import msgspec

from tracelake._errors import DamageError

_building: Final = threading.Lock()
_decoders: Final[dict[Any, msgspec.json.Decoder[Any]]] = {}


class Versioned(Protocol):
    """A record that says in which format it was written."""

    @property
    def version(self) -> int:
        """The number of the format."""


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


def decode(kind: type[VersionedT], data: bytes, what: str, version: int) -> VersionedT:
    """Read a record of this format.

    Raises DamageError, naming the record as `what`, for one that is torn or of another format.
    """
    try:
        record = decoder(kind).decode(data)
    except msgspec.MsgspecError as error:
        raise DamageError(f"{what} cannot be read: {error}. Restore it from a backup.") from error
    if record.version != version:
        raise DamageError(f"{what} has format {record.version}; this release reads {version}.")
    return record
