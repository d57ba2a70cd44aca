"""Temporary directories are deleted after use, and those of killed processes some time later."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.patience import HANG_S
from tracelake import scratch
from tracelake.scratch import scratch_directory, sweep

WORKS = """
import sys
from tracelake.scratch import scratch_directory
with scratch_directory("test") as directory:
    (directory / "rows").write_text("some")
    print(directory, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty directory that serves as the system's temporary directory."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@contextmanager
def worker(place: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Yield a process that works in a scratch directory, and the directory."""
    environment = {**os.environ, "TMPDIR": str(place)}
    with subprocess.Popen(
        [sys.executable, "-c", WORKS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        try:
            assert process.stdout is not None
            yield process, Path(process.stdout.readline().strip())
        finally:
            process.kill()


def grow_old(directory: Path) -> None:
    """Make a directory look old."""
    os.utime(directory, (0, 0))


def check_killed(place: Path) -> None:
    """Check that a live process's directory stays however old it is, and a killed one's is deleted after a while."""
    with scratch_directory("test") as own:
        grow_old(own)
        assert sweep(place) == 0
    with worker(place) as (process, directory):
        grow_old(directory)
        assert sweep(place) == 0
        assert (directory / "rows").read_text() == "some"
        process.kill()
        process.wait(HANG_S)
    os.utime(directory)
    assert sweep(place) == 0, "it may have been made this moment"
    grow_old(directory)
    assert sweep(place) == 1
    assert not directory.exists()


def test_what_a_killed_process_left_goes(place: Path) -> None:
    """Leftovers of killed processes are deleted: killed merges once filled the disk."""
    check_killed(place)


def test_one_that_ends_leaves_nothing(place: Path) -> None:
    """A process that ends or fails leaves no directory."""
    with scratch_directory("test") as directory:
        (directory / "below").mkdir()
        assert directory.parent == place
        assert directory.name.startswith("tracelake-scratch-test-")
    with pytest.raises(ValueError, match="odd"), scratch_directory("test", place / "."):
        raise ValueError("odd")
    assert list(place.iterdir()) == []


def check_others(place: Path) -> None:
    """Check that foreign directories and link targets stay."""
    other = place / "tracelake-part-1"
    other.mkdir()
    (other / "file").touch()
    link = place / "tracelake-scratch-link"
    link.symlink_to(other)
    file = place / "tracelake-scratch-file"
    file.touch()
    for path in (other, file):
        grow_old(path)
    os.utime(link, (0, 0), follow_symlinks=False)
    assert sweep(place) == 0
    assert (other / "file").exists()
    assert file.exists()
    assert sweep(place / "gone") == 0


def test_others_stay(place: Path) -> None:
    """Foreign directories stay, even with a name of ours."""
    check_others(place)
    for path in place.iterdir():
        path.unlink() if not path.is_dir() or path.is_symlink() else None
    (place / "tracelake-part-1" / "file").unlink()
    (place / "tracelake-part-1").rmdir()


def check_how_often(place: Path) -> None:
    """Check that a process scans for leftovers at its first scratch directory, not at each."""
    scratch._swept.clear()
    with worker(place) as (process, left):
        process.kill()
        process.wait(HANG_S)
    for is_there in (False, True):
        left.mkdir(exist_ok=True)
        grow_old(left)
        with scratch_directory("test"):
            assert left.exists() == is_there
    scratch._swept[str(place)] -= scratch.SCRATCH_SWEEP_INTERVAL_S
    with scratch_directory("test"):
        assert not left.exists()


def test_a_process_looks_now_and_then(place: Path) -> None:
    """A hundred tasks a second do not each scan the system's temporary directory."""
    check_how_often(place)


def check_memory(place: Path, memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that small contents are in memory, others on the disk, and that leftovers in memory are deleted."""
    monkeypatch.setattr(scratch, "MEMORY", memory)
    memory.mkdir()
    left = memory / "tracelake-scratch-index-1"
    left.mkdir()
    grow_old(left)
    with scratch_directory("index", size_bytes=1) as small:
        assert small.parent == memory
    assert list(memory.iterdir()) == []
    free_bytes = shutil.disk_usage(memory).free
    monkeypatch.setattr(scratch, "SCRATCH_MEMORY_MAX_BYTES", free_bytes)
    for size_bytes in (None, free_bytes // 2, free_bytes + 1):
        with scratch_directory("index", size_bytes=size_bytes) as other:
            assert other.parent == place
    monkeypatch.setattr(scratch, "SCRATCH_MEMORY_MAX_BYTES", 1)
    with scratch_directory("index", size_bytes=2) as large:
        assert large.parent == place
    memory.rmdir()
    with scratch_directory("index", size_bytes=1) as other:
        assert other.parent == place


def test_small_contents_are_in_memory(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """tantivy syncs each of its files, so small indexes are built in memory if it has room."""
    check_memory(place, place / "memory", monkeypatch)
