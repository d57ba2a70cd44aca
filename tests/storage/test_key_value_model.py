"""Key-value stores against a dict, under random sequences of calls."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tests.storage.conftest import BUCKET_BACKENDS, BucketServer
from tests.storage.servers.postgres import PostgresServer
from tracelake.storage import (
    ABSENT,
    BucketKeyValueStore,
    Conflict,
    Done,
    Entry,
    Expected,
    KeyValueStore,
    MemoryKeyValueStore,
    SqliteKeyValueStore,
)
from tracelake.storage.postgres import PostgresKeyValueStore

PARTITIONS = st.sampled_from(["p", "q", "p\0"])
# Few keys, so that calls meet; odd ones, so that order and encoding matter.
KEYS = st.sampled_from(["", "a", "a\0", "b", "\uffff", "😀"]) | st.text(max_size=3)
VALUES = st.binary(max_size=20)


class Memory(RuleBasedStateMachine):
    """Every call on the store answers as the dict does, and every version is new."""

    def __init__(self) -> None:
        super().__init__()
        self.model: dict[tuple[str, str], Entry] = {}
        self.versions: list[str] = ["never written"]
        self.store: KeyValueStore = self.open()

    def open(self) -> KeyValueStore:
        """Return an empty store."""
        return MemoryKeyValueStore()

    def teardown(self) -> None:
        """Close the store."""
        self.store.close()

    def wrote(self, partition: str, key: str, value: bytes, version: str) -> None:
        """Record a write that the store has done."""
        assert version not in self.versions
        self.versions.append(version)
        self.model[partition, key] = Entry(key, value, version)

    def expected(self, partition: str, key: str, stale: int | None) -> Expected:
        """Choose a version to expect: an old one or the current one."""
        if stale is not None:
            return self.versions[stale % len(self.versions)]
        current = self.model.get((partition, key))
        return ABSENT if current is None else current.version

    @rule(partition=PARTITIONS, key=KEYS, value=VALUES)
    def set(self, partition: str, key: str, value: bytes) -> None:
        """Write unconditionally."""
        self.wrote(partition, key, value, self.store.set(partition, key, value))

    @rule(partition=PARTITIONS, records=st.dictionaries(KEYS, VALUES, max_size=4))
    def set_all(self, partition: str, records: dict[str, bytes]) -> None:
        """Write many records unconditionally."""
        self.store.set_all(partition, records)
        for key, value in records.items():
            entry = self.store.get(partition, key)
            assert entry is not None
            assert entry.value == value
            self.wrote(partition, key, value, entry.version)

    @rule(partition=PARTITIONS, key=KEYS, value=VALUES, stale=st.none() | st.integers(0, 50))
    def set_if(self, partition: str, key: str, value: bytes, stale: int | None) -> None:
        """Write at the present version or at a stale one."""
        current, expected = self.model.get((partition, key)), self.expected(partition, key, stale)
        outcome = self.store.set_if(partition, key, value, expected)
        if expected == (ABSENT if current is None else current.version):
            assert isinstance(outcome, Done)
            self.wrote(partition, key, value, outcome.version)
        else:
            assert outcome == Conflict(current)

    @rule(partition=PARTITIONS, key=KEYS, stale=st.none() | st.integers(0, 50))
    def delete_if(self, partition: str, key: str, stale: int | None) -> None:
        """Delete at the present version or at a stale one."""
        current, expected = self.model.get((partition, key)), self.expected(partition, key, stale)
        if expected is ABSENT:
            return
        outcome = self.store.delete_if(partition, key, expected)
        if current is not None and expected == current.version:
            assert isinstance(outcome, Done)
            assert outcome.version not in self.versions
            del self.model[partition, key]
        else:
            assert outcome == Conflict(current)

    @rule(partition=PARTITIONS, key=KEYS)
    def get(self, partition: str, key: str) -> None:
        """Read one record."""
        assert self.store.get(partition, key) == self.model.get((partition, key))

    @rule(partition=PARTITIONS, start=KEYS, stop=st.none() | KEYS, limit=st.none() | st.integers(0, 4))
    def scan(self, partition: str, start: str, stop: str | None, limit: int | None) -> None:
        """Read a range of records."""
        inside = [
            entry
            for (owner, key), entry in self.model.items()
            if owner == partition
            and key.encode() >= start.encode()
            and (stop is None or key.encode() < stop.encode())
        ]
        expected = sorted(inside, key=lambda entry: entry.key.encode())[:limit]
        assert self.store.scan(partition, start, stop, limit) == expected

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        """No partition lacks a record or has an extra one."""
        stored = sum(len(self.store.scan(partition)) for partition in ("p", "q", "p\0"))
        assert stored == len(self.model)


class Sqlite(Memory):
    """The same for a SQLite file, which is also closed and opened again."""

    def open(self) -> KeyValueStore:
        """Return a store on a new file."""
        self.directory = Path(tempfile.mkdtemp())
        return SqliteKeyValueStore(self.directory / "records.db")

    @rule()
    def reopen(self) -> None:
        """Close the store and open the file again."""
        self.store.close()
        self.store = SqliteKeyValueStore(self.directory / "records.db")

    def teardown(self) -> None:
        """Close the store and delete the file."""
        super().teardown()
        shutil.rmtree(self.directory)


class Postgres(Memory):
    """The same for a PostgreSQL table."""

    server: PostgresServer

    def open(self) -> KeyValueStore:
        """Return a store on a table that was emptied."""
        store = PostgresKeyValueStore(self.server.url(), connections_max=1)
        for partition in ("p", "q", "p\0"):
            for entry in store.scan(partition):
                assert isinstance(store.delete_if(partition, entry.key, entry.version), Done)
        return store


class Bucket(Memory):
    """The same for records as objects of a bucket."""

    server: BucketServer

    def open(self) -> KeyValueStore:
        """Return a store under a new prefix."""
        return BucketKeyValueStore(self.server.url())


def test_postgres(postgres: PostgresServer) -> None:
    """Runs of calls on PostgreSQL."""
    Postgres.server = postgres
    run_state_machine_as_test(
        Postgres, settings=settings(max_examples=10, stateful_step_count=30, deadline=None)
    )


@pytest.mark.parametrize("backend", BUCKET_BACKENDS)
def test_bucket(backend: str, request: pytest.FixtureRequest) -> None:
    """Runs of calls on each kind of bucket."""
    Bucket.server = request.getfixturevalue(backend)
    run_state_machine_as_test(
        Bucket, settings=settings(max_examples=5, stateful_step_count=15, deadline=None)
    )


TestMemory = Memory.TestCase
TestMemory.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
TestSqlite = Sqlite.TestCase
TestSqlite.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
