"""Temporary files of our JVM are in our scratch directory, which other processes delete once its process is gone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.patience import HANG_S

STARTS = """
import os, signal, sys, tempfile
from tracelake.tasks.java import start_gateway, stop_gateway
from pyspark import SparkContext
start_gateway(heap="512m")
context = SparkContext("local[1]", "scratch")
print(*sorted(os.listdir(tempfile.gettempdir())), flush=True)
if sys.argv[1] == "kill":
    from tracelake.tasks.java import _JVM
    os.kill(_JVM[0].pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
context.stop()
stop_gateway()
"""


def started(folder: Path, how: str) -> list[str]:
    """Start Spark with this temporary directory; return the names that it creates there."""
    environment = {**os.environ, "TMPDIR": str(folder)}
    run = subprocess.run(
        [sys.executable, "-c", STARTS, how],
        check=False,
        env=environment,
        capture_output=True,
        text=True,
        timeout=4 * HANG_S,
    )
    return run.stdout.split()


def test_files_of_a_jvm_are_in_our_scratch_directory(tmp_path: Path) -> None:
    """A process killed with its JVM leaves one scratch directory, which the next sweep deletes, and nothing else."""
    for how, left in (("stop", 0), ("kill", 1)):
        made = started(tmp_path, how)
        assert made
        assert all(name.startswith("tracelake-scratch-") for name in made), made
        assert len(list(tmp_path.iterdir())) == left
