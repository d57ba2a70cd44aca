"""A writer of a user table killed between its append and its commit: the next writer finishes it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import tracelake
from tests.patience import HANG_S
from tracelake import Lake
from tracelake.tasks.runners import InProcess
from tracelake.versions.repository import Repository

WRITER = """
import os, signal, sys
import pyarrow as pa
import tracelake
from tracelake.versions.repository import Repository

Repository.commit_entries = lambda *given, **more: os.kill(os.getpid(), signal.SIGKILL)
with tracelake.open(sys.argv[1]) as lake:
    lake.write("people", pa.table({"id": [1, 2], "who": ["ann", "bob"]}), write_id="one")
"""
PEOPLE = pa.table({"id": [1, 2], "who": ["ann", "bob"]})
FINISHERS: dict[str, Callable[[Lake], object]] = {
    "gc": lambda lake: lake.maintenance.gc(),
    "compact": lambda lake: lake.maintenance.compact(runner=InProcess()),
    "the same write again": lambda lake: lake.write("people", PEOPLE, write_id="one"),
    "a write that changes nothing": lambda lake: lake.write("people", PEOPLE.slice(0, 1)),
}


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a lake, to be copied, whose table `people` has an uncommitted batch."""
    folder = tmp_path_factory.mktemp("killed")
    with tracelake.init(folder / "lake") as lake:
        lake.create_table("people", PEOPLE.schema, key=["id"], buckets=2)
    done = subprocess.run([sys.executable, "-c", WRITER, str(folder / "lake")], check=False, timeout=HANG_S)
    assert done.returncode == -9
    return folder / "lake"


@pytest.mark.parametrize("finisher", FINISHERS.values(), ids=FINISHERS.keys())
def test_a_killed_write_is_finished(killed: Path, tmp_path: Path, finisher: Callable[[Lake], object]) -> None:
    """The write is invisible before; afterwards all its rows are visible by one more commit, and nothing is left to
    finish."""
    with tracelake.open(shutil.copytree(killed, tmp_path / "lake")) as lake:
        before = lake.log()
        assert len(lake.table("people").to_arrow()) == 0
        assert lake.maintenance.gc(dry_run=True)
        assert lake.log() == before
        finisher(lake)
        assert lake.table("people").to_arrow(order_by="id").equals(PEOPLE)
        assert lake.table("people", at=before[0].id).to_arrow().num_rows == 0
        after = lake.log()
        assert after[1:] == before
        lake.maintenance.gc()
        assert lake.log() == after
        assert lake.verify().ok


def test_what_was_taken_back_is_not_finished(tmp_path: Path) -> None:
    """A table that a revert restored to an older time counts as committed and stays so."""
    with tracelake.init(tmp_path / "lake") as lake:
        lake.create_table("people", PEOPLE.schema, key=["id"])
        written = lake.write("people", PEOPLE)
        Repository(lake._opened.key_value, lake.objects).revert(
            written, message="taken back", committer="test"
        )
        before = lake.log()
        lake.maintenance.gc()
        assert lake.log() == before
        assert len(lake.table("people").to_arrow()) == 0
