"""Conditional writes whose reply was lost."""

from __future__ import annotations

import pytest

from tracelake._errors import IndeterminateError, StorageError
from tracelake.storage import Conflict, Done, Entry, Indeterminate, MemoryKeyValueStore, ports, settle


class Flaky(MemoryKeyValueStore):
    """A store whose next reads fail."""

    failures = 0

    def get(self, partition: str, key: str) -> Entry | None:
        """Fail, or read."""
        if self.failures:
            self.failures -= 1
            raise StorageError("the store is away")
        return super().get(partition, key)


LOST = Indeterminate("my version", "time-out")


def test_known_outcomes_pass_unread() -> None:
    """A known outcome is returned without reading the store."""
    store = Flaky()
    store.failures = 1
    for outcome in (Done("v"), Conflict(None), Conflict(Entry("k", b"", "v"))):
        assert settle(store, "p", "k", outcome, is_mine=lambda _: True) is outcome
    assert store.failures == 1


def test_record_at_my_version_is_done() -> None:
    """A record with the version of the write shows that the write happened."""
    store = Flaky()
    version = store.set("p", "k", b"v")
    assert settle(store, "p", "k", Indeterminate(version, ""), is_mine=lambda _: False) == Done(version)


def test_value_that_shows_my_write_is_done_at_my_version() -> None:
    """If another write builds on ours, ours happened; its version is returned, so the next write with it conflicts."""
    store = Flaky()
    store.set("p", "k", b"mine, then theirs")
    settled = settle(store, "p", "k", LOST, is_mine=lambda entry: entry.value.startswith(b"mine"))
    assert settled == Done("my version")
    assert isinstance(store.set_if("p", "k", b"next", "my version"), Conflict)


def test_absent_or_other_record_is_a_conflict() -> None:
    """If the record does not show the write, the caller gets the current record and decides again."""
    store = Flaky()
    assert settle(store, "p", "k", LOST, is_mine=lambda _: True) == Conflict(None)
    version = store.set("p", "k", b"theirs")
    settled = settle(store, "p", "k", LOST, is_mine=lambda _: False)
    assert settled == Conflict(Entry("k", b"theirs", version))


def test_reads_are_tried_again_with_growing_pauses() -> None:
    """Reads of a store that is briefly unavailable are retried with growing pauses."""
    store, pauses = Flaky(), list[float]()
    store.failures = ports.SETTLE_READ_TRIES_MAX - 1
    assert settle(store, "p", "k", LOST, is_mine=lambda _: False, pause=pauses.append) == Conflict(None)
    assert len(pauses) == ports.SETTLE_READ_TRIES_MAX - 1
    assert pauses == sorted(pauses)
    assert sum(pauses) < 10


def test_outcome_that_cannot_be_found_out() -> None:
    """If the store stays unavailable, the outcome stays unknown, and the error says so."""
    store = Flaky()
    store.failures = ports.SETTLE_READ_TRIES_MAX
    with pytest.raises(IndeterminateError, match=r"'p' / 'k'.*time-out.*away"):
        settle(store, "p", "k", LOST, is_mine=lambda _: False, pause=lambda _: None)
    assert store.failures == 0
