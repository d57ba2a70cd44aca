"""A streaming query killed in the middle and restarted: its table equals that of an undisturbed run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa

import tracelake
from tests.patience import TOTAL_MAX_S, wait_until
from tracelake import Lake, TableNotFoundError

TRANSACTIONS = 6
KILLED_AFTER = 2


def a_query(lake: Lake, checkpoint: Path, *goes_on: str) -> subprocess.Popen[bytes]:
    """Start the query in a process group with its JVM and workers."""
    command = [sys.executable, "-m", "tests.faults.stream_process", lake.url, str(checkpoint), *goes_on]
    return subprocess.Popen(command, start_new_session=True)


def written(lake: Lake) -> int:
    """Return the number of writes to the copy."""
    try:
        return lake.table("copied").info().upper
    except TableNotFoundError:
        return 0


def test_a_killed_stream_goes_on(tmp_path: Path) -> None:
    """Query, JVM and workers die at once while micro-batches run; after the restart each change exists once."""
    with tracelake.init(tmp_path / "lake", buckets=2) as lake:
        lake.create_table("people", pa.table({"id": [1], "who": ["ann"]}).schema, key=["id"])

        def write(number: int) -> None:
            ids = list(range(number * 3, number * 3 + 6))
            lake.write("people", pa.table({"id": ids, "who": [f"in {number}"] * len(ids)}))

        for number in range(TRANSACTIONS - 1):
            write(number)
        killed = a_query(lake, tmp_path / "checkpoint", "goes on")
        wait_until(lambda: written(lake) >= KILLED_AFTER, moving=lambda: written(lake), poll_s=0.02)
        os.killpg(killed.pid, signal.SIGKILL)
        assert killed.wait() == -signal.SIGKILL
        assert KILLED_AFTER <= written(lake) < TRANSACTIONS
        write(TRANSACTIONS - 1)
        again = a_query(lake, tmp_path / "checkpoint")
        assert again.wait(TOTAL_MAX_S) == 0
        assert written(lake) == TRANSACTIONS
        expected = lake.table("people").to_arrow(order_by="id")
        assert len(expected) == TRANSACTIONS * 3 + 3
        assert lake.table("copied").to_arrow(["id", "who"], order_by="id").equals(expected)
        changes = [change.rows.num_rows for change in lake.listen("copied", -1, timeout_s=0)]
        assert changes == [change.rows.num_rows for change in lake.listen("people", -1, timeout_s=0)]
        assert lake.verify().ok
