"""Mutants of admission control: for each broken rule, a named check fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from typing import Any
from unittest import mock

import pytest

from tests.patience import HANG_S
from tests.server import test_admission
from tests.server.faults import FaultyStore
from tests.server.test_admission import (
    check_deadline,
    check_disconnects_do_not_multiply_work,
    check_every_route,
    check_one_key_leaves_slots,
    check_probes_answer,
    served,
)
from tests.server.test_connection_bounds import check_strangers
from tests.server.test_guard import Guarded, check_quota, check_refused_requests_count, make
from tests.storage.test_descriptors import check_reserve
from tracelake import limits
from tracelake.access.keys import Allowance
from tracelake.server import admission, connections
from tracelake.server.admission import PoolSize
from tracelake.server.key_ring import KeyHolder, KeyRing
from tracelake.server.otlp_http import Meter
from tracelake.storage import local
from tracelake.tracking.ingest_queue import Inbox

CAUGHT = (AssertionError, TimeoutError)


def short_wait() -> Any:
    """Return a patch that shortens the waits of checks."""
    return mock.patch.object(test_admission, "ANSWER_S", 1.0)


def test_reads_share_the_slots_of_probes() -> None:
    """If every request used the pool of reads, reads would delay probes and sign-ins."""
    with (
        mock.patch.object(admission, "pool_of", return_value="read"),
        pytest.raises(CAUGHT),
        short_wait(),
    ):
        served(check_probes_answer)


def test_a_route_needs_no_slot() -> None:
    """If a path without a rule needed no slot, a new route could bypass admission."""
    of = admission.pool_of

    def forgetful(method: str, path: str) -> str | None:
        return None if path.endswith("/completions") else of(method, path)

    with mock.patch.object(admission, "pool_of", forgetful), pytest.raises(AssertionError):
        check_every_route()


def test_one_key_gets_every_slot() -> None:
    """If a key could use all slots, it would block the others."""
    greedy = PoolSize(limits.READS_AT_ONCE_MAX, limits.READS_AT_ONCE_MAX, limits.READ_DEADLINE_S)
    with mock.patch.dict(admission.POOLS, {"read": greedy}), pytest.raises(CAUGHT), short_wait():
        served(check_one_key_leaves_slots)


def test_a_disconnect_frees_the_slot() -> None:
    """If a client's disconnect freed its slot, clients that retry would multiply work."""
    watch = admission._ClientMessages._watch

    async def frees(self: Any, message: Any) -> None:
        await watch(self, message)
        for slot in slots:
            slot.release()

    slots: list[Any] = []
    begin = admission._Slot.__init__

    def keep(self: Any, *given: Any) -> None:
        begin(self, *given)
        slots.append(self)

    with (
        mock.patch.object(admission._Slot, "__init__", keep),
        mock.patch.object(admission._ClientMessages, "_watch", frees),
        pytest.raises(CAUGHT),
        short_wait(),
    ):
        served(check_disconnects_do_not_multiply_work)


def test_a_disconnect_cancels_nothing() -> None:
    """If a disconnect were not noticed, reads of disconnected clients would continue."""

    async def unnoticed(_self: Any, _message: Any) -> None:
        await asyncio.Event().wait()

    with (
        mock.patch.object(admission._ClientMessages, "_watch", unnoticed),
        pytest.raises(CAUGHT),
        short_wait(),
    ):
        served(check_disconnects_do_not_multiply_work)


def test_no_deadline() -> None:
    """If reads had no deadline, a client would wait as long as the work takes."""
    endless = PoolSize(limits.READS_AT_ONCE_MAX, limits.READS_PER_KEY_MAX, None)
    with mock.patch.dict(admission.POOLS, {"read": endless}), pytest.raises(CAUGHT), short_wait():
        served(check_deadline)


def test_a_refused_request_is_free() -> None:
    """If a request that is refused cost no quota, a key could send decompression bombs for ever."""
    meter = KeyRing.meter

    def lenient(self: KeyRing, holder: KeyHolder) -> Meter | None:
        charge = meter(self, holder)
        return charge and (lambda spans, size_bytes: charge(spans, size_bytes) if spans else None)

    with mock.patch.object(KeyRing, "meter", lenient), pytest.raises(AssertionError):
        check_with_keys(check_refused_requests_count)


def test_a_request_is_free() -> None:
    """If a request cost nothing, a quota would limit no key."""
    with mock.patch.object(Allowance, "spend"), pytest.raises(AssertionError):
        check_with_keys(check_quota)


def check_with_keys(check: Callable[[Guarded], None]) -> None:
    """Run a check of an application with keys."""
    store = FaultyStore()
    with closing(Inbox(store, ack_timeout_s=HANG_S)) as inbox:
        check(make(store, inbox))


def test_no_reserve_of_descriptors() -> None:
    """If reads could use the last descriptor, DuckDB would end the process."""
    with mock.patch.object(local, "DESCRIPTORS_RESERVED", 0), pytest.raises(AssertionError):
        check_reserve()


def test_strangers_take_every_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a connection with a key counted as anonymous, anonymous clients could close it."""
    with mock.patch.object(connections, "STRANGERS_SHARE", 1), pytest.raises(AssertionError):
        check_strangers(monkeypatch)
