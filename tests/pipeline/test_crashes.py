"""The pipeline killed at each of its storage calls, in the driver and between tasks (J1 to J9)."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from tests.pipeline.spans import a_line, a_span
from tracelake._errors import SourceChangedError
from tracelake.journal.store import Journal
from tracelake.otlp.framing import write_segment
from tracelake.otlp.schema import SPANS_TABLE
from tracelake.pipeline.driver import Pipeline
from tracelake.pipeline.input_failures import CrashMarkers
from tracelake.pipeline.run_result import RunResult
from tracelake.pipeline.sources.base import Input
from tracelake.pipeline.sources.registry import find
from tracelake.pipeline.sources.server_inputs import INBOX
from tracelake.search.finalize import read_manifest
from tracelake.shards.shard import Shard
from tracelake.storage import (
    Entry,
    KeyValueStore,
    MemoryKeyValueStore,
    MemoryObjectStore,
    ObjectStore,
    open_key_value,
    open_objects,
)
from tracelake.tables.builtin import TRACES
from tracelake.tables.predicates import Layout
from tracelake.tables.scan import Scan
from tracelake.tables.table import Table
from tracelake.tasks.runners import InProcess
from tracelake.testing import Crashed, CrashingKeyValueStore, CrashingObjectStore, CrashPoint
from tracelake.versions.model import IndexAt
from tracelake.versions.repository import Repository

TaskT = TypeVar("TaskT")
ReceiptT = TypeVar("ReceiptT")
ResultT = TypeVar("ResultT")
BUCKETS = 2


class CrashingExecutor(InProcess):
    """Runner in process; a kill before or after a task counts as a call, too."""

    def __init__(self, crash: CrashPoint) -> None:
        self._crash = crash

    def run(
        self, function: Callable[[TaskT], ReceiptT], tasks: Sequence[TaskT], on_done: Callable[[int], None]
    ) -> list[ReceiptT]:
        return super().run(lambda task: self._crash.pass_through(lambda: function(task)), tasks, on_done)


class World:
    """Stores that outlive the killed pipelines over them, with two files and a segment to read."""

    def __init__(self, folder: Path, url: str | None = None) -> None:
        url = url or f"memory://{uuid.uuid4().hex}"
        self.objects: ObjectStore = open_objects(url)
        self.key_value: KeyValueStore = open_key_value(f"{url}/metadata")
        self.copies = str(folder / "cache")
        lines = [
            a_line(a_span(0, 0), a_span(0, 1, note="first")),
            a_line(a_span(1, 0), a_span(0, 1, end=20, note="second"), a_span(1, 0)),
        ]
        for number, line in enumerate(lines):
            (folder / f"{number}.jsonl").write_bytes(line)
        self.paths = sorted(str(path) for path in folder.glob("*.jsonl"))
        segment = write_segment([("json", a_line(a_span(1, 1), a_span(0, 0)))])
        self.objects.put("inbox/0.segment", segment)

    def run(self, crash: CrashPoint | None = None) -> RunResult:
        crash = crash or CrashPoint()
        pipeline = Pipeline(
            "main",
            CrashingKeyValueStore(self.key_value, crash),
            CrashingObjectStore(self.objects, crash),
            BUCKETS,
            CrashingExecutor(crash),
        )
        first, second = find(self.objects, self.paths)
        inbox = [Input(INBOX, info.path, info.size_bytes) for info in self.objects.list("inbox/")]
        return pipeline.run([[first], [second, *inbox]])  # one transaction each

    def contents(self) -> list[str]:
        """Return the content hash of both tables at each commit, newest first: whole commits only."""
        repository = Repository(self.key_value, self.objects)
        head = repository.head()
        hashes = []
        for commit_id, _ in repository.log(head) if head else ():
            t = repository.transaction_of(commit_id)
            for name, schema in (("spans", SPANS_TABLE), ("traces", TRACES)):
                snapshot = Shard(name, self.key_value, self.objects).snapshot(t)
                layout = Layout(schema, ("trace_id",), BUCKETS)
                hashes.append(
                    Table(name, Scan(self.objects.url, self.copies, layout, snapshot)).content_hash()
                )
            reference = repository.entries(commit_id)["indexes/spans"]
            assert isinstance(reference, IndexAt)
            hashes.append(f"documents {read_manifest(self.objects, reference.manifest).documents}")
        return hashes


@pytest.fixture(autouse=True)
def no_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable heartbeats: a slow process makes an extra call every three seconds."""
    monkeypatch.setattr(CrashMarkers, "beat", lambda _: None)


@pytest.fixture(name="whole")
def fixture_whole(tmp_path: Path) -> tuple[list[str], int]:
    """Return the contents after an undisturbed run, and its number of calls."""
    world, crash = World(tmp_path), CrashPoint()
    result = world.run(crash)
    assert result.transactions == [0, 1]
    assert sum(counts.new for counts in result.counts) == 4
    assert sum(counts.replaced for counts in result.counts) == 1
    assert sum(counts.repeated for counts in result.counts) == 2
    assert not list(world.objects.list("inbox/"))
    assert not list(world.objects.list("staging/"))
    return world.contents(), crash.calls


class Filmed(CrashPoint):
    """Crash point that kills nothing and records the stores before each call: every state a killed process can
    leave.

    A call that changed nothing leaves the same state as the call before it.
    """

    def __init__(self, world: World) -> None:
        super().__init__()
        assert isinstance(world.objects, MemoryObjectStore)
        assert isinstance(world.key_value, MemoryKeyValueStore)
        self._objects, self._records = world.objects, world.key_value
        self._moments: dict[int, tuple[dict[str, tuple[bytes, float]], dict[str, dict[str, Entry]]]] = {}

    def pass_through(self, call: Callable[[], ResultT]) -> ResultT:
        records = {name: dict(records) for name, records in self._records._partitions.items()}
        moment = (dict(self._objects._objects), records)
        if not self._moments or list(self._moments.values())[-1] != moment:
            self._moments[self.calls + 1] = moment
        return super().pass_through(call)

    def killed(self) -> Iterator[int]:
        """Restore the stores to each of these moments in turn; yield the number of the call."""
        for at, (objects, records) in self._moments.items():
            self._objects._objects, self._records._partitions = objects, records
            yield at


def test_killed_at_every_call_and_run_again(tmp_path: Path, whole: tuple[list[str], int]) -> None:
    """J1 to J5: after a death at any call, another run gives the same history, commit by commit."""
    expected, calls = whole
    assert calls > 70
    world = World(tmp_path)
    film = Filmed(world)
    world.run(film)
    assert film.calls == calls
    for at in film.killed():  # a kill after a call is a kill before the next one
        before = world.contents()
        assert expected[len(expected) - len(before) :] == before, f"a torn commit at call {at}"
        world.run()
        assert world.contents() == expected, f"killed at call {at}"
        assert not list(world.objects.list("inbox/"))


def test_j8_killed_during_replay_twice(tmp_path: Path, whole: tuple[list[str], int]) -> None:
    """J8: a process killed twice, at pairs of calls spread over both runs, leaves a recoverable transaction."""
    expected, calls = whole
    firsts = range(5, calls * 2 // 3, calls // 6)  # early enough for a recovery of 41 calls
    pairs = [(first, second) for first in firsts for second in (9, 25, 41)]
    for first, second in pairs:
        world = World(tmp_path)
        _killed(world, first)
        _killed(world, second)
        world.run()
        assert world.contents() == expected, f"killed at calls {first} and {second}"


def test_j11_a_file_changed_under_the_journal_is_loud(tmp_path: Path) -> None:
    """J11: if a recorded file is changed or gone, an error names it and nothing is published."""
    for change in ("changed", "removed", "put back"):
        at, world = 1, World(tmp_path)
        while Journal(world.key_value, "main").read(0).step is None:
            at, world = at + 1, World(tmp_path)
            _killed(world, at)
        path = Path(world.paths[0])
        whole = path.read_bytes()
        if change == "changed":
            path.write_bytes(whole.replace(b"work", b"play"))
        elif change == "removed":
            path.unlink()
        if change == "put back":
            assert world.run().recovered == [0]
        else:
            now = r"now: \d+ bytes, sha256" if change == "changed" else "now: cannot be read: No such file"
            with pytest.raises(
                SourceChangedError,
                match=rf"transaction 0: .*0\.jsonl has changed.*{now}.*Restore its content",
            ):
                world.run()
            assert world.contents() == []


def _killed(world: World, at: int) -> None:
    with pytest.raises(Crashed):
        world.run(CrashPoint(at, after=True))
