"""What the driver holds, and takes, for a transaction of many tasks, without what its tasks do.

    python benchmarks/many_tasks.py                       # 1, 100, 1,000 and 10,000 tasks that decode, 64 buckets
    python benchmarks/many_tasks.py --tasks 10000 --buckets 256 --kinds 'local[1]'

Each number has a process of its own. Its driver cuts an input into as many tasks, runs them as one job, puts their
receipts together, cuts a task for each bucket, and runs these. Tasks answer at once, with receipts as large as real
ones: rows of each bucket in an object of their own. Told is, for each step, the seconds and the processor time of the
driver's Python, and by the end the most memory of it and of its JVM, or that of the server of Spark Connect; of the
JVM that is mostly what the heap lets it have.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import psutil
from rich.console import Console
from rich.table import Table

# For `benchmarks` and `tests`, where this is run as a file.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.door_servers import tree
from benchmarks.peaks import peak_mib
from tests.cluster.servers import ROOT, ConnectServer
from tracelake.context import spark_runner
from tracelake.otlp.decode import InputDigest
from tracelake.pipeline.decode_task import (
    InputShare,
    ReadReceipt,
    ReadTask,
    ShareReceipt,
    StagedSlice,
    gather,
)
from tracelake.pipeline.merge_task import ShapeReceipt, TableChange, TransactionMergeTask
from tracelake.pipeline.publish import by_range
from tracelake.pipeline.sources.base import Input
from tracelake.pipeline.sources.files import FILES
from tracelake.tasks.runners import ReceiptT, TaskT

KINDS: Final = ("local[1]", "connect")
TASKS: Final = (1, 100, 1_000, 10_000)
FILE_BYTES: Final = 8 * 2**20
SOCKETS: Final = {"spark.python.unix.domain.socket.enabled": "true"}
"""By TCP the JVM and a worker wait for each other for 44 ms in each task. A JVM of our own has it by itself."""
ResultT = TypeVar("ResultT")


def read(task: ReadTask) -> ReadReceipt:
    """Answer as a task that has decoded a file of many traces."""
    (share,) = task.shares
    path = f"{task.staging}{share.stripe:032x}.arrow"
    pieces = [
        StagedSlice(path, bucket << 17, 1 << 17, bucket, 300, 1 << 18, (share.stripe << 40) + bucket)
        for bucket in range(task.buckets)
    ]
    return ReadReceipt([ShareReceipt(share, InputDigest(share.size_bytes, "0" * 64, 1), spans=300)], pieces)


def shape(task: TransactionMergeTask) -> ShapeReceipt:
    """Answer as a task that had rows of each object."""
    return ShapeReceipt({"spans": TableChange(counts={"rows": sum(piece.rows for piece in task.pieces)})})


def measure(master: str, tasks: int, buckets: int) -> None:
    """Be the driver, and print what it took."""
    runner = spark_runner(master, {})
    inputs = [Input(FILES, f"/data/{number}.jsonl", FILE_BYTES) for number in range(tasks)]
    runner.run(abs, [1], lambda _: None)
    figures: dict[str, Any] = {}

    def step(name: str, work: Callable[[], ResultT]) -> ResultT:
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        result = work()
        figures[f"{name} s"] = time.perf_counter() - began_s
        figures[f"{name} CPU s"] = time.process_time() - began_cpu_s
        return result

    def job(name: str, function: Callable[[TaskT], ReceiptT], work: Sequence[TaskT]) -> list[ReceiptT]:
        before_s = cpu_s_below()
        receipts = step(name, lambda: runner.run(function, work, lambda _: None))
        for kind, took_s in cpu_s_below().items():
            figures[f"{name}, {kind}: CPU ms a task"] = (took_s - before_s[kind]) / len(work) * 1e3
        return receipts

    reading = step(
        "cut",
        lambda: [
            ReadTask(
                "file:///lake",
                (InputShare(FILES, item.path, FILE_BYTES),),
                buckets,
                f"staging/{number:032x}/",
            )
            for number, item in enumerate(inputs)
        ],
    )
    receipts = job("read", read, reading)
    gathered = step("gather", lambda: gather(inputs, receipts))
    ranges = [(bucket, bucket + 1) for bucket in range(buckets)]
    shaping = step("cut again", lambda: shape_tasks(gathered.pieces, ranges, buckets))
    shaped = job("shape", shape, shaping)
    assert sum(receipt.of("spans").counts["rows"] for receipt in shaped) == tasks * buckets * 300
    figures["Python MiB"] = peak_mib(os.getpid())
    figures["JVM MiB"] = max((peak_mib(p.pid) for p in tree(os.getpid()) if p.name() == "java"), default=0)
    print(json.dumps(figures), flush=True)
    runner.stop()


def cpu_s_below() -> dict[str, float]:
    """Return the processor time of the JVM below this process, and of the workers of Python."""
    took_s = {"JVM": 0.0, "workers": 0.0}
    for process in tree(os.getpid())[1:]:
        times = process.cpu_times()
        took_s["JVM" if process.name() == "java" else "workers"] += times.user + times.system
    return took_s


def shape_tasks(
    pieces: list[StagedSlice], ranges: list[tuple[int, int]], buckets: int
) -> list[TransactionMergeTask]:
    """Return the tasks that shape them, without tables of before."""
    return [
        TransactionMergeTask(
            "file:///lake", 1, "index", "build", "whitespace", buckets, low, high, of_range, {}
        )
        for (low, high), of_range in zip(ranges, by_range(pieces, ranges), strict=True)
    ]


def run_kind(kind: str, tasks: int, buckets: int, folder: Path) -> dict[str, Any]:
    """Measure in a process of its own."""
    server = ConnectServer(folder, "local[1]", SOCKETS) if kind == "connect" else None
    try:
        given = json.dumps([server.url if server else kind, tasks, buckets])
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, __file__, "--child", given], stdout=subprocess.PIPE, env=environment, check=True
        )
        figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        if server is not None:
            java = next(p for p in psutil.Process().children() if p.name() == "java")
            figures["JVM MiB"] = peak_mib(java.pid)
        return figures
    finally:
        if server is not None:
            server.kill()


def main() -> None:
    """Measure all kinds and numbers, one after the other."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--tasks", nargs="+", type=int, default=TASKS)
    parser.add_argument("--buckets", type=int, default=64)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        measure(*json.loads(options.child))
        return
    results = {}
    for kind in options.kinds:
        for tasks in options.tasks:
            with tempfile.TemporaryDirectory(prefix="tracelake-tasks-") as folder:
                results[f"{kind} {tasks:,}"] = run_kind(kind, tasks, options.buckets, Path(folder))
    table = Table("", *results)
    for name in next(iter(results.values())):
        table.add_row(name, *(f"{figures[name]:,.2f}".removesuffix(".00") for figures in results.values()))
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
