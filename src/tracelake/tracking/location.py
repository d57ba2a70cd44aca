"""Where the tracking store of a lake is: `tracking.json` beside `lake.json`, written when a server first has one.

A lake without it has no hot tier. Tasks of the pipeline find the store by it, on any machine; a password is not in it:
PGPASSWORD or the setting `tracking` has it, in the environment of each.
"""

from __future__ import annotations

import secrets
import threading
from typing import Final

import msgspec

from tracelake._errors import NotFoundError, StorageError, UsageError
from tracelake._settings import find_tracking_url
from tracelake.formats import decode, encode
from tracelake.storage import ObjectStore
from tracelake.storage.urls import without_password
from tracelake.tracking.database import TrackingDatabase
from tracelake.tracking.migrate import add_mirrors, migrate
from tracelake.tracking.store import TrackingStore, knows

FORMAT_VERSION: Final = 1
PLACE: Final = "tracking.json"
SQLITE: Final = "sqlite"
"""What it says where the store is the file `tracking.db` in the lake's own directory."""
DATABASE: Final = "tracking.db"
_opening: Final = threading.Lock()
_open_stores: Final[dict[tuple[str, str], TrackingStore]] = {}


class TrackingLocation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the tracking store of a lake is."""

    lake: str
    url: str
    """SQLITE, or the URL of a database, without a password."""
    page_key: str = ""
    """Signs what pages of a search name, so that nobody else makes up what it costs a server to put together."""
    format_version: int = FORMAT_VERSION


def set_up(objects: ObjectStore, lake_id: str, metadata_url: str, url: str | None = None) -> TrackingStore:
    """Return the tracking store of a lake, made where it has none yet.

    It is where `tracking.json` says; else at `url`, the setting `tracking`, in the PostgreSQL that has the metadata, or
    in the lake's directory. Raises UsageError where none of them is, StorageError.
    """
    if (place := read_place(objects)) is None:
        wanted = find_tracking_url(url) or _beside(objects, metadata_url)
        place = TrackingLocation(lake_id, without_password(wanted), secrets.token_hex(16))
        open_store(objects.url, place, wanted, begins=True)  # before anybody is told of it
        if not objects.create(PLACE, encode(place, PLACE)):
            place = read_place(objects) or place  # a server that began at the same time was first
    return open_store(objects.url, place, url)


def has_place(objects: ObjectStore, metadata_url: str) -> bool:
    """Whether a lake has a tracking store, or a place for one that nobody has to name."""
    return bool(read_place(objects) or find_tracking_url() or _database_beside(objects, metadata_url))


def find_tracking(objects: ObjectStore) -> TrackingStore | None:
    """Return the tracking store of a lake, None where it has none. Raises StorageError, DamageError."""
    place = read_place(objects)
    return None if place is None else open_store(objects.url, place)


def read_place(objects: ObjectStore) -> TrackingLocation | None:
    """Return where the tracking store is, None where a lake has none."""
    try:
        data = objects.get(PLACE)
    except NotFoundError:
        return None
    return decode(TrackingLocation, data, f"{objects.url}/{PLACE}", FORMAT_VERSION, PLACE)


def open_store(
    lake_url: str, place: TrackingLocation, url: str | None = None, *, begins: bool = False
) -> TrackingStore:
    """Open a tracking store, or return the one that this process has open.

    Raises StorageError where the database does not know the lake, unless it `begins`: who went on with an empty one
    would acknowledge what no pipeline reads that goes by `tracking.json`, and miss all that is in the right one.
    """
    key = (lake_url, place.lake)
    with _opening:
        store = _open_stores.get(key)
        if store is None:
            database = TrackingDatabase(_address(lake_url, place, find_tracking_url(url)))
            try:
                migrate(database)
                add_mirrors(database)
                if not begins and not knows(database, place.lake):
                    raise StorageError(_not_here(database.name, place))
                store = _open_stores[key] = TrackingStore(database, place.lake, _page_key(place))
            except BaseException:
                database.close()
                raise
    return store


def release(lake_url: str) -> None:
    """Close the connections of a lake's tracking store that no call uses; the next call opens others."""
    with _opening:
        stores = [store for (url, _), store in _open_stores.items() if url == lake_url]
    for store in stores:
        store.database.close()


def _page_key(place: TrackingLocation) -> str:
    """Return the key of a place; for one that names none, a key that nobody else has: its pages are of one process."""
    return place.page_key or secrets.token_hex(16)


def _not_here(name: str, place: TrackingLocation) -> str:
    where = f"{DATABASE} in its directory" if place.url == SQLITE else place.url
    return (
        f"{name} is not the tracking store of this lake, which {PLACE} says is {where}: correct TRACELAKE_TRACKING or "
        f"`tracking`, or restore the database; to give up what it had and begin anew, delete {PLACE}"
    )


def _address(lake_url: str, place: TrackingLocation, setting: str | None) -> str:
    """Return the URL to connect to: the setting has the password, and may say where the store is now."""
    if setting is not None and setting != SQLITE:
        return setting
    return f"sqlite{lake_url.removeprefix('file')}/{DATABASE}" if place.url == SQLITE else place.url


def _database_beside(objects: ObjectStore, metadata_url: str) -> str | None:
    if metadata_url.startswith(("postgresql://", "postgres://")):
        return metadata_url
    return SQLITE if objects.url.startswith("file://") else None


def _beside(objects: ObjectStore, metadata_url: str) -> str:
    if (database := _database_beside(objects, metadata_url)) is not None:
        return database
    raise UsageError(
        f"{objects.url} has no place for a tracking store: name a database with TRACELAKE_TRACKING, such as "
        "postgresql://host/database, or serve without one (--no-hot-tier)"
    )
