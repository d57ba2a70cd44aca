"""The inbox as a source: segments that a server acknowledged. The lake has the only copy, until a commit holds it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence, Set
from pathlib import Path
from typing import Final

from tracelake.journal.known import KnownInputs
from tracelake.journal.model import RecordedInput
from tracelake.pipeline.sources.acknowledged import QUARANTINE, AcknowledgedSource
from tracelake.pipeline.sources.port import Lag, lag_of, may_pass
from tracelake.replicas.account import Waiting
from tracelake.storage import ObjectStore, copy_all, delete_all
from tracelake.storage.many import for_each
from tracelake.tracking.inbox import PREFIX

INBOX: Final = "inbox"


class InboxSource(AcknowledgedSource):
    """Segments by their paths in the lake; see `Source`."""

    def __init__(self, objects: ObjectStore, known: KnownInputs) -> None:
        del known
        self._objects = objects

    def _size_bytes(self, path: str) -> int | None:
        info = self._objects.head(path)
        return None if info is None else info.size_bytes

    def _there(self, paths: Collection[str]) -> Set[str]:
        heads = for_each(self._objects, self._objects.head, paths)
        return {path for path, info in zip(paths, heads, strict=True) if info is not None}

    def let_go(self, taken: Sequence[RecordedInput]) -> None:
        """Delete segments that were taken; what could not be read whole is kept in quarantine."""
        # A copy that is there already was made before, or by a peer: then the segment is gone.
        copy_all(self._objects, {each.path: QUARANTINE + each.path for each in taken if each.damaged})
        delete_all(self._objects, [each.path for each in taken])

    def give_up(self, path: str, *, unread: bool) -> None:
        """Delete it: its record, which stays, says so first."""
        del unread
        self._objects.delete(path)


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
        self._lag: Lag | None = None

    def look(self, suspects: Collection[str], *, goes_on: bool) -> list[Waiting]:
        """See `Watch`."""
        del goes_on  # each look is quick, and gives all
        waiting = [
            Waiting(info.path, info.size_bytes, info.modified_s)
            for info in self._objects.list(PREFIX)
            if info.path not in suspects
        ]
        self._lag = lag_of(waiting, "segments")
        return waiting

    def lag(self) -> Lag | None:
        """See `Watch`."""
        return self._lag

    def took(self, paths: Iterable[str]) -> None:
        """Note nothing: what was taken is gone."""
