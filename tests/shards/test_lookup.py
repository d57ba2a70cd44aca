"""Key lookup finds all rows, whatever footers, summaries and retractions let it skip.

A row that is not found counts as new, and would be in the table twice.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pytest

from tracelake import limits
from tracelake._errors import DamageError
from tracelake.shards import parts as footers
from tracelake.shards.lookup import Columns, Lookup, column_cache
from tracelake.shards.model import Part
from tracelake.shards.parts import all_of, bucket_of, hashes_of, key_filter, may_hold, write_part
from tracelake.shards.rows import GONE, RETRACTIONS, ROW_ID, first_row_id
from tracelake.shards.shard import Snapshot
from tracelake.storage import MemoryObjectStore

TIMES = 4
KEYS = ["k" * 5_000, *(f"{number:02d}" for number in range(12))]
"""Keys; the first is so long that Parquet stores no minimum and maximum for its row group."""
Row = tuple[str, int, int, int | None]
"""Key, row id, insertion time and retraction time."""


class World:
    """Random rows in two buckets, or both: in parts, some without a summary, in history, and retracted."""

    def __init__(self, seed: int) -> None:
        self.objects = MemoryObjectStore()
        self.chance = random.Random(seed)
        self.kept: Columns | None = None
        self.buckets: int | None = None
        self.rows: list[Row] = []
        self.parts: list[Part] = []
        self.history: list[Part] = []
        self.retractions: list[Part] = []
        for bucket in range(2):
            self._fill(bucket)
        together: list[Row] = [
            (key, first_row_id(1) + 1_000 + number, 1, None)
            for number, key in enumerate(sorted(self.chance.sample(KEYS, 6)))
        ]
        self.rows += together
        self.parts += self._write(all_of(2), together, looked_up=True)

    def _fill(self, bucket: int) -> None:
        keys = [key for key in KEYS if bucket_of(key, 2) == bucket]
        went: list[tuple[int, int]] = []
        held: list[Row] = []
        for time in range(TIMES):
            rows: list[Row] = [
                (key, first_row_id(time) + 2 * number + bucket, time, self.chance.choice([None, time + 1, 9]))
                for number, key in enumerate(sorted(self.chance.sample(keys, len(keys) // 2)))
            ]
            self.rows += rows
            if time == 0:
                past = [row for row in rows if row[3] is not None]
                self.history += self._write(bucket, past, looked_up=True)
                rows = [row for row in rows if row[3] is None]
            else:
                went += [(row_id, gone) for _, row_id, _, gone in rows if gone is not None]
            if time == 2:  # these are compacted with the next ones
                held = rows
                continue
            if time == 3:
                rows = sorted((*held, *rows))
            self.parts += self._write(bucket, rows, looked_up=time != 1)
        self.chance.shuffle(went)
        for few in (sorted(went[:2]), sorted(went[2:])):  # of one row group, and of several
            if few:
                columns = dict(zip(("row_id", "time"), map(list, zip(*few, strict=True)), strict=True))
                table = pa.table(columns, schema=RETRACTIONS)
                self.retractions.append(write_part(self.objects, "s", 0, bucket, table, None))

    def _write(self, bucket: int, rows: list[Row], *, looked_up: bool) -> Iterable[Part]:
        if rows:
            columns = {"key": [row[0] for row in rows], ROW_ID.name: [row[1] for row in rows]}
            if rows[0][2] == 0 and rows[0][3] is not None:
                columns[GONE.name] = [row[3] for row in rows]
            yield write_part(self.objects, "s", 0, bucket, pa.table(columns), "key", looked_up=looked_up)

    def snapshot(self, as_of: int) -> Snapshot:
        return Snapshot(as_of, tuple(self.parts), tuple(self.retractions), tuple(self.history))

    def wanted(self, as_of: int, keys: list[str]) -> list[tuple[str, int]]:
        """Return the expected rows, from the model."""
        return sorted(
            (key, row_id)
            for key, row_id, came, gone in self.rows
            if key in keys and came <= as_of and (gone is None or gone > as_of)
        )

    def found_with_ids(self, as_of: int, keys: list[str], row_ids: list[int]) -> list[tuple[str, int]]:
        """Return the rows that the lookup finds among those with these ids."""
        lookup = Lookup(self.objects, self.snapshot(as_of), "key", self.kept, buckets=self.buckets)
        tables = lookup.rows(keys, ["key"], np.array(row_ids, np.int64))
        return sorted((row["key"], row[ROW_ID.name]) for table in tables for row in table.to_pylist())

    def every(self, as_of: int) -> list[tuple[str, int]]:
        """Return all rows, as lists of traces read them."""
        lookup = Lookup(self.objects, self.snapshot(as_of), "key", self.kept, schema=pa.schema([]))
        rows = lookup.columns(["key", ROW_ID.name], 1 << 20)
        return (
            []
            if rows is None
            else sorted(zip(*(rows[name].to_pylist() for name in ("key", ROW_ID.name)), strict=True))
        )

    def found(self, as_of: int, keys: list[str]) -> list[tuple[str, int]]:
        """Return the rows that the lookup finds."""
        lookup = Lookup(self.objects, self.snapshot(as_of), "key", self.kept, buckets=self.buckets)
        tables = lookup.rows(keys, ["key"])
        return sorted((row["key"], row[ROW_ID.name]) for table in tables for row in table.to_pylist())


def check_lookup() -> None:
    """Compare the rows found for each key, several keys and all keys, at every time."""
    for seed in range(2):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(limits, "ROW_GROUP_ROWS", 2)
            world = World(seed)
            world.kept, world.buckets = (column_cache(), 2) if seed else (None, None)
            absent = ["", "055", "z"]
            several = [sorted(world.chance.sample([*KEYS, *absent], 6)) for _ in range(3)]
            for as_of in range(TIMES):
                for keys in (*([key] for key in KEYS), *several, sorted(KEYS)):
                    wanted = world.wanted(as_of, keys)
                    assert world.found(as_of, keys) == wanted
                    ids = [row_id for _, row_id in wanted[::2]]
                    assert world.found_with_ids(as_of, keys, ids) == wanted[::2]
                assert world.every(as_of) == world.wanted(as_of, sorted(KEYS))


def check_columns() -> None:
    """Columns of all rows are returned only within a limit of bytes, and only if rows exist."""
    world = World(3)
    lookup = Lookup(world.objects, world.snapshot(TIMES), "key", column_cache())
    assert lookup.columns(["key"], 100) is None
    rows = lookup.columns(["key"], 1 << 20)
    assert rows is not None
    assert pa.types.is_dictionary(rows.schema.field("key").type), "a text that repeats takes 4 bytes a row"
    assert Lookup(world.objects, Snapshot(0, (), ()), "key").columns(["key"], 100) is None


def check_summary() -> None:
    """Compare summaries of many sizes with the inserted keys."""
    for size in (1, 2, 3, 7, 8, 64, 1_000):
        hashes = hashes_of(pa.array([f"{size}-{number}" for number in range(size)]))
        assert may_hold(key_filter(hashes), hashes).all()


def check_damage() -> None:
    """Flip bits of parts; a lookup finds the same rows or raises an error."""
    world = World(4)
    whole = {info.path: world.objects.get(info.path) for info in list(world.objects.list(""))}
    wanted = world.wanted(2, sorted(KEYS))
    # Sorted by content, because their names are random; so each run flips the same bits. Without checksums,
    # Arrow may end the process that reads other flipped bits.
    paths = sorted(whole, key=whole.__getitem__)
    for number in range(150):
        path = world.chance.choice(paths)
        data = bytearray(whole[path])
        pages = 150  # in a small part they come first, and the footer is most of it
        data[world.chance.randrange(pages if number % 2 else len(data))] ^= 1 << world.chance.randrange(8)
        world.objects.put(path, bytes(data))
        footers.forget()
        try:
            assert world.found(2, sorted(KEYS)) == wanted
        except DamageError:
            pass
        finally:
            world.objects.put(path, whole[path])


class Counted(MemoryObjectStore):
    """Store that counts the ranges read."""

    ranges = 0

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """See ObjectStore."""
        self.ranges += 1
        return super().get_range(path, start, length)


def check_remembered() -> None:
    """Check that parts without the keys are not read again, with a small footer cache or a large one."""
    objects = Counted()
    several = [pa.table({"key": ["a", f"k{number}", "z"], ROW_ID.name: [number] * 3}) for number in range(6)]
    parts = [write_part(objects, "s", 0, 0, rows, "key", looked_up=True) for rows in several]
    # without a summary, the part is read each time
    parts.append(write_part(objects, "s", 0, 0, several[0], "key"))
    look = Lookup(objects, Snapshot(0, tuple(parts[:6]), (), ()), "key")
    footers.forget()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(footers, "FOOTERS_REMEMBERED_MAX_BYTES", 0)
        patched.setattr(footers, "FOOTERS_AT_ONCE_BYTES", parts[0].footer_bytes + 1)
        few = footers.footers(objects, parts)
        next(few)
        assert objects.ranges == 2
        assert len(list(few)) == 6
        objects.ranges = 0
        footers.forget()
        assert list(look.rows(["absent"], ["key"])) == []
        assert objects.ranges == 6
        assert list(look.rows(["absent"], ["key"])) == []
        assert objects.ranges == 6
        assert [len(rows) for rows in look.rows(["k3"], ["key"])] == [1]
        assert objects.ranges == 9  # its footer, and the keys and ids of the row
        with_all = Lookup(objects, Snapshot(0, tuple(parts), (), ()), "key")
        assert [len(rows) for rows in with_all.rows(["a"], ["key"])] == [1] * 7


def test_parts_without_the_keys_are_read_once() -> None:
    """Parts without the keys are read once, so a transaction of a large table reads only parts that it needs."""
    check_remembered()


def test_every_key_is_found() -> None:
    """Every key is found in parts of several row groups, with or without a summary, and in history."""
    check_lookup()
    check_summary()
    check_columns()


def test_a_flipped_bit_is_an_error_or_no_matter() -> None:
    """A flipped bit in a footer or a page is an error or has no effect: never other rows, and never fewer."""
    check_damage()


def test_the_format_of_summaries_and_buckets() -> None:
    """The format of summaries and buckets is stable: if a key moved, rows written years ago would count as new."""
    hashes = hashes_of(pa.array(["a", "b", "0123456789abcdef0123456789abcdef", "ü"]))
    assert key_filter(hashes).hex() == "02a090002154421a25008119"
    assert may_hold(
        bytes.fromhex("42bab500a15d"), hashes
    ).all()  # of twelve bits a key, as an older release wrote them
    assert [int(number) for number in hashes % np.uint64(1_000)] == [719, 615, 109, 302]
