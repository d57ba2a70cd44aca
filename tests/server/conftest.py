"""A client of an application over a lake in memory, without pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.patience import HANG_S
from tests.server.client import Client
from tests.server.fake_lake import FakeLake
from tests.server.faults import FaultyStore
from tracelake.server.app import create_app
from tracelake.tracking.ingest_queue import Inbox


@pytest.fixture
def store() -> FaultyStore:
    """Return the store behind the inbox."""
    return FaultyStore()


@pytest.fixture
def lake() -> FakeLake:
    """Return the lake of the application; a module may override it."""
    return FakeLake([])


@pytest.fixture
def client(store: FaultyStore, lake: FakeLake) -> Iterator[Client]:
    """Return a client of the application."""
    with closing(Inbox(store, ack_timeout_s=HANG_S)) as inbox:
        yield Client(create_app(lake, inbox))
