"""Publish receipts: the position of each transaction in its outputs, kept for `explain` by every run and trimmed."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType

import pytest

import tracelake
from tests.cli.conftest import RunCli, cli
from tests.patience import HANG_S
from tests.pipeline.spans import a_line, a_span
from tests.server.client import Client
from tests.server.faults import FaultyStore
from tracelake import Lake
from tracelake.journal.store import OutputReceipt, OutputReceipts, PartitionOffsets
from tracelake.lake.transaction_history import OutputAccount, WrittenOffsets
from tracelake.pipeline.outputs.configured import OUTPUT_PARTITIONS_TOLD_MAX, OutputOffsets
from tracelake.pipeline.outputs.external import Messages
from tracelake.server.app import create_app
from tracelake.tasks.runners import InProcess
from tracelake.tracking.ingest_queue import Inbox

TO = "telling:Telling"
__all__ = ["cli"]


class Telling:
    """An in-memory system that reports the offsets of its writes."""

    log: list[bytes]
    receipts: list[OutputReceipt]

    def __init__(self, output_id: str) -> None:
        del output_id

    def fence(self) -> int:
        return self.receipts[-1].transaction if self.receipts else -1

    def write(self, transaction: int, messages: Messages) -> None:
        start = len(self.log)
        self.log.extend(messages)
        at = PartitionOffsets(0, start, len(self.log), len(self.log) - start)
        self.receipts.append(OutputReceipt(transaction, at.messages, (at,)))

    def receipt(self) -> OutputReceipt | None:
        return self.receipts[-1] if self.receipts else None


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    """Return a lake with such an output from transaction 1 on; 0 is committed."""
    module = ModuleType("telling")
    module.Telling = type("Telling", (Telling,), {"log": [], "receipts": []})  # type: ignore[attr-defined]  # a user's
    monkeypatch.setitem(sys.modules, "telling", module)
    with tracelake.init(tmp_path / "lake", buckets=1) as opened:
        opened.outputs.add("stream", TO)
        ingest(opened, tmp_path, 0)
        yield opened


def ingest(lake: Lake, place: Path, *numbers: int) -> None:
    """Ingest a file with some spans."""
    path = place / f"{uuid.uuid4().hex}.jsonl"
    path.write_bytes(a_line(*(a_span(number, number) for number in numbers)))
    lake.ingest(path, runner=InProcess())


def test_explain_names_the_offsets(lake: Lake, tmp_path: Path, cli: RunCli) -> None:
    """Python, command line, API and page show the offsets of a transaction's messages, or none if it has none."""
    ingest(lake, tmp_path, 1, 2)
    ingest(lake, tmp_path, 3)
    ingest(lake, tmp_path, 2, 3)  # repeats
    (second,) = lake.journal.explain(2).outputs
    assert second == OutputAccount("stream", TO, 1, (WrittenOffsets(0, 1, 2, 1),))
    assert lake.journal.explain(3).outputs == (OutputAccount("stream", TO),)
    assert lake.journal.explain(0).outputs == ()
    said = " ".join(cli("pipeline", "explain", 2, "--lake", tmp_path / "lake").out.split())
    assert "stream (telling:Telling): 1 messages, offsets 1 to 1 of partition 0" in said
    with closing(Inbox(FaultyStore(), ack_timeout_s=HANG_S)) as inbox:
        client = Client(create_app(lake, inbox))
        (told,) = client.get("/api/v1/pipeline/transactions/2").json()["outputs"]
        assert told["offsets"] == [{"partition": 0, "start": 1, "stop": 2, "messages": 1}]
        assert "offsets 1 to 1 of partition 0" in client.get("/pipeline/2").text
    key_value = lake._opened.key_value
    (info,) = lake.outputs.all()
    entry = key_value.get("written/main", f"{2:016d}-{info.id}")
    assert entry is not None
    key_value.set("written/main", entry.key, entry.value[:-9])
    assert lake.journal.explain(2).outputs == (OutputAccount("stream", TO),)
    assert [finding.path for finding in lake.verify().findings] == [f"written/main/{entry.key}"]
    lake.maintenance.gc(journal_transactions=1)
    assert [each.key for each in key_value.scan("written/main")] == []


def check_a_death(lake: Lake, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the next run records the offsets if a run dies after the write and before the record."""

    def die(*_: object) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(OutputReceipts, "note", die)
        with pytest.raises(RuntimeError, match="killed"):
            ingest(lake, place, 1, 2)
    ingest(lake, place, 3)
    assert [len(each.offsets) for t in (1, 2) for each in lake.journal.explain(t).outputs] == [1, 1]


def test_who_finds_the_marker_notes_where_it_is(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill between the system and the commit loses no offsets."""
    check_a_death(lake, tmp_path, monkeypatch)
    assert len(sys.modules["telling"].Telling.receipts) == 2


def test_offsets_by_partition() -> None:
    """Offsets run from the first to one past the last, complete or unknown; only the first of very many partitions
    are shown."""
    offsets = OutputOffsets()
    for partition, offset in ((1, 7), (0, 3), (1, 5), (1, 9)):
        offsets.add(partition, offset)
    assert offsets.partition_offsets() == (PartitionOffsets(0, 3, 4, 1), PartitionOffsets(1, 5, 10, 3))
    many = OutputOffsets()
    for partition in reversed(range(OUTPUT_PARTITIONS_TOLD_MAX + 5)):
        many.add(partition, 0)
    assert [each.partition for each in many.partition_offsets()] == list(range(OUTPUT_PARTITIONS_TOLD_MAX))
    offsets.add(2, -1001)
    assert offsets.partition_offsets() == ()
