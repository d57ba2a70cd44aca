"""Records as objects: the name of a key's object, and what stands in it. For stores without a database.

**Names** sort as keys do, in byte order: `p<hex of the partition>/k<hex of the key>`. Object stores take
names of 1,024 bytes and file systems of 255, so of a long key only the beginning is spelled out, and a
hash stands for the rest. Keys with the same long beginning are put in order by their bodies.

**Bodies** begin with one record that says whose they are and carries the write id and the checksum of the value,
then a newline and the value. Its own checksum is turned by the path: a body that was copied to another one is damaged.
The write id also makes each body different, for some servers' e-tags are hashes of the content.
A deleted record is a body that says so: no object store can delete on a condition.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby, islice
from typing import Final

import msgspec
import xxhash

from tracelake import formats, limits
from tracelake._errors import DamagedRecordsError, DamageError
from tracelake.storage.names import beginning_of_both, check_scan_limit, encode_key, encode_text
from tracelake.storage.outcomes import is_at
from tracelake.storage.ports import Conflict, Entry, Expected, Version

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
