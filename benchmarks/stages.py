"""Where the time of an ingest goes: seconds of each stage, in one process and one thread of Python.

    python benchmarks/stages.py                       # the two real files
    python benchmarks/stages.py --files 'x/*.gz' --json

The second of two rounds is told; tantivy indexes in a thread of its own, so CPU may exceed the wall clock.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import tracelake
from tracelake.pipeline import decode as reading
from tracelake.pipeline import driver as loop
from tracelake.pipeline import merge as shaping
from tracelake.pipeline import publish
from tracelake.tasks.runners import InProcess

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
FILES = [str(DATA / name) for name in ("microservices.otlp.jsonl.gz", "agents.otlp.jsonl.gz")]

STAGES: list[tuple[ModuleType, str, str]] = [
    (loop, "run_read_task", "read task: all of it"),
    (reading, "decode_json", "  JSON to columns"),
    (reading, "_stage", "  columns to Arrow, by bucket, staged"),
    (publish, "run_shape_task", "shape task: all of it"),
    (shaping, "_read_pieces", "  read what was staged"),
    (shaping, "merge", "  merge with the tables"),
    (shaping, "_write", "  write parts"),
    (shaping, "build_part", "  index part"),
]


def timed(function: Callable[..., Any], label: str, seconds: dict[str, float]) -> Callable[..., Any]:
    """Return the function, adding the wall-clock time of each call to `seconds[label]`."""

    @functools.wraps(function)
    def measured(*args: Any, **kwargs: Any) -> Any:
        begun = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            seconds[label] = seconds.get(label, 0.0) + time.perf_counter() - begun

    return measured


def main() -> None:
    """Ingest twice in this process, and print the second round."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", nargs="+", default=FILES, help="OTLP JSON-lines files")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args()
    seconds: dict[str, float] = {}
    for module, name, label in STAGES:
        setattr(module, name, timed(getattr(module, name), label, seconds))
    for _ in range(2):
        seconds.clear()
        with tempfile.TemporaryDirectory() as folder, tracelake.init(Path(folder) / "lake") as lake:
            begun, cpu = time.perf_counter(), time.process_time()
            report = lake.ingest(*options.files, runner=InProcess())
            wall, cpu = time.perf_counter() - begun, time.process_time() - cpu
    if options.json:
        sys.stdout.write(
            json.dumps({"wall": wall, "cpu": cpu, "spans": report.spans_read, "stages": seconds}) + "\n"
        )
        return
    sys.stdout.write(f"{report.spans_read:,} spans: {wall:.2f} s wall, {cpu:.2f} s CPU\n")
    for _, _, label in STAGES:
        sys.stdout.write(f"{label:40s}{seconds[label]:7.2f} s\n")


if __name__ == "__main__":
    main()
