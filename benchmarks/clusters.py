"""The same work on each kind of Spark: threads of this machine, a standalone cluster, Spark Connect, YARN.

    python benchmarks/clusters.py                                     # all kinds, 50,000 spans in 20 files
    python benchmarks/clusters.py --spans 1000000 --files 64 --kinds 'local[1]' 'local[2]'
    python benchmarks/clusters.py --spans 1000 --files 1 --tasks 100 1000 10000
    python benchmarks/clusters.py --spans 10000000 --text 50 --files 512 --buckets 128 --kinds 'standalone 1'

Each kind has a process of its own, and a lake of its own on an S3 server (`scripts/setup-s3`), of 64 buckets. Workers
of the standalone cluster have one core and 512 MiB each, and so has the executor on YARN (by `--kinds yarn`, after
`scripts/setup-yarn`). Told is: from the start of the process until the first task is done, cold; another task once
Spark is there, which is what a driver that lives saves; an ingest of all files as one transaction, in seconds and
processor time of all processes but the S3 server; requests to the server, and bytes there, for each span; the tasks of
each job; the most memory that a process of each kind had; and, with `--tasks`, how long jobs of so many tasks take that
do nothing, and what the driver holds by then.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import psutil
from rich.console import Console
from rich.table import Table

# For `benchmarks` and `tests`, where this is run as a file.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import tracelake
from benchmarks.door_senders import TEXT_CHARS, bodies, with_ids
from benchmarks.door_servers import cpu_s
from benchmarks.peaks import Peaks
from tests.cluster.servers import ROOT, Cluster, ConnectServer
from tests.storage.servers.s3 import GATEWAY, S3Server
from tests.yarn.node import PYSPARK_JARS, YarnNode
from tracelake.context import spark_runner
from tracelake.tasks.runners import ReceiptT, TaskRunner, TaskT

KINDS: Final = ("local[1]", "local[2]", "standalone 1", "standalone 2", "connect", "yarn")
BUCKETS: Final = 64
SPANS_TOGETHER: Final = 100
"""Spans of one request in a file, and of a trace."""


class Noted:
    """A runner that notes how many tasks each job has, and how long it takes."""

    def __init__(self, runner: TaskRunner) -> None:
        self._runner = runner
        self.jobs: Counter[str] = Counter()
        self.took_s: defaultdict[str, float] = defaultdict(float)

    def start(self) -> None:
        """Start it."""
        self._runner.start()

    def run(
        self, function: Callable[[TaskT], ReceiptT], tasks: Sequence[TaskT], on_done: Callable[[int], None]
    ) -> list[ReceiptT]:
        """Run them."""
        name = getattr(function, "__name__", type(function).__name__)
        began_s = time.perf_counter()
        receipts = self._runner.run(function, tasks, on_done)
        print(f"{name}: {len(tasks)} tasks, {time.perf_counter() - began_s:.1f} s", file=sys.stderr)
        self.jobs[name] += len(tasks)
        self.took_s[name] += time.perf_counter() - began_s
        return receipts

    def stop(self) -> None:
        """Stop it."""
        self._runner.stop()


def nothing(task: int) -> int:
    """Do it."""
    return task


def measure(
    master: str, conf: dict[str, str], place: str, pattern: str, tasks: Sequence[int], buckets: int
) -> None:
    """Do the work in this process, and print the figures of it."""
    began_s = psutil.Process().create_time()
    runner = Noted(spark_runner(master, conf))
    runner.run(nothing, [0], lambda _: None)
    figures: dict[str, Any] = {"first_task_s": time.time() - began_s}
    figures["next_task_s"] = timed(lambda: runner.run(nothing, [0], lambda _: None))
    runner.jobs.clear()
    runner.took_s.clear()
    print(json.dumps(figures), flush=True)  # processor time and requests count from here
    with tracelake.init(place, buckets=buckets) as lake:
        figures["ingest_s"] = timed(lambda: lake.ingest(pattern, runner=runner, transaction_bytes=10**11))
        figures["spans"] = lake.tables()[0].rows
    figures |= {"jobs": dict(runner.jobs), "jobs_s": dict(runner.took_s)}
    print(json.dumps(figures), flush=True)
    for count in tasks:
        figures[f"tasks {count}"] = timed(partial(runner.run, nothing, range(count), lambda _: None))
        figures[f"driver MiB {count}"] = psutil.Process().memory_info().rss >> 20
    print(json.dumps(figures), flush=True)
    runner.stop()


def timed(work: Callable[[], object]) -> float:
    """Return the seconds that it took."""
    began_s = time.perf_counter()
    work()
    return time.perf_counter() - began_s


def write_files(folder: Path, spans: int, files: int, text_chars: int) -> str:
    """Write OTLP files with so many spans in all, 100 of them a trace, with so much text; return their pattern."""
    requests = spans // SPANS_TOGETHER
    pool = bodies(SPANS_TOGETHER, "json", 2**22, text_chars=text_chars // 2)
    for number in range(files):
        with (folder / f"{number}.jsonl").open("wb") as file:
            for request in range(number, requests, files):
                file.write(with_ids(pool[request % len(pool)], request, "json")[0] + b"\n")
    return str(folder / "*.jsonl")


@contextmanager
def kind_of(name: str, folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Start what this kind needs; yield its master, and settings."""
    what, _, count = name.partition(" ")
    conf = {"spark.pyspark.python": sys.executable}
    if what == "standalone":
        with closing(Cluster(folder, int(count))) as cluster:
            yield cluster.master, conf | {"spark.executor.memory": "512m"}
    elif what == "connect":
        server = ConnectServer(folder)
        try:
            yield server.url, {}
        finally:
            server.kill()
    elif what == "yarn":
        with closing(YarnNode(folder)) as node:
            os.environ |= {"HADOOP_CONF_DIR": str(node.settings), "SPARK_LOCAL_IP": "127.0.0.1"}
            yield name, conf | yarn_conf(folder)
    else:
        yield name, {}


def yarn_conf(folder: Path) -> dict[str, str]:
    """Return settings for one small executor, which has Spark's jars and this Python without being sent them."""
    return {
        "spark.executor.instances": "1",
        "spark.executor.memory": "512m",
        "spark.executorEnv.PYTHONPATH": str(ROOT),
        "spark.yarn.am.memory": "256m",
        "spark.yarn.jars": f"local:{PYSPARK_JARS}",
        "spark.yarn.stagingDir": folder.as_uri(),
    }


def run_kind(name: str, folder: Path, pattern: str, tasks: Sequence[int], buckets: int) -> dict[str, Any]:
    """Measure one kind in a process of its own, and what it asked the S3 server for."""
    log = folder / "access.log"
    with ExitStack() as stack:
        s3 = stack.enter_context(closing(S3Server(log)))
        os.environ.update(s3.environment())  # a server of Spark Connect has it from here
        master, conf = stack.enter_context(kind_of(name, folder))
        environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": ""}
        given = json.dumps([master, conf, s3.url(), pattern, list(tasks), buckets])
        command = [sys.executable, str(Path(__file__)), "--child", given]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as child:
            assert child.stdout is not None
            peaks = stack.enter_context(Peaks(os.getpid(), partial(kind_of_process, child.pid)))
            json.loads(child.stdout.readline())
            before_s = cpu_s(os.getpid()) - cpu_s(s3.process.pid)
            figures: dict[str, Any] = json.loads(child.stdout.readline())
            figures["cpu_s"] = cpu_s(os.getpid()) - cpu_s(s3.process.pid) - before_s
            figures |= {"requests": requests_of(log), "stored_bytes": size_of(s3.directory)}
            figures["peak MiB"] = peaks.mib()
            figures |= json.loads(child.stdout.readline())
        assert child.returncode == 0
    return figures


def kind_of_process(driver: int, process: psutil.Process) -> str | None:
    """Return what a process is; `driver` is the one that ingests."""
    if process.pid == driver:
        return "driver"
    words = " ".join(process.cmdline())
    kinds = {
        "CoarseGrainedExecutorBackend": "executor",
        "pyspark.daemon": "worker of Python",
        "java": "other JVM",
    }
    return next((kind for word, kind in kinds.items() if word in words), None)


def requests_of(log: Path) -> dict[str, int]:
    """Count the requests of an access log by what they do: its lines are as those of S3."""
    lines = (line.split() for line in log.read_text().splitlines())
    return Counter(words[7].removeprefix("s3_") for words in lines if len(words) > 7)


def size_of(folder: Path) -> int:
    """Return the bytes of all files below it."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def main() -> None:
    """Measure all kinds, one after the other."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS[:-1])
    parser.add_argument("--spans", type=int, default=50_000)
    parser.add_argument("--files", type=int, default=20)
    parser.add_argument(
        "--text", type=int, default=2 * TEXT_CHARS, help="characters of a span's input and output"
    )
    parser.add_argument("--buckets", type=int, default=BUCKETS)
    parser.add_argument("--tasks", nargs="*", type=int, default=[])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        measure(*json.loads(options.child))
        return
    if not GATEWAY.exists():
        sys.exit("There is no S3 server; run scripts/setup-s3 first.")
    results = {}
    with tempfile.TemporaryDirectory(prefix="tracelake-clusters-") as name:
        pattern = write_files(Path(name), options.spans, options.files, options.text)
        for kind in options.kinds:
            with tempfile.TemporaryDirectory(prefix="tracelake-cluster-") as folder:
                results[kind] = run_kind(kind, Path(folder), pattern, options.tasks, options.buckets)
    if options.json:
        print(json.dumps(results))
        return
    show(results)


def show(results: dict[str, dict[str, Any]]) -> None:
    """Print a column for each kind."""
    rows: dict[str, list[str]] = {}
    for figures in results.values():
        spans = figures["spans"]
        told = {
            "first task, cold s": f"{figures['first_task_s']:.1f}",
            "next task s": f"{figures['next_task_s']:.2f}",
            "ingest s": f"{figures['ingest_s']:.1f}",
            "spans/s": f"{spans / figures['ingest_s']:,.0f}",
            "CPU µs a span": f"{figures['cpu_s'] / spans * 1e6:,.0f}",
            "requests for 1,000 spans": f"{sum(figures['requests'].values()) / spans * 1e3:.2f}",
            "of which PutObject": f"{figures['requests']['PutObject'] / spans * 1e3:.2f}",
            "bytes kept a span": f"{figures['stored_bytes'] / spans:,.0f}",
            "tasks": ", ".join(f"{name} {count}" for name, count in figures["jobs"].items()),
            "s in them": ", ".join(f"{value:,.1f}" for value in figures["jobs_s"].values()),
            "most MiB": ", ".join(f"{name} {mib}" for name, mib in figures["peak MiB"].items()),
        }
        told |= {name: f"{value:,.1f}" for name, value in figures.items() if name[:5] in ("tasks", "drive")}
        for name, value in told.items():
            rows.setdefault(name, []).append(value)
    table = Table("", *results)
    for name, values in rows.items():
        table.add_row(name, *values)
    Console().print(table)


if __name__ == "__main__":
    main()
