"""Several processes on one store, and processes killed in the middle of a write."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from multiprocessing.context import SpawnProcess
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pytest

from tests.patience import HANG_S
from tests.storage.conftest import key_value_url, object_url
from tracelake._errors import StorageError
from tracelake.storage import ABSENT, Done, FileObjectStore, SqliteKeyValueStore, open_key_value, open_objects

PROCESSES = 8
INCREMENTS = 10
RACED_PATHS = 25
# Spawned and never forked: neither SQLite nor most object-store clients survive a fork.
spawn = multiprocessing.get_context("spawn")


def in_processes(work: Callable[..., None], url: str) -> list[Any]:
    """Run `work(url, number, barrier, results)` in all processes at once; return what they put in results."""
    barrier = spawn.Barrier(PROCESSES)
    results: Queue[Any] = spawn.Queue()
    processes = [
        spawn.Process(target=told, args=(work, url, number, barrier, results), daemon=True)
        for number in range(PROCESSES)
    ]
    for process in processes:
        process.start()
    answers = [results.get(timeout=HANG_S) for _ in processes]
    assert [answer for answer in answers if isinstance(answer, str)] == []
    for process in processes:
        finish(process)
    results.close()
    results.join_thread()
    return answers


def told(work: Callable[..., None], url: str, number: int, barrier: Barrier, results: Queue[Any]) -> None:
    """Run the work of one process; put its failure into the results too, so that the parent does not wait forever."""
    try:
        work(url, number, barrier, results)
    except BaseException:
        results.put(traceback.format_exc())
        raise


def finish(process: SpawnProcess) -> None:
    """Wait for a process that must succeed."""
    process.join(timeout=HANG_S)
    assert process.exitcode == 0


def count_up(url: str, number: int, barrier: Barrier, results: Queue[Any]) -> None:
    """Open a store that does not exist yet, and increment this process's number in a record by conditional writes.

    The record shows the progress: a write with an unknown outcome may have happened, for example if the process
    slept.
    """
    barrier.wait(timeout=HANG_S)
    store = open_key_value(url)
    conflicts, done = 0, 0
    while True:
        entry = store.get("p", "counter")
        counts = [int(count) for count in entry.value.split(b",")] if entry else [0] * PROCESSES
        assert counts[number] >= done, "a write that was acknowledged is lost"
        if counts[number] == INCREMENTS:
            break
        counts[number] += 1
        value = b",".join(b"%d" % count for count in counts)
        try:
            outcome = store.set_if("p", "counter", value, entry.version if entry else ABSENT)
        except StorageError:
            continue  # on a slow machine the others may keep a file busy for longer than a store waits
        if isinstance(outcome, Done):
            done = counts[number]
        else:
            conflicts += 1
    store.close()
    results.put(conflicts)


@pytest.mark.parametrize("backend", ["sqlite", "postgres", "s3"])
def test_processes_lose_no_increment(backend: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Processes that open one new store at the same moment and count up one record lose no count."""
    url = key_value_url(backend, request, tmp_path / "made" / "by them")
    in_processes(count_up, url)
    store = open_key_value(url)
    found = store.get("p", "counter")
    store.close()
    assert found is not None
    assert found.value == b",".join([b"%d" % INCREMENTS] * PROCESSES)


def content(number: int, path: int) -> bytes:
    """Return bytes that identify their writer, large enough to be torn."""
    return b"%d/%d " % (number, path) * 20_000


def race(url: str, number: int, barrier: Barrier, results: Queue[Any]) -> None:
    """Create the same paths as all other processes, and check at once that each object is whole."""
    store = open_objects(url)
    barrier.wait(timeout=HANG_S)
    won = []
    for path in range(RACED_PATHS):
        if store.create(f"race/{path}", content(number, path)):
            won.append(path)
        found = store.get(f"race/{path}")
        assert found == content(int(found.split(b"/")[0]), path)
    results.put((number, won))


@pytest.mark.parametrize("backend", ["files", "s3"])
def test_processes_race_to_create(backend: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Of the processes that create one path exactly one wins, and no object is ever seen torn."""
    store = open_objects(object_url(backend, request, tmp_path))
    answers = in_processes(race, store.url)
    assert sorted(path for _, won in answers for path in won) == list(range(RACED_PATHS))
    for number, won in answers:
        for path in won:
            assert store.get(f"race/{path}") == content(number, path)
    assert not list(tmp_path.glob("objects/.tmp/*"))


WRITE_RECORDS = """
import sys
from tracelake.storage import open_key_value
store = open_key_value(sys.argv[1])
for number in range(1_000_000):
    store.set("p", f"{number:07}", b"%d " % number * 500)
    print(number, flush=True)
"""
WRITE_OBJECTS = """
import sys
from tracelake.storage import open_objects
store = open_objects(sys.argv[1])
for number in range(1_000_000):
    assert store.create(f"d{number % 3}/{number:07}", b"%d " % number * 50_000)
    print(number, flush=True)
"""


def acknowledged_before_kill(program: str, url: str, acknowledgements: int) -> int:
    """Run a writer, kill it with -9 after this number of acknowledged writes, and return the number it
    acknowledged."""
    writer = subprocess.Popen([sys.executable, "-c", program, url], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    with writer.stdout:
        for _ in range(acknowledgements):
            assert writer.stdout.readline()
        os.kill(writer.pid, signal.SIGKILL)
        rest = [line for line in writer.stdout if line.endswith("\n")]
    assert writer.wait(timeout=HANG_S) == -signal.SIGKILL
    return acknowledgements + len(rest)


@pytest.mark.parametrize("acknowledgements", [1, 20, 57])
def test_sqlite_keeps_what_it_acknowledged(tmp_path: Path, acknowledgements: int) -> None:
    """After kill -9 each acknowledged record exists and is whole, and the store accepts writes at once."""
    url = f"sqlite://{tmp_path}/records.db"
    acknowledged = acknowledged_before_kill(WRITE_RECORDS, url, acknowledgements)
    store = SqliteKeyValueStore(tmp_path / "records.db")
    entries = store.scan("p")
    assert len(entries) in (acknowledged, acknowledged + 1)
    assert [entry.value for entry in entries] == [b"%d " % number * 500 for number in range(len(entries))]
    store.set("p", "after", b"")
    store.close()


@pytest.mark.parametrize("acknowledgements", [1, 20, 57])
def test_files_keep_what_they_acknowledged(tmp_path: Path, acknowledgements: int) -> None:
    """After kill -9 each acknowledged object exists, all objects are whole, and leftovers can be swept."""
    store = FileObjectStore(tmp_path / "o")
    acknowledged = acknowledged_before_kill(WRITE_OBJECTS, store.url, acknowledgements)
    found = {int(info.path.split("/")[1]): store.get(info.path) for info in store.list("")}
    assert len(found) in (acknowledged, acknowledged + 1)
    assert found == {number: b"%d " % number * 50_000 for number in range(len(found))}
    store.sweep_temporaries(age_s=-60)
    assert not list((tmp_path / "o" / ".tmp").iterdir())


FILL_DISK = """
import resource, sys
from pathlib import Path
from tracelake._errors import StorageError
from tracelake.storage import Done, FileObjectStore, SqliteKeyValueStore

directory = Path(sys.argv[1])
records, objects = SqliteKeyValueStore(directory / "r.db"), FileObjectStore(directory / "o")
first = records.set("p", "k", b"kept")
objects.put("kept", b"kept")
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, resource.RLIM_INFINITY))
for write in (
    lambda: records.set("p", "k", b"x" * 1_000_000),
    lambda: objects.put("kept", b"x" * 1_000_000),
    lambda: objects.create("new", b"x" * 1_000_000),
):
    try:
        write()
    except StorageError as error:
        print(type(error).__name__, error)
    else:
        raise AssertionError("a write beyond the space there is must fail")
assert objects.get("kept") == b"kept"
assert [info.path for info in objects.list("")] == ["kept"]
assert not list((directory / "o" / ".tmp").iterdir())
assert records.get("p", "k").version == first
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert isinstance(records.set_if("p", "k", b"x" * 1_000_000, first), Done)
objects.put("kept", b"x" * 1_000_000)
records.close()
"""


def test_no_space_is_a_storage_error_and_heals(tmp_path: Path) -> None:
    """If files cannot grow, writes raise StorageError and reads continue; freed space is used again."""
    done = subprocess.run(
        [sys.executable, "-c", FILL_DISK, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 3
