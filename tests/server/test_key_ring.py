"""Requests while keys change often or cannot be read, and signing out without a session."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import anyio
import pytest

from tests.server.client import Client
from tests.server.fake_lake import FakeLake, span_row
from tests.server.faults import FaultyStore
from tracelake import limits
from tracelake._errors import BackPressureError, NoKeyError, StorageError
from tracelake.access.oidc import Sessions
from tracelake.server import key_ring
from tracelake.server.app import create_app
from tracelake.server.guard import COOKIE
from tracelake.server.key_ring import KeyRing
from tracelake.tracking.ingest_queue import Inbox

OURS = {"Origin": "http://127.0.0.1"}


class Ring:
    """A key ring whose reads of keys a test counts, changes and fails."""

    def __init__(self) -> None:
        """Make a lake with a key."""
        self.lake = FakeLake([span_row(output="a refund")])
        self.token = self.lake.keys.create("ada", "read").token
        self.now_s = 0.0
        self.reads = 0
        self.during: Callable[[], object] = lambda: None
        self.ring = KeyRing(self.lake.keys, self.lake.sessions, clock=lambda: self.now_s)
        self._read = self.lake.keys.whole_records
        vars(self.lake.keys)["whole_records"] = self._counted

    def _counted(self) -> Any:
        self.reads += 1
        assert self.reads < 20, "keys are read again and again"
        read = self._read()
        self.during()
        return read

    def ask(self, token: str | None = None) -> str:
        """Return the name of the caller."""
        return anyio.run(self.ring.actor, token or self.token, "read").name


def fails() -> None:
    """Raise an error for every read."""
    raise StorageError("the database is gone")


def check_waits() -> None:
    """Check that a request waits for one read that began after its arrival, for any number of key changes."""
    asked = Ring()
    assert asked.ask() == "ada"
    asked.ring.forget()
    asked.during = asked.ring.forget
    assert (asked.ask(), asked.reads) == ("ada", 2)
    asked.during = lambda: None
    assert (asked.ask(), asked.reads) == ("ada", 3)
    assert (asked.ask(), asked.reads) == ("ada", 3)


def check_changes_here() -> None:
    """Check that a local change counts at once, also while keys are being read or cannot be read."""
    asked = Ring()
    new = asked.lake.keys.create("new", "read")
    assert asked.ask(new.token) == "new"

    def revoke() -> None:
        asked.during = lambda: None
        asked.lake.keys.revoke(new.key.id)
        asked.ring.forget(new.key.id)

    asked.during, asked.now_s = revoke, key_ring.KEYS_LOOK_S
    with pytest.raises(NoKeyError):
        asked.ask(new.token)
    assert asked.ask() == "ada"
    other = asked.lake.keys.create("other", "read")
    asked.ring.forget()
    assert asked.ask(other.token) == "other"
    asked.lake.keys.revoke(other.key.id)
    asked.ring.forget(other.key.id)
    asked.during, reads = fails, asked.reads
    with pytest.raises(NoKeyError):
        asked.ask(other.token)
    assert asked.ask() == "ada"
    assert asked.reads == reads + 1
    asked.now_s += limits.KEYS_STALE_MAX_S + 1
    with pytest.raises(BackPressureError):
        asked.ask()


def check_the_first_key() -> None:
    """Check that every client needs a key after a local key was made, even if keys cannot be read since."""
    asked = Ring()
    vars(asked.lake.keys)["whole_records"] = lambda: ({}, [])
    assert anyio.run(asked.ring.actor, None, "admin").key_id == "local"
    vars(asked.lake.keys)["whole_records"] = fails
    asked.ring.forget()
    with pytest.raises(NoKeyError):
        anyio.run(asked.ring.actor, None, "admin")


def check_sign_out() -> None:
    """Check that signing out without a session reads neither keys nor sessions; signing out of one reads once."""
    with closing(Inbox(FaultyStore(), ack_timeout_s=60)) as inbox, pytest.MonkeyPatch.context() as patch:
        lake = FakeLake([span_row(output="a refund")])
        key, begun = lake.keys.create("ada", "read"), lake.sessions.begin("ben", "read", "*")
        over = lake.sessions.begin("cat", "read", "*")
        lake.sessions.revoke(over.key.id)
        reads: list[str] = []
        read = Sessions.whole_records

        def counted(sessions: Sessions) -> Any:
            reads.append("sessions")
            return read(sessions)

        patch.setattr(Sessions, "whole_records", counted)
        client = Client(create_app(lake, inbox))
        headers = {"Authorization": f"Bearer {key.token}"}
        assert client.get("/api/v1/traces", headers=headers).status_code == 200
        before = len(reads)
        for token in (f"tlk_s{'0' * 12}_{'A' * 43}", begun.token[:-4] + "AAAA", over.token, key.token):
            answer = client.post("/sign-out", headers=OURS | {"Cookie": f"{COOKIE}={token}"})
            assert answer.status_code == 303
            assert client.get("/api/v1/traces", headers=headers).status_code == 200
            assert len(reads) == before, token
        client.post("/sign-out", headers=OURS | {"Cookie": f"{COOKIE}={begun.token}"})
        assert (
            client.get("/api/v1/traces", headers={"Authorization": f"Bearer {begun.token}"}).status_code
            == 401
        )


@pytest.fixture(autouse=True)
def _slow_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prevent rereads of keys on a slow machine."""
    monkeypatch.setattr(key_ring, "KEYS_LOOK_S", 30.0)


@pytest.mark.parametrize("check", [check_waits, check_changes_here, check_the_first_key, check_sign_out])
def test_rules(check: Callable[[], None]) -> None:
    """Each rule of the key ring holds."""
    check()
