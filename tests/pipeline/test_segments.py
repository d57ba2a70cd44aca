"""Segments of the inbox in the pipeline: taken once, and never deleted before all of it was read."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

import tracelake
from tests.pipeline.spans import a_line, a_span
from tracelake import IngestReport, Lake, StorageError
from tracelake.otlp.framing import write_segment
from tracelake.pipeline.decode import InputShare, ReadTask, run_read_task
from tracelake.storage import MemoryObjectStore
from tracelake.tasks.runners import InProcess

GOOD = write_segment([("json", a_line(a_span(0, 0), a_span(0, 1))), ("json", a_line(a_span(1, 0)))])
REFUSED = {"traceId": "00", "spanId": "00", "name": "refused when it came in, too"}


def paths(lake: Lake, prefix: str) -> list[str]:
    """Return the objects of the lake below a prefix."""
    return [info.path for info in lake.objects.list(prefix)]


def run_once(lake: Lake) -> IngestReport | None:
    """Let the pipeline take what waits."""
    return lake.pipeline(runner=InProcess()).run_once()


def test_a_segment_is_deleted_after_its_commit(tmp_path: Path) -> None:
    """What waits becomes one transaction, and the inbox is empty; then there is nothing to do."""
    with tracelake.init(tmp_path / "lake") as lake:
        lake.objects.put("inbox/1.segment", GOOD)
        lake.objects.put(
            "inbox/2.segment", write_segment([("json", a_line(a_span(2, 0), a_span(0, 0), REFUSED))])
        )
        report = run_once(lake)
        assert report is not None
        assert (report.spans_new, report.spans_repeated, report.transactions) == (4, 1, (0,))
        assert [bad.problems_total for bad in report.bad] == [1]
        assert paths(lake, "inbox/") == paths(lake, "quarantine/") == paths(lake, "staging/") == []
        assert run_once(lake) is None


def test_damaged_segments_are_kept_in_quarantine(tmp_path: Path) -> None:
    """A segment that is cut, or is nothing at all, gives what can be read; its bytes are kept and it is named."""
    with tracelake.init(tmp_path / "lake") as lake:
        big = write_segment(
            [("json", a_line(*(a_span(n, n) for n in range(m, m + 50)))) for m in range(0, 500, 50)]
        )
        lake.objects.put("inbox/1.segment", GOOD)
        lake.objects.put("inbox/2.segment", big[: len(big) // 2])
        lake.objects.put("inbox/3.segment", b"\x00" * 100)
        report = run_once(lake)
        assert report is not None
        assert sorted(Path(bad.path).name for bad in report.bad) == ["2.segment", "3.segment"]
        assert 3 <= report.spans_new < 503
        assert paths(lake, "inbox/") == []
        assert paths(lake, "quarantine/") == ["quarantine/inbox/2.segment", "quarantine/inbox/3.segment"]
        assert lake.objects.get("quarantine/inbox/2.segment") == big[: len(big) // 2]
        assert run_once(lake) is None
        assert lake.verify().ok


def test_a_segment_that_a_peer_took_is_no_bad_input(tmp_path: Path) -> None:
    """Deleted after it was listed, or while it is read: nothing is read, and nothing is reported."""
    with tracelake.init(tmp_path / "lake") as lake:
        lake.objects.put("inbox/1.segment", GOOD)
        lake.objects.put("inbox/2.segment", GOOD)

        class Deleting(InProcess):
            def run(self, function: Any, tasks: Any, on_done: Any) -> list[Any]:
                if isinstance(tasks[0], ReadTask):
                    lake.objects.delete("inbox/2.segment")
                return super().run(function, tasks, on_done)

        report = lake.pipeline(runner=Deleting()).run_once()
        assert report is not None
        assert (report.files, report.bad, report.spans_new) == (1, (), 3)
        assert paths(lake, "quarantine/") == []


def test_an_absent_segment_of_a_remote_store_is_empty() -> None:
    """The task does not fail: its transaction is written by the peer that deleted the segment."""
    task = ReadTask("memory://absent", (InputShare("inbox", "inbox/1.segment", 9),), 8, "staging/")
    (receipt,) = run_read_task(task).shares
    assert (receipt.whole.sha256, receipt.spans, receipt.problems) == ("", 0, [])


@pytest.mark.parametrize("fails", [("get",), ("head",), ("get", "head")], ids="+".join)
def test_a_segment_that_a_store_does_not_give_stops_no_other(
    fails: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named and waits where it is, what is beside it goes in at once; and once it can be read it is taken."""
    refused = ["inbox/1.segment"]

    def failing(real: Any) -> Any:
        def ask(store: MemoryObjectStore, path: str) -> Any:
            if path in refused:
                raise StorageError("this object is refused")
            return real(store, path)

        return ask

    for name in fails:
        monkeypatch.setattr(MemoryObjectStore, name, failing(getattr(MemoryObjectStore, name)))
    with tracelake.init(f"memory://{uuid.uuid4().hex}", buckets=2) as lake:
        for number in range(3):
            segment = write_segment([("json", a_line(a_span(number, 0)))])
            lake.objects.put(f"inbox/{number}.segment", segment)
        if "get" in fails:
            with pytest.raises(
                StorageError, match=r"inbox/1\.segment among them: cannot be read: this object"
            ):
                run_once(lake)
            assert lake.table("spans").info().rows == 2
            assert paths(lake, "inbox/") == refused
            assert paths(lake, "staging/") == []
            refused.clear()
        run_once(lake)
        assert lake.table("spans").info().rows == 3
        assert paths(lake, "inbox/") == paths(lake, "quarantine/") == []
