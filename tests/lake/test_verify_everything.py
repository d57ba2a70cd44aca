"""`verify` of a lake with every kind of object: anything altered, missing or misplaced is named."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise, product

import pytest

import tracelake
from tests.everything import NOT_MISSED, Everything, is_named, kinds
from tracelake import DamageError, StorageError
from tracelake.shards import parts
from tracelake.shards.lookup import Lookup
from tracelake.shards.shard import Shard
from tracelake.storage import MemoryObjectStore
from tracelake.tables.builtin import TRACES


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Everything:
    """Return the lake, which no test may change permanently."""
    return Everything(tmp_path_factory.mktemp("everything"))


def flipped(chance: random.Random) -> Callable[[bytes], bytes]:
    """Return a function that flips one bit."""

    def flip(data: bytes) -> bytes:
        changed = bytearray(data)
        changed[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        return bytes(changed)

    return flip


def flipped_at(at: int, bit: int) -> Callable[[bytes], bytes | None]:
    """Return a function that flips one bit of one byte."""
    return lambda data: data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


def becomes(other: bytes) -> Callable[[bytes], bytes | None]:
    """Return a function that replaces any bytes with others."""
    return lambda _: other


def test_a_flip_in_anything_is_named(everything: Everything) -> None:
    """`verify` names one object or record of each kind with a flipped bit."""
    chance = random.Random(19)
    found = kinds(everything.names())
    assert len(found) >= 27, sorted(found)
    assert {"asides/main", "suspects/main"} <= set(found)
    for of_a_kind in found.values():
        name = chance.choice(of_a_kind)
        with everything.damaged(name, flipped(chance)):
            assert is_named(name, said := everything.said()), (name, said)
    assert everything.said() == ""


def test_what_cannot_be_read_is_named_and_hides_nothing(
    everything: Everything, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One object of each kind is on a bad disk sector, and a tag is damaged too: all are named, and collections
    continue."""
    bad, get = "", MemoryObjectStore.get

    def get_or_fail(self: MemoryObjectStore, path: str) -> bytes:
        if path == bad:
            raise StorageError(f"cannot read {path}: Input/output error")
        return get(self, path)

    found = kinds([info.path for info in everything.objects.list("")])
    monkeypatch.setattr(MemoryObjectStore, "get", get_or_fail)
    with everything.damaged("tags/v1", flipped_at(3, 0)):
        for kind in sorted(found.keys() - {"lake.json"}):
            bad = found[kind][0]
            said = everything.said()
            assert is_named(bad, said), (bad, said)
            assert is_named("tags/v1", said), (bad, said)
    kinds_read = ("shards/spans/batches", "versions/metaranges", "versions/ranges")
    for path in [
        *(found[kind][0] for kind in kinds_read),
        *found["versions/commits"],
    ]:  # the head is one of them
        bad = path
        with tracelake.open(everything.url) as lake:
            reports = lake.maintenance.gc(dry_run=True)
        assert any(bad in damage for report in reports for damage in report.damage), bad
    for path in sorted(
        {info.path for info in everything.objects.list("shards/")}.difference(*found.values())
    ):
        everything.objects.delete(path)  # collectors read the time from it


def test_whatever_is_gone_is_named(everything: Everything) -> None:
    """If one object or record of a kind is missing, `verify` names it, or no reader needs it."""
    chance = random.Random(7)
    for of_a_kind in kinds(everything.names()).values():
        name = chance.choice(of_a_kind)
        with everything.damaged(name, lambda _: None):
            said = everything.said()
            if any(re.fullmatch(pattern, name) for pattern in NOT_MISSED):
                assert said == "", (name, said)
            else:
                assert is_named(name, said), (name, said)
    assert everything.said() == ""


def test_every_record_of_the_journal_is_missed(everything: Everything) -> None:
    """A missing step or seal of any transaction is noticed, including a quarantined one."""
    journal = sorted(name for name in everything.names() if name.startswith("journal/main/"))
    assert len(journal) == 2 * 2 + 1  # and the floor below which no record exists
    for name in journal:
        with everything.damaged(name, lambda _: None):
            assert is_named(name, said := everything.said()), (name, said)


def test_what_came_to_the_place_of_another_is_named(everything: Everything) -> None:
    """An object with the valid bytes of another of its kind is named, and so is a copy under a separate name."""
    chance = random.Random(23)
    for kind, of_a_kind in kinds(everything.names()).items():
        if kind in ("inbox", "lakes"):
            continue  # ids identify spans of a segment; records of other lakes do not affect this one
        here, there = next(
            (
                pair
                for pair in pairwise(chance.sample(of_a_kind, len(of_a_kind)))
                if everything.read(pair[0]) != everything.read(pair[1])
            ),
            (None, of_a_kind[0]),
        )
        if here is not None:
            with everything.damaged(here, becomes(everything.read(there))):
                assert is_named(here, said := everything.said()), (here, there, said)
        elif everything.objects.head(there) is None:
            with everything.copied(there, elsewhere := there + "2"):
                assert is_named(elsewhere, said := everything.said()), (elsewhere, said)
    assert everything.said() == ""


def test_no_flip_of_the_header_of_a_page_gives_other_rows(everything: Everything) -> None:
    """Range reads do not see the whole part, and the checksums of Parquet's pages exclude page headers."""
    with tracelake.open(everything.url) as lake:
        snapshot = Shard("traces", lake._opened.key_value, lake.objects).snapshot(1)
        keys = sorted({row["trace_id"] for row in lake.sql("select trace_id from traces").to_pylist()})

        def found() -> list[object]:
            parts.forget()
            tables = Lookup(lake.objects, snapshot, "trace_id").rows(keys, TRACES.names)
            return [row for rows in tables for row in rows.to_pylist()]

        wanted = found()
        assert len(wanted) == len(keys) > 1
        for part, at, bit in product(snapshot.parts, range(4, 12), range(8)):
            with everything.damaged(part.path, flipped_at(at, bit)), suppress(DamageError):
                assert found() == wanted, (part.path, at, bit)
        parts.forget()
