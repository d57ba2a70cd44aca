"""Calls of a writer by Spark, in the orders that follow failures; no Spark runs here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, BooleanType, DataType, LongType, StringType, StructType

import tracelake
from tracelake import InputError, Lake, StorageError, UsageError
from tracelake.spark.source import Options, StreamWriter, Writer, make_stream_writer, make_writer
from tracelake.tables.spec import table_names
from tracelake.tasks.runners import InProcess
from tracelake.versions.repository import Repository

COLUMNS = StructType().add("id", LongType()).add("who", StringType())
PEOPLE = pa.table({"id": list(range(40)), "who": [f"w{number}" for number in range(40)]})


def options_of(folder: Path, **more: str) -> dict[str, str]:
    return {"lake": str(folder / "lake"), "table": "people", "key": "id", "buckets": "8", **more}


def a_writer(folder: Path, further: Mapping[str, DataType] | None = None, **more: str) -> Writer:
    """Return the writer that Spark requests from the format."""
    options = options_of(folder, **more)
    columns = StructType().add("id", LongType()).add("who", StringType())
    if "tombstone" in more:
        columns.add(more["tombstone"], BooleanType())
    for name, kind in (further or {}).items():
        columns.add(name, kind)
    return make_writer(Options.of(options), options, columns, overwrite=False)


def a_stream_writer(folder: Path, **more: str) -> StreamWriter:
    options = options_of(folder, writeId="query", **more)
    return make_stream_writer(Options.of(options), options, COLUMNS, overwrite=False)


def refuse_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the store fail between append and commit."""

    def refused(*_given: object, **_more: object) -> str:
        raise StorageError("the store is away")

    monkeypatch.setattr(Repository, "commit_entries", refused)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Return an empty lake."""
    return tracelake.init(tmp_path / "lake")


def test_an_abort_after_the_append_leaves_what_the_table_names(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the commit fails after the append and Spark aborts, no part is deleted, and the next write shows both."""
    writer = a_writer(tmp_path)
    messages = [writer.write(iter(PEOPLE.slice(at, 20).to_batches())) for at in (0, 20)]
    with monkeypatch.context() as patch:
        refuse_a_commit(patch)
        with pytest.raises(StorageError):
            writer.commit([*messages])
        writer.abort([*messages])
    lake.write("people", pa.table({"id": [40], "who": ["next"]}))
    assert lake.table("people").to_arrow(where="id < 40", order_by="id").equals(PEOPLE)
    assert lake.verify().findings == ()
    lake.maintenance.compact(runner=InProcess())
    for _ in range(3):
        lake.maintenance.gc(epoch_min_s=0)
    assert lake.table("people").info().rows == 41
    assert lake.verify().findings == ()


def test_a_micro_batch_that_was_aborted_after_its_append_comes_again(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A micro-batch aborted after its append is written again by other tasks, and exists once and whole."""
    writer = a_stream_writer(tmp_path)
    for _ in range(2):
        message = writer.write(iter(PEOPLE.to_batches()))
        with monkeypatch.context() as patch:
            refuse_a_commit(patch)
            with pytest.raises(StorageError):
                writer.commit([message], 0)
            writer.abort([message], 0)
    writer.commit([writer.write(iter(PEOPLE.to_batches()))], 0)
    assert lake.table("people").to_arrow(order_by="id").equals(PEOPLE)
    assert lake.verify().findings == ()


def test_first_writes_at_once_with_other_buckets(lake: Lake, tmp_path: Path) -> None:
    """The first commit of concurrent first writes sets the buckets; others reassign rows, and keys stay unique."""
    jobs = {buckets: a_writer(tmp_path, buckets=str(buckets), tombstone="gone") for buckets in (8, 3, 5)}
    given = [PEOPLE.slice(0, 30), PEOPLE.slice(10, 30), PEOPLE.slice(0, 5)]
    messages = []
    for writer, rows in zip(jobs.values(), given, strict=True):
        gone = pa.array([len(rows) == 5] * len(rows))
        messages.append(writer.write(iter(rows.append_column("gone", gone).to_batches())))
    for writer, message in zip(jobs.values(), messages, strict=True):
        writer.commit([message])
    assert lake.table("people").to_arrow(order_by="id").equals(PEOPLE.slice(5))
    for number in range(5, 40, 7):
        assert len(lake.table("people").to_arrow(where=f"id = {number}")) == 1, "its bucket tells where it is"
    assert lake.verify().findings == ()


def test_rows_of_a_key_that_differ_are_refused(lake: Lake, tmp_path: Path) -> None:
    """Different rows of one key in several partitions are refused until one is removed."""
    stream = a_stream_writer(tmp_path)
    other = pa.table({"id": [7], "who": ["another"]})
    with pytest.raises(
        InputError, match=r"table people: .* \(id = 7\). Nothing was written. .* option orderBy"
    ):
        stream.commit([stream.write(iter(rows.to_batches())) for rows in (PEOPLE, other)], 0)
    assert "people" not in table_names(lake.objects), "another first write may have other columns"
    assert not list(lake.objects.list("shards/people/staged/"))
    stream.commit([stream.write(iter(PEOPLE.to_batches())) for _ in range(2)], 0)
    stream.commit([stream.write(iter(other.to_batches()))], 0)
    assert lake.table("people").to_arrow(order_by="id").equals(PEOPLE), "batch 0 has happened"


def test_a_column_orders_what_partitions_bring(lake: Lake, tmp_path: Path) -> None:
    """The greatest order value wins across partitions, for rows and deletions; a repeated batch counts once."""
    stream = a_stream_writer(tmp_path, orderBy="who")
    late = pa.table({"id": [7, 7], "who": ["x", "y"]})
    tasks = [late, PEOPLE, late.slice(0, 1)]
    for number, tables in ((0, tasks), (0, tasks), (1, tasks[::-1])):
        stream.commit([stream.write(iter(rows.to_batches())) for rows in tables], number)
        assert lake.table("people").to_arrow(["who"], where="id = 7").to_pylist() == [{"who": "y"}]
    writer = a_writer(tmp_path, orderBy="who", tombstone="gone")
    given = pa.table({"id": [7, 7, 8, 8], "who": ["b", "a", "b", "a"], "gone": [True, False, False, True]})
    writer.commit([writer.write(iter(given.slice(at, 1).to_batches())) for at in range(4)])
    assert lake.table("people").to_arrow(order_by="id", where="id in (7, 8)").to_pylist() == [
        {"id": 8, "who": "b"}
    ]
    assert lake.verify().findings == ()


def test_a_column_that_cannot_order_rows_is_refused(lake: Lake, tmp_path: Path) -> None:
    """An order column is refused if the frame or table lacks it, it has no order, or the table has no key."""
    for further, options, match in (
        ({}, {"orderBy": "at"}, "no column 'at' to order rows by"),
        ({}, {"orderBy": "gone", "tombstone": "gone"}, "people has no column 'gone' to order rows by"),
        ({"at": ArrayType(LongType())}, {"orderBy": "at"}, "'at' is list<.*, which cannot be ordered"),
        ({}, {"orderBy": "who", "key": ""}, "people has no key"),
    ):
        with pytest.raises(UsageError, match=match):
            a_writer(tmp_path, further, **options)
    assert "people" not in [info.name for info in lake.tables()]
