"""Erasure of one user out of 1,000: time, rewritten bytes, and ingest beside it.

    python -m benchmarks.erasing                       # 5 million spans
    python -m benchmarks.erasing --spans 500000

A lake in a temporary directory gets traces of 10 spans, 100,000 spans in a file, one transaction each. A second process
then ingests further files, alone into a copy of the lake and beside the erasure into the lake. The same files need the
same merges in both. Each line states a measurement.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import tracelake
from tracelake.tasks.runners import InProcess

SPANS_PER_TRACE: Final = 10
SPANS_PER_FILE: Final = 100_000
FEW_SPANS: Final = SPANS_PER_FILE // 20
USERS: Final = 1_000
_INGEST: Final = """
import sys, time, tracelake
from tracelake.tasks.runners import InProcess
place, *files = sys.argv[1:]
lake = tracelake.open(place)
for file in files:
    began, cpu = time.monotonic(), time.process_time()
    lake.ingest(file, runner=InProcess())
    print(round(time.monotonic() - began, 3), round(time.process_time() - cpu, 3), flush=True)
"""


def write_file(path: Path, first: int, spans: int) -> None:
    """Write spans as OTLP JSON lines. Users follow each other, trace by trace."""
    with path.open("w", encoding="utf-8") as file:
        for trace in range(first, first + spans // SPANS_PER_TRACE):
            resource_of = {"attributes": [_attribute("service.name", f"service-{trace % 20}")]}
            of_trace = [_span(trace, number) for number in range(SPANS_PER_TRACE)]
            line = {"resourceSpans": [{"resource": resource_of, "scopeSpans": [{"spans": of_trace}]}]}
            file.write(json.dumps(line) + "\n")


def _span(trace: int, number: int) -> dict[str, object]:
    text = " ".join(f"word{(trace * 31 + number * 17 + at * 7) % 5_000}" for at in range(30))
    start_ns = 1_750_000_000_000_000_000 + trace * 1_000_000_000 + number * 1_000_000
    return {
        "traceId": hashlib.sha256(str(trace).encode()).hexdigest()[:32],
        "spanId": f"{number + 1:016x}",
        "parentSpanId": f"{number:016x}" if number else "",
        "name": f"step {number}",
        "kind": 1,
        "startTimeUnixNano": str(start_ns),
        "endTimeUnixNano": str(start_ns + 900_000),
        "attributes": [_attribute("user.id", f"user-{trace % USERS}"), _attribute("input.value", text)],
    }


def _attribute(key: str, value: str) -> dict[str, object]:
    return {"key": key, "value": {"stringValue": value}}


def ingest(place: Path, files: list[Path]) -> subprocess.Popen[str]:
    """Start a process that ingests files, and prints for each the seconds and the CPU seconds that it takes."""
    command = [sys.executable, "-c", _INGEST, str(place), *map(str, files)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def mean_times(process: subprocess.Popen[str]) -> str:
    """Wait for a process that ingests, and return the means of its times. The first file, which starts it, is left
    out."""
    assert process.stdout is not None
    rows = [tuple(map(float, line.split())) for line in process.stdout][1:]
    clock_s, cpu_s = (sum(column) / len(rows) for column in zip(*rows, strict=True))
    return f"{clock_s:.2f} s, {cpu_s:.2f} s of CPU time a file of {FEW_SPANS:,} spans"


def bytes_in(place: Path) -> int:
    """Return the bytes of all files in a directory."""
    return sum(path.stat().st_size for path in place.rglob("*") if path.is_file())


def main() -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--spans", type=int, default=5_000_000, help="spans of the lake before the erasure")
    parser.add_argument(
        "--files", type=int, default=24, help="files that are ingested alone, and again beside it"
    )
    given = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {time.strftime('%Y-%m-%d')}", flush=True)
    with tempfile.TemporaryDirectory(prefix="tracelake-erasing-") as folder:
        place, file = Path(folder, "lake"), Path(folder, "input.jsonl")
        began_s = time.monotonic()
        with tracelake.init(place) as lake:
            for first in range(0, given.spans, SPANS_PER_FILE):
                write_file(file, first // SPANS_PER_TRACE, min(SPANS_PER_FILE, given.spans - first))
                lake.ingest(file, runner=InProcess())
            file.unlink()
            lake.maintenance.compact(runner=InProcess())
            print(
                f"filled: {given.spans:,} spans, {bytes_in(place):,} bytes, {time.monotonic() - began_s:.0f} s"
            )
            files = [Path(folder, f"more-{number}.jsonl") for number in range(given.files)]
            for number, more in enumerate(files):
                write_file(more, (given.spans + number * FEW_SPANS) // SPANS_PER_TRACE, FEW_SPANS)
            copy = shutil.copytree(place, Path(folder, "copy"))
            print(f"ingest alone: {mean_times(ingest(copy, files))}", flush=True)
            shutil.rmtree(copy)
            beside = ingest(place, files)
            began_s, cpu_s = time.monotonic(), time.process_time()
            report = lake.erase(user="user-17")
            while report.state == "open":
                (report,) = lake.erasures.run(report.id)
                time.sleep(0.2)
            taken_s, cpu_s = time.monotonic() - began_s, time.process_time() - cpu_s
            print(f"ingest beside it: {mean_times(beside)}")
            print(f"erasure: {taken_s:.1f} s, {cpu_s:.1f} s of CPU time, {report.traces:,} traces")
            print(f"removed: {report.removed}")
            began_s = time.monotonic()
            check = lake.erasures.verify(report.id)
            print(
                f"verify: {time.monotonic() - began_s:.1f} s, {check.bytes:,} bytes, findings {len(check.findings)}"
            )
            print(f"peak memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MB")


if __name__ == "__main__":
    main()
