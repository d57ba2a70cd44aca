"""Records as objects: the name of a key's object, and what stands in it. For stores without a database.

**Names** sort as keys do, in byte order: `p<hex of the partition>/k<hex of the key>`. Object stores take
names of 1,024 bytes and file systems of 255, so of a long key only the beginning is spelled out, and a
hash stands for the rest. Keys with the same long beginning are put in order by their bodies.

**Bodies** begin with one record that says whose they are and carries the write id and the checksum of the value,
then a newline and the value. Its own checksum is turned by the path: a body that was copied to another one is damaged.
The write id also makes each body different, for some servers' e-tags are hashes of the content.
A deleted record is a body that says so: no object store can delete on a condition.

Records that an object store keeps: what is alike whether a record is one object, or a directory of versions.

Notes as objects: one each under `n<hex of the partition>/`, apart from records.

Nobody expects anything of a note, so it is put and deleted without a condition, and leaves no trace.

Records as objects of a bucket, replaced on the condition of their e-tag: no database at all.

One object a key, replaced by a put that names the e-tag of what it replaces. The body carries the write
id, so that a put whose reply was lost is told by reading back; while the old body still stands there, the
same put is tried again, with the same write id and e-tag, and can land once at most.

Records on an object store that can create and nothing more, such as local files.

Each write of a record is a new object in the record's directory, under the next number: `…/00000007`
follows `…/00000006`. Two writers who saw 6 both try to create 7, and one of them does. The highest number
is the record.

**Old versions** go when RECORD_VERSIONS_KEPT newer ones are there, lowest first. A writer that slept
since it saw 6 could then create a 7 that was there before and is gone. So a writer lists again after its
create: while the highest number is less than RECORD_VERSIONS_KEPT above its own, its number cannot have been removed,
and its write is a true one. Else nobody knows, and the outcome says so. That holds of numbers which stood there
together: where each file is looked at by itself, the highest may go in between, and a sleeper's number be left alone.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import groupby, islice
from typing import TYPE_CHECKING, Final

import msgspec
import obstore
import xxhash

from tracelake import formats, limits
from tracelake._errors import (
    ContentionError,
    DamagedRecordsError,
    DamageError,
    IndeterminateError,
    NotFoundError,
    StorageError,
)
from tracelake.storage.buckets import Bucket, BucketObjectStore, failed, read_again
from tracelake.storage.failures import OBSTORE_ERRORS, FailureKind, obstore_text, of_obstore
from tracelake.storage.local import FileObjectStore
from tracelake.storage.ports import (
    Conflict,
    Done,
    Entry,
    Expected,
    Indeterminate,
    ObjectStore,
    Outcome,
    Version,
    beginning_of_both,
    check_scan_limit,
    check_value,
    encode_beginning,
    encode_key,
    encode_text,
    is_at,
    new_version,
    settle,
    tries,
)
from tracelake.storage.wrappers import delete_all, for_each, read_all

if TYPE_CHECKING:
    from obstore import PutMode, UpdateVersion

_FORMAT: Final = 1


class _Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    partition: str
    key: str
    write: Version
    deleted: bool
    value_xxh3: str
    format_version: int = _FORMAT


class ObjectRecord(msgspec.Struct, frozen=True):
    """What one object holds: a record, or that it was deleted."""

    entry: Entry
    deleted: bool

    @property
    def present(self) -> Entry | None:
        """Return the record, None where it was deleted."""
        return None if self.deleted else self.entry


def whole_of(
    scan: Callable[[str], Iterable[Entry]],
    partition: str,
    damaged: Callable[[str, DamageError], None] = lambda _key, _error: None,
) -> list[Entry]:
    """Return the records of a partition that can be read, and tell of the others."""
    try:
        return list(scan(partition))
    except DamagedRecordsError as error:
        for key, problem in error.problems:
            damaged(key, problem)
        return error.whole


def encode(path: str, partition: str, key: str, value: bytes | None, version: Version) -> bytes:
    """Return the body for one write to a path; a value of None is a deletion."""
    header = _Header(partition, key, version, value is None, xxhash.xxh3_128_hexdigest(value or b""))
    return formats.encode(header, path) + b"\n" + (value or b"")


def decode(path: str, body: bytes) -> ObjectRecord:
    """Return what a body says.

    Raises DamageError where it is no whole record, or one of another path: the version in it is that of these bytes.
    """
    try:
        return _decode(path, body)
    except DamageError as error:
        error.version = f"damaged-{xxhash.xxh3_128_hexdigest(body)}"
        raise


def conflict_at(path: str, body: bytes | None, expected: Expected) -> Conflict | None:
    """Return what stands against a conditional write at a path that has this body, or none; None where nothing does.

    What nobody can read is as expected where its version is, and raises DamageError else.
    """
    try:
        current = None if body is None else decode(path, body).present
    except DamageError as error:
        if error.version != expected:
            raise
        return None
    return None if is_at(current, expected) else Conflict(current)


def _decode(path: str, body: bytes) -> ObjectRecord:
    line, _, value = body.partition(b"\n")
    header = formats.decode(_Header, line, f"record {path}", _FORMAT, path)
    if header.value_xxh3 != xxhash.xxh3_128_hexdigest(value):
        raise DamageError(f"{path} is not what was written: its value is another. Restore it from a backup.")
    return ObjectRecord(Entry(header.key, value, header.write), header.deleted)


def partition_path(partition: str) -> str:
    """Return the directory of a partition's records."""
    return f"p{_name(encode_key('partition', partition))}"


def record_path(partition: str, key: str) -> str:
    """Return the path of a record's object."""
    return f"{partition_path(partition)}/k{_name(encode_key('key', key))}"


def note_path(partition: str, key: str) -> str:
    """Return the path of a note's object: apart from records, and one object whatever the store can do."""
    return f"{notes_path(partition)}k{_name(encode_key('key', key))}"


def notes_path(partition: str) -> str:
    """Return the beginning of the paths of a partition's notes."""
    return f"n{_name(encode_key('partition', partition))}/"


def paths_between(directory: str, start: bytes, stop: bytes | None) -> str:
    """Return how the paths of all objects in a partition's directory begin that can hold keys of a range."""
    same = b"" if stop is None else beginning_of_both(start, stop)
    return f"{directory}/k{same[: limits.RECORD_NAME_KEY_BYTES].hex()}"


def may_hold(path: str, start: bytes, stop: bytes | None) -> bool:
    """Tell whether the object at `path` can hold a key with start <= key < stop."""
    if not path.rpartition("/")[2].startswith("k"):
        return False  # no record: some servers list files that they are about to give their names
    beginning = bytes.fromhex(_stem(path))
    if stop is not None and beginning >= stop:
        return False
    return beginning >= start[: limits.RECORD_NAME_KEY_BYTES]


def scan_records(
    read: Callable[[str, bytes, bytes | None], Iterable[tuple[str, Entry | DamageError]]],
    partition: str,
    start: str,
    stop: str | None,
    limit: int | None,
) -> list[Entry]:
    """Return the records with start <= key < stop in key order, at most `limit` of them.

    `read` gives, for the directory of a partition and the bounds, paths and records in order of their paths, or why
    one cannot be read; it may give more than the bounds allow, and is not asked for more than `limit` takes.

    Raises:
        DamagedRecordsError: some cannot be read; it has the others.
    """
    problems: list[tuple[str, DamageError]] = []
    check_scan_limit(limit)
    first, end = encode_text("start", start), None if stop is None else encode_text("stop", stop)
    records = (
        entry
        for entry in _in_key_order(_whole(read(partition_path(partition), first, end), problems))
        if first <= entry.key.encode() and (end is None or entry.key.encode() < end)
    )
    whole = list(islice(records, limit))
    if problems:
        raise DamagedRecordsError(whole, problems)
    return whole


def key_in(path: str) -> str:
    """Return the key, or the beginning of a long one, that the path of an object spells out."""
    return bytes.fromhex(_stem(path)).decode(errors="replace")


def spells_out(path: str) -> bool:
    """Tell whether the path of an object spells out the whole key."""
    return "~" not in path.rpartition("/")[2]


def _whole(
    read: Iterable[tuple[str, Entry | DamageError]], problems: list[tuple[str, DamageError]]
) -> Iterator[tuple[str, Entry]]:
    for path, record in read:
        if isinstance(record, DamageError):
            problems.append((key_in(path), record))
        else:
            yield path, record


def _in_key_order(records: Iterable[tuple[str, Entry]]) -> Iterator[Entry]:
    """Yield records that come in order of their paths in order of their keys."""
    for _, group in groupby(records, key=lambda record: _stem(record[0])):
        yield from sorted((entry for _, entry in group), key=lambda entry: entry.key.encode())


def _name(encoded: bytes) -> str:
    spelled = encoded[: limits.RECORD_NAME_KEY_BYTES].hex()
    if len(encoded) <= limits.RECORD_NAME_KEY_BYTES:
        return spelled
    return f"{spelled}~{hashlib.sha256(encoded).hexdigest()}"


def _stem(path: str) -> str:
    return path.rpartition("/")[2][1:].partition("~")[0]


class NoteObjects:
    """The part of a `KeyValueStore` that keeps notes, on any `ObjectStore`."""

    def __init__(self, objects: ObjectStore) -> None:
        """Keep notes in `objects`, beside nothing but records."""
        self._objects = objects

    def note(self, partition: str, key: str, value: bytes) -> None:
        """Leave a note, replacing the one that was there."""
        check_value(key, value)
        path = note_path(partition, key)
        self._objects.put(path, encode(path, partition, key, value, new_version()))

    def notes(self, partition: str, beginning: str = "") -> list[Entry]:
        """Return the notes of a partition whose key begins so, in key order; those that go meanwhile perhaps.

        Raises DamagedRecordsError where some cannot be read.
        """
        # What is no note may be listed (see `may_hold`), and begins otherwise.
        listed = self._objects.list(f"{notes_path(partition)}k{beginning.encode().hex()}")
        bodies = read_all(self._objects, [info.path for info in listed])
        whole: list[Entry] = []
        problems: list[tuple[str, DamageError]] = []
        for path, body in bodies.items():
            try:
                whole.append(decode(path, body).entry)
            except DamageError as error:
                problems.append((key_in(path), error))
        whole.sort(key=lambda entry: entry.key.encode())
        if problems:
            raise DamagedRecordsError(whole, problems)
        return whole

    def forget(self, partition: str, keys: Collection[str]) -> None:
        """Delete notes; fine where they are absent."""
        delete_all(self._objects, [note_path(partition, key) for key in keys])


class RecordsInObjects(NoteObjects, ABC):
    """The part of a `KeyValueStore` that looks for records in objects, each at a place that its key names."""

    @abstractmethod
    def set(self, partition: str, key: str, value: bytes) -> Version:
        """See KeyValueStore."""

    @abstractmethod
    def _place(self, path: str) -> str:
        """Return the place of the record that an object is of; objects of one place are listed together."""

    @abstractmethod
    def _at(self, place: str) -> ObjectRecord | None:
        """Return the record at a place, or that it was deleted; None where there never was one."""

    @abstractmethod
    def _write_if(self, partition: str, key: str, value: bytes | None, expected: Expected) -> Outcome:
        """Write a record, with None delete it, iff it is at `expected`."""

    def get(self, partition: str, key: str) -> Entry | None:
        """Return the record, or None where it is absent."""
        record = self._at(record_path(partition, key))
        return None if record is None else record.present

    def scan(
        self, partition: str, start: str = "", stop: str | None = None, limit: int | None = None
    ) -> list[Entry]:
        """Return the records with start <= key < stop in key order, at most `limit` of them."""
        return scan_records(self._records, partition, start, stop, limit)

    def keys(
        self, partition: str, start: str = "", stop: str | None = None, limit: int | None = None
    ) -> list[str]:
        """Return the keys of these records as names of objects spell them out; of long ones what the objects say."""
        return [entry.key for entry in scan_records(self._names, partition, start, stop, limit)]

    def set_all(self, partition: str, records: Mapping[str, bytes]) -> None:
        """Write records by key, in a bucket OBJECTS_AT_ONCE of them at the same time; some of them where it raises."""
        for_each(self._objects, lambda key: self.set(partition, key, records[key]), records)

    def set_if(self, partition: str, key: str, value: bytes, expected: Expected) -> Outcome:
        """Write the record iff it is at `expected`."""
        check_value(key, value)
        return self._write_if(partition, key, value, expected)

    def delete_if(self, partition: str, key: str, expected: Version) -> Outcome:
        """Delete the record iff it is at `expected`. Done then carries a version of the deletion itself."""
        return self._write_if(partition, key, None, expected)

    def erase(self, partition: str, beginning: str) -> None:
        """Delete all records whose key begins so, and what deleted ones have left; of each the newest version last."""
        first, end = encode_beginning(beginning)
        paths = [
            info.path for info in self._objects.list(paths_between(partition_path(partition), first, end))
        ]
        delete_all(self._objects, [path for path in paths if may_hold(self._place(path), first, end)])

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def _records(
        self, partition: str, start: bytes, stop: bytes | None
    ) -> Iterator[tuple[str, Entry | DamageError]]:
        """Yield places and records that may be in the range, or what is wrong with one, in order of the places."""
        for place in self._places(partition, start, stop):
            yield from self._read(place)

    def _names(
        self, partition: str, start: bytes, stop: bytes | None
    ) -> Iterator[tuple[str, Entry | DamageError]]:
        """Yield the same, of records whose place spells out their key without what they hold."""
        for place in self._places(partition, start, stop):
            if spells_out(place):
                yield place, Entry(key_in(place), b"", "")
            else:
                yield from self._read(place)

    def _places(self, partition: str, start: bytes, stop: bytes | None) -> Iterator[str]:
        listed = self._objects.list(paths_between(partition, start, stop))
        for place, _ in groupby(self._place(info.path) for info in listed):
            if may_hold(place, start, stop):
                yield place

    def _read(self, place: str) -> Iterator[tuple[str, Entry | DamageError]]:
        try:
            record = self._at(place)
        except DamageError as error:
            yield place, error
            return
        if record is not None and record.present is not None:
            yield place, record.present


class BucketKeyValueStore(RecordsInObjects):
    """A `KeyValueStore` in a bucket; for any number of threads, and of processes that were not forked.

    Deleted records leave a small object. All methods raise StorageError where the store fails or cannot
    be reached, DamageError where an object is no whole record.
    """

    def __init__(self, url: str) -> None:
        """Open a bucket as `Bucket` does; nothing else should be under its prefix. Raises UsageError."""
        self._bucket = Bucket(url)
        super().__init__(BucketObjectStore(url))

    def set(self, partition: str, key: str, value: bytes) -> Version:
        """Write the record whatever was there. Raises IndeterminateError where that stays unknown."""
        check_value(key, value)
        # On a condition too: a plain put whose reply was lost could land later, over somebody's next write.
        for _ in range(limits.CONDITIONAL_WRITE_TRIES_MAX):
            path = record_path(partition, key)
            body, mode = self._body(path)
            if body is not None:
                decode(path, body)  # a damaged one is not written over unseen
            outcome = self._replace(partition, key, value, body, mode)
            if isinstance(outcome, Done):
                return outcome.version
            if isinstance(outcome, Indeterminate):
                raise IndeterminateError(
                    f"the write of {partition!r} / {key!r} may or may not have happened: {outcome.reason}; "
                    "read the record, and write it again if need be"
                )
        raise ContentionError(f"others write {key!r} in {self._bucket.url} all the time; try again later")

    def _write_if(self, partition: str, key: str, value: bytes | None, expected: Expected) -> Outcome:
        for _ in range(limits.CONDITIONAL_WRITE_TRIES_MAX):
            path = record_path(partition, key)
            body, mode = self._body(path)
            conflict = conflict_at(path, body, expected)
            if conflict is not None:
                return conflict
            outcome = self._replace(partition, key, value, body, mode)
            if not isinstance(outcome, Conflict):
                return outcome
        raise ContentionError(f"others write {key!r} in {self._bucket.url} all the time; try again later")

    def _replace(
        self, partition: str, key: str, value: bytes | None, before: bytes | None, mode: PutMode
    ) -> Outcome:
        """Replace what was read; Conflict where another write came first and ours certainly did not."""
        path, version = record_path(partition, key), new_version()
        body = encode(path, partition, key, value, version)
        reason, error = "", None
        for _ in tries():
            error = self._bucket.put_once(path, body, mode, {})
            if error is None:
                return Done(version)
            if of_obstore(error) is FailureKind.UNKNOWN:
                reason = reason or f"no clear answer from {self._bucket.url}: {obstore_text(error)}"
            try:
                now = self._body(path)[0]
            except StorageError as unread:
                reason = reason or str(unread)
                continue
            if now == body:
                return Done(version)
            if now != before:
                # A lost try of ours may have been there and been replaced since.
                return Indeterminate(version, reason) if reason else Conflict(None)
        if not reason:
            assert error is not None, "there is at least one try"
            raise failed("write", self._bucket.url, path, error) from error
        return Indeterminate(version, reason)

    def _place(self, path: str) -> str:
        return path

    def _at(self, place: str) -> ObjectRecord | None:
        body = self._body(place)[0]
        return None if body is None else decode(place, body)

    def _body(self, path: str) -> tuple[bytes | None, PutMode]:
        """Return what is at the path, and the condition under which a put replaces exactly that."""
        try:
            reply, body = read_again(lambda: _read_body(obstore.get(self._bucket.reading, path)))
        except OBSTORE_ERRORS as error:
            if of_obstore(error) is FailureKind.NOT_FOUND:
                return None, "create"
            raise failed("read", self._bucket.url, path, error) from error
        # S3 and Azure go by the e-tag, GCS by the version; the client library takes no None.
        condition: UpdateVersion = {"e_tag": reply.meta["e_tag"]}
        if reply.meta["version"] is not None:
            condition["version"] = reply.meta["version"]
        return body, condition


def _read_body(reply: obstore.GetResult) -> tuple[obstore.GetResult, bytes]:
    return reply, reply.bytes().to_bytes()


class VersionedKeyValueStore(RecordsInObjects):
    """A `KeyValueStore` on any `ObjectStore`, by creating and never replacing; safe for processes.

    All methods raise StorageError where the object store fails, DamageError where a record is torn.
    """

    def __init__(self, objects: ObjectStore) -> None:
        """Keep records in `objects`, which should hold nothing else."""
        super().__init__(objects)
        self._paths: Callable[[str], Iterable[str]] = (
            objects.paths
            if isinstance(objects, FileObjectStore)
            else lambda prefix: (info.path for info in objects.list(prefix))
        )

    def set(self, partition: str, key: str, value: bytes) -> Version:
        """Write the record whatever was there."""
        check_value(key, value)
        version = new_version()
        for _ in range(limits.CONDITIONAL_WRITE_TRIES_MAX):
            number, _current = self._newest(record_path(partition, key))
            outcome = settle(
                self, partition, key, self._append(partition, key, value, version, number), lambda _: False
            )
            if isinstance(outcome, Done):
                return version
        raise ContentionError(f"others write {key!r} in {self._objects.url} all the time; try again later")

    def _write_if(self, partition: str, key: str, value: bytes | None, expected: Expected) -> Outcome:
        version = new_version()
        for _ in range(limits.CONDITIONAL_WRITE_TRIES_MAX):
            number, path, body = self._newest_body(record_path(partition, key))
            conflict = conflict_at(path, body, expected)
            if conflict is not None:
                return conflict
            outcome = self._append(partition, key, value, version, number)
            if not isinstance(outcome, Conflict):
                return outcome
        raise ContentionError(f"others write {key!r} in {self._objects.url} all the time; try again later")

    def _append(
        self, partition: str, key: str, value: bytes | None, version: Version, number: int
    ) -> Outcome:
        """Create the version that follows `number`; Conflict(None) where somebody else has."""
        directory = record_path(partition, key)
        own = number + 1
        try:
            path = _version_path(directory, own)
            if not self._objects.create(path, encode(path, partition, key, value, version)):
                return Conflict(None)
        except IndeterminateError as error:
            return Indeterminate(version, str(error))
        try:
            numbers = self._numbers(directory)
        except StorageError as error:
            return Indeterminate(version, f"it could not be checked: {error}")
        if max(numbers, default=own) >= own + limits.RECORD_VERSIONS_KEPT:
            return Indeterminate(version, "many newer versions came meanwhile")
        self._remove_old(directory, numbers)
        return Done(version)

    def _remove_old(self, directory: str, numbers: list[int]) -> None:
        for number in sorted(numbers):
            if number > max(numbers) - limits.RECORD_VERSIONS_KEPT:
                break
            try:
                self._objects.delete(_version_path(directory, number))
            except StorageError:
                # The write is done; the next one removes what is left, lowest first as ever.
                break

    def _place(self, path: str) -> str:
        return path.rpartition("/")[0]

    def _at(self, place: str) -> ObjectRecord | None:
        return self._newest(place)[1]

    def _newest(self, directory: str) -> tuple[int, ObjectRecord | None]:
        """Return the highest number and its record; 0 and None where there is none."""
        number, path, body = self._newest_body(directory)
        return number, None if body is None else decode(path, body)

    def _newest_body(self, directory: str) -> tuple[int, str, bytes | None]:
        """Return the highest number, its path, and what is there; 0 and None where there is none."""
        for _ in range(limits.CONDITIONAL_WRITE_TRIES_MAX):
            # A listing that runs while versions come and go can miss all of them, but not twice.
            numbers = self._numbers(directory) or self._numbers(directory)
            if not numbers:
                return 0, directory, None
            path = _version_path(directory, max(numbers))
            try:
                return max(numbers), path, self._objects.get(path)
            except NotFoundError:
                # It grew old since the listing, so newer ones are there.
                continue
        raise ContentionError(f"{directory} in {self._objects.url} changes faster than it can be read")

    def _numbers(self, directory: str) -> list[int]:
        return [_number(path) for path in self._paths(f"{directory}/")]


def _version_path(directory: str, number: int) -> str:
    return f"{directory}/{number:012}"


def _number(path: str) -> int:
    return int(path.rpartition("/")[2])
