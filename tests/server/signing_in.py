"""A lake with two servers whose users sign in with a provider."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

import pytest

from tests.patience import HANG_S
from tests.server.client import Client
from tests.server.fake_lake import FakeLake, span_row
from tests.server.faults import FaultyStore
from tests.server.openid import Person
from tracelake.access.oidc import SESSION_PARTITION, OpenId
from tracelake.server import access, guard, key_ring
from tracelake.server.app import create_app
from tracelake.tracking.ingest_queue import Inbox

OURS = {"Origin": "http://127.0.0.1"}


@dataclass
class Site:
    """A lake with two servers."""

    lake: FakeLake
    servers: tuple[Client, Client]
    clock: list[float]

    def later(self) -> None:
        """Advance the servers' clocks until they read keys again."""
        self.clock[0] += key_ring.KEYS_LOOK_S

    def person(self, name: str) -> Person:
        """Return a user at the first server."""
        return Person(self.servers[0], name)


@contextmanager
def served(*settings: OpenId) -> Iterator[Site]:
    """Serve a lake with servers with these settings."""
    with closing(Inbox(FaultyStore(), ack_timeout_s=HANG_S)) as inbox:
        lake = FakeLake([span_row(output="a refund")])
        clock = [0.0]
        with pytest.MonkeyPatch.context() as patch:
            defaults = {"demanded": False, "clock": lambda: clock[0]}
            patch.setattr(key_ring.KeyRing.__init__, "__kwdefaults__", defaults)
            first, second = (Client(create_app(lake, inbox, openid=each)) for each in settings)
        yield Site(lake, (first, second), clock)


def alone(site: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    """Return a site without sessions whose servers read keys and provider metadata again."""
    monkeypatch.setattr(access, "PROVIDER_KEPT_S", -1.0)
    for session in site.lake.sessions.all():
        site.lake._opened.key_value.erase(SESSION_PARTITION, session.id)
    site.later()
    return site


def begin(person: Person) -> str:
    """Begin to sign in, and return the pending sign-in's secret."""
    person.begin("/")
    return person.cookies[guard.BEGUN_COOKIE].partition(".")[0]
