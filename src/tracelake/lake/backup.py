"""Consistent backups of a lake at work, and their restore.

A backup is a lake in a directory, with both databases as SQLite files. Its order makes it consistent:

1. Leases on all tables keep the parts that compaction replaces. All objects are copied.
2. Writers of the tracking store pause for the moment in which a snapshot of both databases begins. So the databases are
   as after a crash at that moment, from which every lake recovers.
3. The databases are copied, then the objects that came since the first pass. So each object that the records name is in
   the backup: it was there at the moment of the snapshot, and none of these are deleted under the leases.
4. `tracking.json` and `lake.json` are written last: until then there is no lake in the backup. Then it is verified.

The pipeline may delete an input that came after the first pass before the second pass copies it. Then steps 2 and 3 run
again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from tracelake._errors import DamageError, NotFoundError, StorageError, UsageError
from tracelake.formats import encode
from tracelake.journal.model import inputs_of
from tracelake.journal.store import Journal
from tracelake.lake import location
from tracelake.lake.context import LakeContext
from tracelake.lake.verify import Verifier
from tracelake.pipeline.outputs.builtin import upper_of
from tracelake.results import BackupReport
from tracelake.shards.leases import Leases
from tracelake.shards.shard import Shard
from tracelake.storage import (
    KeyValueStore,
    ObjectInfo,
    ObjectStore,
    ScopedKeyValueStore,
    open_key_value,
    open_objects,
)
from tracelake.storage.database_check import CopiedStore, Row
from tracelake.storage.ports import encode_text
from tracelake.storage.urls import without_password
from tracelake.tables.builtin import BUILT_IN
from tracelake.tables.spec import table_names
from tracelake.tasks.runners import OnProgress, Progress, silent
from tracelake.tracking import location as tracking_place
from tracelake.tracking.copying import copy_tracking, paused_snapshot
from tracelake.tracking.database import TrackingDatabase
from tracelake.tracking.migrate import migrate
from tracelake.versions.repository import Repository
from tracelake.versions.tree import COMMITS

_BACKUP_TRIES_MAX: Final = 5
"""How often a backup takes its snapshot because an input was taken before it was copied."""


_DATABASES: Final = tuple(
    name + end
    for name in ("metadata.db", tracking_place.DATABASE)
    for end in ("", "-wal", "-shm", "-journal")
)
_NOT_COPIED: Final = (*_DATABASES, location.CONFIG, tracking_place.PLACE)


def back_up(opened: LakeContext, target: str, progress: OnProgress | None = None) -> BackupReport:
    """Copy a lake at work into an empty directory, and verify the copy.

    Raises:
        UsageError: the directory is not empty, or lies in the lake, or the records of the lake are objects.
        StorageError: a store failed, or inputs were taken too fast; nothing that opens is in the directory then.
    """
    encode_text("the directory", target)
    place = Path(target).expanduser().resolve()
    _check_target(opened, place)
    objects = open_objects(place.as_uri())
    with closing(Leases()) as leases:
        for name in {*BUILT_IN, *table_names(opened.objects)}:
            leases.take(Shard(name, opened.key_value, opened.objects), opened.key_value)
        copy = _ObjectCopy(opened.objects, objects, leases, progress or silent)
        copy.run()
        for _ in range(_BACKUP_TRIES_MAX):
            records, rows = _copy_databases(opened, place, objects)
            before = set(copy.copied)
            copy.run()
            if (lost := _complete(opened, place, objects, copy, before)) is None:
                break
        else:
            raise StorageError(
                f"{lost} was taken before it was copied; run the backup again, into an empty directory"
            )
    config = msgspec.structs.replace(opened.config, metadata=location.SQLITE)
    objects.put(location.CONFIG, encode(config, location.CONFIG))
    return _verified(place.as_uri(), None, None, copy, records, rows)


def restore_backup(
    backup: str,
    target: str,
    *,
    metadata: str | None = None,
    tracking: str | None = None,
    progress: OnProgress | None = None,
) -> BackupReport:
    """Copy a backup to an empty place, its databases to SQLite there or to PostgreSQL, and verify it.

    Raises UsageError if the place is not empty or cannot have these databases, StorageError.
    """
    source = location.open_location(backup, None)
    directory = Path(backup).expanduser().resolve()
    url = location.url_of(target)
    objects = open_objects(url)
    if any(True for _ in objects.list("")):
        raise UsageError(f"{location.shown(url)} is not empty; choose another place for the lake.")
    is_local = url.startswith("file://")
    if not is_local and metadata is None:
        raise UsageError(
            f"{url} is no directory: name a database with --metadata postgresql://host/database."
        )
    with closing(source.stores.key_value), closing(Leases()) as leases:
        copy = _ObjectCopy(source.stores.objects, objects, leases, progress or silent)
        copy.run()
        name = metadata or location.SQLITE
        with (
            closing(open_key_value(location.records_url(name, url))) as store,
            closing(open_key_value(source.records_url)) as records,
        ):
            if store.get(location.LAKES, source.config.id) is not None:
                raise UsageError("the database has records of this lake already; name an empty one.")
            count = _copy_records(records, store, source.config.id)
        rows = 0
        if (place := tracking_place.read_place(source.stores.objects)) is not None:
            tracking = tracking or (name if name != location.SQLITE else tracking_place.SQLITE)
            at = f"sqlite{url.removeprefix('file')}/{tracking_place.DATABASE}"
            with (
                closing(TrackingDatabase(f"sqlite://{directory}/{tracking_place.DATABASE}")) as old,
                old.reading() as read,
            ):
                rows = _copy_tracking(read, place.lake, at if tracking == tracking_place.SQLITE else tracking)
            moved = msgspec.structs.replace(place, url=without_password(tracking))
            objects.put(tracking_place.PLACE, encode(moved, tracking_place.PLACE))
        config = msgspec.structs.replace(source.config, metadata=without_password(name))
        objects.put(location.CONFIG, encode(config, location.CONFIG))
    return _verified(url, metadata, tracking, copy, count, rows)


class _ObjectCopy:
    """Copies objects from one store to another, those that are new since the last run."""

    def __init__(
        self, source: ObjectStore, target: ObjectStore, leases: Leases, progress: OnProgress
    ) -> None:
        self._source, self._target, self._leases, self._progress = source, target, leases, progress
        self.copied: dict[str, ObjectInfo] = {}

    def drop(self, paths: Collection[str]) -> None:
        """Delete copies again."""
        for path in paths:
            self._target.delete(path)
            del self.copied[path]

    @property
    def size_bytes(self) -> int:
        """Bytes of all objects copied."""
        return sum(info.size_bytes for info in self.copied.values())

    def run(self) -> None:
        """Copy what is there and was not copied as it is now. Inputs first, which go soonest."""
        for prefix in ("inbox/", ""):
            for info in list(self._source.list(prefix)):
                self._leases.renew()
                if info.path in _NOT_COPIED or self.copied.get(info.path) == info:
                    continue
                try:
                    self._target.put(info.path, self._source.get(info.path))
                except NotFoundError:
                    continue  # nothing that the snapshot names: it was deleted, and not under our leases
                self.copied[info.path] = info
                self._progress(Progress("copying", len(self.copied), 0, "objects"))


def _check_target(opened: LakeContext, place: Path) -> None:
    if opened.config.metadata == location.OBJECTS or opened.in_memory:
        raise UsageError(
            "the records of this lake are objects, of which there is no snapshot: stop its writers and copy all "
            "objects, or use versions of the bucket."
        )
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise UsageError(f"{place} is not an empty directory; choose another for the backup.")
    if f"{place.as_uri()}/".startswith(f"{opened.objects.url}/"):
        raise UsageError(f"{place} lies in the lake itself; choose another directory for the backup.")


def _copy_databases(opened: LakeContext, place: Path, objects: ObjectStore) -> tuple[int, int]:
    """Copy both databases as of one moment; return how many records and rows of the tracking store."""
    for name in _DATABASES:
        (place / name).unlink(missing_ok=True)
    with ExitStack() as stack:
        source = stack.enter_context(closing(open_key_value(opened.location.records_url)))
        read = resume = None
        where = tracking_place.read_place(opened.objects)
        store = tracking_place.find_tracking(opened.objects)
        if store is not None:
            read, resume = stack.enter_context(paused_snapshot(store.database))
        records = stack.enter_context(_snapshot(source))
        if resume is not None:
            resume()
        with closing(open_key_value(f"sqlite://{place}/metadata.db")) as target:
            count = _load(target, records, opened.config.id)
        if read is None or where is None or store is None:
            return count, 0
        rows = _copy_tracking(read, store.lake_id, f"sqlite://{place}/{tracking_place.DATABASE}")
        moved = msgspec.structs.replace(where, url=tracking_place.SQLITE)
        objects.put(tracking_place.PLACE, encode(moved, tracking_place.PLACE))
        return count, rows


def _copy_records(source: KeyValueStore, target: KeyValueStore, lake_id: str) -> int:
    with _snapshot(source) as rows:
        return _load(target, rows, lake_id)


@contextmanager
def _snapshot(store: KeyValueStore) -> Iterator[Iterator[Row]]:
    if not isinstance(store, CopiedStore):
        raise UsageError("the records of this lake are in no database, so there is no snapshot of them.")
    with store.snapshot() as rows:
        yield rows


def _load(target: KeyValueStore, rows: Iterator[Row], lake_id: str) -> int:
    """Load the records of one lake, but for leases, whose readers do not read the copy; return how many."""
    if not isinstance(target, CopiedStore):
        raise UsageError("records are restored to SQLite or PostgreSQL; name one of them with --metadata.")
    scope, known = f"{lake_id}/".encode(), (location.LAKES.encode(), lake_id.encode())
    left_out = (scope + b"leases", scope + b"sightings", scope + b"replicas")
    count = 0

    def ours() -> Iterator[Row]:
        nonlocal count
        for partition, key, value, version in rows:
            if (partition, key) == known or (partition.startswith(scope) and partition not in left_out):
                count += 1
                yield partition, key, value, version

    target.load(ours())
    return count


def _copy_tracking(read: object, lake_id: str, url: str) -> int:
    with closing(TrackingDatabase(url)) as target:
        migrate(target)
        return copy_tracking(read, lake_id, target)  # type: ignore[arg-type]


def _complete(
    opened: LakeContext, place: Path, objects: ObjectStore, copy: _ObjectCopy, before: Collection[str]
) -> str | None:
    """Drop commits later than the snapshot; return an input of its open transaction that is not in the backup, if any.

    `verify` takes commits that no record leads to for a sign that the metadata is too old.
    """
    with closing(open_key_value(f"sqlite://{place}/metadata.db")) as store:
        records = ScopedKeyValueStore(store, opened.config.id)
        repository = Repository(records, objects)
        upper = upper_of(repository)
        copy.drop([path for path in copy.copied.keys() - before if _is_later(repository, path, upper)])
        step = Journal(records, "main").read(upper).step
    inputs = inputs_of(step.sources.get("inbox", ())) if step is not None else ()
    return next((each.path for each in inputs if objects.head(each.path) is None), None)


def _is_later(repository: Repository, path: str, upper: int) -> bool:
    commit_id = path.removeprefix(COMMITS).removesuffix(".json")
    if commit_id == path:
        return False
    with suppress(DamageError):
        return repository.transaction_of(commit_id) >= upper
    return False


def _verified(
    url: str, metadata: str | None, tracking: str | None, copy: _ObjectCopy, records: int, rows: int
) -> BackupReport:
    if (place := tracking_place.read_place(open_objects(url))) is not None:
        tracking_place.open_store(url, place, tracking or tracking_place.SQLITE)
    with closing(LakeContext(location.open_location(url, metadata))) as lake:
        report = Verifier(lake.key_value, lake.singly(), lake.config.buckets, lake.view).run(silent)
        return BackupReport(location.shown(url), len(copy.copied), copy.size_bytes, records, rows, report)
