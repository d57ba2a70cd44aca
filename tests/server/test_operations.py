"""Operations of a server: listed while recent, a few at once, each with its outcome."""

from __future__ import annotations

import gc
import weakref
from threading import Event, Thread

import pytest

from tests.patience import HANG_S, wait_until
from tracelake import limits
from tracelake._errors import BackPressureError, InternalError, NotFoundError, StorageError
from tracelake.server.archive import Operations, ReportProgress, Result


def test_the_oldest_that_are_over_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest finished operations are dropped; a running one stays listed, at any age."""
    monkeypatch.setattr(limits, "OPERATIONS_KEPT", 3)
    operations, over = Operations(), Event()

    def wait(report_progress: ReportProgress) -> Result:
        report_progress({"so far": 1})
        assert over.wait(HANG_S)
        return {"at last": 2}

    first = operations.begin("pass", "request", wait)
    others = [operations.carry_out("sweep", "interval", lambda _report_progress: {}) for _ in range(5)]
    assert operations.newest() == [others[4], others[3], first]
    with pytest.raises(NotFoundError, match="last 3"):
        operations.get(others[0].id)
    wait_until(lambda: first.result == {"so far": 1})
    assert operations.wait(first, 0.0).state == "running"
    assert not operations.join(0.0)
    over.set()
    assert operations.wait(first, HANG_S).result == {"at last": 2}
    assert operations.join(HANG_S)
    assert first.to_dict()["state"] == "done"
    assert (first.seconds or 0) > 0


def test_only_so_many_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another operation is refused until one of them ends; the server's own operations do not count."""
    monkeypatch.setattr(limits, "OPERATIONS_AT_ONCE", 1)
    operations, over = Operations(), Event()
    operations.begin("pass", "request", lambda _report_progress: {"waited": over.wait(HANG_S)})
    with pytest.raises(BackPressureError, match="1 operations"):
        operations.begin("pass", "request", lambda _report_progress: {})
    assert operations.carry_out("pass", "interval", lambda _report_progress: {}).state == "done"
    over.set()
    assert operations.join(HANG_S)
    assert (
        operations.wait(operations.begin("pass", "request", lambda _report_progress: {}), HANG_S).state
        == "done"
    )


def test_passes_that_wait_leave_room_for_a_restore(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many operations of one kind, which could queue for hours, are refused before they block all others."""
    monkeypatch.setattr(limits, "OPERATIONS_AT_ONCE", 3)
    operations, over = Operations(), Event()
    for _ in range(2):
        operations.begin("pass", "request", lambda _report_progress: {"waited": over.wait(HANG_S)})
    with pytest.raises(BackPressureError, match="2 operations"):
        operations.begin("pass", "request", lambda _report_progress: {})
    restore = operations.begin("restore", "request", lambda _report_progress: {})
    assert operations.wait(restore, HANG_S).state == "done"
    over.set()
    assert operations.join(HANG_S)


@pytest.mark.parametrize(
    ("raised", "told"), [(StorageError("away"), StorageError), (OSError(5, "EIO"), OSError)]
)
def test_what_it_failed_with_is_raised_to_who_waits(raised: Exception, told: type[Exception]) -> None:
    """The error is kept for later callers, with the earlier outcomes."""

    def fail(report_progress: ReportProgress) -> Result:
        report_progress({"done": 1})
        raise raised

    operations = Operations()
    operation = operations.begin("pass", "request", fail)
    with pytest.raises(told):
        operations.wait(operation, HANG_S)
    kept = operations.get(operation.id).to_dict()
    assert (kept["state"], kept["error"], kept["result"]) == ("failed", str(raised), {"done": 1})


def test_a_fault_is_logged_and_not_told(caplog: pytest.LogCaptureFixture) -> None:
    """Its message is only in the log."""
    operations = Operations()
    operation = operations.carry_out("pass", "interval", lambda _report_progress: {"secret": 1 // 0})
    assert operation.state == "failed"
    assert isinstance(operation.error, InternalError)
    assert "division" in caplog.text


class _Batch:
    """A large object."""


def test_what_failed_keeps_nothing_of_what_it_worked_on() -> None:
    """An operation stays listed long after its end, without the batch of traces that it worked on."""
    batches: list[weakref.ref[_Batch]] = []

    def fail(_report_progress: ReportProgress) -> Result:
        batch = _Batch()
        batches.append(weakref.ref(batch))
        try:
            raise ValueError("of the database")
        except ValueError as error:
            raise StorageError("away") from error

    operations = Operations()
    operation = operations.carry_out("pass", "interval", fail)
    with pytest.raises(StorageError, match="away"):
        operations.wait(operation, 0.0)
    gc.collect()
    assert operation.to_dict()["error"] == "away"
    assert batches[0]() is None


def test_no_thread_to_be_had_is_back_pressure(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operation that never started does not stay listed as running."""

    def refuse(_thread: Thread) -> None:
        raise RuntimeError("can't start new thread")

    operations = Operations()
    with monkeypatch.context() as patched:
        patched.setattr(Thread, "start", refuse)
        with pytest.raises(BackPressureError, match="no thread"):
            operations.begin("pass", "request", lambda _report_progress: {})
    assert operations.newest() == []
    assert (
        operations.wait(operations.begin("pass", "request", lambda _report_progress: {}), HANG_S).state
        == "done"
    )
