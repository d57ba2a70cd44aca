"""Databases of tracking stores, of both kinds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.storage.servers.postgres import PostgresServer
from tracelake.tracking.database import TrackingDatabase
from tracelake.tracking.migrate import migrate
from tracelake.tracking.store import TrackingStore


@pytest.fixture(scope="package")
def postgres() -> Iterator[PostgresServer]:
    """Return a PostgreSQL server."""
    with closing(PostgresServer()) as server:
        yield server


@pytest.fixture(params=["sqlite", "postgres"])
def new_url(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], str]:
    """Return a function that returns the URL of another empty database at each call."""
    count = iter(range(1000))
    if request.param == "sqlite":
        return lambda: f"sqlite://{tmp_path}/{next(count)}/tracking.db"
    server: PostgresServer = request.getfixturevalue("postgres")
    return lambda: server.url(server.new_schema())


@pytest.fixture
def database(new_url: Callable[[], str]) -> Iterator[TrackingDatabase]:
    """Return a database that is migrated."""
    with closing(TrackingDatabase(new_url())) as opened:
        migrate(opened)
        yield opened


@pytest.fixture
def store(database: TrackingDatabase) -> TrackingStore:
    """Return the tracking store of a lake."""
    return TrackingStore(database, "lake-a")
