"""Records as JSON with a format version: read one, or say what is wrong with it."""

from __future__ import annotations

from typing import Protocol, TypeVar

import msgspec

from tracelake._errors import DamageError


class Versioned(Protocol):
    """A record that says in which format it was written."""

    @property
    def version(self) -> int:
        """The number of the format."""


VersionedT = TypeVar("VersionedT", bound=Versioned)


def decode(kind: type[VersionedT], data: bytes, what: str, version: int) -> VersionedT:
    """Read a record of this format.

    Raises DamageError, naming the record as `what`, for one that is torn or of another format.
    """
    try:
        record = msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise DamageError(f"{what} cannot be read: {error}. Restore it from a backup.") from error
    if record.version != version:
        raise DamageError(f"{what} has format {record.version}; this release reads {version}.")
    return record
