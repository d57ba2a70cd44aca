"""From the start of a process to its first task done on each kind of Spark, cold, and what the next one takes.

    python benchmarks/first_task.py
    python benchmarks/first_task.py --kinds 'local[1]' yarn --rounds 3

Servers of a kind (a standalone master and its worker, Spark Connect, YARN) run already, as those of a cluster do;
executors do not. Each round has a process of its own. Told are seconds, and beside them the processor time of all
processes, servers and JVMs included; the least of all rounds, and for the next task the least of five in each.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import psutil
from rich.console import Console
from rich.table import Table

# For `benchmarks` and `tests`, where this is run as a file.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.clusters import kind_of, nothing, timed
from benchmarks.door_servers import cpu_s
from tests.cluster.servers import ROOT
from tracelake.context import spark_runner
from tracelake.tasks.runners import InProcess

HERE: Final = "this process"
KINDS: Final = (HERE, "local[1]", "standalone 1", "connect", "yarn")


def measure(master: str, conf: dict[str, str]) -> None:
    """Run tasks, and print the seconds until the first was done, and of the next ones."""
    runner = InProcess() if master == HERE else spark_runner(master, conf)
    runner.run(nothing, [0], lambda _: None)
    print(json.dumps(time.time() - psutil.Process().create_time()), flush=True)
    sys.stdin.readline()
    print(min(timed(lambda: runner.run(nothing, [0], lambda _: None)) for _ in range(5)), flush=True)
    sys.stdin.readline()
    runner.stop()


def round_of(master: str, conf: dict[str, str]) -> tuple[float, ...]:
    """Return seconds and processor time until the first task, and of the next one."""
    command = [sys.executable, __file__, "--child", json.dumps([master, conf])]
    before_s = cpu_s(os.getpid())
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        first_s = float(child.stdout.readline())
        first_cpu_s = cpu_s(os.getpid()) - before_s
        print(file=child.stdin, flush=True)
        next_s = float(child.stdout.readline())
        next_cpu_s = (cpu_s(os.getpid()) - before_s - first_cpu_s) / 5
        print(file=child.stdin, flush=True)
    assert child.returncode == 0
    return first_s, first_cpu_s, next_s, next_cpu_s


def main() -> None:
    """Measure all kinds, one after the other."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        measure(*json.loads(options.child))
        return
    table = Table("", "first task, s", "CPU s", "next task, s", "CPU s")
    for kind in options.kinds:
        with (
            tempfile.TemporaryDirectory(prefix="tracelake-first-") as folder,
            kind_of(kind, Path(folder)) as given,
        ):
            rounds = [round_of(*given) for _ in range(options.rounds)]
            table.add_row(kind, *(f"{min(column):.2f}" for column in zip(*rounds, strict=True)))
    Console().print(table)


if __name__ == "__main__":
    main()
