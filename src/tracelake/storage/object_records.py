"""Records as objects of a bucket, for lakes without a database.

**Names** sort as keys do, in byte order: `p<hex of the partition>/k<hex of the key>`. Object stores accept names of
1,024 bytes and file systems of 255. So a name contains only the beginning of a long key, and a hash of the whole key.
Keys with the same long beginning are sorted by their bodies.

**Bodies** begin with a header that names partition and key and contains the write id and the value's checksum; a
newline and the value follow. The header's own checksum is combined with the path, so a body that was copied to
another path is damaged. The write id also makes each body unique, because e-tags of some servers are content hashes.
A deleted record is a body with a deletion mark, because no object store has conditional deletes.

**Notes** are one object each under `n<hex of the partition>/`, separate from records. No reader depends on a note, so
notes are written and deleted without conditions and leave no tombstone.

**Conditional writes.** A put replaces an object on the condition of its e-tag. If a reply is lost, the object is read
back and its write id decides. While it still has the old body, the same put is repeated with the same write id and
e-tag, and can succeed at most once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import groupby, islice
from typing import TYPE_CHECKING, Final

import msgspec
import xxhash

from tracelake import _errors, formats, limits
from tracelake.storage import ports
from tracelake.storage.buckets import Bucket, BucketObjectStore, failed
from tracelake.storage.failures import FailureKind, obstore_text, of_obstore
from tracelake.storage.wrappers import delete_all, for_each, read_all

if TYPE_CHECKING:
    from obstore import PutMode

_FORMAT: Final = 1


class _Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    partition: str
    key: str
    write: ports.Version
    deleted: bool
    value_xxh3: str
    format_version: int = _FORMAT


class ObjectRecord(msgspec.Struct, frozen=True):
    """Content of one object: a record, or a tombstone."""

    entry: ports.Entry
    deleted: bool

    @property
    def present(self) -> ports.Entry | None:
        """Return the record, or None for a tombstone."""
        return None if self.deleted else self.entry


def encode(path: str, partition: str, key: str, value: bytes | None, version: ports.Version) -> bytes:
    """Return the body for one write to a path; without a value, a tombstone."""
    header = _Header(partition, key, version, value is None, xxhash.xxh3_128_hexdigest(value or b""))
    return formats.encode(header, path) + b"\n" + (value or b"")


def decode(path: str, body: bytes) -> ObjectRecord:
    """Return the record in a body.

    Raises DamageError if it is no complete record, or one of another path; its `version` identifies these bytes.
    """
    try:
        return _decode(path, body)
    except _errors.DamageError as error:
        error.version = f"damaged-{xxhash.xxh3_128_hexdigest(body)}"
        raise


def conflict_at(path: str, body: bytes | None, expected: ports.Expected) -> ports.Conflict | None:
    """Return the conflict of a conditional write, given the object's current body; None if the write may proceed."""
    try:
        current = None if body is None else decode(path, body).present
    except _errors.DamageError as error:
        if error.version != expected:
            raise
        return None
    return None if ports.is_at(current, expected) else ports.Conflict(current)


def _decode(path: str, body: bytes) -> ObjectRecord:
    line, _, value = body.partition(b"\n")
    header = formats.decode(_Header, line, f"record {path}", _FORMAT, path)
    if header.value_xxh3 != xxhash.xxh3_128_hexdigest(value):
        raise _errors.DamageError(
            f"{path} is damaged: its checksum does not match. Restore it from a backup."
        )
    return ObjectRecord(ports.Entry(header.key, value, header.write), header.deleted)


def partition_path(partition: str) -> str:
    """Return the directory of a partition's records."""
    return f"p{_name(ports.encode_key('partition', partition))}"


def record_path(partition: str, key: str) -> str:
    """Return the path of a record's object."""
    return f"{partition_path(partition)}/k{_name(ports.encode_key('key', key))}"


def note_path(partition: str, key: str) -> str:
    """Return the path of a note's object: separate from records, and one object in every store."""
    return f"{notes_path(partition)}k{_name(ports.encode_key('key', key))}"


def notes_path(partition: str) -> str:
    """Return the path prefix of a partition's notes."""
    return f"n{_name(ports.encode_key('partition', partition))}/"


def paths_between(directory: str, start: bytes, stop: bytes | None) -> str:
    """Return the common path prefix of all objects that may contain keys of a range."""
    same = b"" if stop is None else ports.beginning_of_both(start, stop)
    return f"{directory}/k{same[: ports.RECORD_NAME_KEY_BYTES].hex()}"


def may_hold(path: str, start: bytes, stop: bytes | None) -> bool:
    """Return whether the object at `path` can contain a key with start <= key < stop."""
    if not path.rpartition("/")[2].startswith("k"):
        return False  # Not a record: some servers list temporary files that they are about to rename.
    beginning = bytes.fromhex(_stem(path))
    if stop is not None and beginning >= stop:
        return False
    return beginning >= start[: ports.RECORD_NAME_KEY_BYTES]


def scan_records(
    read: Callable[[str, bytes, bytes | None], Iterable[tuple[str, ports.Entry | _errors.DamageError]]],
    partition: str,
    start: str,
    stop: str | None,
    limit: int | None,
) -> list[ports.Entry]:
    """Return the records with start <= key < stop in key order, at most `limit` of them.

    `read` gets the partition's directory and the bounds. It yields paths with records or errors, in order of path. It
    may yield more than the bounds allow, and is consumed only as far as `limit` requires.

    Raises:
        DamagedRecordsError: some records are unreadable; the error contains the others.
    """
    problems: list[tuple[str, _errors.DamageError]] = []
    ports.check_scan_limit(limit)
    first, end = ports.encode_text("start", start), None if stop is None else ports.encode_text("stop", stop)
    records = (
        entry
        for entry in _in_key_order(_readable(read(partition_path(partition), first, end), problems))
        if first <= entry.key.encode() and (end is None or entry.key.encode() < end)
    )
    entries = list(islice(records, limit))
    if problems:
        raise _errors.DamagedRecordsError(entries, problems)
    return entries


def key_in(path: str) -> str:
    """Return the key, or the beginning of a long key, in the path of an object."""
    return bytes.fromhex(_stem(path)).decode(errors="replace")


def spells_out(path: str) -> bool:
    """Return whether the path of an object contains the whole key, not only the beginning of a long one."""
    return "~" not in path.rpartition("/")[2]


def _readable(
    read: Iterable[tuple[str, ports.Entry | _errors.DamageError]],
    problems: list[tuple[str, _errors.DamageError]],
) -> Iterator[tuple[str, ports.Entry]]:
    for path, record in read:
        if isinstance(record, _errors.DamageError):
            problems.append((key_in(path), record))
        else:
            yield path, record


def _in_key_order(records: Iterable[tuple[str, ports.Entry]]) -> Iterator[ports.Entry]:
    """Yield records, which arrive in order of path, in order of key."""
    for _, group in groupby(records, key=lambda record: _stem(record[0])):
        yield from sorted((entry for _, entry in group), key=lambda entry: entry.key.encode())


def _name(encoded: bytes) -> str:
    spelled = encoded[: ports.RECORD_NAME_KEY_BYTES].hex()
    if len(encoded) <= ports.RECORD_NAME_KEY_BYTES:
        return spelled
    return f"{spelled}~{hashlib.sha256(encoded).hexdigest()}"


def _stem(path: str) -> str:
    return path.rpartition("/")[2][1:].partition("~")[0]


class NoteObjects:
    """The part of a `KeyValueStore` that keeps notes, on any `ObjectStore`."""

    def __init__(self, objects: ports.ObjectStore) -> None:
        """Keep notes in `objects`, which otherwise contains only records."""
        self._objects = objects

    def note(self, partition: str, key: str, value: bytes) -> None:
        """Write a note, replacing an existing one."""
        ports.check_value(key, value)
        path = note_path(partition, key)
        self._objects.put(path, encode(path, partition, key, value, ports.new_version()))

    def notes(self, partition: str, beginning: str = "") -> list[ports.Entry]:
        """Return the notes of a partition whose key has this prefix, in key order. Concurrently deleted ones may be
        included.

        Raises DamagedRecordsError if some are unreadable.
        """
        # The prefix excludes listed files that are no notes (see `may_hold`).
        listed = self._objects.list(f"{notes_path(partition)}k{beginning.encode().hex()}")
        bodies = read_all(self._objects, [info.path for info in listed])
        entries: list[ports.Entry] = []
        problems: list[tuple[str, _errors.DamageError]] = []
        for path, body in bodies.items():
            try:
                entries.append(decode(path, body).entry)
            except _errors.DamageError as error:
                problems.append((key_in(path), error))
        entries.sort(key=lambda entry: entry.key.encode())
        if problems:
            raise _errors.DamagedRecordsError(entries, problems)
        return entries

    def forget(self, partition: str, keys: Collection[str]) -> None:
        """Delete notes, if they exist."""
        delete_all(self._objects, [note_path(partition, key) for key in keys])


class BucketKeyValueStore(NoteObjects):
    """A `KeyValueStore` in a bucket. Safe for any number of threads and processes, except forked ones.

    Each deleted record leaves a small object. All methods raise StorageError if the store fails or is unreachable,
    and DamageError if an object is no complete record.
    """

    def __init__(self, url: str) -> None:
        """Open a bucket as `Bucket` does. Its prefix should contain nothing else. Raises UsageError if the URL or the
        environment is invalid."""
        self._bucket = Bucket(url)
        super().__init__(BucketObjectStore(url))

    def get(self, partition: str, key: str) -> ports.Entry | None:
        """Return the record, or None if it is absent."""
        path = record_path(partition, key)
        body = self._bucket.get_versioned(path)[0]
        return None if body is None else decode(path, body).present

    def scan(
        self, partition: str, start: str = "", stop: str | None = None, limit: int | None = None
    ) -> list[ports.Entry]:
        """Return the records with start <= key < stop in key order, at most `limit` of them."""
        return scan_records(self._records, partition, start, stop, limit)

    def keys(
        self, partition: str, start: str = "", stop: str | None = None, limit: int | None = None
    ) -> list[str]:
        """Return the keys of these records. Keys come from object names without reading the objects, except long keys,
        which are only in the objects' bodies. Deleted records may be included."""
        return [entry.key for entry in scan_records(self._names, partition, start, stop, limit)]

    def set_all(self, partition: str, records: Mapping[str, bytes]) -> None:
        """Write records by key, OBJECTS_AT_ONCE in parallel; on an error some are written."""
        for_each(self._objects, lambda key: self.set(partition, key, records[key]), records)

    def set_if(self, partition: str, key: str, value: bytes, expected: ports.Expected) -> ports.Outcome:
        """Write the record if its version is `expected`."""
        ports.check_value(key, value)
        return self._write_if(partition, key, value, expected)

    def delete_if(self, partition: str, key: str, expected: ports.Version) -> ports.Outcome:
        """Delete the record if its version is `expected`. Done then carries a version of the deletion itself."""
        return self._write_if(partition, key, None, expected)

    def erase(self, partition: str, beginning: str) -> None:
        """Delete all records whose key has this prefix, including tombstones."""
        first, end = ports.encode_beginning(beginning)
        paths = [
            info.path for info in self._objects.list(paths_between(partition_path(partition), first, end))
        ]
        delete_all(self._objects, [path for path in paths if may_hold(path, first, end)])

    def close(self) -> None:
        """Do nothing, because the store holds no resources."""

    def set(self, partition: str, key: str, value: bytes) -> ports.Version:
        """Write the record unconditionally. Raises IndeterminateError if the outcome stays unknown."""
        ports.check_value(key, value)
        # Conditional too, because an unconditional put whose reply was lost could later overwrite another
        # writer's record.
        for _ in range(limits.CONDITIONAL_WRITE_TRIES_MAX):
            path = record_path(partition, key)
            body, mode = self._bucket.get_versioned(path)
            if body is not None:
                decode(path, body)  # Never overwrite a damaged record silently.
            outcome = self._replace(partition, key, value, body, mode)
            if isinstance(outcome, ports.Done):
                return outcome.version
            if isinstance(outcome, ports.Indeterminate):
                raise _errors.IndeterminateError(
                    f"the write of {partition!r} / {key!r} may or may not have happened: {outcome.reason}; "
                    "read the record, and write it again if need be"
                )
        raise _errors.ContentionError(
            f"other writers change {key!r} in {self._bucket.url} too often; try again later"
        )

    def _write_if(
        self, partition: str, key: str, value: bytes | None, expected: ports.Expected
    ) -> ports.Outcome:
        for _ in range(limits.CONDITIONAL_WRITE_TRIES_MAX):
            path = record_path(partition, key)
            body, mode = self._bucket.get_versioned(path)
            conflict = conflict_at(path, body, expected)
            if conflict is not None:
                return conflict
            outcome = self._replace(partition, key, value, body, mode)
            if not isinstance(outcome, ports.Conflict):
                return outcome
        raise _errors.ContentionError(
            f"other writers change {key!r} in {self._bucket.url} too often; try again later"
        )

    def _replace(
        self, partition: str, key: str, value: bytes | None, before: bytes | None, mode: PutMode
    ) -> ports.Outcome:
        """Replace the record that was read as `before`. Return Conflict if another write came first and ours certainly
        failed."""
        path, version = record_path(partition, key), ports.new_version()
        body = encode(path, partition, key, value, version)
        reason, error = "", None
        for _ in ports.tries():
            error = self._bucket.put_once(path, body, mode, {})
            if error is None:
                return ports.Done(version)
            if of_obstore(error) is FailureKind.UNKNOWN:
                reason = reason or f"no clear answer from {self._bucket.url}: {obstore_text(error)}"
            try:
                now = self._bucket.get_versioned(path)[0]
            except _errors.StorageError as unread:
                reason = reason or str(unread)
                continue
            if now == body:
                return ports.Done(version)
            if now != before:
                # An attempt without a reply may have succeeded and been replaced since.
                return ports.Indeterminate(version, reason) if reason else ports.Conflict(None)
        if not reason:
            assert error is not None, "there is at least one try"
            raise failed("write", self._bucket.url, path, error) from error
        return ports.Indeterminate(version, reason)

    def _records(
        self, partition: str, start: bytes, stop: bytes | None
    ) -> Iterator[tuple[str, ports.Entry | _errors.DamageError]]:
        """Yield paths with their records or errors that may be in the range, in order of path."""
        for path in self._paths(partition, start, stop):
            yield from self._read(path)

    def _names(
        self, partition: str, start: bytes, stop: bytes | None
    ) -> Iterator[tuple[str, ports.Entry | _errors.DamageError]]:
        """Yield the same as `_records`, but without reading the object if the path contains the whole key; the value is
        then empty."""
        for path in self._paths(partition, start, stop):
            if spells_out(path):
                yield path, ports.Entry(key_in(path), b"", "")
            else:
                yield from self._read(path)

    def _paths(self, partition: str, start: bytes, stop: bytes | None) -> Iterator[str]:
        paths = (info.path for info in self._objects.list(paths_between(partition, start, stop)))
        return (path for path in paths if may_hold(path, start, stop))

    def _read(self, path: str) -> Iterator[tuple[str, ports.Entry | _errors.DamageError]]:
        try:
            body = self._bucket.get_versioned(path)[0]
            entry = None if body is None else decode(path, body).present
        except _errors.DamageError as error:
            yield path, error
            return
        if entry is not None:
            yield path, entry
