"""Ingest, end to end, beside plain PySpark and DuckDB on the same files in one run.

    python benchmarks/ingest.py                      # the two real files, 3 rounds each
    python benchmarks/ingest.py --files 'x/*.gz' --rounds 5 --json

Each contestant runs in a process of its own, one after the other. Its first round is cold (JVM and caches),
the best of the others is warm; start-up until the first job can run is told apart. Memory is the peak of
the proportional set sizes, sampled every 100 ms: driver (Python), JVM, workers (Python below the JVM).

- tracelake: files → committed and searchable: every span once, checksums, two tables, full-text index.
- pyspark:   `spark.read.json` with a schema, explode, `write.parquet`: no dedupe, no index, no commit.
- duckdb:    `read_json` with types, unnest, `COPY TO` Parquet: the same.
"""

from __future__ import annotations

import argparse
import glob
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
FILES = [str(DATA / name) for name in ("microservices.otlp.jsonl.gz", "agents.otlp.jsonl.gz")]
SPANS_PER_RUN = "spans"
CONTESTANTS = ("tracelake", "pyspark", "duckdb")

VALUE = (
    "struct<stringValue:string,intValue:string,doubleValue:double,boolValue:boolean,"
    "arrayValue:struct<values:array<struct<stringValue:string>>>>"
)
ATTRIBUTES = f"array<struct<key:string,value:{VALUE}>>"
SPARK_SCHEMA = (
    f"""
    resourceSpans array<struct<
        resource:struct<attributes:{ATTRIBUTES}>,
        scopeSpans:array<struct<
            scope:struct<name:string,version:string>,
            spans:array<struct<
                traceId:string,spanId:string,parentSpanId:string,name:string,kind:int,
                startTimeUnixNano:string,endTimeUnixNano:string,attributes:{ATTRIBUTES},
                events:array<struct<timeUnixNano:string,name:string,attributes:{ATTRIBUTES}>>,
                links:array<struct<traceId:string,spanId:string,attributes:{ATTRIBUTES}>>,
                status:struct<code:int,message:string>>>>>>>
""".replace("\n", "")
    .replace(" array", " array")
    .strip()
)


def _cpu_s() -> float:
    """Return the processor time of this process and those below it."""
    total, me = 0.0, psutil.Process()
    for process in [me, *me.children(recursive=True)]:
        with suppress(psutil.Error):
            total += sum(process.cpu_times()[:4])
    return total


def _used(before_s: float, target: Path) -> dict[str, float]:
    """Return the processor time since `before_s`, and the size of a file or folder."""
    files = [target] if target.is_file() else target.rglob("*")
    return {"cpu_seconds": _cpu_s() - before_s, "bytes": sum(file.stat().st_size for file in files)}


def tracelake_rounds(files: list[str], folder: Path, rounds: int, started: float) -> list[dict[str, float]]:
    """Ingest into a new lake each round, in one Spark session."""
    import tracelake  # noqa: PLC0415  each contestant imports its own
    from tracelake.tasks.spark import Spark  # noqa: PLC0415

    runner = Spark("local[*]")
    runner.start()
    ready = time.perf_counter()
    results = []
    for number in range(rounds):
        begun = time.perf_counter()
        with tracelake.init(folder / str(number)) as lake:
            report = lake.ingest(*files, runner=runner)
            hits = lake.search("refund", limit=1)
            results.append({"seconds": time.perf_counter() - begun, SPANS_PER_RUN: report.spans_read})
        assert not report.bad, report.bad
        assert len(hits) <= 1
    results[0]["start_seconds"] = ready - started
    runner.stop()
    return results


def pyspark_rounds(files: list[str], folder: Path, rounds: int, started: float) -> list[dict[str, float]]:
    """Parse and write Parquet in one Spark session, as its documentation shows."""
    from pyspark.sql import SparkSession  # noqa: PLC0415
    from pyspark.sql import functions as f  # noqa: PLC0415

    builder = SparkSession.builder.master("local[*]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    ready = time.perf_counter()
    results = []
    for number in range(rounds):
        begun, cpu_s = time.perf_counter(), _cpu_s()
        lines = spark.read.schema(" ".join(SPARK_SCHEMA.split())).json(files)
        spans = (
            lines.select(f.explode("resourceSpans").alias("r"))
            .select("r.resource", f.explode("r.scopeSpans").alias("s"))
            .select("resource", "s.scope", f.explode("s.spans").alias("span"))
            .select("resource", "scope", "span.*")
        )
        target = str(folder / str(number))
        spans.write.option("compression", "zstd").parquet(target)
        results.append({"seconds": time.perf_counter() - begun, **_used(cpu_s, Path(target))})
        results[-1][SPANS_PER_RUN] = spark.read.parquet(target).count()
    results[0]["start_seconds"] = ready - started
    spark.stop()
    return results


def duckdb_rounds(files: list[str], folder: Path, rounds: int, started: float) -> list[dict[str, float]]:
    """Parse and write Parquet with DuckDB."""
    import duckdb  # noqa: PLC0415

    value = "STRUCT(stringValue VARCHAR, intValue VARCHAR, doubleValue DOUBLE, boolValue BOOLEAN)"
    attributes = f"STRUCT(key VARCHAR, value {value})[]"
    span = (
        "STRUCT(traceId VARCHAR, spanId VARCHAR, parentSpanId VARCHAR, name VARCHAR, kind INTEGER, "
        f"startTimeUnixNano VARCHAR, endTimeUnixNano VARCHAR, attributes {attributes}, "
        f"events STRUCT(timeUnixNano VARCHAR, name VARCHAR, attributes {attributes})[], "
        f"links STRUCT(traceId VARCHAR, spanId VARCHAR, attributes {attributes})[], "
        "status STRUCT(code INTEGER, message VARCHAR))"
    )
    scope = f"STRUCT(scope STRUCT(name VARCHAR, version VARCHAR), spans {span}[])[]"
    resource = f"STRUCT(resource STRUCT(attributes {attributes}), scopeSpans {scope})[]"
    db = duckdb.connect()
    ready = time.perf_counter()
    results = []
    for number in range(rounds):
        begun, cpu_s = time.perf_counter(), _cpu_s()
        target = folder / f"{number}.parquet"
        names = ", ".join(f"'{file}'" for file in files)
        db.execute(f"""
            COPY (
                WITH r AS (
                    SELECT unnest(resourceSpans) AS r
                    FROM read_json([{names}], format = 'newline_delimited', maximum_object_size = 67108864,
                                   columns = {{resourceSpans: '{resource}'}})
                ), s AS (SELECT r.resource AS resource, unnest(r.scopeSpans) AS s FROM r)
                SELECT resource, s.scope AS scope, unnest(s.spans, recursive := false) AS span FROM s
            ) TO '{target}' (FORMAT parquet, COMPRESSION zstd)
        """)
        results.append({"seconds": time.perf_counter() - begun, **_used(cpu_s, target)})
        ((count,),) = db.sql(f"SELECT count(*) FROM read_parquet('{target}')").fetchall()
        results[-1][SPANS_PER_RUN] = count
    results[0]["start_seconds"] = ready - started
    return results


class PeakMemory:
    """Samples the memory of a process tree, by kind of process, in a thread."""

    def __init__(self, process: psutil.Process, every_s: float = 0.1) -> None:
        self._every_s = every_s
        self.peak_mib = {"driver": 0.0, "jvm": 0.0, "workers": 0.0}
        self._root = process
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._end.wait(self._every_s):
            now = dict.fromkeys(self.peak_mib, 0.0)
            try:
                for process in [self._root, *self._root.children(recursive=True)]:
                    try:
                        java = process.name() == "java"
                        kind = "jvm" if java else "driver" if process == self._root else "workers"
                        now[kind] += process.memory_full_info().pss / 2**20
                    except psutil.Error:
                        continue
            except psutil.Error:
                return
            for kind, value in now.items():
                self.peak_mib[kind] = max(self.peak_mib[kind], value)


def run_contestant(name: str, files: list[str], rounds: int) -> dict[str, Any]:
    """Run one contestant in a process of its own, and return its figures."""
    command = [sys.executable, __file__, "--contestant", name, "--rounds", str(rounds), "--files", *files]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    with PeakMemory(psutil.Process(process.pid)) as memory:
        output, _ = process.communicate()
    if process.returncode:
        sys.exit(f"{name} failed with exit code {process.returncode}")
    results: list[dict[str, float]] = json.loads(output.splitlines()[-1])
    counts = {int(result[SPANS_PER_RUN]) for result in results}
    assert len(counts) == 1, counts
    warm = [result["seconds"] for result in results[1:]] or [results[0]["seconds"]]
    return {
        "contestant": name,
        "spans": counts.pop(),
        "start_seconds": results[0]["start_seconds"],
        "cold_seconds": results[0]["seconds"],
        "warm_seconds": min(warm),
        "warm_median_seconds": statistics.median(warm),
        "peak_mib": memory.peak_mib,
    }


def bytes_of(files: list[str]) -> int:
    """Return the size of all JSON text, decompressed."""
    import gzip  # noqa: PLC0415

    total = 0
    for file in files:
        with gzip.open(file) if file.endswith(".gz") else Path(file).open("rb") as stream:
            while block := stream.read(1 << 20):
                total += len(block)
    return total


def print_table(results: list[dict[str, Any]], json_bytes: int) -> None:
    """Print figures and ratios to plain PySpark."""
    base = next(result for result in results if result["contestant"] == "pyspark")
    table = Table(title=f"{results[0]['spans']:,} spans, {json_bytes / 1e6:,.1f} MB of JSON")
    for heading in (
        "", "start s", "cold s", "warm s", "spans/s cold", "spans/s warm", "MB/s warm",
        "× pyspark cold", "× pyspark warm", "× with start", "driver MiB", "JVM MiB", "workers MiB",
    ):  # fmt: skip
        table.add_column(heading, justify="right")
    for result in results:
        cold, warm, start = result["cold_seconds"], result["warm_seconds"], result["start_seconds"]
        whole = (base["start_seconds"] + base["cold_seconds"]) / (start + cold)
        table.add_row(
            result["contestant"],
            f"{start:.1f}",
            f"{cold:.1f}",
            f"{warm:.1f}",
            f"{result['spans'] / cold:,.0f}",
            f"{result['spans'] / warm:,.0f}",
            f"{json_bytes / 1e6 / warm:.1f}",
            f"{base['cold_seconds'] / cold:.2f}",
            f"{base['warm_seconds'] / warm:.2f}",
            f"{whole:.2f}",
            *(f"{result['peak_mib'][kind]:,.0f}" for kind in ("driver", "jvm", "workers")),
        )
    Console(width=160).print(table)


ROUNDS: dict[str, Callable[[list[str], Path, int, float], list[dict[str, float]]]] = {
    "tracelake": tracelake_rounds,
    "pyspark": pyspark_rounds,
    "duckdb": duckdb_rounds,
}


def main() -> None:
    """Run all contestants, or, in a child process, one."""
    started = time.perf_counter()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", nargs="+", default=FILES, help="OTLP JSON-lines files")
    parser.add_argument("--rounds", type=int, default=4, help="rounds of each contestant; the first is cold")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--contestant", choices=CONTESTANTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    files = [file for pattern in options.files for file in sorted(glob.glob(pattern)) or [pattern]]  # noqa: PTH207
    if options.contestant:
        with tempfile.TemporaryDirectory(prefix="tracelake-bench-") as folder:
            rounds = ROUNDS[options.contestant](files, Path(folder), options.rounds, started)
        sys.stdout.write(f"\n{json.dumps(rounds)}\n")
        return
    results = [run_contestant(name, files, options.rounds) for name in CONTESTANTS]
    json_bytes = bytes_of(files)
    if options.json:
        sys.stdout.write(json.dumps({"json_bytes": json_bytes, "results": results}) + "\n")
    else:
        print_table(results, json_bytes)


if __name__ == "__main__":
    main()
