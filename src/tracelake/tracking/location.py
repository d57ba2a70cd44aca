"""The location of a lake's tracking store: `tracking.json` next to `lake.json`, written when a server first creates
one.

A lake without the file has no hot tier. Pipeline tasks on any machine find the store by it. It contains no password;
PGPASSWORD or the setting `tracking` supplies it in each environment.
"""

from __future__ import annotations

import secrets
import threading
from typing import TYPE_CHECKING, Final

import msgspec

from tracelake._errors import NotFoundError, StorageError, UsageError
from tracelake._settings import find_tracking_url
from tracelake.formats import decode, encode
from tracelake.storage import ObjectStore
from tracelake.storage.urls import without_password

if TYPE_CHECKING:
    from tracelake.tracking.store import TrackingStore

FORMAT_VERSION: Final = 1
PLACE: Final = "tracking.json"
SQLITE: Final = "sqlite"
"""Value for a store in the file `tracking.db` of the lake's directory."""
DATABASE: Final = "tracking.db"
_opening: Final = threading.Lock()
_open_stores: Final[dict[tuple[str, str], TrackingStore]] = {}


class TrackingLocation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Location of a lake's tracking store."""

    lake: str
    url: str
    """SQLITE, or the URL of a database, without a password."""
    page_key: str = ""
    """Key that signs page tokens of searches, so that clients cannot forge tokens that are expensive to serve."""
    format_version: int = FORMAT_VERSION


def set_up(objects: ObjectStore, lake_id: str, metadata_url: str, url: str | None = None) -> TrackingStore:
    """Return the tracking store of a lake; create it if there is none.

    An existing store is at the location in `tracking.json`. A new one is created at `url`, the setting `tracking`, the
    PostgreSQL database with the metadata, or the lake's directory, in this order. Raises StorageError if a store fails,
    and UsageError if no place is available.
    """
    if (place := read_place(objects)) is None:
        wanted = find_tracking_url(url) or _require_default_database(objects, metadata_url)
        place = TrackingLocation(lake_id, without_password(wanted), secrets.token_hex(16))
        # the store must exist before its location is published
        open_store(objects.url, place, wanted, begins=True)
        if not objects.create(PLACE, encode(place, PLACE)):
            place = read_place(objects) or place  # another server created one at the same time
    return open_store(objects.url, place, url)


def has_place(objects: ObjectStore, metadata_url: str) -> bool:
    """Return whether a lake has a tracking store, or can have one without an explicit URL."""
    return bool(read_place(objects) or find_tracking_url() or _default_database(objects, metadata_url))


def find_tracking(objects: ObjectStore) -> TrackingStore | None:
    """Return the tracking store of a lake, or None. Raises StorageError if a store is unreachable, and DamageError if
    `tracking.json` does not decode."""
    place = read_place(objects)
    return None if place is None else open_store(objects.url, place)


def read_place(objects: ObjectStore) -> TrackingLocation | None:
    """Return the location of a lake's tracking store, or None."""
    try:
        data = objects.get(PLACE)
    except NotFoundError:
        return None
    return decode(TrackingLocation, data, f"{objects.url}/{PLACE}", FORMAT_VERSION, PLACE)


def open_store(
    lake_url: str, place: TrackingLocation, url: str | None = None, *, begins: bool = False
) -> TrackingStore:
    """Open a tracking store, or return the one that this process has open already.

    Raises StorageError if the database does not know the lake, unless `begins` allows a new one. A server with an empty
    wrong database would acknowledge requests that no pipeline reads, and would miss the data of the right one.
    """
    # SQLAlchemy and what reads spans: commands of a lake without a tracking store start without them.
    from tracelake.tracking.database import TrackingDatabase  # noqa: PLC0415
    from tracelake.tracking.migrate import add_mirrors, migrate  # noqa: PLC0415
    from tracelake.tracking.store import TrackingStore, knows  # noqa: PLC0415

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
    """Close idle connections of a lake's tracking store; the next call opens new ones."""
    with _opening:
        stores = [store for (url, _), store in _open_stores.items() if url == lake_url]
    for store in stores:
        store.database.close()


def _page_key(place: TrackingLocation) -> str:
    """Return the key that signs page tokens. If the location has none, it is random, and tokens are valid in this
    process only."""
    return place.page_key or secrets.token_hex(16)


def _not_here(name: str, place: TrackingLocation) -> str:
    where = f"{DATABASE} in its directory" if place.url == SQLITE else place.url
    return (
        f"{name} is not the tracking store of this lake; {PLACE} names {where}: correct TRACELAKE_TRACKING or "
        f"`tracking`, or restore the database; to discard its data and start over, delete {PLACE}"
    )


def _address(lake_url: str, place: TrackingLocation, setting: str | None) -> str:
    """Return the URL to connect to. The setting includes the password and may name a new location."""
    if setting is not None and setting != SQLITE:
        return setting
    return f"sqlite{lake_url.removeprefix('file')}/{DATABASE}" if place.url == SQLITE else place.url


def _default_database(objects: ObjectStore, metadata_url: str) -> str | None:
    if metadata_url.startswith(("postgresql://", "postgres://")):
        return metadata_url
    return SQLITE if objects.url.startswith("file://") else None


def _require_default_database(objects: ObjectStore, metadata_url: str) -> str:
    if (database := _default_database(objects, metadata_url)) is not None:
        return database
    raise UsageError(
        f"{objects.url} has no place for a tracking store: name a database with TRACELAKE_TRACKING, such as "
        "postgresql://host/database, or serve without one (--no-hot-tier)"
    )
