"""Local copies of remote objects: whole under any race, bounded, and never removed while in use."""

from __future__ import annotations

import gc
import os
import threading
import time
import uuid
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from tests.patience import HANG_S
from tracelake import limits
from tracelake._errors import NotFoundError, StorageError
from tracelake.storage import FileObjectStore, LocalFiles, MemoryObjectStore

KB = 1_000


class Slow(MemoryObjectStore):
    """Store that counts and delays reads, so that concurrent requests for one object overlap."""

    def __init__(self) -> None:
        super().__init__(f"memory://{uuid.uuid4().hex}")
        self.gets: list[str] = []

    def get(self, path: str) -> bytes:
        self.gets.append(path)
        time.sleep(0.02)
        return super().get(path)


@pytest.fixture
def objects() -> Slow:
    """Twelve objects of 1,000 bytes."""
    store = Slow()
    for number in range(12):
        store.put(name(number), bytes([number]) * KB)
    return store


def name(number: int) -> str:
    """Return the path of an object."""
    return f"parts/{number:02}"


def grow_old(folder: Path, age_s: float = 2 * limits.PART_COPY_IDLE_MIN_S) -> None:
    """Make all copies look last used long ago, in order of their names."""
    for number, file in enumerate(sorted(folder.iterdir())):
        os.utime(file, (time.time() - age_s + number, file.stat().st_mtime))


def test_threads_and_instances_make_one_copy(objects: Slow, tmp_path: Path) -> None:
    """Concurrent callers get the same whole file, which each process reads from the store once."""
    found: list[bytes] = []
    barrier = threading.Barrier(8)

    def read() -> None:
        files = LocalFiles(objects, tmp_path / "copies")
        barrier.wait()
        found.append(Path(files.file(name(3))).read_bytes())

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [bytes([3]) * KB] * 8
    assert objects.gets == [name(3)]
    assert [file.suffix for file in (tmp_path / "copies").iterdir()] == [""]


class Remote(FileObjectStore):
    """Store that hides the paths of its files, so that other processes can only use copies."""

    def local_path(self, path: str) -> None:
        super().local_path(path)


def copy_all(root: Path, folder: Path, barrier: Barrier) -> None:
    """Copy each object at the same moment as the other processes."""
    files = LocalFiles(Remote(root), folder)
    for number in range(40):
        barrier.wait(HANG_S)
        copy = Path(files.file(name(number)))
        assert copy.stat().st_size == KB * KB


def test_processes_that_copy_at_once_do_not_disturb_one_another(tmp_path: Path) -> None:
    """Each process writes under a separate name, so the file that gets the copy's name is whole."""
    store = Remote(tmp_path / "store")
    for number in range(40):
        store.put(name(number), bytes(KB * KB))
    context = get_context("spawn")
    barrier = context.Barrier(3)
    arguments = (tmp_path / "store", tmp_path / "copies", barrier)
    processes = [context.Process(target=copy_all, args=arguments) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert len(list((tmp_path / "copies").iterdir())) == 40


def test_paths_that_differ_have_copies_that_differ(objects: Slow, tmp_path: Path) -> None:
    """Different paths have different copies: a slash is not encoded as a character that a name may contain."""
    for path in ("a/b_c", "a_b/c", "a%2Fb_c"):
        objects.put(path, path.encode())
    files = LocalFiles(objects, tmp_path)
    for path in ("a/b_c", "a_b/c", "a%2Fb_c"):
        assert Path(files.file(path)).read_text() == path


def test_the_least_recently_used_go_first(objects: Slow, tmp_path: Path) -> None:
    """Above the limit, the least recently used copies are removed; reading one again counts as use."""
    files = LocalFiles(objects, tmp_path, 8 * KB)
    with files.in_use():
        files.fetch([name(number) for number in range(8)])
    grow_old(tmp_path)
    with files.in_use():
        files.file(name(0))
        files.file(name(8))
    left = {file.name for file in tmp_path.iterdir()}
    assert len(left) <= 8
    assert {f"parts%2F{number:02}" for number in (0, 7, 8)} <= left
    assert "parts%2F01" not in left


def check_nothing_kept(tmp_path: Path) -> None:
    """Open many contexts over objects that are local files."""
    objects = FileObjectStore(tmp_path)
    objects.put(name(0), b"data")

    def begun() -> int:
        gc.collect()
        return sum(isinstance(each, set) for each in gc.get_objects())

    before = begun()
    for _ in range(1_000):
        files = LocalFiles(objects, tmp_path / "copies")
        with files.in_use():
            files.file(name(0))
    assert begun() < before + 500


def test_nothing_is_kept_of_files_that_are_no_copies(tmp_path: Path) -> None:
    """A server over a lake on disk opens millions of contexts without keeping state for any of them."""
    check_nothing_kept(tmp_path)


def test_what_is_in_use_stays(objects: Slow, tmp_path: Path) -> None:
    """Files of an open context, and files returned without one, stay however old; afterwards they may be removed."""
    other = LocalFiles(objects, tmp_path, 2 * KB)
    held = LocalFiles(objects, tmp_path, 2 * KB)
    kept = [Path(held.file(name(0)))]
    with other.in_use():
        kept.append(Path(other.file(name(1))))
        with other.in_use():
            other.file(name(2))
        grow_old(tmp_path)
        for number in range(3, 8):
            with other.in_use():
                other.file(name(number))
            grow_old(tmp_path)
        assert all(file.exists() for file in kept)
        assert not (tmp_path / "parts%2F02").exists()
    del held
    gc.collect()
    for number in range(8, 12):
        with other.in_use():
            other.file(name(number))
        grow_old(tmp_path)
    assert not any(file.exists() for file in kept)
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 3 * KB


def test_what_another_process_just_used_stays(objects: Slow, tmp_path: Path) -> None:
    """A copy that any process used just now is not removed; leftovers of killed processes are."""
    (tmp_path / "theirs").write_bytes(bytes(KB))
    (tmp_path / ".1.partial").write_bytes(bytes(KB))
    (tmp_path / ".2.partial").write_bytes(bytes(KB))
    os.utime(tmp_path / ".1.partial", (1, 1))
    with (files := LocalFiles(objects, tmp_path, KB)).in_use():
        files.file(name(0))
    assert {file.name for file in tmp_path.iterdir()} == {"theirs", ".2.partial", "parts%2F00"}


def test_use_does_not_look_like_a_change(objects: Slow, tmp_path: Path) -> None:
    """Using a copy again keeps its modification time, so a process that verified it need not do so again."""
    files = LocalFiles(objects, tmp_path)
    before = Path(files.file(name(0))).stat()
    time.sleep(0.01)
    after = Path(files.file(name(0))).stat()
    assert after.st_mtime_ns == before.st_mtime_ns
    assert after.st_atime_ns > before.st_atime_ns


def test_a_folder_that_takes_no_copy_is_named(objects: Slow, tmp_path: Path) -> None:
    """The error for an unwritable directory names the file, the directory and a remedy; no partial file remains."""
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"cannot store a copy of parts/00 in .*file: .*XDG_CACHE_HOME"):
        LocalFiles(objects, tmp_path / "file").file(name(0))
    with pytest.raises(NotFoundError):
        LocalFiles(objects, tmp_path).fetch([name(0), "parts/none"])
