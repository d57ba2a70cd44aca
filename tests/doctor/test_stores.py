"""Stores that each break one rule of their port, and the doctor's findings."""

from __future__ import annotations

import logging
import re
import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from tests.patience import HANG_S
from tests.storage.servers.ports import free_port
from tracelake import limits
from tracelake.doctor import stores
from tracelake.doctor.stores import (
    PREFIX,
    Verdict,
    at_once,
    check_clock,
    check_objects,
    check_records,
    run_check,
)
from tracelake.storage import (
    Done,
    Expected,
    MemoryKeyValueStore,
    MemoryObjectStore,
    ObjectInfo,
    Outcome,
    open_key_value,
    open_objects,
)


class Overwrites(MemoryObjectStore):
    """Store that ignores the condition of a create, as some servers do."""

    def create(self, path: str, data: bytes) -> bool:
        self.put(path, data)
        return True


class LooksThenWrites(MemoryObjectStore):
    """Store that checks for existence and writes a moment later."""

    def __init__(self) -> None:
        super().__init__()
        self.both_looked = threading.Barrier(2)

    def create(self, path: str, data: bytes) -> bool:
        if self.head(path) is not None:
            return False
        self.both_looked.wait(timeout=HANG_S)
        self.put(path, data)
        return True


class LoserWrites(MemoryObjectStore):
    """Store that detects the loser of a race, and still writes its object."""

    def create(self, path: str, data: bytes) -> bool:
        won = super().create(path, data)
        self.put(path, data)
        return won


class KeepsDeleted(MemoryObjectStore):
    """Does not delete."""

    def delete(self, path: str) -> None:
        """Do nothing."""


class ListsNothing(MemoryObjectStore):
    """Lists nothing."""

    def list(self, prefix: str) -> Iterator[ObjectInfo]:  # noqa: ARG002  it is what it ignores
        return iter(())


class OtherClock(MemoryObjectStore):
    """Store that dates objects by another clock, in whole seconds as S3 does."""

    def __init__(self, now_s: float) -> None:
        super().__init__()
        self.now_s = now_s

    def head(self, path: str) -> ObjectInfo | None:
        info = super().head(path)
        return info and ObjectInfo(info.path, info.size_bytes, float(int(self.now_s)))


@pytest.mark.parametrize(
    ("store", "said"),
    [
        (Overwrites(), "conditional writes are not honoured: a create of an existing object succeeded"),
        (
            LooksThenWrites(),
            "conditional writes are not honoured: of two simultaneous creates .* 2 succeeded",
        ),
        (LoserWrites(), "conditional writes are not honoured: a create that lost has changed the object"),
        (KeepsDeleted(), "can still be read after it was deleted"),
        (ListsNothing(), "was written, but the store reports"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_object_stores_that_break_their_port_are_found(store: MemoryObjectStore, said: str) -> None:
    """Each fault of an object store is named with a remedy, and the check's objects are deleted if possible."""
    found = check_objects(store, store)
    assert found.status == "failed"
    assert re.search(said, found.message)
    assert ("If-None-Match" in found.mend) == ("conditional" in said)
    if not isinstance(store, KeepsDeleted | ListsNothing):
        assert list(store.list("")) == []


class IgnoresConditions(MemoryKeyValueStore):
    """Store that writes whatever the version of the record is."""

    def set_if(self, partition: str, key: str, value: bytes, expected: Expected) -> Outcome:  # noqa: ARG002
        return Done(self.set(partition, key, value))


class ReplacesAnyVersion(MemoryKeyValueStore):
    """Store that honours `absent`, and accepts any expected version."""

    def set_if(self, partition: str, key: str, value: bytes, expected: Expected) -> Outcome:
        if isinstance(expected, str) and self.get(partition, key) is not None:
            return Done(self.set(partition, key, value))
        return super().set_if(partition, key, value, expected)


class DeletesAnyVersion(MemoryKeyValueStore):
    """Store that deletes a record that another writer has replaced."""

    def delete_if(self, partition: str, key: str, expected: str) -> Outcome:
        current = self.get(partition, key)
        return super().delete_if(partition, key, current.version if current else expected)


class DoneWithoutWriting(MemoryKeyValueStore):
    """Store that reports a race as won, and keeps the old record."""

    def set_if(self, partition: str, key: str, value: bytes, expected: Expected) -> Outcome:
        before = self.get(partition, key)
        outcome = super().set_if(partition, key, value, expected)
        if isinstance(outcome, Done) and before:
            self.set(partition, key, before.value)
        return outcome


@pytest.mark.parametrize(
    ("store", "said"),
    [
        (IgnoresConditions(), "of two writers that simultaneously created a record, 2 succeeded"),
        (
            ReplacesAnyVersion(),
            "of two writers that simultaneously replaced one version of a record, 2 succeeded",
        ),
        (DeletesAnyVersion(), "an update was lost"),
        (DoneWithoutWriting(), "a record lacks the content of the winning writer"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_record_stores_that_break_their_port_are_found(store: MemoryKeyValueStore, said: str) -> None:
    """Each fault of a record store is named with a remedy, and the record is deleted."""
    found = check_records(store, store)
    assert found.status == "failed"
    assert re.search(f"conditional writes are not honoured: {said}", found.message)
    assert "Stop all writers" in found.mend
    assert store.scan(PREFIX) == []


@pytest.mark.parametrize(
    ("ahead_s", "status", "said"),
    [
        (0, "ok", "within 1 s"),
        (-0.9, "ok", "within 1 s"),
        (3, "ok", "within 3 s"),
        (20, "warning", "this machine's clock is 20 s behind the store's"),
        (-20, "warning", "this machine's clock is 19 s ahead of the store's"),
        (90, "warning", "this machine's clock is 90 s behind the store's"),
        (-4000, "failed", "this machine's clock is 3,999 s ahead of the store's"),
    ],
)
def test_clocks_that_are_apart_are_found(
    monkeypatch: pytest.MonkeyPatch, ahead_s: float, status: str, said: str
) -> None:
    """A store's clock difference is reported with its direction; beyond the stores' tolerance it is a failure."""
    now_s = 1_700_000_000.4
    monkeypatch.setattr(stores, "time", SimpleNamespace(time=lambda: now_s))
    store = OtherClock(now_s + ahead_s)
    found = check_clock(store)
    assert found.status == status
    assert re.search(said, found.message)
    assert bool(found.mend) == (status != "ok")
    assert list(store.list("")) == []


def test_unreachable_s3_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the S3 port is closed, the finding names the store, and the check ends in bounded time."""
    monkeypatch.setattr(limits, "STORE_TRIES_MAX", 2)
    for name, value in {"ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b", "REGION": "us-east-1"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")

    def check() -> Verdict:
        return check_objects(open_objects("s3://bucket/lake"), open_objects("s3://bucket/lake"))

    found = run_check("objects", check, "Start the server.", 30)
    assert (found.status, found.mend) == ("failed", "Start the server.")
    assert "s3://bucket/lake" in found.message


def test_unreachable_postgres_is_a_finding(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """If the PostgreSQL port is closed, the only output is a finding with host and database, not the password."""
    # Without configured logging, warnings of libraries go to standard error.
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setattr(limits, "STORE_CONNECT_TIMEOUT_S", 1.0)
    url = f"postgresql://somebody:secret@127.0.0.1:{free_port()}/records"

    def check() -> Verdict:
        return check_records(open_key_value(url), open_key_value(url))

    found = run_check("records", check, "Start the server.", 30)
    assert found.status == "failed"
    assert "'records' on 127.0.0.1" in found.message
    assert "secret" not in str(found)
    assert capsys.readouterr().err == ""


def test_a_server_that_never_answers_does_not_hang_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that accepts connections and never replies fails the check after the timeout."""
    monkeypatch.setattr(limits, "STORE_TRIES_MAX", 1)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")

        def check() -> Verdict:
            return check_objects(open_objects("s3://bucket/lake"), open_objects("s3://bucket/lake"))

        found = run_check("objects", check, "Look after the server.", 0.3)
    assert found.message == "no answer within 0.3 s"
    assert (found.status, found.mend) == ("failed", "Look after the server.")
    for thread in threading.enumerate():
        if thread.name == "doctor-objects":
            thread.join(timeout=HANG_S)  # closes the listener, which ends it


def test_an_error_that_nobody_expected_is_a_finding() -> None:
    """An unexpected exception becomes a finding with its type and first line."""

    def check() -> Verdict:
        raise ZeroDivisionError("one\ntwo")

    found = run_check("lake", check, "Report it.", 5)
    assert (found.message, found.mend) == ("ZeroDivisionError: one", "Report it.")


def test_an_error_in_a_race_is_raised() -> None:
    """An exception in one of the racing threads is raised; otherwise, results are in order."""
    assert at_once(lambda: 1, lambda: 2, lambda: 3) == [1, 2, 3]
    with pytest.raises(ZeroDivisionError):
        at_once(lambda: 1, lambda: 1 // 0)
