"""How long a transaction of 1,000 spans takes, steady, beside Structured Streaming that appends the same rows.

    scripts/setup-delta
    python benchmarks/appended.py                        # four contestants, 20 rounds after 5 to warm up
    python benchmarks/appended.py --only tracelake --rounds 40

Each has a process of its own, which lives on; they take turns, and who has no turn is stopped (SIGSTOP). A turn begins
when the input is durable: a segment in the inbox, as a server leaves it when it acknowledges, or a file.

- tracelake: until its spans are committed, and a search finds a word of them; tasks run where they belong: here.
- tracelake-spark: the same with `--master local[2]`, where each task is one of Spark.
- parquet, delta: Structured Streaming on `local[2]`, until it has committed the batch to a folder of Parquet, or to a
  table of Delta Lake. Nothing is merged or indexed, no span is looked for twice.

Told are medians: CPU seconds of all processes of each, and wall seconds, which are worth nothing where the machine has
other work. Of `tracelake` there is the CPU time by stage, too (see `stages.py`).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, Final

# For `benchmarks` and `tests`, where this is run as a file.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import streaming
from benchmarks.door_servers import cpu_s
from benchmarks.stages import REST, STAGES, Stopwatch

LINES: Final = 10
LINE_SPANS: Final = 100
TRACE_SPANS: Final = 10
WORDS: Final = [f"word{number}" for number in range(3_000)]
LOOK_S: Final = 0.005


def rows(number: int) -> bytes:
    """Return 1,000 spans of 100 traces as lines of OTLP JSON, of 600 bytes of text each, with a word of their own."""
    chance = random.Random(number)
    lines = []
    for first in range(0, LINES * LINE_SPANS, LINE_SPANS):
        trace_ids = [f"{chance.getrandbits(128):032x}" for _ in range(LINE_SPANS // TRACE_SPANS)]
        spans = [
            {
                "traceId": trace_ids[each // TRACE_SPANS],
                "spanId": f"{chance.getrandbits(64):016x}",
                "name": "chat",
                "kind": 1,
                "startTimeUnixNano": str(1_700_000_000_000_000_000 + first + each),
                "endTimeUnixNano": str(1_700_000_000_500_000_000 + first + each),
                "attributes": [
                    {
                        "key": "gen_ai.prompt",
                        "value": {"stringValue": " ".join([token(number), *chance.choices(WORDS, k=80)])},
                    }
                ],
            }
            for each in range(LINE_SPANS)
        ]
        lines.append(json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}).encode())
    return b"\n".join(lines)


def token(number: int) -> str:
    """Return a word that stands in one input alone."""
    return f"token{number:06}"


Turn = Callable[[int], dict[str, float]]
"""What a contestant does with an input; it returns CPU seconds by stage."""


def tracelake_turns(folder: Path, master: str | None) -> Turn:
    """Take segments as `tracelake pipeline run` does."""
    import tracelake  # noqa: PLC0415  each contestant imports its own
    from tracelake.otlp.framing import write_segment  # noqa: PLC0415
    from tracelake.tracking.ingest_queue import PREFIX, SEGMENT_DIGITS  # noqa: PLC0415

    lake = tracelake.init(folder / "lake")
    pipeline = lake.pipeline(master=master)
    pipeline.start(warm=master is not None)
    watch = Stopwatch()
    stages = ExitStack()  # until the process ends
    if master is None:
        stages.enter_context(watch.watching())

    def turn(number: int) -> dict[str, float]:
        path = f"{PREFIX}{0:020d}-{0:016x}-{number:0{SEGMENT_DIGITS}}.segment"
        data = write_segment([("json", line) for line in rows(number).splitlines()])
        lake.objects.put(path, data)
        began_s = time.perf_counter()
        watch.start()
        assert stages is not None, "it holds what is watched"
        report = pipeline.run_once(goes_on=True)
        assert report is not None
        assert report.spans_read == LINES * LINE_SPANS
        assert len(lake.search(token(number), limit=1)) == 1
        return {"wall": time.perf_counter() - began_s, **watch.stop()}

    return turn


def streaming_turns(folder: Path, kind: str) -> Turn:
    """Append files by a query that goes on."""
    (folder / "in").mkdir()
    spark = streaming.session(kind, folder)
    query = streaming.start(spark, kind, folder, goes_on=True)

    def turn(number: int) -> dict[str, float]:
        new = folder / "new.jsonl"
        new.write_bytes(rows(number))
        new.rename(folder / "in" / f"{number:08}.jsonl")
        began_s = time.perf_counter()
        query.processAllAvailable()
        return {"wall": time.perf_counter() - began_s}

    return turn


CONTESTANTS: Final[dict[str, Callable[[Path], Turn]]] = {
    "tracelake": lambda folder: tracelake_turns(folder, None),
    "tracelake-spark": lambda folder: tracelake_turns(folder, "local[2]"),
    "parquet": lambda folder: streaming_turns(folder, "parquet"),
    "delta": lambda folder: streaming_turns(folder, "delta"),
}


def live(name: str, folder: Path) -> None:
    """Take a turn for each line of standard input, and tell of it."""
    turn = CONTESTANTS[name](folder)
    for line in sys.stdin:
        sys.stdout.write(json.dumps(turn(int(line))) + "\n")
        sys.stdout.flush()
    os._exit(0)  # what Spark still does is of no interest


class Contestant:
    """A process, stopped unless it has its turn."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        folder.mkdir()
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--child", name, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            # Compiled modules are kept, as where it is installed.
            env=os.environ | {"PYTHONDONTWRITEBYTECODE": ""} | streaming.environment(name),
        )

    def turn(self, number: int) -> dict[str, float]:
        """Let it take an input; return its CPU seconds, in all and by stage, and wall seconds."""
        os.killpg(self._process.pid, signal.SIGCONT)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        before_s = cpu_s(self._process.pid)
        self._process.stdin.write(f"{number}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        while line and not line.startswith("{"):
            line = self._process.stdout.readline()
        told: dict[str, float] = json.loads(line)
        told["cpu"] = cpu_s(self._process.pid) - before_s
        os.killpg(self._process.pid, signal.SIGSTOP)
        return told

    def end(self) -> None:
        """Kill it, and all that it started."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def measure(names: list[str], warm: int, rounds: int) -> dict[str, list[dict[str, float]]]:
    """Return what each turn took, without those to warm up."""
    told: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory(prefix="tracelake-bench-") as place:
        contestants: list[Contestant] = []
        try:
            for name in names:
                contestants.append(Contestant(name, Path(place) / name))
                contestants[-1].turn(0)  # one after the other, until each has started
            for number in range(1, warm + rounds):
                for each in contestants:
                    took = each.turn(number)
                    if number >= warm:
                        told[each.name].append(took)
                        sys.stderr.write(f"{each.name}: {took['cpu']:.2f} s of CPU, {took['wall']:.2f} s\n")
        finally:
            for each in contestants:
                each.end()
    return told


def main() -> None:
    """Print medians, and the stages."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--warm", type=int, default=5, help="turns of each before the first that counts")
    parser.add_argument("--only", nargs="+", choices=CONTESTANTS, default=list(CONTESTANTS))
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        live(options.child[0], Path(options.child[1]))
    told = measure(options.only, options.warm, options.rounds)
    sys.stdout.write("| | CPU s | wall s, median | wall s, least |\n|---|--:|--:|--:|\n")
    for name, turns in told.items():
        walls = [turn["wall"] for turn in turns]
        cpu = median(turn["cpu"] for turn in turns)
        sys.stdout.write(f"| {name} | {cpu:.2f} | {median(walls):.2f} | {min(walls):.2f} |\n")
    for turns in filter(None, [told.get("tracelake")]):
        sys.stdout.write("\n| CPU ms of a transaction, mean | |\n|---|--:|\n")
        for stage in (*STAGES, REST):
            mean: Any = sum(turn.get(stage, 0.0) for turn in turns) / len(turns)
            sys.stdout.write(f"| {stage} | {1000 * mean:.1f} |\n")


if __name__ == "__main__":
    main()
