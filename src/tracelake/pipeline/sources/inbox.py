"""The inbox as a source: segments that a server acknowledged. The lake has the only copy, until a commit holds it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Final

from tracelake._errors import StorageError
from tracelake.journal.known import KnownInputs
from tracelake.journal.model import ReadRange
from tracelake.pipeline.sources.port import Gone, Held, HeldBack, Input, Known, New, may_pass
from tracelake.replicas.account import Waiting
from tracelake.storage import ObjectStore, copy_all, delete_all
from tracelake.tracking.inbox import PREFIX

INBOX: Final = "inbox"
QUARANTINE: Final = "quarantine/"
"""Segments that were acknowledged and could not be read whole: for a person to look at, never deleted here."""


class InboxSource:
    """Segments by their paths in the lake; see `Source`."""

    is_ours = True

    def __init__(self, objects: ObjectStore, known: KnownInputs) -> None:
        del known
        self._objects = objects

    def measured_bytes(self, path: str) -> int:
        """See `Source`."""
        with may_pass():
            info = self._objects.head(path)
        return 0 if info is None else info.size_bytes

    def judge(self, item: Input, held: Held) -> New | Known | HeldBack | Gone:
        """See `Source`."""
        suspect = held.by_path.get((item.source, item.path))
        if suspect is not None:
            return HeldBack(suspect)
        try:
            is_gone = self._objects.head(item.path) is None
        except StorageError:
            return New(is_there=False)  # who reads it says why it cannot be read
        return Gone() if is_gone else New()

    def let_go(self, taken: Sequence[ReadRange]) -> None:
        """Delete segments that were taken; what could not be read whole is kept in quarantine."""
        # A copy that is there already was made before, or by a peer: then the segment is gone.
        copy_all(self._objects, {each.path: QUARANTINE + each.path for each in taken if each.damaged})
        delete_all(self._objects, [each.path for each in taken])

    def give_up(self, path: str) -> None:
        """Delete it: its record, which stays, says so first."""
        self._objects.delete(path)

    def is_taken(self, path: str, size_bytes: int, sha256: str) -> bool:
        """See `Source`."""
        del size_bytes, sha256  # no segment ever has the name of another
        return self._objects.head(path) is None


def fetch_segment(objects: ObjectStore, path: str, size_bytes: int, folder: Path) -> str:
    """See `Fetch`: any object of the lake."""
    del size_bytes
    if (local := objects.local_path(path)) is not None:
        return local
    copy = folder / path.rpartition("/")[2]  # others share the folder; no segment has the name of another
    with may_pass():
        data = objects.get(path)
    copy.write_bytes(data)
    return str(copy)


class InboxWatch:
    """What waits in the inbox; see `Watch`."""

    source = INBOX

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects

    def look(self, suspects: Collection[str], *, goes_on: bool) -> list[Waiting]:
        """See `Watch`."""
        del goes_on  # each look is quick, and gives all
        return [
            Waiting(info.path, info.size_bytes, info.modified_s)
            for info in self._objects.list(PREFIX)
            if info.path not in suspects
        ]

    def took(self, paths: Iterable[str]) -> None:
        """Note nothing: what was taken is gone."""
