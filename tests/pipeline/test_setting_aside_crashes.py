"""The pipeline killed between its writes while it quarantines a poison segment."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TypeVar

import tracelake
from tests.pipeline.poison import Poisoned, good, names, poisoned
from tracelake import Lake
from tracelake.pipeline.driver import Pipeline
from tracelake.pipeline.sources.base import Input
from tracelake.pipeline.sources.server_inputs import INBOX
from tracelake.storage import KeyValueStore, MemoryObjectStore, ObjectStore
from tracelake.testing import CrashingKeyValueStore, CrashingObjectStore, CrashPoint

ResultT = TypeVar("ResultT")
Partitions = dict[str, dict[str, object]]


class Filmed(CrashPoint):
    """Crash point that kills nothing and records the stores before each changing call."""

    def __init__(self, objects: MemoryObjectStore, records: Partitions) -> None:
        """Watch the internals of two in-memory stores."""
        super().__init__()
        self._objects, self._records = objects, records
        self.moments: list[tuple[dict[str, tuple[bytes, float]], Partitions]] = []

    def pass_through(self, call: Callable[[], ResultT]) -> ResultT:
        """Record the state, and carry out the call."""
        moment = (dict(self._objects._objects), {name: dict(held) for name, held in self._records.items()})
        if not self.moments or self.moments[-1] != moment:
            self.moments.append(moment)
        return super().pass_through(call)


def run(lake: Lake, objects: ObjectStore, records: KeyValueStore) -> None:
    """Run a pipeline that cannot merge the poison input on all input, as one transaction."""
    inbox = [Input(INBOX, info.path, info.size_bytes) for info in lake.objects.list("inbox/")]
    Pipeline("main", records, objects, 1, Poisoned("merge")).run([inbox])


def test_killed_while_it_sets_aside() -> None:
    """After any last write the next run has the same end: the good segment is in, the poison one kept and named."""
    with tracelake.init(f"memory://{uuid.uuid4().hex}", buckets=1) as lake:
        lake.objects.put("inbox/0.segment", good(0))
        lake.objects.put("inbox/1.segment", poisoned(1))
        objects, records = lake.objects, lake._opened.key_value
        assert isinstance(objects, MemoryObjectStore)
        held = _partitions(records)
        film = Filmed(objects, held)
        run(lake, CrashingObjectStore(objects, film), CrashingKeyValueStore(records, film))
        assert len(film.moments) > 50
        first = next(
            at
            for at, (_, partitions) in enumerate(film.moments)
            if any("asides/" in name for name in partitions)
        )
        for at in range(first - 1, len(film.moments), 4):
            kept, partitions = film.moments[at]
            objects._objects = dict(kept)
            held.clear()
            held.update({name: dict(entries) for name, entries in partitions.items()})
            lake._opened.forget_view()
            run(lake, objects, records)
            assert names(lake) == {0}, f"killed before write {at}"
            (aside,) = lake.quarantine.all()
            assert (aside.path, aside.state) == ("inbox/1.segment", "set aside"), f"killed before write {at}"
            assert [info.path for info in objects.list("inbox/")] == ["inbox/1.segment"]
        assert lake.verify().ok


def _partitions(records: object) -> Partitions:
    """Return the internals of the in-memory store below its wrappers."""
    while not hasattr(records, "_partitions"):
        records = next(value for value in vars(records).values() if hasattr(value, "set_if"))
    found: Partitions = records._partitions
    return found
