"""Small lake with every kind of object and record, which are damaged and repaired one by one."""

from __future__ import annotations

import re
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pyarrow as pa

import tracelake
from tests.altered import sealed
from tests.datasets.conversations import talk
from tests.pipeline.poison import Poisoned, poisoned
from tests.pipeline.spans import a_line
from tracelake import Lake, TracelakeError
from tracelake.journal.store import Journal, trim
from tracelake.otlp.framing import write_segment
from tracelake.replicas.replica import BatchCounts, Heartbeat, ReplicaProgress
from tracelake.storage import KeyValueStore, MemoryKeyValueStore, ObjectStore, open_key_value, open_objects
from tracelake.tasks.runners import InProcess

NOT_MISSED: Final = [
    r"inbox/\d*-a\..*",  # its transaction deletes it; only the server knows what it acknowledged
    r"inputs/main/.*",  # a second read of the same file finds its spans known
    r"suspects/main/.*",  # the input is tried again, and quarantined again
    r"receipts/main/.*",  # explain reports that the times were not recorded
    r"leases/.*",  # the holder writes it again, or ends
    r"replicas/.*",  # the next heartbeat writes it again
    r"sightings/.*",  # collection begins to count again
    r"collector/epoch",  # the epoch is at least that of any branch, from which it is restored
    r"answers/.*|requests/.*",  # a live client asks again
    r"staged/.*",  # nothing names a staged entry except itself
    r"branches/dev|tags/.*",  # names: no record shows that one existed, and its commits stay until they are collected
    r"writes/.*",  # a write with an id is remembered as long as its record
    r"versions/changes/.*",
]
"""Things whose loss is not detectable; a flipped bit in them is still reported."""


def build(url: str, folder: Path) -> Lake:
    """Make a lake of two transactions, a branch, a tag, a dataset with staged examples, tables, and pending input."""
    lake = tracelake.init(url, buckets=2)
    for number in range(2):
        file = folder / f"{number}.jsonl"
        file.write_bytes(
            a_line(*(talk(trace, 0, f"why {trace}", "so") for trace in range(number, number + 3)))
        )
        lake.ingest(file, runner=InProcess())
    # Two transactions are quarantined: the read task of one fails, and the merge task of the other.
    for number, stage in enumerate(("read", "merge")):
        lake.objects.put(f"inbox/0000000000000000000{number}-aside.segment", poisoned(7 + number))
        lake.pipeline(runner=Poisoned(stage)).run_once()
    _delete_what_nothing_names(lake)
    trim(Journal(lake._opened.key_value, "main"), upper=3, retained=2)
    questions = lake.datasets.create("questions", message="questions")
    questions.add(where="true", limit=1, message="one")
    questions.add(where="true", limit=4)
    lake.create_table("people", pa.table({"id": [0], "who": [""]}).schema, key=["id"], buckets=1)
    lake.write("people", pa.table({"id": [1, 2], "who": ["ann", "bob"]}), write_id="first")
    lake.tag("v1")
    lake.create_branch("dev")
    elsewhere = lake.datasets.create("elsewhere", branch="dev", message="elsewhere")
    elsewhere.add(where="true", limit=2, message="two")
    lake.objects.put(
        "inbox/00000000000000000001-a.segment", write_segment([("json", a_line(talk(9, 0, "a", "b")))])
    )
    Heartbeat(lake._opened.key_value, ReplicaProgress("r", BatchCounts(), tables=2)).beat()
    lake._opened.hold("spans")
    for partition in ("answers", "sightings"):
        lake._opened.key_value.set(partition, "one", sealed(b'{"format_version":1}'))
    return lake


def _delete_what_nothing_names(lake: Lake) -> None:
    """Delete parts of the quarantined transactions, as a collection does in time, because nothing names them."""
    for name in ("spans", "traces"):
        kept = {part.path for part in lake.table(name).scan.snapshot.parts}
        for info in list(lake.objects.list(f"shards/{name}/parts/")):
            if info.path not in kept:
                lake.objects.delete(info.path)


class Everything:
    """Lake in memory whose objects and records are damaged and repaired one by one."""

    def __init__(self, folder: Path) -> None:
        self.url = f"memory://{uuid.uuid4().hex}"
        with build(self.url, folder) as lake:
            self.id = lake.config.id
            assert lake.verify().ok
        self.objects: ObjectStore = open_objects(self.url)
        records: KeyValueStore = open_key_value(f"{self.url}/metadata")
        assert isinstance(records, MemoryKeyValueStore)
        self.records = records

    def names(self) -> list[str]:
        """Return all names: paths of objects, and partitions and keys of records without the lake's id."""
        paths = [info.path for info in self.objects.list("")]
        scoped = [(name, key) for name, entries in self.records._partitions.items() for key in entries]
        return paths + [f"{partition.removeprefix(self.id + '/')}/{key}" for partition, key in scoped]

    def read(self, name: str) -> bytes:
        """Return the stored bytes of an object or record."""
        if self.objects.head(name) is not None:
            return self.objects.get(name)
        partition, key = self._place(name)
        return self.records._partitions[partition][key].value

    def _place(self, name: str) -> tuple[str, str]:
        return next(
            (partition, key)
            for partition, entries in self.records._partitions.items()
            for key in entries
            if f"{partition.removeprefix(self.id + '/')}/{key}" == name
        )

    @contextmanager
    def copied(self, name: str, to: str) -> Iterator[None]:
        """Copy a record to another key of its partition, and delete the copy on exit."""
        partition, key = self._place(name)
        other = key + to[len(name) :]
        version = self.records.set(partition, other, self.read(name))
        try:
            yield
        finally:
            self.records.delete_if(partition, other, version)

    @contextmanager
    def damaged(self, name: str, damage: Callable[[bytes], bytes | None]) -> Iterator[None]:
        """Damage one object or record, and repair it on exit."""
        if self.objects.head(name) is not None:
            data = self.objects.get(name)
            changed = damage(data)
            self.objects.delete(name) if changed is None else self.objects.put(name, changed)
            try:
                yield
            finally:
                self.objects.put(name, data)
            return
        partition, key = self._place(name)
        entry = self.records._partitions[partition][key]
        changed = damage(entry.value)
        if changed is None:
            self.records.delete_if(partition, key, entry.version)
        else:
            self.records.set(partition, key, changed)
        try:
            yield
        finally:
            self.records.set(partition, key, entry.value)

    def said(self) -> str:
        """Return all findings of `verify`, which continues after each one, or the error on opening."""
        try:
            lake = tracelake.open(self.url)
        except TracelakeError as error:
            return str(error)
        with lake:
            return "\n".join(
                f"{each.kind} {each.what} {each.path} {each.detail}" for each in lake.verify().findings
            )


def kinds(names: list[str]) -> dict[str, list[str]]:
    """Return names grouped by kind: their first words, without ids and numbers."""
    found = defaultdict(list)
    for name in names:
        words = [word for word in name.split("/")[:3] if not re.search(r"[0-9a-f]{8}|\d{2}", word)]
        found["/".join(words)].append(name)
    return found


def is_named(name: str, said: str) -> bool:
    """Return whether a finding names the damaged thing, by its path or by its name for users."""
    partition, _, key = name.partition("/")
    others = {
        # The loss of a floor record shows in the records below it.
        "journal": [f"transaction {int(key[5:21])}" if key[5:21].isdecimal() else "transaction 0"]
        if partition == "journal"
        else [],
        "asides": [f"transaction {int(key[5:])} "] if partition == "asides" else [],
        "shards": [f"damaged table {key} ", f"missing table {key} "],
        "branches": [f"branch {key} "],
        "tables": [f"table {key.removesuffix('.json')} "],
        "lakes": [key],
        "lake.json": ["no lake in"],
    }
    return name in said or any(other in said for other in others.get(partition, []))
