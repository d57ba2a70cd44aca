"""Passes, restores and deletions of real processes, killed with -9 before each step; then another pass (A4, A10)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.archive.place import HotLake
from tests.tracking.requests import span_numbers, trace_id
from tracelake.storage import open_objects

STEPS_MAX = 40
_RUN = """
import os, signal, sys, traceback
import duckdb, psycopg, sqlalchemy, tracelake.archive.repositories
from tracelake.archive.store import ArchiveStore
from tracelake.storage.local import FileObjectStore
import tracelake

path, steps = sys.argv[1], 0

def stepping(kind, name):
    whole = getattr(kind, name)
    def step(*given, **named):
        global steps
        if steps == last:
            os.kill(os.getpid(), signal.SIGKILL)
        steps += 1
        return whole(*given, **named)
    setattr(kind, name, step)

def carry_out(doing):
    archive = tracelake.open(path).archive
    for kind, name in ((ArchiveStore, "_write"), (ArchiveStore, "_read"), (FileObjectStore, "put"),
                       (FileObjectStore, "get"), (FileObjectStore, "get_range"), (FileObjectStore, "delete")):
        stepping(kind, name)
    ids = [f"{number:032x}" for number in (1, 2)]
    if doing == "run":
        archive.run()
    elif doing == "restore":
        for each in ids:
            archive.restore(each)
    else:
        archive.delete(ids)

for line in sys.stdin:  # a process of its own for each, which need not import all of it again
    doing, last = line.split()[0], int(line.split()[1])
    if (child := os.fork()) == 0:
        try:
            carry_out(doing)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.mark.parametrize(
    ("new_url", "doing", "layout"),
    [  # half of the pairs on each database; `python -m tests.campaigns archive` kills at any moment on both
        ("sqlite", "run", "lake"),
        ("sqlite", "run", "trace"),
        ("postgres", "run", "pack"),
        ("postgres", "restore", "lake"),
        ("sqlite", "restore", "pack"),
        ("postgres", "delete", "pack"),
    ],
    indirect=["new_url"],
)
def test_a4_a10_killed_before_each_step(make: Callable[..., HotLake], doing: str, layout: str) -> None:
    """Each trace is entirely hot, archived or deleted. A later pass continues, and a sweep leaves no orphan (A4,
    A10)."""
    lake = make(layout)
    command = [sys.executable, "-c", _RUN, str(lake.path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, env=lake.environment()
    ) as runner:
        assert runner.stdin is not None
        assert runner.stdout is not None
        for last in range(STEPS_MAX):
            lake.archive.delete([trace_id(1), trace_id(2)])
            lake.write((1, 1), (1, 2), (2, 1))
            if doing != "run":
                lake.archive.run()
            print(doing, last, file=runner.stdin)
            code = int(runner.stdout.readline())
            assert code in (-9, 0)
            lake.archive.sweep(0)
            _check_whole(lake, gone=doing == "delete")
            if code == 0:
                assert last > 1
                return
    pytest.fail(f"more than {STEPS_MAX} steps")


def _check_whole(lake: HotLake, *, gone: bool) -> None:
    """Check that each trace is in one place with all of its spans, and that every object belongs to a trace."""
    stored = lake.tracking.traces([trace_id(1), trace_id(2)])
    if not gone:
        assert len(stored) == 2
    objects = open_objects(f"{lake.lake.url}/archive")
    for number, spans in ((1, [1, 2]), (2, [1])):
        if (each := stored.get(trace_id(number))) is None:
            continue
        if each.is_hot:
            assert span_numbers(each.data) == spans
        else:
            assert each.data == b""
            assert lake.archive.restore(trace_id(number))
            assert (
                sorted(span_numbers(lake.tracking.traces([trace_id(number)])[trace_id(number)].data)) == spans
            )
    if stored:
        assert not lake.archive.run().fates.keys() - {"archived"}
        if lake.archive.settings().layout != "lake":
            listed = [info for info in objects.list("") if info.path.endswith((".pb", ".pack"))]
            assert 1 <= len(listed) <= len(stored)
    else:
        assert [info for info in objects.list("") if info.path.endswith((".pb", ".pack"))] == []
