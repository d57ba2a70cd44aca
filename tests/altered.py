"""Altered records with a valid checksum, for tests that a record's content is checked, too."""

from __future__ import annotations

import xxhash

from tracelake.formats import turned

TAIL_BYTES = len(b',"xxh3":""}') + 32


def sealed(plain: bytes, place: str = "") -> bytes:
    """Return JSON as a record with its checksum, as stored at a path."""
    record = plain[:-1] + b',"xxh3":"' + xxhash.xxh3_128_hexdigest(plain[:-1]).encode() + b'"}'
    return turned(record, place)


def altered(record: bytes, old: bytes, new: bytes, place: str = "") -> bytes:
    """Return the record with the first of these bytes replaced and a new valid checksum."""
    plain = record[:-TAIL_BYTES] + b"}"
    assert old in plain, plain
    return sealed(plain.replace(old, new, 1), place)
