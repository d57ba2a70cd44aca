"""The ends of parts, with what Parquet says of them: read by themselves, compared with their checksum, remembered.

A footer is large in memory, so few are remembered: who looks for keys in a table asks the summaries of all parts, which
are remembered by themselves, and the footers of those alone that may have one.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from tracelake import limits
from tracelake._errors import DamageError, NotFoundError
from tracelake.shards.kept import Kept
from tracelake.shards.model import Part
from tracelake.shards.parts import KEY_FILTER, hashes_before
from tracelake.storage.many import for_each
from tracelake.storage.ports import ObjectStore

_HASH_BYTES: Final = 8
_COLUMN_BYTES: Final = 1_300
_CHUNK_BYTES: Final = 950
"""What Arrow has in memory of a column in the schema of a part, and of one in a row group, by measure."""
_SUMMARY_BYTES: Final = 700
"""What a summary takes beside its bytes, with the path of its part."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What a part says of its keys."""

    keys: bytes | None
    """For `key_filter.may_hold`; None where the part says nothing."""


@dataclass(frozen=True, slots=True)
class Footer:
    """The end of a part: what Parquet says of it, and the hash of each column chunk."""

    metadata: pq.FileMetaData
    hashes: bytes

    def hash(self, group: int, place: int) -> bytes:
        """Return the hash of the chunk of a column in a row group."""
        begins = (group * self.metadata.num_columns + place) * _HASH_BYTES
        return self.hashes[begins : begins + _HASH_BYTES]


def footers(objects: ObjectStore, parts: Sequence[Part]) -> Iterator[Footer]:
    """Yield the footers of parts, several read at once. Raises DamageError for one that is not what was written."""
    few: list[Part] = []
    size_bytes = 0
    for part in parts:
        few.append(part)
        size_bytes += part.footer_bytes
        if size_bytes >= limits.FOOTERS_AT_ONCE_BYTES:
            yield from _footers(objects, few)
            few, size_bytes = [], 0
    yield from _footers(objects, few)


def _footers(objects: ObjectStore, parts: Sequence[Part]) -> list[Footer]:
    by_path = {
        part.path: footer
        for part in parts
        if (footer := _remembered.get((part.path, part.footer_xxh3))) is not None
    }
    missing = {part.path: part for part in parts if part.path not in by_path}
    read = for_each(objects, lambda path: _read_footer(objects, missing[path]), missing)
    for part, footer in zip(missing.values(), read, strict=True):
        by_path[part.path] = footer
        _remembered.put((part.path, part.footer_xxh3), footer)
    return [by_path[part.path] for part in parts]


def summaries(objects: ObjectStore, parts: Sequence[Part]) -> Iterator[tuple[Part, Summary]]:
    """Yield parts with what they say of their keys, first those that are known, so that none of them is let go of.

    Of the others the footers are read. Raises as `footers` does.
    """
    missing: list[Part] = []
    for part in parts:
        if (summary := _summaries.get((part.path, part.footer_xxh3))) is None:
            missing.append(part)
        else:
            yield part, summary
    for part, footer in zip(missing, footers(objects, missing), strict=True):
        told = (footer.metadata.metadata or {}).get(KEY_FILTER)
        summary = Summary(None if told is None else b64decode(told))
        _summaries.put((part.path, part.footer_xxh3), summary)
        yield part, summary


def _read_footer(objects: ObjectStore, part: Part) -> Footer:
    try:
        data = objects.get_range(part.path, part.size_bytes - part.footer_bytes, part.footer_bytes)
    except NotFoundError as error:
        raise DamageError(f"part {part.path} is gone. `tracelake verify` names all that is wrong.") from error
    if not part.footer_bytes or xxhash.xxh3_128_hexdigest(data) != part.footer_xxh3:
        raise damage(part, "the checksum of its footer differs")
    return Footer(pq.read_metadata(pa.BufferReader(data)), hashes_before(data))


def damage(part: Part, what: str) -> DamageError:
    """Return what says that a part is not what was written."""
    return DamageError(
        f"part {part.path} is not what was written: {what}. `tracelake verify` names all that is wrong."
    )


def _size(footer: Footer) -> int:
    """Return about what a footer takes in memory: nine times its bytes, as a rule."""
    told = footer.metadata
    of_columns = told.num_columns * (_COLUMN_BYTES + _CHUNK_BYTES * told.num_row_groups)
    return int(of_columns + told.serialized_size + len(footer.hashes))


def _size_of_summary(summary: Summary) -> int:
    return _SUMMARY_BYTES + len(summary.keys or b"")


_remembered: Final = Kept[tuple[str, str], Footer](_size, lambda: limits.FOOTERS_REMEMBERED_MAX_BYTES)
_summaries: Final = Kept[tuple[str, str], Summary](
    _size_of_summary, lambda: limits.SUMMARIES_REMEMBERED_MAX_BYTES
)


def forget() -> None:
    """Forget the footers and summaries that this process remembers."""
    _remembered.clear()
    _summaries.clear()
