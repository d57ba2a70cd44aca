"""User tables: upsert by key, deletion, several writers, crashes at every call."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tracelake
from tests.altered import altered
from tests.pipeline.spans import a_line, a_span
from tracelake import InputError, Lake, TableNotFoundError, UsageError
from tracelake.shards.shard import Shard
from tracelake.storage import MemoryKeyValueStore, Stores, open_objects
from tracelake.tables.predicates import Layout
from tracelake.tables.scan import Scan
from tracelake.tables.spec import create_spec, make_spec
from tracelake.tables.table import Table
from tracelake.tasks.runners import InProcess
from tracelake.testing import Crashed, CrashingKeyValueStore, CrashingObjectStore, CrashPoint
from tracelake.user_tables.staging import stage
from tracelake.user_tables.write import WriteId, publish
from tracelake.versions.model import TableAt
from tracelake.versions.repository import Repository

TAGS = pa.map_(pa.string(), pa.string())
KINDS: dict[str, pa.DataType] = {"id": pa.int64(), "who": pa.string(), "tags": TAGS}
SCHEMA = pa.schema(KINDS)


def rows(ids: list[int | None], who: str | None, **more: list[Any]) -> pa.Table:
    """Return rows with different ids."""
    columns = {"id": pa.array(ids, pa.int64()), "who": pa.array([who] * len(ids), pa.string())}
    return pa.table({**columns, "tags": pa.array([[("by", who)]] * len(ids), TAGS), **more})


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """Return a lake with table `people`, whose key is `id`."""
    with tracelake.init(tmp_path / "lake") as lake:
        lake.create_table("people", SCHEMA, key=["id"], buckets=3)
        yield lake


def people(lake: Lake, at: str = "main") -> dict[int, str | None]:
    """Return the table as id → who; ids are unique."""
    found = lake.table("people", at).to_arrow(["id", "who"]).to_pylist()
    assert len({row["id"] for row in found}) == len(found)
    return {row["id"]: row["who"] for row in found}


def test_a_new_table_is_known_and_empty(lake: Lake) -> None:
    """A new table is listed, queried and verified like others, and absent at an older commit."""
    assert [info.name for info in lake.tables()] == ["spans", "traces", "people"]
    assert lake.table("people").schema == SCHEMA
    assert lake.sql("select count(*) as n from people").to_pylist() == [{"n": 0}]
    before = lake.log()[0].id
    lake.create_table("people", SCHEMA, key=["id"])
    assert [commit.id for commit in lake.log()] == [before], "made already: nothing to commit"
    lake.create_table("more", SCHEMA)
    with pytest.raises(TableNotFoundError, match="no table 'more'"):
        lake.table("more", at=before)
    assert lake.verify().ok


def test_rows_replace_rows_of_their_key(lake: Lake) -> None:
    """A new row retracts the old one; an identical row or an absent deletion changes nothing (S5, S6)."""
    first = lake.write("people", rows([1, 2, 3], "ann"))
    second = lake.write("people", rows([3, 4], "bob"))
    assert people(lake) == {1: "ann", 2: "ann", 3: "bob", 4: "bob"}
    assert people(lake, first) == {1: "ann", 2: "ann", 3: "ann"}
    assert lake.write("people", rows([4, 3], "bob")) == second
    assert lake.write("people", rows([9], None, gone=[True]), tombstone="gone") == second
    lake.write("people", rows([1, 3, 5, 6], "eve", gone=[True, False, None, False]), tombstone="gone")
    assert people(lake) == {2: "ann", 3: "eve", 4: "bob", 5: "eve", 6: "eve"}
    lake.write("people", rows([1], "ann"))
    assert people(lake)[1] == "ann"
    assert lake.verify().ok
    named = {part.path for name in ("people",) for part in lake.table(name).scan.snapshot.parts}
    stored = {
        info.path for folder in ("parts", "staged") for info in lake.objects.list(f"shards/people/{folder}/")
    }
    assert len(stored) == len(named) + len(lake.table("people").scan.snapshot.retractions), (
        "nothing is left over"
    )


def test_many_random_writes_equal_a_dictionary(lake: Lake) -> None:
    """Random upserts and deletions leave the same rows as in a dictionary."""
    chance, expected = random.Random(7), dict[int, str | None]()
    for number in range(15):
        ids = chance.sample(range(30), chance.randint(1, 12))
        gone = [chance.random() < 0.3 for _ in ids]
        who = f"w{number % 5}"
        lake.write("people", rows([*ids], who, gone=gone), tombstone="gone")
        for key, deleted in zip(ids, gone, strict=True):
            expected.pop(key, None) if deleted else expected.update({key: who})
        assert people(lake) == expected
    state = dict[int, str | None]()
    for change in lake.listen("people", -1, timeout_s=0):
        for row in sorted(change.rows.to_pylist(), key=lambda row: row["_change"]):
            if row["_change"] < 0:
                assert state.pop(row["id"]) == row["who"]
            else:
                state[row["id"]] = row["who"]
    assert state == expected, "the changes lead to the table"


def test_without_a_key_rows_are_added(lake: Lake) -> None:
    """Without a key, the same row twice is two rows; a write with an id happens once."""
    lake.create_table("log", pa.schema([("x", pa.float64())]))
    for write_id in (None, None, "a", "a", "b"):
        lake.write("log", pa.table({"x": [1.0]}), write_id=write_id)
    assert len(lake.table("log").to_arrow()) == 4


def test_keys_of_text_and_several_columns(lake: Lake) -> None:
    """Any mix of text or integers can be a key, and a lookup opens only parts of its bucket."""
    kinds: dict[str, pa.DataType] = {"a": pa.string(), "b": pa.int32(), "part": pa.string()}
    schema = pa.schema({**kinds, "filename": pa.string()})
    lake.create_table("pairs", schema, key=["a", "b"], buckets=8)
    for part in ("old", "new"):
        lake.write("pairs", pa.table({"a": ["x", "x", "ü"], "b": [1, 2, 1], "part": [part] * 3}))
    table = lake.table("pairs")
    assert table.to_arrow(["part", "filename"]).to_pylist() == [{"part": "new", "filename": None}] * 3
    assert len(table.to_arrow(where="a = 'ü' and b = 1")) == 1
    assert len(table.splits("a = 'ü' and b = 1")) == 1
    assert {part.bucket for scan in table.splits("a = 'ü' and b = 1") for part in scan.snapshot.parts} < set(
        range(8)
    )


def test_what_cannot_be_written_is_refused_with_a_way_out(lake: Lake) -> None:
    """Each invalid write is one clear error with a remedy, and changes nothing."""
    before = lake.log()[0].id
    for refused, match in (
        (lambda: lake.write("spans", rows([1], "x")), "the pipeline writes table spans"),
        (lambda: lake.create_table("traces", SCHEMA), "the pipeline writes table traces"),
        (lambda: lake.create_table("Bad", SCHEMA), "'Bad' cannot be the name"),
        (lambda: lake.create_table("people", SCHEMA), "other columns or another key: its key is id"),
        (lambda: lake.create_table("t", SCHEMA, key=["no"]), "no column 'no'"),
        (lambda: lake.create_table("t", SCHEMA, key=["tags"]), "text or integers"),
        (lambda: lake.create_table("t", SCHEMA, buckets=5000), "from 1 to 4096"),
        (lambda: lake.create_table("t", pa.schema([("_x", pa.int8())])), "names that begin with _"),
        (
            lambda: lake.create_table("t", pa.schema([("x", pa.int8()), ("X", pa.int8())])),
            "regardless of case",
        ),
    ):
        with pytest.raises(UsageError, match=match):
            refused()
    with pytest.raises(TableNotFoundError, match="no table 'nope'"):
        lake.write("nope", rows([1], "x"))
    for wrong, match in (
        (rows([None], "x"), "'id' is part of its key"),
        (pa.table({"id": ["x"]}), "'id' is int64"),
        (pa.table({"id": [1], "nope": [1]}), "no column 'nope'"),
    ):
        with pytest.raises(InputError, match=match):
            lake.write("people", wrong)
    assert lake.log()[0].id == before


def test_writers_at_once_lose_nothing(lake: Lake) -> None:
    """Four threads write separate keys and a shared one without loss; the pipeline's commits stay separate."""

    def write(writer: int) -> None:
        with tracelake.open(lake.url) as own:
            for number in range(3):
                own.write("people", rows([writer * 100 + number, 999], f"w{writer}-{number}"))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write, range(4)))
    found = people(lake)
    last = found.pop(999)
    assert found == {w * 100 + n: f"w{w}-{n}" for w in range(4) for n in range(3)}
    assert last in {f"w{w}-2" for w in range(4)}
    times = [lake._opened.view(commit.id).time_of("people") for commit in lake.log()]
    assert times == sorted(times, reverse=True), "no commit goes back in time"
    assert lake.verify().ok


def test_killed_at_every_call(tmp_path: Path) -> None:
    """A write killed at any call shows nothing or all; repeating it leaves it there once (S8, S9)."""
    spec = make_spec("people", SCHEMA, ["id"], 2)

    def write(world: Stores, given: pa.Table, write_id: str, crash: CrashPoint) -> None:
        crashing = Stores(
            CrashingKeyValueStore(world.key_value, crash),
            CrashingObjectStore(world.objects, crash),
            world.cache,
        )
        create_spec(crashing.objects, spec)
        publish(crashing, spec, [stage(crashing.objects, spec, 0, given.to_batches())], WriteId(write_id))

    def contents(world: Stores) -> dict[int, str]:
        repository = Repository(world.key_value, world.objects)
        reference = repository.entries(repository.head() or "")["tables/people"]
        assert isinstance(reference, TableAt)
        snapshot = Shard("people", world.key_value, world.objects).snapshot(reference.as_of)
        layout = Layout(SCHEMA, ("id",), 2)
        found = (
            Table("people", Scan(world.objects.url, world.copies, layout, snapshot)).to_arrow().to_pylist()
        )
        assert len({row["id"] for row in found}) == len(found)
        return {row["id"]: row["who"] for row in found}

    old, new = {1: "ann", 2: "ann", 3: "ann"}, {1: "ann", 2: "bob", 3: "bob", 4: "bob"}
    calls = 1000
    at = 0
    while at < calls:
        at += 1
        world = Stores(MemoryKeyValueStore(), open_objects(f"memory://{uuid.uuid4().hex}"), tmp_path)
        write(world, rows([1, 2, 3], "ann"), "first", CrashPoint())
        crash = CrashPoint(at, after=at % 2 == 0)
        try:
            write(world, rows([2, 3, 4], "bob"), "second", crash)
        except Crashed:
            assert contents(world) in (old, new), f"killed at call {at}"
            write(world, rows([2, 3, 4], "bob"), "second", CrashPoint())
        else:
            calls = at
        assert contents(world) == new, f"killed at call {at}"
        assert Shard("people", world.key_value, world.objects).state().upper == 2, "written once"
    assert calls > 15


def test_verify_names_what_is_wrong_with_a_table(lake: Lake) -> None:
    """A missing part, two rows of one key, and a lost description are findings of `verify`."""
    lake.write("people", rows([1, 2, 3], "ann"))
    part = lake.table("people").scan.snapshot.parts[0].path
    data = lake.objects.get(part)
    lake.objects.delete(part)
    assert [(f.kind, f.path) for f in lake.verify().findings] == [("missing", part)]
    lake.objects.put(part, data)
    assert lake.verify().ok
    description = lake.objects.get("tables/people.json")
    lake.objects.put("tables/people.json", b"{}")
    with tracelake.open(lake.url) as again:
        (finding,) = again.verify().findings
        assert (finding.kind, finding.path) == ("damaged", "people")
    path = "tables/people.json"
    lake.objects.put(path, altered(description, b'"key":["id"]', b'"key":[]', path))
    with tracelake.open(lake.url) as again:
        again.write("people", rows([1], "bob"))
    lake.objects.put("tables/people.json", description)
    with tracelake.open(lake.url) as again:
        (finding,) = again.verify().findings
        assert (finding.kind, finding.detail) == ("mismatch", "is the key of 2 rows")


def test_the_pipeline_goes_on_beside_writers(lake: Lake, tmp_path: Path) -> None:
    """Transactions and writes share one history; each keeps the other's changes."""
    for number in range(3):
        lake.write("people", rows([number], "ann"))
        (tmp_path / f"{number}.jsonl").write_bytes(a_line(a_span(number, 0)))
        report = lake.ingest(tmp_path / f"{number}.jsonl", runner=InProcess())
        assert report.transactions == (number,)
        assert report.commit == lake.log()[0].id
    assert len(people(lake)) == len(lake.table("spans").to_arrow()) == 3
    assert [c.metadata.get("transaction") for c in lake.log()] == ["2", None, "1", None, "0", None, None]
    again = lake.ingest(tmp_path / "1.jsonl", runner=InProcess())
    assert again.spans_new == 0
    assert lake.verify().ok
