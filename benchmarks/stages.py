"""Where the time of an ingest goes, by stage, in one process and one thread of Python: processor time.

    python benchmarks/stages.py                                   # the two real files
    python benchmarks/stages.py --files 'x/*.gz' --json
    python benchmarks/stages.py --small --stored 0 100000 1000000  # transactions of 5 spans in 5 traces
    python benchmarks/stages.py --outbox agents.otlp.jsonl.gz      # 1,500 LLM spans that a server stored
    python benchmarks/stages.py --overlap --cut-bytes 500000       # wall: T+1 read while T is published, and not

Of the files, the second of two rounds is told. Of small transactions it is the mean of 64 (`--transactions`), so that
compaction and merges of the index are in it as often as they come. tantivy indexes in a thread of its own, which is
counted where it works.
"""

from __future__ import annotations

import argparse
import functools
import gzip
import json
import pkgutil
import random
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Final
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import tracelake
from benchmarks.cost import SpanMaker
from tracelake import Lake
from tracelake.otlp.partition import take_apart
from tracelake.pipeline.input_queue import in_thread
from tracelake.tasks.runners import InProcess
from tracelake.tracking.store import TracedRequest

DATA: Final = Path(__file__).resolve().parents[2] / "shared" / "data"
FILES: Final = [str(DATA / name) for name in ("microservices.otlp.jsonl.gz", "agents.otlp.jsonl.gz")]
WARM: Final = 3
"""Transactions before the first that counts."""

STAGES: Final = {
    "look: what stands, records of the journal": [
        "tracelake.pipeline.replay.StateReader.look",
        "tracelake.journal.store.Journal.append_step",
        "tracelake.journal.store.Journal.append_seal",
    ],
    "notes of tries": [
        "tracelake.pipeline.input_failures.CrashMarkers.begin",
        "tracelake.pipeline.input_failures.CrashMarkers.over",
        "tracelake.pipeline.input_failures.CrashMarkers.crash_count",
        "tracelake.pipeline.input_failures.CrashMarkers.crash_counts_of_reading",
    ],
    "what waits: known, set aside, measured": ["tracelake.pipeline.input_queue.InputQueue.open"],
    "read task": ["tracelake.pipeline.staging.InputReader.stage"],
    "— JSON to columns": [
        "tracelake.pipeline.decode_task.decode_json",
        "tracelake.pipeline.decode_task.decode_protobuf",
    ],
    "— columns to Arrow, by bucket, staged": ["tracelake.pipeline.decode_task._Reader._stage"],
    "shape task": ["tracelake.pipeline.publish.Outputs._shape"],
    "— read what was staged": ["tracelake.pipeline.merge_task.read_stream"],
    "— merge with the tables": ["tracelake.pipeline.merge_task.merge"],
    "— write parts": ["tracelake.pipeline.merge_task.write_part"],
    "— index part": ["tracelake.search.build._write_part", "tracelake.search.part_cache.pack"],
    "publish tables": ["tracelake.pipeline.outputs.builtin.TableOutput.publish"],
    "publish the index": ["tracelake.pipeline.outputs.builtin.IndexOutput.publish"],
    "commit": ["tracelake.pipeline.outputs.builtin.CommitOutput.publish"],
    "settle: inputs are let go": ["tracelake.pipeline.publish.InputAcker.settle"],
    "compaction": ["tracelake.tables.maintenance.Maintainer.maintain"],
    "index merges": ["tracelake.indexing.merge.IndexMerger.maintain"],
}
"""What is timed: each stage without the stages inside of it."""
REST: Final = "all else"
WITH_ALL_INSIDE: Final = {"compaction", "index merges"}
"""Stages that use functions of others, which are theirs then."""


class Stopwatch:
    """Processor time by stage; of stages inside each other the time goes to the inner one."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._stage = REST
        self._since_s = time.process_time()

    def _turn(self, stage: str) -> str:
        before, now_s = self._stage, time.process_time()
        self.seconds[before] = self.seconds.get(before, 0.0) + now_s - self._since_s
        self._stage, self._since_s = stage, now_s
        return before

    def start(self) -> None:
        """Forget all, and begin."""
        self._turn(REST)
        self.seconds.clear()

    def stop(self) -> dict[str, float]:
        """Return the seconds of each stage."""
        self._turn(REST)
        return dict(self.seconds)

    def timed(self, function: Callable[..., Any], stage: str) -> Callable[..., Any]:
        """Return the function, whose time goes to a stage."""

        @functools.wraps(function)
        def measured(*args: Any, **kwargs: Any) -> Any:
            if self._stage in WITH_ALL_INSIDE:
                return function(*args, **kwargs)
            before = self._turn(stage)
            try:
                return function(*args, **kwargs)
            finally:
                self._turn(before)

        return measured

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch all stages."""
        with ExitStack() as patched:
            for stage, targets in STAGES.items():
                for target in targets:
                    original = pkgutil.resolve_name(target)
                    patched.enter_context(mock.patch(target, self.timed(original, stage)))
            yield


def of_files(files: Sequence[str]) -> dict[str, dict[str, float]]:
    """Ingest twice, each time into a new lake; return the milliseconds of the second round."""
    watch = Stopwatch()
    with watch.watching():
        for _ in range(2):
            with tempfile.TemporaryDirectory() as folder, tracelake.init(Path(folder) / "lake") as lake:
                watch.start()
                report = lake.ingest(*files, runner=InProcess())
                found = watch.stop()
    return {f"{report.spans_read:,} spans": found}


def of_small(stored: int, transactions: int) -> dict[str, float]:
    """Return the seconds of a transaction of five spans, on top of as many stored ones."""
    watch = Stopwatch()
    random_ids = random.Random(stored)
    with tempfile.TemporaryDirectory() as folder, tracelake.init(Path(folder) / "lake") as lake:
        for number in range(0, stored, 100_000):
            _ingest(lake, Path(folder) / f"stored-{number}.jsonl", random_ids, min(stored, 100_000))
        with watch.watching():
            for number in range(WARM + transactions):
                if number == WARM:
                    watch.start()
                _ingest(lake, Path(folder) / f"small-{number}.jsonl", random_ids, 5)
            found = watch.stop()
    return {stage: seconds / transactions for stage, seconds in found.items()}


def of_outbox(texts: Path, spans: int, transactions: int) -> dict[str, float]:
    """Return the seconds of a transaction of LLM spans (see `cost.py`), ten a request, that a server stored."""
    maker, watch, found = SpanMaker("llm", texts, 0), Stopwatch(), defaultdict[str, float](float)
    with tempfile.TemporaryDirectory() as folder, tracelake.init(Path(folder) / "lake") as lake:
        store = lake.hot.set_up()
        with watch.watching(), closing(lake.pipeline(runner=InProcess())) as pipeline:
            for number in range(WARM + transactions):
                for _ in range(spans // 40):
                    bodies = [maker.request(10).body for _ in range(4)]
                    store.write(
                        [TracedRequest("protobuf", body, take_apart("protobuf", body)) for body in bodies]
                    )
                watch.start()
                pipeline.run_once()
                for stage, seconds in watch.stop().items():
                    found[stage] += seconds * (number >= WARM)
    return {stage: seconds / transactions for stage, seconds in found.items()}


def _ingest(lake: Lake, file: Path, random_ids: random.Random, spans: int) -> None:
    words = [f"word{number}" for number in range(3_000)]
    with file.open("w") as opened:
        for first in range(0, spans, 500):
            some = [
                {
                    "traceId": f"{random_ids.getrandbits(128):032x}",
                    "spanId": f"{random_ids.getrandbits(64):016x}",
                    "name": "chat",
                    "startTimeUnixNano": str(1_700_000_000_000_000_000 + first),
                    "endTimeUnixNano": str(1_700_000_000_000_000_000 + first + number),
                    "attributes": [
                        {
                            "key": "gen_ai.prompt",
                            "value": {"stringValue": " ".join(random_ids.choices(words, k=20))},
                        }
                    ],
                }
                for number in range(min(500, spans - first))
            ]
            line = {"resourceSpans": [{"scopeSpans": [{"spans": some}]}]}
            opened.write(json.dumps(line) + "\n")
    lake.ingest(str(file), runner=InProcess())
    file.unlink()


def of_overlap(files: Sequence[str], cut_bytes: int, rounds: int, master: str | None) -> dict[str, float]:
    """Return seconds of an ingest in many transactions, wall and processor time, with overlap and without it.

    The files are cut into lines of about `cut_bytes`, as many inputs. Rounds of both take turns; the sums are told.
    """
    told: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        pieces = list(_cut(files, Path(folder), cut_bytes))
        for number in range(2 * rounds + 2):
            overlaps = bool(number % 2)
            with mock.patch("tracelake.lake.sources.in_thread", in_thread if overlaps else None):
                lake = tracelake.init(Path(folder) / f"lake-{number}")
                before = time.perf_counter(), time.process_time()
                runner = None if master else InProcess()
                report = lake.ingest(*pieces, transaction_bytes=2 * cut_bytes, master=master, runner=runner)
                after = time.perf_counter(), time.process_time()
            if number > 1:  # the first of each is to warm up
                name = "with overlap" if overlaps else "without"
                told["transactions"] = len(report.transactions)
                for what, start_s, end_s in zip(("wall", "driver CPU"), before, after, strict=True):
                    told[f"{name}, {what}"] = told.get(f"{name}, {what}", 0.0) + end_s - start_s
    return told


def _cut(files: Sequence[str], folder: Path, cut_bytes: int) -> Iterator[str]:
    """Write files of a few lines each."""
    number, lines, size_bytes = 0, list[bytes](), 0
    for file in files:
        with gzip.open(file) as opened:
            for line in opened:
                lines.append(line)
                size_bytes += len(line)
                if size_bytes >= cut_bytes:
                    path = folder / f"piece-{number:05}.jsonl"
                    path.write_bytes(b"".join(lines))
                    number, lines, size_bytes = number + 1, [], 0
                    yield str(path)


def main() -> None:
    """Print a table: a line a stage, a column a run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", nargs="+", default=FILES, help="OTLP JSON-lines files")
    parser.add_argument("--small", action="store_true", help="transactions of five spans")
    parser.add_argument("--stored", nargs="+", type=int, default=[0, 100_000, 1_000_000])
    parser.add_argument("--transactions", type=int, default=64)
    parser.add_argument(
        "--outbox", type=Path, metavar="TEXTS", help="transactions of 1,500 LLM spans of a server"
    )
    parser.add_argument("--overlap", action="store_true", help="wall, with overlap and without")
    parser.add_argument("--cut-bytes", type=int, default=500_000, help="of an input; a transaction has two")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--master", help="Spark master for --overlap; else tasks run here")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args()
    if options.overlap:
        found = of_overlap(options.files, options.cut_bytes, options.rounds, options.master)
        sys.stdout.write(json.dumps(found) + "\n")
        return
    if options.outbox:
        runs = {"1,500 LLM spans": of_outbox(options.outbox, 1_500, options.transactions)}
    elif options.small:
        runs = {f"{stored:,} stored": of_small(stored, options.transactions) for stored in options.stored}
    else:
        runs = of_files(options.files)
    if options.json:
        sys.stdout.write(json.dumps(runs) + "\n")
        return
    sys.stdout.write(f"| CPU ms | {' | '.join(runs)} |\n|---|{'--:|' * len(runs)}\n")
    for stage in (*STAGES, REST):
        cells = (f"{1000 * seconds.get(stage, 0.0):,.1f}" for seconds in runs.values())
        sys.stdout.write(f"| {stage} | {' | '.join(cells)} |\n")
    sums = (f"{1000 * sum(seconds.values()):,.1f}" for seconds in runs.values())
    sys.stdout.write(f"| in all | {' | '.join(sums)} |\n")


if __name__ == "__main__":
    main()
