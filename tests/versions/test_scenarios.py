"""V1 to V8 with threads and processes on SQLite, PostgreSQL and files; the simulation covers all orders of calls."""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from tests.patience import HANG_S
from tests.storage.servers.postgres import PostgresServer
from tests.versions.histories import check_history
from tracelake._errors import ConflictError, NothingToCommitError
from tracelake.storage import (
    Expected,
    FileObjectStore,
    Indeterminate,
    KeyValueStore,
    MemoryObjectStore,
    ObjectStore,
    Outcome,
    SqliteKeyValueStore,
    open_key_value,
)
from tracelake.versions.branch_store import MAIN
from tracelake.versions.model import FileAt, TableAt
from tracelake.versions.repository import Repository


def a_file(number: int) -> FileAt:
    return FileAt("0" * 64, number)


@pytest.fixture
def records(tmp_path: Path) -> Iterator[KeyValueStore]:
    """A database of SQLite."""
    with closing(SqliteKeyValueStore(tmp_path / "records.db")) as store:
        yield store


@pytest.fixture
def objects(tmp_path: Path) -> ObjectStore:
    """A directory."""
    return FileObjectStore(tmp_path / "objects")


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server of PostgreSQL."""
    started = PostgresServer()
    yield started
    started.close()


def at_once(count: int, act: Callable[[int], object]) -> list[object]:
    """Run this number of threads, all from the same moment on."""
    barrier = threading.Barrier(count)

    def begin(number: int) -> object:
        barrier.wait()
        return act(number)

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(begin, range(count)))


def commit_one_each(records: KeyValueStore, objects: ObjectStore, committers: int) -> None:
    def commit(number: int) -> tuple[str, str]:
        entry = f"c/{number:02}"
        return entry, Repository(records, objects).commit_entries({entry: a_file(number)}, message=entry)

    told = at_once(committers, commit)
    messages = check_history(Repository(records, objects), [pair for pair in told if isinstance(pair, tuple)])
    assert len(messages) == committers


@pytest.mark.parametrize("committers", [1, 8, 64])
def test_v1_committers_at_once(records: KeyValueStore, objects: ObjectStore, committers: int) -> None:
    """Concurrent committers all succeed, each with a separate commit, in one line (V1)."""
    commit_one_each(records, objects, committers)


def test_v1_committers_at_once_on_postgresql(server: PostgresServer, objects: ObjectStore) -> None:
    """Eight concurrent committers succeed on PostgreSQL, too (V1)."""
    with closing(open_key_value(server.url(server.new_schema()))) as records:
        commit_one_each(records, objects, 8)


def test_v2_a_store_that_stalls(records: KeyValueStore, objects: ObjectStore, tmp_path: Path) -> None:
    """While writes stall, commits arrive; afterwards all of them complete (V2)."""
    Repository(records, objects).commit_entries({"c/first": a_file(0)}, message="c/first")
    with closing(sqlite3.connect(tmp_path / "records.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with ThreadPoolExecutor(10) as threads:

            def commit(number: int) -> tuple[str, str]:
                entry = f"c/{number}"
                return entry, Repository(records, objects).commit_entries({entry: a_file(1)}, message=entry)

            arriving = []
            for number in range(10):
                arriving.append(threads.submit(commit, number))
                time.sleep(0.05)
            assert not any(one.done() for one in arriving)
            other.execute("ROLLBACK")
            told = [one.result() for one in arriving]
    assert len(check_history(Repository(records, objects), told)) == 11


class SlowObjects(MemoryObjectStore):
    """Object store that is slow for each object."""

    def create(self, path: str, data: bytes) -> bool:
        time.sleep(0.05)
        return super().create(path, data)


def test_v3_the_slow_are_not_starved_by_the_fast(records: KeyValueStore) -> None:
    """A slow committer succeeds although three fast rivals commit without pause (V3)."""
    objects = SlowObjects()
    done = threading.Event()

    def act(number: int) -> int:
        repository = Repository(records, objects)
        if number == 0:
            repository.commit_entries({"slow": a_file(1)})
            done.set()
            return 1
        commits = 0
        while not done.is_set():
            commits += 1
            repository.commit_entries({f"fast/{number}": a_file(commits)})
        return commits

    at_once(4, act)
    repository = Repository(records, objects)
    head = repository.head()
    assert head is not None
    assert repository.entries(head)["slow"] == a_file(1)


class Committing:
    """Process that commits, and its answers so far."""

    def __init__(self, folder: Path, name: str, count: int) -> None:
        self.told: list[tuple[str, str]] = []
        self._folder, self._name, self._count = folder, name, count
        self._start()

    @property
    def has_ended(self) -> bool:
        return len(self.told) == self._count

    def kill_and_start(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._read()
        self._start()

    def end(self) -> None:
        self._read()
        assert self._process.returncode == 0

    def _start(self) -> None:
        stores = f"sqlite://{self._folder}/records.db", (self._folder / "objects").as_uri()
        first = max(len(self.told) - 1, 0)  # the last acknowledged request, repeated
        module = [sys.executable, "-m", "tests.versions.commit_process"]
        self._process = subprocess.Popen(
            [*module, *stores, self._name, str(first), str(self._count)],
            stdout=subprocess.PIPE,
            bufsize=0,  # so that `readline` takes no byte beyond its line, which `communicate` reads
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"

    def _read(self) -> None:
        out, _ = self._process.communicate(timeout=HANG_S)
        for line in out.decode().splitlines(keepends=True):
            if line.endswith("\n"):
                request, commit_id = line.split()
                earlier = dict(self.told).get(f"c/{request}")
                assert earlier in (None, commit_id), f"{request}: {earlier} first, and {commit_id} later"
                if earlier is None:
                    self.told.append((f"c/{request}", commit_id))


def test_v4_processes_that_are_killed(tmp_path: Path) -> None:
    """Two processes, killed at random and restarted with the same request ids, make one commit per request (V4)."""
    chance = random.Random(4)
    processes = [Committing(tmp_path, name, 30) for name in ("a", "b")]
    for _ in range(6):
        time.sleep(chance.uniform(0.0, 0.15))
        chance.choice(processes).kill_and_start()
    for process in processes:
        process.end()
        assert process.has_ended
    with closing(SqliteKeyValueStore(tmp_path / "records.db")) as records:
        repository = Repository(records, FileObjectStore(tmp_path / "objects"))
        messages = check_history(repository, [told for process in processes for told in process.told])
    assert len(messages) == 60


def test_v5_stagers_and_committers(records: KeyValueStore, objects: ObjectStore) -> None:
    """With four stagers and two committers, each acknowledged entry is committed or staged at any time (V5)."""
    acknowledged: dict[str, int] = {}

    def stage(name: int) -> None:
        repository = Repository(records, objects)
        for number in range(20):
            repository.stage({f"s/{name}/{number % 5}": a_file(number)})
            acknowledged[f"s/{name}/{number % 5}"] = number

    def commit() -> None:
        repository = Repository(records, objects)
        for _ in range(10):
            before = dict(acknowledged)
            try:
                head = repository.commit_staged()
            except NothingToCommitError as nothing:
                head = nothing.head
            expect(repository.entries(head) if head else {}, before)
            before = dict(acknowledged)
            expect(repository.uncommitted(), before)

    at_once(6, lambda number: stage(number) if number < 4 else commit())
    repository = Repository(records, objects)
    if repository.staged():
        repository.commit_staged()
    head = repository.head()
    assert head is not None
    assert repository.entries(head) == {path: a_file(number) for path, number in acknowledged.items()}


def expect(found: object, acknowledged: dict[str, int]) -> None:
    assert isinstance(found, dict)
    late = {
        path for path, number in acknowledged.items() if path not in found or found[path].size_bytes < number
    }
    assert not late, f"acknowledged, and not there: {sorted(late)}"


def test_v6_nothing_staged(records: KeyValueStore, objects: ObjectStore) -> None:
    """An empty commit is refused with the current head, or made if allowed, and likewise when repeated (V6)."""
    repository = Repository(records, objects)
    with pytest.raises(NothingToCommitError, match="nothing to commit on branch main") as met:
        repository.commit_staged(request_id="first")
    assert met.value.head == ""
    empty = repository.commit_staged(allow_empty=True, request_id="second")
    repository.stage({"a": a_file(1)})
    full = repository.commit_staged()
    repository.stage({"a": a_file(1)})
    with pytest.raises(NothingToCommitError, match=full[:12]):
        repository.commit_staged()
    assert repository.commit(full).parents == (empty,)
    with pytest.raises(NothingToCommitError):
        repository.commit_staged(request_id="first")
    assert repository.commit_staged(request_id="second") == empty


class LosesReplies(SqliteKeyValueStore):
    """Store that loses the reply to every third conditional write, half of which happened."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._writes = 0

    def set_if(self, partition: str, key: str, value: bytes, expected: Expected) -> Outcome:
        self._writes += 1
        if self._writes % 6 == 0:
            return Indeterminate("never written", "simulated")
        outcome = super().set_if(partition, key, value, expected)
        is_lost = self._writes % 3 == 0
        return Indeterminate(getattr(outcome, "version", "none"), "simulated") if is_lost else outcome


def test_v7_lost_replies(objects: ObjectStore, tmp_path: Path) -> None:
    """If replies to sealing and cutting are lost, each of eight committers has five commits, once each (V7)."""
    with closing(LosesReplies(tmp_path / "records.db")) as records:

        def commit(name: int) -> list[tuple[str, str]]:
            repository = Repository(records, objects)
            entries = [f"c/{name}/{number}" for number in range(5)]
            return [
                (entry, repository.commit_entries({entry: a_file(1)}, message=entry)) for entry in entries
            ]

        told = [pair for pairs in at_once(8, commit) if isinstance(pairs, list) for pair in pairs]
        assert len(check_history(Repository(records, objects), told)) == 40


def test_v8_merges_beside_commits(records: KeyValueStore, objects: ObjectStore) -> None:
    """Four branches merge while main changes; conflicting ones are refused with the conflicting paths (V8)."""
    repository = Repository(records, objects)
    base = repository.commit_entries({"shared": a_file(0)})
    for number in range(4):
        repository.create_branch(f"dev-{number}", base)
        repository.commit_entries({f"d/{number}": a_file(1)}, f"dev-{number}")
    for number in (2, 3):
        repository.commit_entries({"shared": a_file(10 + number)}, f"dev-{number}")
    repository.commit_entries({"shared": a_file(1)})

    def act(number: int) -> object:
        mine = Repository(records, objects)
        if number >= 4:
            return [mine.commit_entries({f"c/{number}": a_file(n)}) for n in range(5)]
        try:
            return mine.merge(mine.resolve(f"dev-{number}"))
        except ConflictError as conflict:
            return conflict.paths

    done = at_once(6, act)
    assert done[2:4] == [("shared",), ("shared",)]
    head = repository.resolve(MAIN)
    expected = {"shared": a_file(1), "d/0": a_file(1), "d/1": a_file(1), "c/4": a_file(4), "c/5": a_file(4)}
    assert repository.entries(head) == expected
    history = list(repository.log(head))
    assert len(history) == 2 + 2 + 10
    assert sum(len(commit.parents) == 2 for _, commit in history) == 2
    preferred = repository.merge(repository.resolve("dev-2"), prefer="source")
    assert repository.entries(preferred)["shared"] == a_file(12)
    reverted = repository.revert(preferred)
    assert repository.entries(reverted) == expected


def test_transactions_and_people_on_one_branch(records: KeyValueStore, objects: ObjectStore) -> None:
    """With three replicas and two users, each transaction has one commit, in order, and all get the same answers."""

    def act(number: int) -> list[str]:
        mine = Repository(records, objects)
        if number >= 3:
            return [mine.commit_entries({f"c/{number}": a_file(n)}) for n in range(5)]
        about = {"created_at": "2026-01-01T00:00:00+00:00"}
        return [
            mine.commit_transaction(t, {"t": TableAt("t", t)}, created_at=about["created_at"])
            for t in range(5)
        ]

    done = at_once(5, act)
    assert done[0] == done[1] == done[2]
    repository = Repository(records, objects)
    history = [commit for _, commit in repository.log(repository.resolve(MAIN))][::-1]
    numbers = [commit.metadata["transaction"] for commit in history if "transaction" in commit.metadata]
    assert numbers == ["0", "1", "2", "3", "4"]
    assert len(history) == 15
