"""Consistent backups of a lake at work, and their restore.

A backup is a lake in a directory, with both databases as SQLite files. Its order makes it consistent:

1. Leases on all tables keep the parts that compaction replaces. All objects are copied.
2. Writers of the tracking store pause for the moment in which a snapshot of both databases begins. The copies of the
   databases are therefore in the state after a crash at that moment, from which every lake recovers.
3. The databases are copied, then the objects that were written since step 1. Each object that the records name is
   therefore in the backup: it existed at the moment of the snapshot, and the leases prevent its deletion.
4. `tracking.json` and `lake.json` are written last: without them, the backup does not open as a lake. Then `verify`
   checks the backup.

If the pipeline deletes an input that arrived after step 1 before step 3 copies it, steps 2 and 3 run again.

This module also contains `Verifier`, which runs the checks of each package for `verify` and `backup`, and combines
their findings.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa

from tracelake import location, storage
from tracelake._errors import DamageError, NotFoundError, StorageError, UsageError
from tracelake.access import audit, keys, oidc
from tracelake.archive.verify import check_archive, check_tables, spans_of_archived
from tracelake.context import LakeContext
from tracelake.datasets.files import verify_files
from tracelake.erasure.store import ErasureStore
from tracelake.formats import encode
from tracelake.journal.model import Step, inputs_of
from tracelake.journal.quarantine import QuarantineStore
from tracelake.journal.store import Journal, check_journal, check_transactions
from tracelake.pipeline.outputs.builtin import SET_ASIDE, upper_of
from tracelake.pipeline.sources.server_inputs import OUTBOX
from tracelake.pipeline.verify import check_counts, check_index, check_outputs, check_quarantine, check_topics
from tracelake.replicas.replica import check_heartbeats
from tracelake.results import BackupReport, Finding, VerifyReport
from tracelake.shards.leases import Leases
from tracelake.shards.shard import Shard
from tracelake.shards.verify import ShardCheck, check_shards
from tracelake.storage.ports import CopiedStore, Row, check_database, check_records, encode_text
from tracelake.storage.urls import without_password
from tracelake.tables.builtin import BUILT_IN, TABLE_SPANS, BuiltInTable, entry_of
from tracelake.tables.maintenance import check_built_in, check_keys, check_spec, user_tables
from tracelake.tables.retention import PARTITION as RETENTION_PARTITION
from tracelake.tables.spec import table_names
from tracelake.tables.view import INDEX, CommitView, named_by
from tracelake.tasks.runners import OnProgress, Progress, silent
from tracelake.tracking import location as tracking_place
from tracelake.tracking.database import TrackingDatabase
from tracelake.tracking.location import PLACE, find_tracking
from tracelake.tracking.migrate import copy_tracking, migrate, paused_snapshot
from tracelake.tracking.store import TrackingStore
from tracelake.tracking.verify import DATABASE, check_inbox, check_store, unchecked
from tracelake.versions import verify
from tracelake.versions.repository import Repository
from tracelake.versions.tree import COMMITS

_SETTLING: Final = 2
"""Number of newest transactions whose inputs may not be acknowledged yet."""


class Verifier:
    """A run of `verify`. It reads the lake, changes nothing, and continues after each finding."""

    def __init__(
        self,
        key_value: storage.KeyValueStore,
        objects: storage.ObjectStore,
        buckets: int,
        view: Callable[[str], CommitView],
    ) -> None:
        self._key_value = key_value
        self._objects = objects
        self._buckets = buckets
        self._view = view
        self._repository = Repository(key_value, objects)
        self._findings: list[Finding] = []
        self._unread: list[str] = []

    def run(self, progress: OnProgress) -> VerifyReport:
        """Run all checks."""
        if self._check_database():
            return VerifyReport(
                *(0,) * 7,
                findings=tuple(self._findings),
                unread=(
                    "commits, tables, index, files and tracking store: the metadata that names them is damaged",
                ),
            )
        with closing(Leases()) as leases:  # leases keep listed parts until they are read
            return self._run(leases, progress)

    def _check_database(self) -> bool:
        """Check the metadata database, and return whether its structure is damaged."""
        check = check_database(self._key_value, "")
        for name, problem in check.structure:
            detail = f"{problem}; restore it from a backup"
            self._findings.append(Finding("damaged", "metadata", name, detail))
        self._findings += [Finding("damaged", "record", path, problem) for path, problem in check.rows]
        self._unread += check.unread
        return bool(check.structure)

    def _run(self, leases: Leases, progress: OnProgress) -> VerifyReport:
        key_value, objects = self._key_value, self._objects
        # List transactions first, so that later ones are not checked.
        transactions = verify.built_transactions(self._repository, objects)
        records = verify.read_records(key_value)
        commits, findings = verify.check_history(self._repository, objects, transactions, named_by)
        self._findings += findings
        written = user_tables(self._repository, records.heads)
        uppers = {name: transactions for name, table in BUILT_IN.items() if _has_appends(table, commits)}
        uppers = dict.fromkeys(BUILT_IN, 0) | uppers | {name: time + 1 for name, time in written.items()}
        tables = self._check_tables(uppers, leases, progress)
        quarantined_transactions = {it.transaction for it in commits if SET_ASIDE in it.commit.metadata}
        steps, in_journal = check_transactions(
            Journal(key_value, "main"), transactions, quarantined_transactions
        )
        self._findings += in_journal
        quarantined, lost = check_quarantine(key_value, objects)
        self._findings += lost
        spans = tables[TABLE_SPANS.name]
        erased = ErasureStore(key_value, objects).erased_rows()
        self._findings += check_counts(commits, steps, spans, erased)
        index, findings = check_index(objects, commits, spans, self._buckets)
        self._findings += findings
        for name in sorted({*written, *table_names(objects)}):
            self._findings += check_spec(objects, name)
        self._findings += check_journal(key_value, in_journal)
        self._findings += check_shards(key_value, tables)
        self._findings += check_heartbeats(key_value)
        quarantined_paths = {suspect.path for suspect in QuarantineStore(key_value, "main").all()}
        self._findings += check_topics(key_value, objects, steps, transactions - _SETTLING, quarantined_paths)
        left_out, findings = check_outputs(key_value, lambda: upper_of(self._repository))
        self._findings += findings
        self._findings += check_records(key_value, ("sources/main", "clients/main"))
        self._findings += check_records(
            key_value, (keys.PARTITION, oidc.SESSION_PARTITION, audit.PARTITION, oidc.PARTITION)
        )
        self._findings += check_records(key_value, [RETENTION_PARTITION])
        self._findings += records.findings
        self._findings += check_inbox(objects)
        is_intact = not self._findings
        archived = self._check_tracking(steps, transactions)
        files, file_bytes = self._check_files(records, progress)
        if is_intact:  # scanning damaged parts would add no new finding
            view = self._view("main")
            self._findings += check_built_in(view)
            self._findings += check_tables(archived, view)
            for name in written:
                if entry_of(name) in commits[0].entries:
                    self._findings += check_keys(view, name)
        return VerifyReport(
            commits=len(commits),
            transactions=transactions,
            parts=sum(len(table.parts()) for table in tables.values()),
            index_parts=index.newest.part_count if index.newest is not None else 0,
            files=files,
            rows=sum(table.rows_read for table in tables.values()),
            bytes_read=sum(table.bytes_read for table in tables.values()) + index.bytes_read + file_bytes,
            findings=tuple(self._findings),
            set_aside=quarantined,
            left_out=tuple(left_out),
            unread=tuple(self._unread),
        )

    def _check_tracking(self, steps: Mapping[int, Step], transactions: int) -> list[pa.RecordBatch]:
        """Check the tracking store and its archive, if any. Return the archived spans that the tables must have.

        An unavailable store is a finding; the checks of the lake continue.
        """
        try:
            store = find_tracking(self._objects)
            if store is not None:
                return self._check_store(store, steps, transactions)
            if any(step.sources.get(OUTBOX) for step in steps.values()):
                detail = "the journal references rows of a tracking store that does not exist: restore it"
                self._findings.append(Finding("missing", DATABASE, PLACE, detail))
        except DamageError as error:
            self._findings.append(Finding("damaged", "record", PLACE, str(error)))
        except StorageError as error:
            detail = f"the tracking store cannot be read and was not verified: {error}"
            self._findings.append(Finding("missing", DATABASE, PLACE, detail))
        return []

    def _check_store(
        self, store: TrackingStore, steps: Mapping[int, Step], transactions: int
    ) -> list[pa.RecordBatch]:
        """Run the checks of `_check_tracking` on an open store. Raises StorageError if the store becomes
        unavailable."""
        # The newest transactions may still acknowledge inputs. Older ones finished that before the next one
        # began.
        quarantined_paths = {suspect.path for suspect in QuarantineStore(self._key_value, "main").all()}
        consumed = {
            each.path
            for t, step in steps.items()
            if t < transactions - _SETTLING
            for each in inputs_of(step.sources.get(OUTBOX, ()))
        }
        is_damaged = False
        settled = {int(path.rpartition("/")[2]) for path in consumed - quarantined_paths}
        for finding in check_store(store, settled):
            self._findings.append(finding)
            if finding.what == DATABASE:
                is_damaged = True
        if is_damaged:
            return []  # a damaged file's statements about the archive are not trustworthy
        self._unread += unchecked(store)
        self._findings.extend(check_archive(store, self._objects.url))
        return spans_of_archived(store)

    def _check_tables(
        self, uppers: dict[str, int], leases: Leases, progress: OnProgress
    ) -> dict[str, ShardCheck]:
        """Read tables, each at least up to its upper."""
        tables = {
            name: ShardCheck(Shard(name, self._key_value, self._objects), self._key_value, self._objects)
            for name in uppers
        }
        for name, table in tables.items():
            self._findings += table.read_batches(leases, uppers[name])
        parts = [(table, *listed) for table in tables.values() for listed in table.parts()]
        for number, (table, batch, part) in enumerate(parts):
            leases.renew()
            self._findings += table.check_part(batch, part)
            progress(Progress("verifying", number + 1, len(parts), "parts"))
        return tables

    def _check_files(self, records: verify.CheckedRecords, progress: OnProgress) -> tuple[int, int]:
        """Read the files of all branches and tags, and staged ones; return their number and bytes."""
        files = size_bytes = 0
        reported = {finding.path for finding in self._findings}
        is_erased = ErasureStore(self._key_value, self._objects).is_file_erased
        for checked in verify_files(
            self._repository, self._objects, records.heads, records.staged, is_erased
        ):
            files += checked.what == "file"
            size_bytes += checked.size_bytes
            progress(Progress("verifying", files, 0, "files"))
            if checked.finding is not None and checked.finding.path not in reported:
                reported.add(checked.finding.path)
                self._findings.append(checked.finding)
        return files, size_bytes


def _has_appends(table: BuiltInTable, commits: Sequence[verify.CheckedCommit]) -> bool:
    """Return whether transactions have appended to a table. A table newer than the lake may have none yet."""
    return not commits or any(table.entry in committed.entries for committed in commits)


_BACKUP_TRIES_MAX: Final = 5
"""Snapshots that a backup takes at most, because pipelines deleted an input before it was copied."""

_DATABASES: Final = tuple(
    name + end
    for name in ("metadata.db", tracking_place.DATABASE)
    for end in ("", "-wal", "-shm", "-journal")
)
INDEX_FILE: Final = re.compile(rf"search/{INDEX}/\w+/{INDEX}-(\d{{10,}})[./].+")
"""Path of the manifest, a part, or a staged part of a transaction's index build."""
_NOT_COPIED: Final = (*_DATABASES, location.CONFIG, tracking_place.PLACE)


def back_up(opened: LakeContext, target: str, progress: OnProgress | None = None) -> BackupReport:
    """Copy a lake at work into an empty directory, and verify the copy.

    Raises:
        UsageError: the directory is not empty, or lies in the lake, or the records of the lake are objects.
        StorageError: a store failed, or pipelines repeatedly deleted new inputs before they were copied; the directory
            then contains no lake that opens.
    """
    encode_text("the directory", target)
    place = Path(target).expanduser().resolve()
    _check_target(opened, place)
    objects = storage.open_objects(place.as_uri())
    with closing(Leases()) as leases:
        for name in {*BUILT_IN, *table_names(opened.objects)}:
            leases.take(Shard(name, opened.key_value, opened.objects), opened.key_value)
        copy = _ObjectCopy(opened.objects, objects, leases, progress or silent)
        copy.run()
        for _ in range(_BACKUP_TRIES_MAX):
            records, rows = copy_snapshot(opened, place, objects)
            before = set(copy.copied)
            copy.run()
            if (lost := _complete(opened, place, objects, copy, before)) is None:
                break
        else:
            raise StorageError(
                f"{lost} was ingested before it was copied; run the backup again, into an empty directory"
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
    """Copy a backup to an empty place, and verify the copy. Its databases become SQLite files there, or PostgreSQL
    databases if `metadata` or `tracking` is a URL of one.

    Raises UsageError if the place is not empty, or if it is a bucket and `metadata` is missing.
    """
    source = location.open_location(backup, None)
    directory = Path(backup).expanduser().resolve()
    url = location.url_of(target)
    objects = storage.open_objects(url)
    if any(True for _ in objects.list("")):
        raise UsageError(f"{location.shown(url)} is not empty; choose another place for the lake.")
    is_local = url.startswith("file://")
    if not is_local and metadata is None:
        raise UsageError(
            f"{url} is not a directory: name a database with --metadata postgresql://host/database."
        )
    with closing(source.stores.key_value), closing(Leases()) as leases:
        copy = _ObjectCopy(source.stores.objects, objects, leases, progress or silent)
        copy.run()
        name = metadata or location.SQLITE
        with (
            closing(storage.open_key_value(location.records_url(name, url))) as store,
            closing(storage.open_key_value(source.records_url)) as records,
        ):
            if store.get(location.LAKES, source.config.id) is not None:
                raise UsageError("the database already has records of this lake; name an empty one.")
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
    """Copies objects from one store to another. Each run copies the objects that are new or changed since the last
    run."""

    def __init__(
        self, source: storage.ObjectStore, target: storage.ObjectStore, leases: Leases, progress: OnProgress
    ) -> None:
        self._source, self._target, self._leases, self._progress = source, target, leases, progress
        self.copied: dict[str, storage.ObjectInfo] = {}

    def drop(self, paths: Collection[str]) -> None:
        """Delete these objects from the target, and forget that they were copied."""
        for path in paths:
            self._target.delete(path)
            del self.copied[path]

    @property
    def size_bytes(self) -> int:
        """Bytes of all objects copied."""
        return sum(info.size_bytes for info in self.copied.values())

    def run(self) -> None:
        """Copy all objects that are new or changed. Inputs come first, because pipelines may delete them at any
        moment."""
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
            "the records of this lake are objects, which have no snapshot: stop its writers and copy all "
            "objects, or use the bucket's versioning."
        )
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise UsageError(f"{place} is not an empty directory; choose another for the backup.")
    if f"{place.as_uri()}/".startswith(f"{opened.objects.url}/"):
        raise UsageError(f"{place} is inside the lake; choose another directory for the backup.")


def copy_snapshot(opened: LakeContext, place: Path, objects: storage.ObjectStore) -> tuple[int, int]:
    """Copy both databases as of one moment; return the number of records, and of rows of the tracking store."""
    for name in _DATABASES:
        (place / name).unlink(missing_ok=True)
    with ExitStack() as stack:
        source = stack.enter_context(closing(storage.open_key_value(opened.location.records_url)))
        read = resume = None
        where = tracking_place.read_place(opened.objects)
        store = tracking_place.find_tracking(opened.objects)
        if store is not None:
            read, resume = stack.enter_context(paused_snapshot(store.database))
        records = stack.enter_context(_snapshot(source))
        if resume is not None:
            resume()
        with closing(storage.open_key_value(f"sqlite://{place}/metadata.db")) as target:
            count = _load(target, records, opened.config.id)
        if read is None or where is None or store is None:
            return count, 0
        rows = _copy_tracking(read, store.lake_id, f"sqlite://{place}/{tracking_place.DATABASE}")
        moved = msgspec.structs.replace(where, url=tracking_place.SQLITE)
        objects.put(tracking_place.PLACE, encode(moved, tracking_place.PLACE))
        return count, rows


def _copy_records(source: storage.KeyValueStore, target: storage.KeyValueStore, lake_id: str) -> int:
    with _snapshot(source) as rows:
        return _load(target, rows, lake_id)


@contextmanager
def _snapshot(store: storage.KeyValueStore) -> Iterator[Iterator[Row]]:
    if not isinstance(store, CopiedStore):
        raise UsageError("the records of this lake are not in a database, so they have no snapshot.")
    with store.snapshot() as rows:
        yield rows


def _load(target: storage.KeyValueStore, rows: Iterator[Row], lake_id: str) -> int:
    """Copy the records of one lake into a store; return their number. Leases are left out, because their readers do not
    read the copy."""
    if not isinstance(target, CopiedStore):
        raise UsageError("records are restored to SQLite or PostgreSQL; name one of them with --metadata.")
    scope, lake_record = f"{lake_id}/".encode(), (location.LAKES.encode(), lake_id.encode())
    left_out = (scope + b"leases", scope + b"sightings", scope + b"replicas")
    count = 0

    def ours() -> Iterator[Row]:
        nonlocal count
        for partition, key, value, version in rows:
            if (partition, key) == lake_record or (partition.startswith(scope) and partition not in left_out):
                count += 1
                yield partition, key, value, version

    target.load(ours())
    return count


def _copy_tracking(read: object, lake_id: str, url: str) -> int:
    with closing(TrackingDatabase(url)) as target:
        migrate(target)
        return copy_tracking(read, lake_id, target)  # type: ignore[arg-type]


def _complete(
    opened: LakeContext, place: Path, objects: storage.ObjectStore, copy: _ObjectCopy, before: Collection[str]
) -> str | None:
    """Delete commits and indexes from the copy that are newer than the snapshot. Return an input of the snapshot's open
    transaction that is missing from the backup, or None.

    `verify` would report unreachable new commits as a sign of metadata that is too old. The restored lake decides anew
    what its next transaction takes, so index parts of that transaction's number would be of other spans.
    """
    with closing(storage.open_key_value(f"sqlite://{place}/metadata.db")) as store:
        records = storage.ScopedKeyValueStore(store, opened.config.id)
        repository = Repository(records, objects)
        upper = upper_of(repository)
        copy.drop([path for path in copy.copied.keys() - before if _is_later(repository, path, upper)])
        step = Journal(records, "main").read(upper).step
    inputs = inputs_of(step.sources.get("inbox", ())) if step is not None else ()
    return next((each.path for each in inputs if objects.head(each.path) is None), None)


def _is_later(repository: Repository, path: str, upper: int) -> bool:
    """Return whether an object is a commit of the transaction `upper` or a later one, or of its index."""
    if (index_file := INDEX_FILE.fullmatch(path)) is not None:
        return int(index_file[1]) >= upper
    commit_id = path.removeprefix(COMMITS).removesuffix(".json")
    if commit_id == path:
        return False
    with suppress(DamageError):
        return repository.transaction_of(commit_id) >= upper
    return False


def _verified(
    url: str, metadata: str | None, tracking: str | None, copy: _ObjectCopy, records: int, rows: int
) -> BackupReport:
    if (place := tracking_place.read_place(storage.open_objects(url))) is not None:
        tracking_place.open_store(url, place, tracking or tracking_place.SQLITE)
    with closing(LakeContext(location.open_location(url, metadata))) as lake:
        report = Verifier(lake.key_value, lake.singly(), lake.config.buckets, lake.view).run(silent)
        return BackupReport(location.shown(url), len(copy.copied), copy.size_bytes, records, rows, report)
