"""Maintenance concurrent with transactions: none waits for it unless too many commits are ahead; no pass is lost."""

from __future__ import annotations

import errno
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence

import pytest

import tracelake
from tests.patience import HANG_S, wait_until
from tests.pipeline.poison import good, names
from tracelake import InboxPipeline, Lake
from tracelake.indexing.merge import IndexMerger
from tracelake.pipeline import context
from tracelake.pipeline.context import MAINTENANCE_BEHIND_MAX, MaintenanceScheduler
from tracelake.pipeline.input_failures import CrashMarkers
from tracelake.shards.compaction import CompactTask
from tracelake.shards.protocol import COMPACTION_FAN_OUT
from tracelake.tasks.runners import InProcess, ReceiptT, TaskT


class Gate(InProcess):
    """Runner that blocks compactions until the gate opens."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()
        self.error: Exception | None = None

    def run(
        self, function: Callable[[TaskT], ReceiptT], tasks: Sequence[TaskT], on_done: Callable[[int], None]
    ) -> list[ReceiptT]:
        """Run the tasks in order."""
        if any(isinstance(task, CompactTask) for task in tasks):
            self.reached.set()
            assert self.opened.wait(HANG_S)
            if self.error is not None:
                raise self.error
        return super().run(function, tasks, on_done)


@pytest.fixture
def lake() -> Iterator[Lake]:
    """Yield a new lake."""
    with tracelake.init(f"memory://{uuid.uuid4().hex}", buckets=1) as opened:
        yield opened


def commit(lake: Lake, pipeline: InboxPipeline, first: int, last: int) -> None:
    """Make a transaction of each segment, as a server does."""
    for number in range(first, last):
        lake.objects.put(f"inbox/{number}.segment", good(number))
        assert pipeline.run_once(goes_on=True) is not None


def parts(lake: Lake) -> int:
    """Return the number of parts of table `spans`."""
    return len(lake._opened.shard("spans").state().batches)


def test_no_transaction_waits_for_maintenance(lake: Lake) -> None:
    """Maintenance of any length never delays a transaction; it is finished at the end, and new work waits for the
    next commit."""
    gate = Gate()
    pipeline = lake.pipeline(runner=gate)
    try:
        commit(lake, pipeline, 0, COMPACTION_FAN_OUT)
        assert gate.reached.wait(HANG_S)
        commit(lake, pipeline, COMPACTION_FAN_OUT, 3 * COMPACTION_FAN_OUT)
        assert names(lake) == set(range(3 * COMPACTION_FAN_OUT))
        assert parts(lake) == 3 * COMPACTION_FAN_OUT
    finally:
        gate.opened.set()
        pipeline.close()
    assert parts(lake) < 3 * COMPACTION_FAN_OUT
    again = lake.pipeline(runner=gate)
    commit(lake, again, 3 * COMPACTION_FAN_OUT, 3 * COMPACTION_FAN_OUT + 1)
    again.close()
    assert parts(lake) < COMPACTION_FAN_OUT, "what came meanwhile is compacted, too"
    assert names(lake) == set(range(3 * COMPACTION_FAN_OUT + 1))
    assert not lake._opened.key_value.notes("tries/main")


class Later:
    """Background runner that runs work when a caller waits for it, and counts maintenance passes and waiters."""

    def __init__(self) -> None:
        self.passes = self.waits = self.rests = 0
        self.tries_again = False
        self.error: Exception | None = None
        self.maintaining = MaintenanceScheduler(None, self._begin)  # type: ignore[arg-type]  # what it has is replaced

    def maintain(self) -> None:
        """Stand in for all maintenance."""
        if self.error is not None:
            raise self.error
        self.passes += 1
        self.rests += self.maintaining._is_idle

    def commit(self, *, goes_on: bool = True) -> None:
        """Report a commit."""
        self.maintaining.after_commit(lambda _: None, continuous=goes_on)

    def look(self) -> None:
        """Report a run without a commit."""
        self.maintaining.after_commit(lambda _: None, continuous=True, committed=False)

    def rest(self) -> None:
        """Report an empty poll, and wait for the work that it began."""
        self.maintaining.on_idle()
        self.maintaining.end()

    def _begin(self, work: Callable[[], None]) -> Callable[[], None]:
        def wait() -> None:
            self.waits += 1
            work()

        return wait


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Later:
    """Return a scheduler without real maintenance."""
    later = Later()
    monkeypatch.setattr(MaintenanceScheduler, "_maintain", lambda _self, _progress: later.maintain())
    return later


def check_beside(later: Later) -> None:
    """Check that a continuous pipeline waits for no pass until it reaches the maximum lead."""
    later.commit()
    for _ in range(MAINTENANCE_BEHIND_MAX - 1):
        later.commit()
    assert (later.passes, later.waits) == (0, 0)


def check_bound(later: Later) -> None:
    """Check that a pipeline at the maximum lead waits for the pass in progress, and for no other."""
    for _ in range(MAINTENANCE_BEHIND_MAX + 1):
        later.commit()
    assert later.waits == 1
    later.maintaining.end()
    assert later.passes == 1, "of the last commit"


def test_who_goes_on_waits_for_nothing(later: Later) -> None:
    """One pass covers all commits from before it began."""
    check_beside(later)
    later.maintaining.end()
    assert (later.passes, later.waits) == (1, 1)


def test_who_comes_too_far_ahead_waits(later: Later) -> None:
    """A pipeline too far ahead waits, which bounds the parts that readers open."""
    check_bound(later)


def check_looks(later: Later) -> None:
    """Check that any number of runs without a commit begin due maintenance and never wait."""
    for _ in range(2 * MAINTENANCE_BEHIND_MAX):
        later.look()
    assert later.waits == 0
    later.maintaining.end()
    assert later.passes == 1


def test_runs_without_a_commit_wait_for_nothing(later: Later) -> None:
    """An open client transaction causes many runs without a commit."""
    check_looks(later)


def check_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that one pass follows a long rest, and another the next commit."""
    later = Later()
    monkeypatch.setattr(MaintenanceScheduler, "_maintain", lambda _self, _progress: later.maintain())
    monkeypatch.setattr(MaintenanceScheduler, "_tries_again", lambda _: later.tries_again)
    monkeypatch.setattr(context, "INDEX_REST_AFTER_S", 1e9)
    later.commit()
    later.maintaining.end()
    later.rest()
    assert (later.passes, later.rests) == (1, 0), "not yet"
    monkeypatch.setattr(context, "INDEX_REST_AFTER_S", 0.0)
    later.rest()
    later.rest()
    assert (later.passes, later.rests) == (2, 1), "once"
    later.commit()
    later.rest()
    assert (later.passes, later.rests) == (3, 1), "what is under way is maintenance beside transactions"
    later.rest()
    assert (later.passes, later.rests) == (4, 2)
    later.tries_again = True
    later.rest()
    assert (later.passes, later.rests) == (5, 3), "what failed is tried again"


def test_where_nothing_comes_the_index_is_merged_further_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The idle merge runs after its delay, once until new input arrives, and not during another pass."""
    check_rest(monkeypatch)


def test_a_pipeline_that_goes_on_and_rests_leaves_one_part_of_the_index(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An idle continuous pipeline merges the index to one part; then nothing is due, and later input is found with
    it."""
    pipeline = lake.pipeline(runner=InProcess())
    try:
        commit(lake, pipeline, 0, 3)
        pipeline.run_once(goes_on=True)
        assert index_parts(lake) == 3, "not yet"
        monkeypatch.setattr(context, "INDEX_REST_AFTER_S", 0.0)
        for _ in range(2):
            pipeline.run_once(goes_on=True)
            pipeline._pipeline._maintenance.end()
            assert index_parts(lake) == 1
        commits = len(lake.log())
        pipeline.run_once()
        assert len(lake.log()) == commits
        commit(lake, pipeline, 3, 4)
        assert names(lake) == set(range(4))
    finally:
        pipeline.close()
    assert lake.verify().findings == ()


def rests_again(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail once at rest; check that the index is merged further after one backoff, and then no more."""
    runner = InProcess()
    pipeline = lake.pipeline(runner=runner)
    maintaining, now_s = pipeline._pipeline._maintenance, [0.0]
    try:
        commit(lake, pipeline, 0, 3)
        maintaining.end()
        monkeypatch.setattr(context, "INDEX_REST_AFTER_S", 0.0)
        monkeypatch.setattr(maintaining._context.merger._again._pauses, "_clock", lambda: now_s[0])
        with monkeypatch.context() as patch:
            patch.setattr("tracelake.indexing.build.merge_parts", full)
            pipeline.run_once(goes_on=True)
            maintaining.end()
        pipeline.run_once(goes_on=True)
        maintaining.end()
        assert index_parts(lake) == 3, "its pause is not over"
        now_s[0] = 60.0
        pipeline.run_once(goes_on=True)
        maintaining.end()
        assert index_parts(lake) == 1
        commits = len(lake.log())
        now_s[0] = 6_000.0
        monkeypatch.setattr(IndexMerger, "maintain", lambda *_, **__: pytest.fail("nothing is left"))
        pipeline.run_once(goes_on=True)
        maintaining.end()
        assert len(lake.log()) == commits
    finally:
        pipeline.close()


def full(*_: object, **__: object) -> None:
    """Fail like a full disk."""
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_merge_at_rest_that_fails_is_tried_again_though_nothing_comes(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, one full disk would leave an idle lake's parts unmerged while it rests."""
    rests_again(lake, monkeypatch)


def index_parts(lake: Lake) -> int:
    """Return the number of parts of the index."""
    info = lake.index()
    assert info is not None
    return info.parts


def test_a_stop_begins_no_other_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop finishes the running pass and begins no other; new work waits for the next commit."""
    begun, opened, passes = threading.Event(), threading.Event(), []

    def maintain(_self: MaintenanceScheduler, _progress: object) -> None:
        passes.append(1)
        begun.set()
        assert opened.wait(HANG_S)

    def beside(work: Callable[[], None]) -> Callable[[], None]:
        thread = threading.Thread(target=work)
        thread.start()
        return thread.join

    monkeypatch.setattr(MaintenanceScheduler, "_maintain", maintain)
    maintaining = MaintenanceScheduler(None, beside)  # type: ignore[arg-type]  # what it has is replaced
    maintaining.after_commit(lambda _: None, continuous=True)
    assert begun.wait(HANG_S)
    maintaining.after_commit(lambda _: None, continuous=True)
    stopper = threading.Thread(target=maintaining.stop)
    stopper.start()
    wait_until(lambda: maintaining._pending_commits == 0)
    opened.set()
    stopper.join(HANG_S)
    assert passes == [1]


def test_who_runs_once_has_it_in_turn(later: Later) -> None:
    """A single run does maintenance in turn and waits for the pass in progress."""
    later.commit()
    later.commit(goes_on=False)
    assert (later.passes, later.waits) == (2, 1)


def test_what_fails_beside_is_told(later: Later) -> None:
    """A background failure is raised once, to the next waiter or caller; the work is then repeated."""
    later.error = OSError("no space left")
    later.commit()
    with pytest.raises(OSError, match="no space left"):
        later.maintaining.end()
    later.error = None
    later.commit()
    later.maintaining.end()
    assert later.passes == 1


def test_where_nothing_can_be_done_beside_it_is_told(later: Later, monkeypatch: pytest.MonkeyPatch) -> None:
    """If no thread can start, the failure is reported, and the next commit tries again."""

    def refused(_: Callable[[], None]) -> Callable[[], None]:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(later.maintaining, "_start_work", refused)
        with pytest.raises(RuntimeError, match="new thread"):
            later.commit()
    later.commit()
    later.maintaining.end()
    assert later.passes == 1


def check_own_note(lake: Lake) -> None:
    """Check that our own maintenance allows prefetch and a peer's does not."""
    ours, peer = CrashMarkers(lake._opened.key_value, "main"), CrashMarkers(lake._opened.key_value, "main")
    with ours.another().maintaining() as is_harmless:
        assert is_harmless
        assert ours.is_alone(0, [])
        assert not peer.is_alone(0, [])


def test_a_note_of_our_own_maintenance_is_no_peers(lake: Lake) -> None:
    """Otherwise, prefetch would stop during our own maintenance."""
    check_own_note(lake)
