"""Damages the data of the tracking store and its archive, byte by byte: the second part of campaign `flips`.

    python -m tests.faults.flip_tracking --seconds 60 --seed 7

A lake has traces in each place: hot, restored, in a file, in packs, in its tables, and in transit. Each byte of
repository objects and of payloads in the database is flipped, and they are cut at each length. The command `verify`
names the object, the trace or the row, and a reader gets the trace or an error that names it. Objects are also
deleted and replaced. The SQLite file has no checksums, so its bytes are flipped in an order from the seed. Each
read then gives the trace, a clear error, or no trace at all, and `verify` names the damage or continues. A flip
that changes a column other than a payload is named. Changes in payload bits that zstd does not use are counted at
the end.
"""

from __future__ import annotations

import argparse
import os
import random
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

import zstandard
from sqlalchemy import LargeBinary

from tests.archive.place import HotLake
from tests.tracking.requests import request, trace_id
from tracelake._errors import DamageError, TracelakeError
from tracelake.archive.repositories import read_archived
from tracelake.archive.verify import check_archive
from tracelake.results import Finding
from tracelake.storage import open_objects
from tracelake.tracking.database import TrackingDatabase
from tracelake.tracking.schema import metadata
from tracelake.tracking.store import TrackingStore
from tracelake.tracking.verify import check_store

LAKE, FILE, PACKED, OTHER, HOT, RESTORED, WAITING = range(1, 8)
PLACES: Final = (FILE, PACKED, OTHER)
"""Traces with an object."""
PAYLOADS: Final = {"tracelake_outbox": "sequence", "tracelake_trace_parts": "trace_id || '/' || sequence"}
"""Tables with payloads, and the columns that identify their rows."""


def build(folder: Path) -> HotLake:
    """Make a lake with a trace in each place."""
    lake = HotLake(folder, layout="trace", retention="1m")
    lake.write((FILE, 1))
    lake.archive.run()
    lake.archive.configure(layout="pack")
    lake.write((PACKED, 1), (PACKED, 2), (OTHER, 1), (RESTORED, 1))
    lake.archive.run()
    lake.archive.configure(layout="lake")
    lake.write((LAKE, 1), (LAKE, 2))
    lake.archive.run()
    lake.archive.restore(trace_id(RESTORED))
    lake.write((HOT, 1), (HOT, 2))
    lake.tracking.write([request((WAITING, 1), (LAKE, 3))])
    return lake


class Campaign:
    """One lake whose data is damaged and repaired piece by piece."""

    def __init__(self, folder: Path, chance: random.Random, step: int = 1) -> None:
        """`step`: the distance between damaged bytes of objects and payloads."""
        self._chance, self._step = chance, step
        self._copy = folder / "copy.db"
        self.lake = build(folder / "lake")
        self._objects = self.lake.lake.objects
        self._database = Path(self.lake.tracking.database.name)
        infos = self.lake.tracking.traces([trace_id(number) for number in range(1, 8)])
        self._places = {number: infos[trace_id(number)].info for number in PLACES}
        self._archived = {number: self._read(number) for number in PLACES}
        self._hot = self._read_hot(self.lake.tracking)
        self._rows = _rows(self._database)
        self.wrong: list[str] = []
        self.rounds = self.unnamed = 0
        assert self._said() == []
        assert set(self._hot) == {trace_id(number) for number in (LAKE, HOT, RESTORED, WAITING)}

    def run(self, end_s: float) -> None:
        """Run until the time is over or everything is damaged."""
        for rounds in (self.objects(), self.payloads(), self.file()):
            for _ in rounds:
                if time.monotonic() > end_s:
                    return

    def objects(self) -> Iterator[str]:
        """Damage each byte and each length of each repository object; yield descriptions."""
        paths = [info.path for info in self._objects.list("archive/")]
        for path in paths:
            whole = self._objects.get(path)
            others = [self._objects.get(other) for other in paths if other != path]
            for what, changed in [*self._damages(whole), ("gone", None), ("another", others[0])]:
                self._objects.delete(path) if changed is None else self._objects.put(path, changed)
                self._check_object(path, f"{path}: {what}")
                yield f"{path}: {what}"
            self._objects.put(path, whole)

    def payloads(self) -> Iterator[str]:
        """Damage each byte and each length of each payload in the database; yield descriptions."""
        with closing(sqlite3.connect(self._database, isolation_level=None)) as db:
            for table, name in PAYLOADS.items():
                query = f"select {name}, payload from {table}"
                for key, whole in db.execute(query).fetchall():
                    for what, changed in self._damages(whole):
                        where = f"{table}/{key}: {what}"
                        update = f"update {table} set payload = ? where {name} = ?"
                        db.execute(update, (changed, key))
                        self._check_payload(where, key, changed, whole)
                        db.execute(update, (whole, key))
                        yield where

    def file(self) -> Iterator[str]:
        """Damage bytes of the SQLite file, all of them in the end; yield descriptions."""
        with closing(sqlite3.connect(self._database, isolation_level=None)) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        whole = self._database.read_bytes()
        order = self._chance.sample(range(len(whole)), len(whole))
        for at in sorted(order, key=lambda at: not whole[at]):  # zero bytes are mostly free space
            what = f"byte {at} of the database"
            self._check_file(self._flipped(whole, at), what)
            yield what

    def damage_file(self, old: bytes, new: bytes) -> None:
        """Replace these bytes of the SQLite file."""
        self._check_file(self._database.read_bytes().replace(old, new), f"{new!r} in the database")

    def _damages(self, whole: bytes) -> Iterator[tuple[str, bytes]]:
        for at in range(0, len(whole), self._step):
            yield f"byte {at}", self._flipped(whole, at)
            yield f"cut to {at}", whole[:at]

    def _flipped(self, data: bytes, at: int) -> bytes:
        return data[:at] + bytes([data[at] ^ 1 << self._chance.randrange(8)]) + data[at + 1 :]

    def _check_object(self, path: str, what: str) -> None:
        self.rounds += 1
        name = path.removeprefix("archive/")
        said = " ".join(f"{each.path} {each.detail}" for each in self._said())
        if name not in said:
            self._note(what, f"verify says {said!r}")
        for number in PLACES:
            try:
                if self._read(number) != self._archived[number]:
                    self._note(what, f"trace {number} is read as another")
            except DamageError as error:
                if name not in str(error):
                    self._note(what, f"{error} does not name it")

    def _check_payload(self, what: str, key: Any, changed: bytes, whole: bytes) -> None:
        self.rounds += 1
        said = [each.path for each in self._said()]
        is_same = _unpacked(changed) == _unpacked(whole)  # zstd has bits that it does not use
        if not is_same and not any(str(key).partition("/")[0] in path for path in said):
            self._note(what, f"verify names {said}")
        self._compare(self.lake.tracking, what)

    def _check_file(self, damaged: bytes, what: str) -> None:
        self.rounds += 1
        for old in self._copy.parent.glob(f"{self._copy.name}*"):
            old.unlink()
        self._copy.write_bytes(damaged)
        try:
            with closing(TrackingDatabase(f"sqlite://{self._copy}")) as database:
                store = TrackingStore(database, self.lake.tracking.lake_id)
                if not list(check_store(store, ())):
                    rows = _rows(self._copy)
                    self.unnamed += rows != self._rows
                    if _without_payloads(rows) != _without_payloads(self._rows):
                        self._note(what, "verify names nothing, and columns differ")
                self._compare(store, what)
        except TracelakeError:
            pass
        except Exception as error:  # noqa: BLE001  a defect, whatever it is; the campaign goes on
            self._note(what, repr(error))

    def _compare(self, store: TrackingStore, what: str) -> None:
        """Read the hot traces one by one: each is right, a clear error, or absent."""
        for key, right in self._hot.items():
            try:
                parts = self._parts(store, key)
            except TracelakeError:
                continue
            if not set(parts) <= set(right):
                self._note(what, f"trace {key} is read as another")

    def _said(self) -> list[Finding]:
        tracking = self.lake.tracking
        return [*check_store(tracking, ()), *check_archive(tracking, self._objects.url)]

    def _read(self, number: int) -> bytes:
        info = self._places[number]
        repository = open_objects(f"{self._objects.url}/archive")
        return read_archived(
            repository, info["archive_location"], info["archive_bytes"], info["archive_sha256"]
        )

    def _read_hot(self, store: TrackingStore) -> dict[str, tuple[bytes, ...]]:
        keys = [trace_id(number) for number in range(1, 8)]
        return {key: parts for key in keys if (parts := self._parts(store, key))}

    def _parts(self, store: TrackingStore, key: str) -> tuple[bytes, ...]:
        found = store.traces([key]).get(key)
        return () if found is None else tuple(part.payload for part in found.parts)

    def _note(self, what: str, problem: str) -> None:
        self.wrong.append(f"{what}: {problem}")
        print(self.wrong[-1], flush=True)


def _rows(database: Path) -> list[Any]:
    """Return all rows of all tables, or None if they cannot be read."""
    with closing(sqlite3.connect(database)) as db, suppress(sqlite3.Error, UnicodeError):
        db.text_factory = bytes
        return [db.execute(f"select * from {table.name}").fetchall() for table in metadata.sorted_tables]
    return []


def _without_payloads(rows: list[Any]) -> list[Any]:
    """Leave payloads out, because zstd has unused bits and `_compare` reads payloads."""
    positions = [
        [at for at, column in enumerate(table.c) if not isinstance(column.type, LargeBinary)]
        for table in metadata.sorted_tables
    ]
    return [
        [tuple(row[at] for at in kept) for row in table] for kept, table in zip(positions, rows, strict=False)
    ]


def _unpacked(payload: bytes) -> bytes | None:
    try:
        return zstandard.decompress(payload)
    except zstandard.ZstdError:
        return None


def main() -> int:
    """Run the campaign; the exit code says whether it found a fault."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60.0, help="0: until each byte had its turn")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4)))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="tracelake-flips-") as folder:
        campaign = Campaign(Path(folder), random.Random(options.seed))
        campaign.run(time.monotonic() + options.seconds if options.seconds else float("inf"))
    print(
        f"{campaign.rounds} rounds, {campaign.unnamed} flips of the file that verify does not name, "
        f"{len(campaign.wrong)} wrong"
    )
    return 1 if campaign.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
