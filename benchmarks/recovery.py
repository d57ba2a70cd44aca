"""How long recovery takes after kill -9 in an open transaction, by its length and by what was sealed before it.

    python benchmarks/recovery.py                                     # beside Structured Streaming
    python benchmarks/recovery.py --sealed 10 100 1000 --steps 1 10 100 --only tracelake

Each lake is made by a process that commits as many transactions of ten spans as `--sealed` says, then takes `--steps`
steps of ten spans into a transaction that stays open, and is killed with SIGKILL. Another process goes on: it replays
the steps, compares them with the journal, and publishes. Told is what that takes from when it is ready (modules
imported, stores open) until the transaction is committed and searchable.

Structured Streaming has the same rows in files, one file a batch, and then all of `--steps` files in one, in which it
is killed: its offsets are in the checkpoint, its commit is not. It is ready when its session is there, done when the
query has committed that batch. Tables are Parquet. Nobody else writes meanwhile, so what a restart costs by itself is
told apart: `start`.

CPU seconds of all processes of each (the machine may have other work), wall seconds beside them.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

# For `benchmarks` and `tests`, where this is run as a file.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import streaming
from benchmarks.door_servers import cpu_s
from tests.pipeline.spans import a_line, a_span

SPANS: Final = 10
"""Of a step, and of a transaction that is sealed."""
LOOK_S: Final = 0.002
WITHIN_S: Final = 900.0


def line(number: int) -> bytes:
    """Return the request of a step."""
    return a_line(*(a_span(number * SPANS + each, number * SPANS + each) for each in range(SPANS)))


def tell(word: str) -> None:
    """Say to who started this process that it has come so far."""
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


# Tracelake


def arrive(folder: Path, number: int) -> None:
    """Put a segment into the inbox, as a server does."""
    from tracelake.otlp.framing import write_segment  # noqa: PLC0415
    from tracelake.tracking.ingest_queue import PREFIX, SEGMENT_DIGITS  # noqa: PLC0415

    path = folder / "lake" / PREFIX / f"{0:020d}-{0:016x}-{number:0{SEGMENT_DIGITS}}.segment"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(write_segment([("json", line(number))]))


def tracelake_before(folder: Path, sealed: int, steps: int) -> None:
    """Commit transactions, open one more, and wait for the end."""
    import tracelake  # noqa: PLC0415

    with tracelake.init(folder / "lake") as lake:
        pipeline = lake.pipeline()
        for number in range(sealed):
            arrive(folder, number)
            pipeline.run_once()
        os.environ |= {"TRACELAKE_TRANSACTION_ROWS": "10000000", "TRACELAKE_TRANSACTION_DELAY_S": "3600"}
        pipeline = lake.pipeline()
        for number in range(sealed, sealed + steps):
            arrive(folder, number)
            pipeline.run_once(goes_on=True)
        newest = lake.journal.transactions(1)[0]
        assert (newest.transaction, newest.state, newest.steps) == (sealed, "open", steps), newest
    tell("open")
    time.sleep(WITHIN_S)


def tracelake_after(folder: Path, sealed: int, steps: int) -> None:
    """Finish what the killed process left."""
    import tracelake  # noqa: PLC0415

    with tracelake.open(folder / "lake") as lake:
        pipeline = lake.pipeline()

        def on_progress(step: Any) -> None:
            if step.stage == "publishing" and step.done == step.total and step.transaction == sealed:
                tell("done")  # what is maintained after it keeps nobody waiting

        tell("ready")
        pipeline.run_once(on_progress)
        assert lake.table("spans").info().rows == (sealed + steps) * SPANS
        assert lake.journal.explain(sealed).info.state == "committed"
        pipeline.close()


# Structured Streaming


def spark_before(folder: Path, sealed: int, steps: int) -> None:
    """Commit batches of a file each, then begin one of many files."""
    (folder / "in").mkdir()
    for number in range(sealed):
        (folder / "in" / f"{number:08}.jsonl").write_bytes(line(number))
    spark = streaming.session("parquet", folder)
    streaming.start(spark, "parquet", folder, files_at_once=1).awaitTermination()
    for number in range(sealed, sealed + steps):
        (folder / "in" / f"{number:08}.jsonl").write_bytes(line(number))
    streaming.start(spark, "parquet", folder)
    while not (folder / "checkpoint" / "offsets" / str(sealed)).exists():
        time.sleep(LOOK_S)
    tell("open")
    time.sleep(WITHIN_S)


def spark_after(folder: Path, sealed: int, steps: int) -> None:
    """Restart the query from its checkpoint."""
    assert not (folder / "checkpoint" / "commits" / str(sealed)).exists(), "it was quicker than the kill"
    spark = streaming.session("parquet", folder)
    tell("ready")
    streaming.start(spark, "parquet", folder).awaitTermination()
    assert (folder / "checkpoint" / "commits" / str(sealed)).exists()
    tell("done")
    assert spark.read.parquet(str(folder / "out")).count() == (sealed + steps) * SPANS


CONTESTANTS: Final = {
    "tracelake": (tracelake_before, tracelake_after),
    "spark": (spark_before, spark_after),
}


def run_child(name: str, which: int, folder: Path, sealed: int, steps: int) -> subprocess.Popen[str]:
    """Start a process of a contestant: before the kill (0), or after it (1)."""
    command = [sys.executable, __file__, "--child", name, str(which), str(folder), str(sealed), str(steps)]
    environment = os.environ | {
        "PYTHONDONTWRITEBYTECODE": ""
    }  # compiled modules are kept, as where it is installed
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )


def told(process: subprocess.Popen[str], word: str) -> None:
    """Wait until a process says a word."""
    assert process.stdout is not None
    for said in process.stdout:
        if said.strip() == word:
            return
    sys.exit(f"a process ended with {process.wait()} before it was {word}")


def kill(process: subprocess.Popen[str]) -> None:
    """Kill a process with all that it started."""
    os.killpg(process.pid, 9)
    process.wait()


def recover(name: str, sealed: int, steps: int) -> dict[str, Any]:
    """Kill a process in an open transaction, and return what the next one takes."""
    folder = Path(tempfile.mkdtemp(prefix="tracelake-bench-"))
    try:
        before = run_child(name, 0, folder, sealed, steps)
        told(before, "open")
        kill(before)
        begun_s = time.monotonic()
        after = run_child(name, 1, folder, sealed, steps)
        told(after, "ready")
        ready_s, ready_cpu_s = time.monotonic(), cpu_s(after.pid)
        told(after, "done")
        done_s, done_cpu_s = time.monotonic(), cpu_s(after.pid)
        assert after.wait() == 0
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {
        "of": name,
        "sealed": sealed,
        "steps": steps,
        "start_cpu_s": round(ready_cpu_s, 2),
        "recovery_cpu_s": round(done_cpu_s - ready_cpu_s, 3),
        "start_s": round(ready_s - begun_s, 2),
        "recovery_s": round(done_s - ready_s, 3),
    }


def cases(sealed: list[int], steps: list[int]) -> Iterator[tuple[int, int]]:
    """Yield the cases: all lengths behind the fewest sealed, and the shortest behind each number."""
    yield from ((sealed[0], each) for each in steps)
    yield from ((each, steps[0]) for each in sealed[1:])


def main() -> None:
    """Print a line for each case, of each in turn."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sealed", nargs="+", type=int, default=[10, 100])
    parser.add_argument("--steps", nargs="+", type=int, default=[1, 10, 100])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=CONTESTANTS, default=list(CONTESTANTS))
    parser.add_argument("--child", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        name, which, folder, sealed, steps = options.child
        CONTESTANTS[name][int(which)](Path(folder), int(sealed), int(steps))
        return
    for _ in range(options.rounds):
        for sealed, steps in cases(options.sealed, options.steps):
            for name in options.only:
                sys.stdout.write(json.dumps(recover(name, sealed, steps)) + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
