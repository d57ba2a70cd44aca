"""Inbox segments in the pipeline: taken once, and never deleted before they are read completely."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

import tracelake
from tests.pipeline.poison import Poisoned, poisoned
from tests.pipeline.spans import a_line, a_span
from tracelake import IngestReport, Lake, StorageError
from tracelake.otlp.framing import write_segment
from tracelake.pipeline.decode_task import InputShare, ReadTask, run_read_task
from tracelake.storage import MemoryObjectStore
from tracelake.storage.local import FileObjectStore
from tracelake.tasks.runners import InProcess

GOOD = write_segment([("json", a_line(a_span(0, 0), a_span(0, 1))), ("json", a_line(a_span(1, 0)))])
REFUSED = {"traceId": "00", "spanId": "00", "name": "refused when it came in, too"}


def paths(lake: Lake, prefix: str) -> list[str]:
    """Return the objects of the lake below a prefix."""
    return [info.path for info in lake.objects.list(prefix)]


def run_once(lake: Lake) -> IngestReport | None:
    """Let the pipeline take the pending input."""
    return lake.pipeline(runner=InProcess()).run_once()


def test_a_segment_is_deleted_after_its_commit(tmp_path: Path) -> None:
    """Pending segments become one transaction and the inbox is empty; the next run has nothing to do."""
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
    """The readable rows of a truncated or invalid segment are taken; its bytes are kept and it is named."""
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
    """A segment deleted after the listing or during the read gives no rows and no report."""
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
    """The task does not fail, because the peer that deleted the segment writes its transaction."""
    task = ReadTask("memory://absent", (InputShare("inbox", "inbox/1.segment", 9),), 8, "staging/")
    (receipt,) = run_read_task(task).shares
    assert (receipt.digest.sha256, receipt.spans, receipt.problems) == ("", 0, [])


@pytest.mark.parametrize("fails", [("get",), ("head",), ("get", "head")], ids="+".join)
def test_a_segment_that_a_store_does_not_give_stops_no_other(
    fails: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The unreadable segment is named and waits while the others are ingested; it is taken once it is readable."""
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
            with pytest.raises(StorageError, match=r"inbox/1\.segment: cannot be read: this object"):
                run_once(lake)
            assert lake.table("spans").info().rows == 2
            assert paths(lake, "inbox/") == refused
            assert paths(lake, "staging/") == []
            refused.clear()
        run_once(lake)
        assert lake.table("spans").info().rows == 3
        assert paths(lake, "inbox/") == paths(lake, "quarantine/") == []


def undeletable(monkeypatch: pytest.MonkeyPatch, refused: set[str]) -> None:
    """Make the store refuse to delete some objects."""
    delete_all = FileObjectStore.delete_all

    def refusing(self: FileObjectStore, some: Collection[str]) -> None:
        for path in some:
            if path in refused:
                raise StorageError(f"cannot delete {path!r}: permission denied")
        delete_all(self, some)

    monkeypatch.setattr(FileObjectStore, "delete_all", refusing)


def test_a_segment_that_cannot_be_deleted_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The segment is taken once and every run reports it in quarantine; later ones are ingested, and it is deleted
    when possible."""
    refused = {"inbox/1.segment", "inbox/2.segment"}
    with tracelake.init(tmp_path / "lake") as lake:
        undeletable(monkeypatch, refused)
        lake.objects.put("inbox/1.segment", GOOD)
        lake.objects.put("inbox/2.segment", write_segment([("json", a_line(a_span(5, 0)))])[:-3] + b"xxx")
        lake.objects.put("inbox/3.segment", write_segment([("json", a_line(a_span(3, 0)))]))
        for number in range(3):
            lake.objects.put(
                f"inbox/later-{number}.segment", write_segment([("json", a_line(a_span(9, number)))])
            )
            report = run_once(lake)
            assert report is not None
            assert report.transactions == (number,)
            assert report.spans_repeated == 0
            named = [(item.path, item.state) for item in report.set_aside]
            assert sorted(named) == [("inbox/1.segment", "taken"), ("inbox/2.segment", "taken")]
            assert "permission denied" in report.set_aside[0].explain()
            assert {item.path for item in lake.quarantine.all()} <= refused
        assert "inbox/3.segment" not in paths(lake, "inbox/")
        assert [finding.path for finding in lake.verify().findings] == ["inbox/2.segment"]  # its bytes
        refused.clear()
        lake.objects.put("inbox/last.segment", write_segment([("json", a_line(a_span(8, 0)))]))
        report = run_once(lake)
        assert report is not None
        assert report.set_aside == ()
        assert (paths(lake, "inbox/"), lake.quarantine.all()) == ([], [])
        assert paths(lake, "quarantine/") == ["quarantine/inbox/2.segment"]


def test_a_discarded_segment_that_cannot_be_deleted_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its record stays and excludes it; it is deleted as soon as that is possible."""
    refused = {"inbox/0-bad.segment"}
    with tracelake.init(tmp_path / "lake") as lake:
        lake.objects.put("inbox/0-bad.segment", poisoned(7))
        lake.pipeline(runner=Poisoned("merge")).run_once()
        (aside,) = lake.quarantine.all()
        undeletable(monkeypatch, refused)
        with pytest.raises(StorageError, match="permission denied"):
            lake.quarantine.discard(aside.transaction)
        for number in range(2):
            lake.objects.put(f"inbox/{number}.segment", write_segment([("json", a_line(a_span(9, number)))]))
            report = run_once(lake)
            assert report is not None
            assert report.spans_new == 1
            assert [item.state for item in report.set_aside] == ["discarded"]
        refused.clear()
        lake.objects.put("inbox/9.segment", GOOD)
        run_once(lake)
        assert paths(lake, "inbox/") == []
