"""What many small segments, or files, cost beside the same spans in one file: processor time by stage, in one process.

    python benchmarks/segments.py                              # 3,000 requests of 1 span, 300 of 10
    python benchmarks/segments.py --requests 10000 --spans 1 --json

Each segment has one request, as a single sender leaves them while no pipeline runs; so has each of the small files,
which one `ingest` takes. The file has the same requests. All are taken in this process, maintenance too, and by turns;
the first round is to warm up. Transactions of segments are as large as seconds of processor time allow, and not of the
clock, as if nobody else were on this machine. The last lines are the ratios, and how many transactions there were.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

# For `benchmarks` and `tests`, where this is run as a file.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import tracelake
from benchmarks.door_senders import bodies, with_ids
from benchmarks.stages import REST, STAGES, Stopwatch
from tracelake import Lake
from tracelake.otlp.framing import write_segment
from tracelake.pipeline import driver
from tracelake.tasks.runners import InProcess
from tracelake.tracking.ingest_queue import PREFIX, SEGMENT_DIGITS

WARM_REQUESTS = 50
KINDS = ("segments", "files", "file")


def requests(count: int, spans: int) -> list[bytes]:
    """Return so many requests, of different traces and texts."""
    pool = bodies(spans, "protobuf", min(count * spans * 5_000, 64 * 2**20))
    return [with_ids(pool[number % len(pool)], number, "protobuf")[0] for number in range(count)]


def from_segments(lake: Lake, some: list[bytes], watch: Stopwatch) -> dict[str, float]:
    """Store a segment for each request, then take them; return the seconds of each stage."""
    for number, body in enumerate(some):
        path = f"{PREFIX}{0:020d}-{0:016x}-{number:0{SEGMENT_DIGITS}}.segment"
        lake.objects.put(path, write_segment([("protobuf", body)]))
    pipeline = lake.pipeline(runner=InProcess())
    with mock.patch.object(driver, "time", SimpleNamespace(monotonic=time.process_time)):
        watch.start()
        while pipeline.run_once():
            pass
        return watch.stop()


def from_files(lake: Lake, some: list[bytes], watch: Stopwatch, folder: Path) -> dict[str, float]:
    """Ingest a file for each request; return the seconds of each stage."""
    small = folder / "small"
    small.mkdir()
    for number, body in enumerate(some):
        (small / f"{number:08}.otlp").write_bytes(body)
    watch.start()
    lake.ingest(f"{small}/*.otlp", runner=InProcess())
    return watch.stop()


def from_file(lake: Lake, some: list[bytes], watch: Stopwatch, folder: Path) -> dict[str, float]:
    """Ingest one file of all requests; return the seconds of each stage."""
    path = folder / "requests.otlp"
    path.write_bytes(b"".join(len(body).to_bytes(4) + body for body in some))
    watch.start()
    lake.ingest(str(path), runner=InProcess())
    return watch.stop()


def measure(count: int, spans: int) -> tuple[dict[str, dict[str, float]], int]:
    """Return microseconds a span by stage, of segments, of small files and of the one file.

    And in how many transactions the segments were taken.
    """
    transactions = 0
    told: dict[str, dict[str, float]] = {}
    watch = Stopwatch()
    for some in (requests(WARM_REQUESTS, spans), requests(count, spans)):
        for kind in KINDS:
            with tempfile.TemporaryDirectory() as name, tracelake.init(Path(name) / "lake") as lake:
                with watch.watching():
                    if kind == "segments":
                        seconds = from_segments(lake, some, watch)
                        transactions = lake.table("spans").info().upper
                    elif kind == "files":
                        seconds = from_files(lake, some, watch, Path(name))
                    else:
                        seconds = from_file(lake, some, watch, Path(name))
                assert lake.table("spans").info().rows == len(some) * spans
            told[f"{kind} of {spans}"] = {
                stage: s * 1e6 / (len(some) * spans) for stage, s in seconds.items()
            }
    return told, transactions


def main() -> None:
    """Print a table: a line a stage, a column a run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=3_000)
    parser.add_argument("--spans", nargs="+", type=int, default=[1, 10])
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args()
    runs: dict[str, dict[str, float]] = {}
    transactions: dict[str, int] = {}
    for spans in options.spans:
        of_spans, transactions[f"segments of {spans}"] = measure(options.requests, spans)
        runs |= of_spans
    sums = {name: sum(stages.values()) for name, stages in runs.items()}
    ratios = {
        f"{kind} of {spans}": sums[f"{kind} of {spans}"] / sums[f"file of {spans}"]
        for spans in options.spans
        for kind in KINDS[:-1]
    }
    if options.json:
        sys.stdout.write(
            json.dumps({"us_per_span": runs, "ratios": ratios, "transactions": transactions}) + "\n"
        )
        return
    sys.stdout.write(f"| CPU µs a span | {' | '.join(runs)} |\n|---|{'--:|' * len(runs)}\n")
    for stage in (*STAGES, REST):
        cells = (f"{stages.get(stage, 0.0):,.0f}" for stages in runs.values())
        sys.stdout.write(f"| {stage} | {' | '.join(cells)} |\n")
    sys.stdout.write(f"| in all | {' | '.join(f'{each:,.0f}' for each in sums.values())} |\n")
    for name, ratio in ratios.items():
        sys.stdout.write(f"{name} cost {ratio:.2f} × the file\n")
    for name, number in transactions.items():
        sys.stdout.write(f"{name} were taken in {number} transactions\n")


if __name__ == "__main__":
    main()
