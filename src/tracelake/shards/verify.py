"""Table checks of `tracelake verify`: reads the state of a table, its batches, and every part of them."""

from __future__ import annotations

import hashlib
import io
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from tracelake._errors import DamageError, NotFoundError
from tracelake.results import Finding
from tracelake.shards import leases
from tracelake.shards import shard as states
from tracelake.shards import shard as writes
from tracelake.shards.leases import Leases
from tracelake.shards.model import Batch, BatchRef, Part
from tracelake.shards.rows import rows_by_time
from tracelake.shards.shard import Shard
from tracelake.storage import KeyValueStore, ObjectStore
from tracelake.storage.ports import check_records, object_finding

_PARTITIONS: Final = (
    states.SHARDS_PARTITION,
    writes.WRITES_PARTITION,
    leases.LEASES_PARTITION,
    leases.SIGHTINGS_PARTITION,
)


class ShardCheck:
    """Check of one table: first its batches, then each of their parts."""

    def __init__(self, shard: Shard, key_value: KeyValueStore, objects: ObjectStore) -> None:
        self.shard = shard
        self.batches: list[Batch] = []
        self.unknown: set[int] = set()
        """Transactions of which some rows are damaged, which is a finding."""
        self.forgotten: set[int] = set()
        """Transactions of which replaced rows may be forgotten, so that the number of their rows is unknown."""
        self.rows_read = self.bytes_read = 0
        self._key_value = key_value
        self._objects = objects
        self._inserted: defaultdict[int, Counter[int]] = defaultdict(Counter)

    def inserted(self, transaction: int, buckets: range | None = None) -> int | None:
        """Return how many rows a transaction inserted according to its parts, in these buckets or in all; None if
        unknown."""
        if transaction in self.unknown or transaction in self.forgotten:
            return None
        rows = self._inserted[transaction]
        return sum(count for bucket, count in rows.items() if buckets is None or bucket in buckets)

    def read_batches(self, leases: Leases, transactions: int) -> Iterator[Finding]:
        """Read the records of the batches, which exist as long as the leases are valid."""
        try:
            state = leases.take(self.shard, self._key_value).state
        except DamageError as error:
            yield Finding("damaged", "table", self.shard.name, str(error))
            self.unknown.update(range(transactions))
            return
        if state.upper < transactions:
            detail = f"its state ends before transaction {state.upper}, and {transactions} were committed"
            yield Finding("missing", "table", self.shard.name, detail)
            self.unknown.update(range(state.upper, transactions))
        for ref in state.batches:
            try:
                batch = self.shard.batch(ref)
            except DamageError as error:
                self.unknown.update(range(ref.lower, ref.upper))
                yield object_finding(self._objects, "batch", ref.path, error)
                continue
            self.batches.append(batch)
            if ref.level and state.since > ref.lower:  # retracted ones may be forgotten
                self.forgotten.update(range(ref.lower, ref.upper))
            yield from _check_ref(ref, batch)

    def parts(self) -> list[tuple[Batch, Part]]:
        """Return all parts, each with its batch."""
        return [(batch, part) for batch in self.batches for part in batch.objects()]

    def check_part(self, batch: Batch, part: Part) -> Iterator[Finding]:
        """Read a part and count its rows by insertion time."""
        rows = self._read(part)
        if isinstance(rows, Finding):
            self.unknown.update(range(batch.lower, batch.upper))
            yield rows
            return
        self.rows_read += len(rows)
        if len(rows) != part.rows:
            detail = f"it has {len(rows)} rows, and its batch record says {part.rows}"
            yield Finding("mismatch", "part", part.path, detail)
        if part in batch.retractions:
            return
        for (time, bucket), count in rows_by_time(part, rows).items():
            self._inserted[time][bucket] += count
            if not batch.lower <= time < batch.upper:
                detail = (
                    f"it has rows of transaction {time}, outside of the range [{batch.lower}, {batch.upper}) "
                    "of its batch"
                )
                yield Finding("mismatch", "part", part.path, detail)

    def _read(self, part: Part) -> pa.Table | Finding:
        name = self.shard.name
        try:
            data = self._objects.get(part.path)
        except NotFoundError:
            detail = f"a part of table {name} with {part.rows} rows is missing"
            return Finding("missing", "part", part.path, detail)
        except DamageError as error:
            return Finding("damaged", "part", part.path, str(error))
        self.bytes_read += len(data)
        if len(data) != part.size_bytes or hashlib.sha256(data).hexdigest() != part.sha256:
            detail = (
                f"a part of table {name} is damaged: it has {len(data)} bytes, and {part.size_bytes} were "
                "written"
            )
            if len(data) == part.size_bytes:
                detail = f"a part of table {name} is damaged: its checksum does not match"
            return Finding("damaged", "part", part.path, detail)
        return pq.read_table(io.BytesIO(data))


def _check_ref(ref: BatchRef, batch: Batch) -> Iterator[Finding]:
    rows = sum(part.rows for part in batch.parts) - sum(part.rows for part in batch.retractions)
    if (ref.lower, ref.upper, ref.id, ref.rows) != (batch.lower, batch.upper, batch.id, rows):
        detail = f"the state says {ref.rows} rows, the record says {rows}"
        yield Finding("mismatch", "batch", ref.path, detail)


def check_shards(key_value: KeyValueStore, checked: Collection[str]) -> Iterator[Finding]:
    """Yield the damaged records, except the states of tables that were already checked."""
    checked_paths = {f"{states.SHARDS_PARTITION}/{name}" for name in checked}
    return (finding for finding in check_records(key_value, _PARTITIONS) if finding.path not in checked_paths)
