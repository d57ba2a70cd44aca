"""Files with odd names, kinds and times: each is taken or refused in one line, and stops no other."""

from __future__ import annotations

import errno
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tracelake
from tests.pipeline.spans import a_line, a_span
from tracelake import Lake
from tracelake.limits import CLOCK_DIFFERENCE_MAX_S
from tracelake.otlp.framing import write_segment
from tracelake.pipeline.sources.base import to_name, to_path
from tracelake.tasks.runners import InProcess


@pytest.fixture(name="lake")
def fixture_lake(tmp_path: Path) -> Iterator[Lake]:
    """Return a new lake."""
    with tracelake.init(tmp_path / "lake") as opened:
        yield opened


def odd_path(folder: Path) -> Path:
    """Return a path whose last name is Latin-1."""
    return Path(os.fsdecode(os.fsencode(folder) + b"/caf\xe9 100%.jsonl"))


@pytest.mark.parametrize("path", ["/plain/é.jsonl", "/a%20b", "/file:/x", os.fsdecode(b"/\xff/100%\xe9 \n")])
def test_names_of_paths(path: str) -> None:
    """A name is text and identifies one path."""
    assert to_path(to_name(path)) == path
    assert to_name(path).encode().decode() == to_name(path)
    assert (to_name(path) == path) == path.isprintable()


def test_a_file_name_that_is_not_utf8(lake: Lake, tmp_path: Path) -> None:
    """The file is taken like any other, recognized the next time, and reported by its URL."""
    path = odd_path(tmp_path)
    path.write_bytes(a_line(a_span(0, 0)) + b"\nnonsense")
    first, again = (lake.ingest(path, runner=InProcess()) for _ in range(2))
    assert (first.spans_new, first.files_known, again.files_known) == (1, 0, 1)
    assert [Path(bad.path).name for bad in first.bad + again.bad] == ["caf%E9%20100%25.jsonl"] * 2
    assert json.dumps(first.to_dict()).encode()
    with pytest.raises(tracelake.UsageError, match=r"no file matches '\\udce9\*'"):
        lake.ingest(os.fsdecode(b"\xe9*"), runner=InProcess())


def test_a_watched_file_name_that_is_not_utf8(lake: Lake, tmp_path: Path) -> None:
    """The file, the inbox and other files are taken, also after a crash behind its step."""
    folder = tmp_path / "in"
    folder.mkdir()
    for path, number in ((odd_path(folder), 0), (folder / "plain.jsonl", 1)):
        path.write_bytes(a_line(a_span(number, 0)))
        os.utime(path, (1, 1))
    lake.objects.put("inbox/1.segment", write_segment([("json", a_line(a_span(2, 0)))]))
    pipeline = lake.pipeline(watch=[str(folder / "*")], runner=InProcess())

    def fail_after_the_step(step: tracelake.Progress) -> None:
        if step.stage == "writing":
            raise tracelake.StorageError("no store")

    with pytest.raises(tracelake.StorageError, match="no store"):
        pipeline.run_once(fail_after_the_step)
    report = pipeline.run_once()
    assert report is not None
    assert (report.recovered, report.spans_new, report.bad) == ((0,), 3, ())
    assert pipeline.run_once() is None


def make_socket(path: Path) -> None:
    """Make a socket in the file system."""
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


KINDS: dict[str, tuple[Callable[[Path], object], str]] = {
    "pipe": (os.mkfifo, "a named pipe: give the path of an OTLP file"),
    "socket": (make_socket, "a socket: give the path of an OTLP file"),
    "directory": (Path.mkdir, "a directory: give the path of an OTLP file"),
    "endless": (lambda path: path.symlink_to("/dev/zero"), "a device: give the path of an OTLP file"),
    "loop": (lambda path: path.symlink_to(path), "cannot be read: Too many levels of symbolic links"),
    "nowhere": (lambda path: path.symlink_to("missing"), "cannot be read: No such file or directory"),
    "empty": (Path.touch, "empty file"),
    "x" * 300: (lambda _: None, "cannot be read: File name too long"),
    "good/below": (lambda _: None, "cannot be read: Not a directory"),
}


def test_what_is_no_file(lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each other kind is refused in a line without a wait; the good file is ingested and then recognized."""
    monkeypatch.chdir(tmp_path)  # a socket address must be short
    Path("good").write_bytes(a_line(a_span(0, 0)))
    for name, (make, _) in KINDS.items():
        make(Path(name))
    reports = [lake.ingest("good", *KINDS, runner=InProcess()) for _ in range(2)]
    assert [report.spans_new for report in reports] == [1, 0]
    for report in reports:
        assert [bad.problems[0].reason for bad in report.bad] == [reason for _, reason in KINDS.values()]
    with pytest.raises(tracelake.UsageError, match="NUL character"):
        lake.ingest("go\0od", runner=InProcess())


def test_only_files_are_watched(lake: Lake, tmp_path: Path) -> None:
    """A watch skips pipes and devices without waiting for them."""
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "zeros.jsonl").symlink_to("/dev/zero")
    (tmp_path / "loop.jsonl").symlink_to("loop.jsonl")
    assert lake.pipeline(watch=[str(tmp_path / "*.jsonl")], runner=InProcess()).run_once() is None


def test_a_watched_file_that_becomes_readable(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that becomes readable after it is written is taken then, though neither its size nor time changes."""
    path = tmp_path / "late.jsonl"
    path.write_bytes(a_line(a_span(1, 0)))
    os.utime(path, (1, 1))
    path.chmod(0o000)
    pipeline = lake.pipeline(watch=[str(path)], runner=InProcess())
    real_open = os.open

    def as_a_user(name: Any, *rest: Any, **more: Any) -> int:
        if name == str(path) and not path.stat().st_mode & 0o400:  # root may read anything
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return real_open(name, *rest, **more)

    monkeypatch.setattr(os, "open", as_a_user)
    report = pipeline.run_once()
    assert report is not None
    assert (report.files, report.spans_new) == (1, 0)
    assert pipeline.run_once() is None
    path.chmod(0o644)
    report = pipeline.run_once()
    assert report is not None
    assert report.spans_new == 1


def test_a_watched_file_replaced_by_one_of_equal_size_and_time(lake: Lake, tmp_path: Path) -> None:
    """A replaced file with the same name, size and time is taken."""
    path, other = tmp_path / "same.jsonl", tmp_path / "other"
    for number, one in enumerate((path, other)):
        one.write_bytes(a_line(a_span(number, 0)))
        os.utime(one, (1, 1))
    pipeline = lake.pipeline(watch=[str(path)], runner=InProcess())
    for _ in range(2):
        report = pipeline.run_once()
        assert report is not None
        assert report.spans_new == 1
        if other.exists():
            other.replace(path)
    assert pipeline.run_once() is None


def test_a_watched_file_of_the_future(lake: Lake, tmp_path: Path) -> None:
    """An impossible time does not delay a file for ever; a time slightly ahead delays it that long."""
    for number, ahead_s in enumerate((1e9, CLOCK_DIFFERENCE_MAX_S - 5)):
        path = tmp_path / f"{number}.jsonl"
        path.write_bytes(a_line(a_span(number, 0)))
        os.utime(path, (time.time() + ahead_s,) * 2)
    pipeline = lake.pipeline(watch=[str(tmp_path / "*.jsonl")], runner=InProcess())
    report = pipeline.run_once()
    assert report is not None
    assert (report.files, report.spans_new) == (1, 1)
    assert pipeline.run_once() is None
