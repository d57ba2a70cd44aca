"""Rows too large for an output: left out by name, in the system and in the lake; all others go out once."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from types import ModuleType

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import tracelake
from tests.pipeline.spans import a_line, a_span
from tests.torn import lake_in_bucket, tear
from tracelake import DamageError, Lake
from tracelake.formats import encode
from tracelake.limits import KAFKA_MESSAGE_MAX_BYTES, OUTPUT_LEFT_OUT_NAMED_MAX
from tracelake.otlp.framing import write_segment
from tracelake.pipeline.outputs.configured import (
    KAFKA_BATCH_MAX_BYTES,
    KAFKA_MESSAGE_OVERHEAD_BYTES,
    KafkaSink,
    Marker,
    last_marker,
)
from tracelake.pipeline.outputs.external import (
    Messages,
    OversizedInTransaction,
    OversizedRecord,
    OversizedRow,
    OversizedRowStore,
    merge_oversized,
)
from tracelake.tasks.runners import InProcess

MAX_BYTES = 2_000


@pytest.fixture
def lake() -> Iterator[Lake]:
    """A new lake."""
    with tracelake.init(f"memory://{uuid.uuid4().hex}", buckets=2) as opened:
        yield opened


class Narrow:
    """An in-memory system that accepts small messages only."""

    written: dict[int, tuple[int, Marker]]

    def __init__(self, output_id: str) -> None:
        self._id = output_id

    def fence(self) -> int:
        return max(self.written, default=-1)

    def write(self, transaction: int, messages: Messages) -> None:
        count = len(list(messages))
        assert count or messages.left_out_total, "no batch is empty"
        left_out = tuple(messages.left_out)
        marker = Marker(self._id, transaction, count, MAX_BYTES, messages.left_out_total, left_out)
        self.written[transaction] = (count, marker)

    def fits(self, message: bytes) -> bool:
        return len(message) <= MAX_BYTES

    def left_out(self) -> OversizedInTransaction | None:
        return self.written[max(self.written)][1].of_left_out() if self.written else None


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> type[Narrow]:
    """Return such a system, as `narrow:Narrow`."""

    class Fresh(Narrow):
        pass

    Fresh.written = {}
    module = ModuleType("narrow")
    module.Narrow = Fresh  # type: ignore[attr-defined]  # as a user's module has it
    monkeypatch.setitem(sys.modules, "narrow", module)
    return Fresh


def arrive(lake: Lake, *spans: tuple[int, int]) -> None:
    """Put spans, by number and size of their names, into the inbox."""
    lines = [a_line({**a_span(number, number), "name": "x" * size}) for number, size in spans]
    lake.objects.put(f"inbox/{uuid.uuid4().hex}.segment", write_segment([("json", line) for line in lines]))


def test_what_is_too_large_is_left_out_by_name_and_counted_once(
    lake: Lake, narrow: type[Narrow], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run that finds a dead run's marker copies the names before the commit; `verify` reports them."""
    lake.outputs.add("narrow", "narrow:Narrow")
    pipeline = lake.pipeline(runner=InProcess())
    arrive(lake, (0, 1))
    pipeline.run_once()

    def die(*_: object) -> None:
        raise RuntimeError("killed")

    arrive(lake, (1, 1), (2, 5_000), (3, 1))
    with monkeypatch.context() as patch:
        patch.setattr(OversizedRowStore, "note", die)
        with pytest.raises(RuntimeError, match="killed"):
            pipeline.run_once()
    assert [marker.left_out_total for _, marker in narrow.written.values()] == [1]
    pipeline = lake.pipeline(runner=InProcess())
    pipeline.run_once()
    (info,) = lake.outputs.all()
    assert (info.left_out_total, [row.transaction for row in info.left_out]) == (1, [1])
    assert f"span {3:016x} of trace {3:032x} of transaction 1" in info.explain()[0]
    report = lake.verify()
    assert report.ok, report.findings
    assert report.left_out == (
        "output narrow has omitted 1 rows that are too large for it: see `tracelake output list`",
    )
    lake.outputs.remove("narrow")
    assert lake.verify().left_out == ()


def messages(rows: Sequence[int], fits: int) -> Messages:
    """Return messages of rows of the given sizes under a size limit."""
    table = pa.table({"size": rows})

    def as_bytes(few: pa.Table) -> bytes:
        return bytes(pc.sum(few["size"]).as_py())

    return Messages(
        [table], as_bytes, lambda row: f"row {row['size'][0]}", lambda message: len(message) <= fits
    )


def test_messages_are_cut_until_they_fit() -> None:
    """Each row is in one message, in order, or named as too large; groups stay together if they fit."""
    some = messages([3, 1, 9, 1, 2, 8, 1, 1], 4)
    assert [len(message) for message in some] == [4, 1, 2, 2]
    assert some.left_out == [OversizedRow("row 9", 9), OversizedRow("row 8", 8)]
    many = messages([7] * (OUTPUT_LEFT_OUT_NAMED_MAX + 5), 4)
    assert list(many) == []
    assert (len(many.left_out), many.left_out_total) == (
        OUTPUT_LEFT_OUT_NAMED_MAX,
        OUTPUT_LEFT_OUT_NAMED_MAX + 5,
    )


def test_what_is_read_from_is_let_go_of_where_a_sink_fails() -> None:
    """Resources are released when a sink fails. Otherwise, copies of parts stay until the cycle collector runs."""
    over: list[bool] = []

    def tables() -> Iterator[pa.Table]:
        try:
            yield pa.table({"size": [1, 1]})
        finally:
            over.append(True)

    some = Messages(tables(), lambda _: b"x", str, lambda _: True)
    assert next(some) == b"x"
    assert not over
    some.close()
    assert over


def test_left_out_rows_are_counted_once_and_their_names_are_bounded() -> None:
    """The newest oversized rows are named; a transaction that is already counted changes nothing."""
    record = OversizedRecord("o", 0, ())
    for t in range(4):
        more = OversizedInTransaction(
            t, 60, 10, tuple(OversizedRow(f"{t}-{number}", 11) for number in range(40))
        )
        record = merge_oversized(merge_oversized(record, more), more)
    assert record.total == 240
    assert [of.transaction for of in record.newest] == [2, 3]
    assert merge_oversized(record, OversizedInTransaction(1, 1, 10, ())) == record
    many = tuple(OversizedRow(str(number), 11) for number in range(OUTPUT_LEFT_OUT_NAMED_MAX + 1))
    assert [
        of.transaction for of in merge_oversized(record, OversizedInTransaction(9, 500, 10, many)).newest
    ] == [9]


def records(*values: tuple[str, bytes | None]) -> list[tuple[int, bytes | None, bytes | None]]:
    """Return records of a topic by key and value."""
    return [(offset, key.encode(), value) for offset, (key, value) in enumerate(values)]


def a_marker(t: int, output: str = "a") -> bytes:
    """Return a marker without oversized rows."""
    return encode(Marker(output, t, 1))


def test_a_torn_record_of_what_was_left_out_holds_up_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A torn record of oversized rows blocks nothing: the markers have the names, other outputs report theirs, and
    it can be removed."""
    with lake_in_bucket(tmp_path) as lake:
        left_outs = OversizedRowStore(lake._opened.key_value)
        left_outs.note("1", "torn", OversizedInTransaction(3, 1, 10, (OversizedRow("a", 20),)))
        left_outs.note("2", "whole", OversizedInTransaction(3, 1, 10, (OversizedRow("b", 20),)))
        tear(tmp_path, '"torn"')
        left_outs.note("1", "torn", OversizedInTransaction(4, 1, 10, (OversizedRow("c", 20),)))
        assert "output torn" in caplog.text
        assert list(left_outs.all()) == ["2"]
        left_outs.forget("1")


def test_what_the_topic_of_markers_says() -> None:
    """Foreign records in the marker topic are skipped; contradictions with our own are named by topic and offset."""
    said = last_marker("a", "t", records(("b", b"x"), ("a", a_marker(1)), ("a", a_marker(4)), ("b", None)))
    assert said is not None
    assert (said.transaction, said.of_left_out()) == (4, None)
    assert last_marker("a", "t", records(("b", a_marker(1)))) is None
    for contradicting in (b"x", None, a_marker(4), a_marker(3), a_marker(5, "b"), b"{}", bytes([255])):
        with pytest.raises(DamageError, match=r"topic t .* offset 1: "):
            last_marker("a", "t", records(("a", a_marker(4)), ("a", contradicting)))


def test_what_a_topic_takes() -> None:
    """A message must fit as it is, or compressed unless a broker has refused one or its size never fits."""
    sink = KafkaSink("o", "kafka://127.0.0.1:1/spans")
    most = KAFKA_BATCH_MAX_BYTES - KAFKA_MESSAGE_OVERHEAD_BYTES
    random = Random(14).randbytes(most + 1)
    assert [sink.fits(message) for message in (b"", random[:-1], random)] == [True, True, False]
    assert sink.fits(bytes(most + 1))
    assert sink.fits(bytes(KAFKA_MESSAGE_MAX_BYTES))
    assert not sink.fits(bytes(KAFKA_MESSAGE_MAX_BYTES + 1))
    sink._was_refused = True
    assert [sink.fits(bytes(size)) for size in (most, most + 1)] == [True, False]
