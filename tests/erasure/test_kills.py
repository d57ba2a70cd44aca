"""Erasers of real processes, killed with -9 before a write; another process continues, and nothing is left or lost."""

from __future__ import annotations

import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import tracelake
from tests.lake.test_erasure import SECRET, everything, fill, objects_with, without
from tests.tracking.requests import trace_id
from tracelake.tasks.runners import InProcess

KILLS = 10
"""Writes before which an eraser is killed, spread over all its writes."""
RUN = """
import os, signal, sys, traceback
import duckdb, sqlalchemy, tracelake, tracelake.indexing.redaction, tracelake.lake.erasure
from tracelake.storage.buckets import BucketObjectStore
from tracelake.storage.local import FileObjectStore
from tracelake.storage.postgres import PostgresKeyValueStore
from tracelake.storage.sqlite import SqliteKeyValueStore
from tracelake.tracking.database import TrackingDatabase

writes, last = 0, -1

def counting(kind, name):
    original = getattr(kind, name)
    def call(*arguments, **options):
        global writes
        if writes == last:
            os.kill(os.getpid(), signal.SIGKILL)
        writes += 1
        return original(*arguments, **options)
    setattr(kind, name, call)

def carry_out(action, counts, path, metadata=None, tracking=None):
    if tracking:
        os.environ["TRACELAKE_TRACKING"] = tracking
    lake = tracelake.open(path, metadata=metadata)
    objects, records = ("put", "create", "delete"), ("set", "set_if")
    for kind, names in ((FileObjectStore, objects), (BucketObjectStore, objects), (SqliteKeyValueStore, records),
                        (PostgresKeyValueStore, records), (TrackingDatabase, ("writing",))):
        for name in names:
            counting(kind, name)
    action, _, trace = action.partition(":")
    if action == "erase":
        lake.erase(trace=trace)
    else:
        lake.erasures.run()
    with open(counts, "w") as file:
        file.write(str(writes))

for line in sys.stdin:  # one child for each, which need not import all of it again
    action, last, counts, place = line.rstrip("\\n").split(" ", 3)
    last = int(last)
    if (child := os.fork()) == 0:
        try:
            carry_out(action, counts, *place.split("\\t"))
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def test_an_eraser_that_was_killed_is_continued_by_another(tmp_path: Path) -> None:
    """After a kill before any write, and another one of the process that continues, a third process ends the erasure:
    no commit shows the trace, no file has its text, and all other rows are as before."""
    base = tmp_path / "base"
    with tracelake.init(base) as lake, closing(lake.pipeline(runner=InProcess())) as pipeline:
        fill(lake.hot.set_up(), pipeline)
        commits = [commit.id for commit in lake.log()]
        expected = {commit: without(everything(lake, commit), trace_id(1)) for commit in commits}
    with subprocess.Popen(
        [sys.executable, "-c", RUN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:

        def run(action: str, last: int, place: Path) -> int:
            assert process.stdin is not None
            assert process.stdout is not None
            print(action, last, tmp_path / "counted.writes", place, file=process.stdin, flush=True)
            return int(process.stdout.readline())

        shutil.copytree(base, tmp_path / "counted")
        assert run(f"erase:{trace_id(1)}", -1, tmp_path / "counted") == 0
        writes = int((tmp_path / "counted.writes").read_text())
        for number in range(KILLS):
            place = tmp_path / f"killed-{number}"
            shutil.copytree(base, place)
            assert run(f"erase:{trace_id(1)}", writes * number // KILLS, place) == -9
            run("run", writes * (number + 1) // (2 * KILLS), place)
            _check(place, expected)
        process.communicate()


def _check(place: Path, expected: dict[str, dict[str, object]]) -> None:
    """Continue the erasure, or repeat the request if it was killed before it was durable; then check the lake."""
    with tracelake.open(place) as lake:
        erasures = lake._opened.erasures
        if masked := erasures.masked().trace_ids:
            assert masked == {trace_id(1)}
            assert {commit: everything(lake, commit) for commit in expected} == expected
        reports = lake.erasures.run() or [lake.erase(trace=trace_id(1))]
        assert [report.state for report in reports] == ["finished"]
        assert erasures.masked().trace_ids == frozenset()
        assert {commit: everything(lake, commit) for commit in expected} == expected
        assert objects_with(lake, SECRET.encode()) == []
        assert lake.verify().findings == ()
