"""Reading back the archive repository, for `tracelake verify`: each trace that names an object of it (A14)."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import select

from tracelake._errors import DamageError, NotFoundError
from tracelake.archive.archive import FOLDER
from tracelake.archive.candidates import Candidates
from tracelake.archive.layouts import read_archived
from tracelake.results import Finding
from tracelake.storage import ObjectStore, open_objects
from tracelake.tracking.place import PLACE, find_tracking
from tracelake.tracking.schema import ARCHIVE_REPO, LAKE_LOCATION, trace_info
from tracelake.tracking.store import TrackingStore


def check_archive(objects: ObjectStore) -> Iterator[Finding]:
    """Yield what is missing, cut or altered of archived traces; nothing for a lake without a hot tier.

    Raises StorageError where the tracking store or the repository cannot be asked.
    """
    try:
        tracking = find_tracking(objects)
        if tracking is not None:
            yield from _check(tracking, objects.url)
    except DamageError as error:
        yield Finding("damaged", "record", PLACE, str(error))


def _check(tracking: TrackingStore, lake_url: str) -> Iterator[Finding]:
    info = trace_info.c
    query = (
        select(info.trace_id, info.archive_location, info.archive_bytes, info.archive_sha256)
        .where(info.lake == tracking.lake, info.spans_location == ARCHIVE_REPO)
        .where(info.archive_location.not_like(f"{LAKE_LOCATION}%"))
        .order_by(info.trace_id)
    )
    with tracking.database.reading() as connection:
        rows = connection.execute(query).all()
    if not rows:
        return
    repository = open_objects(Candidates(tracking).settings().location or f"{lake_url}/{FOLDER}")
    for trace_id, location, size_bytes, sha256 in rows:
        try:
            read_archived(repository, location, size_bytes, sha256)
        except (DamageError, NotFoundError) as error:
            yield Finding("damaged", "archived trace", trace_id, str(error))
