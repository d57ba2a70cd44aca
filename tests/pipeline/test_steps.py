"""Transactions of several steps: modes, input that waits over runs, and the state after a kill (J9)."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import tracelake
from tests.pipeline.spans import a_line, a_span
from tracelake import limits
from tracelake._errors import SourceChangedError
from tracelake.journal.protocol import EACH_STEP, CommitPolicy, OpenTransactionStats, Verdict, decide
from tracelake.journal.store import Journal
from tracelake.otlp.framing import write_segment
from tracelake.pipeline import replay
from tracelake.pipeline.driver import Pipeline
from tracelake.pipeline.input_queue import run_inline
from tracelake.pipeline.replay import OpenTransaction
from tracelake.pipeline.run_result import RunResult
from tracelake.pipeline.sources.base import Input
from tracelake.pipeline.sources.registry import find
from tracelake.pipeline.sources.server_inputs import INBOX, InboxWatch
from tracelake.replicas.replica import BacklogEntry
from tracelake.storage import open_key_value, open_objects
from tracelake.tasks.runners import InProcess

BUCKETS = 2
MANY = CommitPolicy(max_rows=100, max_delay_s=1e9)


class World:
    """Stores, and pipelines over them."""

    def __init__(self) -> None:
        url = f"memory://{uuid.uuid4().hex}"
        self.objects = open_objects(url)
        self.key_value = open_key_value(f"{url}/metadata")
        self.journal = Journal(self.key_value, "main")

    def pipeline(self, mode: CommitPolicy = MANY) -> Pipeline:
        return Pipeline("main", self.key_value, self.objects, BUCKETS, InProcess(), mode=mode)

    def arrive(self, number: int) -> None:
        segment = write_segment([("json", a_line(a_span(number, number)))])
        self.objects.put(f"inbox/{number}.segment", segment)

    def take(self, pipeline: Pipeline, *, continuous: bool = True) -> RunResult:
        waiting = [Input(INBOX, info.path, info.size_bytes) for info in self.objects.list("inbox/")]
        return pipeline.run([[item] for item in waiting], continuous=continuous)

    def steps(self, t: int) -> list[int]:
        """Return the number of inputs of each step of a transaction."""
        return [sum(map(len, step.sources.values())) for step in self.journal.read(t).steps]


@pytest.mark.parametrize(
    ("mode", "opened", "exhausted", "continuous", "verdict"),
    [
        (EACH_STEP, OpenTransactionStats(1, 1, 0.0), False, True, "seal"),
        (MANY, OpenTransactionStats(1, 99, 0.0), False, True, "more"),
        (MANY, OpenTransactionStats(1, 100, 0.0), False, True, "seal"),
        (MANY, OpenTransactionStats(1, 99, 0.0), True, True, "wait"),
        (MANY, OpenTransactionStats(1, 99, 0.0), True, False, "seal"),
        (CommitPolicy(100, 5.0), OpenTransactionStats(1, 1, 4.9), False, True, "more"),
        (CommitPolicy(100, 5.0), OpenTransactionStats(1, 1, 5.0), False, True, "seal"),
        (MANY, OpenTransactionStats(limits.TRANSACTION_STEPS_MAX - 1, 1, 0.0), False, True, "more"),
        (MANY, OpenTransactionStats(limits.TRANSACTION_STEPS_MAX, 1, 0.0), False, True, "seal"),
        (EACH_STEP, OpenTransactionStats(1, 1, 0.0, "open"), False, True, "more"),
        (EACH_STEP, OpenTransactionStats(1, 1, 0.0, "open"), True, False, "wait"),
        (EACH_STEP, OpenTransactionStats(limits.TRANSACTION_STEPS_MAX, 1, 0.0, "open"), False, True, "wait"),
        (EACH_STEP, OpenTransactionStats(1, 1, 0.0, "commit"), False, True, "more"),
        (EACH_STEP, OpenTransactionStats(1, 1, 0.0, "commit"), True, True, "seal"),
        (EACH_STEP, OpenTransactionStats(1, 1, 0.0, "abort"), False, True, "discard"),
    ],
)
def test_when_a_transaction_takes_more(
    mode: CommitPolicy, opened: OpenTransactionStats, *, exhausted: bool, continuous: bool, verdict: Verdict
) -> None:
    """Rows, time and a client's request decide whether a transaction takes more, within the bound of steps."""
    assert decide(mode, opened, exhausted=exhausted, continuous=continuous) == verdict


def test_j9_an_open_transaction_outlives_runs_and_processes() -> None:
    """J9: steps of three runs are one transaction, even with a fresh process in between."""
    world = World()
    first = world.pipeline()
    for number in range(2):
        world.arrive(number)
        result = world.take(first)
        assert (result.open_transaction, result.transactions, result.steps) == (0, [], 1)
    assert world.steps(0) == [1, 1]
    assert (world.take(first).open_transaction, world.steps(0)) == (
        0,
        [1, 1],
    )  # no input of it is taken twice
    second = world.pipeline()  # the first is killed
    world.arrive(2)
    result = world.take(second, continuous=False)
    assert (result.open_transaction, result.transactions, result.recovered, result.steps) == (
        None,
        [0],
        [0],
        1,
    )
    assert world.steps(0) == [1, 1, 1]
    assert sum(counts.new for counts in result.counts) == 3
    assert not list(world.objects.list("inbox/"))


def peer_goes_on(world: World) -> None:
    """Wait; let a peer commit the waiting input, and open the next transaction."""
    late, peer = world.pipeline(), world.pipeline()
    world.arrive(0)
    assert world.take(late).open_transaction == 0
    world.take(peer, continuous=False)
    world.arrive(1)
    assert world.take(peer).open_transaction == 1
    world.arrive(2)
    result = world.take(late, continuous=False)
    assert (result.transactions, world.steps(1)) == ([1], [1, 1])
    assert sum(counts.new for counts in result.counts) == 2


def test_what_waits_is_dropped_where_a_peer_has_committed_it() -> None:
    """Rows kept for one transaction never count for another."""
    peer_goes_on(World())


def changed_between(tmp_path: Path) -> None:
    """Change the file of an open transaction's second step while no pipeline runs."""
    world = World()
    first = world.pipeline()
    for number in range(2):
        (tmp_path / f"{number}.jsonl").write_bytes(a_line(a_span(number, number)))
        first.run([find(world.objects, [str(tmp_path / f"{number}.jsonl")])], continuous=True)
    assert world.steps(0) == [1, 1]
    path = tmp_path / "1.jsonl"
    path.write_bytes(path.read_bytes().replace(b"work", b"play"))
    with pytest.raises(SourceChangedError, match=r"transaction 0: source files: .*1\.jsonl has changed"):
        world.pipeline().run([])
    assert world.journal.read(0).seal is None


def test_j9_each_step_is_verified_before_more_is_taken(tmp_path: Path) -> None:
    """J9, J11: a later step that does not read as recorded stops the pipeline, and nothing is sealed."""
    changed_between(tmp_path)


def test_a_pipeline_that_goes_on_tells_of_what_is_open(tmp_path: Path) -> None:
    """The pipeline reports each step once; a pipeline about to end seals the transaction."""
    with tracelake.init(tmp_path / "lake") as lake:
        pipeline = lake.pipeline(runner=InProcess())
        pipeline._pipeline._mode = MANY
        lake.objects.put("inbox/0.segment", write_segment([("json", a_line(a_span(0, 0)))]))
        report = pipeline.run_once(goes_on=True)
        assert report is not None
        assert (report.open_transaction, report.transactions) == (0, ())
        assert pipeline.run_once(goes_on=True) is None
        ended = pipeline.run_once()
        assert ended is not None
        assert (ended.open_transaction, ended.transactions) == (None, (0,))
        assert lake.table("spans").info().rows == 1
        assert lake.verify().findings == ()


class FirstOnly(InboxWatch):
    """Source that returns only the first pending input, as some polls do of very many."""

    def look(self, suspects: Collection[str], *, continuous: bool) -> list[BacklogEntry]:
        return super().look(suspects, continuous=continuous)[:1]


def test_looks_that_give_the_first_only_fill_a_transaction_that_waits(tmp_path: Path) -> None:
    """Inputs already taken do not hide later ones, because Kafka ranges and outbox rows are polled from the first."""
    with tracelake.init(tmp_path / "lake") as lake, closing(lake.pipeline(runner=InProcess())) as pipeline:
        pipeline._pipeline._mode = MANY
        pipeline._poller._fixed[0].watch = FirstOnly(lake.objects)
        for number in range(3):
            lake.objects.put(
                f"inbox/{number}.segment", write_segment([("json", a_line(a_span(number, number)))])
            )
        for _ in range(3):
            pipeline.run_once(goes_on=True)
        assert len(pipeline._pipeline.open_inputs()) == 3


def test_what_a_transaction_has_is_told_a_few_times_however_much_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Progress is reported a few times, because each report names all inputs; one report an input once took minutes
    for thousands."""
    world = World()
    for number in range(20):
        world.arrive(number)
    told = 0
    paths = OpenTransaction.paths

    def counted(opened: OpenTransaction) -> set[tuple[str, str]]:
        nonlocal told
        told += 1
        return paths(opened)

    monkeypatch.setattr(OpenTransaction, "paths", counted)
    pipeline = Pipeline(
        "main", world.key_value, world.objects, BUCKETS, InProcess(), start_work=run_inline, mode=EACH_STEP
    )
    waiting = [Input(INBOX, info.path, info.size_bytes) for info in world.objects.list("inbox/")]
    assert pipeline.run([waiting[:5], waiting[5:]]).transactions == [0, 1]
    assert told < len(waiting) // 2


def test_the_delay_of_a_transaction_does_not_begin_anew_with_each_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise, a transaction whose processes keep ending early would never be sealed."""

    def check() -> None:
        world, mode = World(), CommitPolicy(100, 60.0)
        world.arrive(0)
        assert world.take(world.pipeline(mode)).open_transaction == 0
        later = datetime.now(UTC) + timedelta(seconds=61)
        with monkeypatch.context() as patch:
            patch.setattr(replay, "now", lambda: later)
            assert world.take(world.pipeline(mode)).transactions == [0]

    check()


def test_a_pipeline_that_is_closed_leaves_no_rows_staged() -> None:
    """A closed pipeline deletes its staged rows, which would stay for a day; the next run reads the input again."""
    world = World()
    world.arrive(0)
    pipeline = world.pipeline()
    assert world.take(pipeline).open_transaction == 0
    assert list(world.objects.list("staging/"))
    pipeline.close()
    assert not list(world.objects.list("staging/"))
    assert world.take(world.pipeline(), continuous=False).transactions == [0]
