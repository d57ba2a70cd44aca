"""Runs every long suite in turn with new seeds, and keeps failures: campaign `soak`.

    python -m tests.faults.soak --minutes 60 --seed 7 --keep soak-failed

If a suite fails or takes too long, a file keeps its output and the command that runs it again; the others continue.
The seed decides the seeds of all runs, but not how many fit in the time.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

RUN_MAX_S: Final = 1800.0
"""Maximum duration of one run: many times that of any suite on two busy cores."""
SUITES: Final[dict[str, tuple[str, ...]]] = {
    "simulate": ("tests.simulation.simulate", "--seconds", "60"),
    "complete": ("tests.simulation.simulate", "--complete"),
    "maintenance": ("tests.faults.kill_maintenance", "--seconds", "60"),
    "flips": ("tests.faults.flip_everything", "--seconds", "120"),
    "index": ("tests.faults.kill_index", "--builds", "10"),
    "replicas": ("tests.faults.kill_replicas", "--kills", "20"),
    "door": ("tests.faults.kill_door", "--kills", "5"),
    "hot": ("tests.faults.kill_hot", "--kills", "5"),
    "hot-postgres": ("tests.faults.kill_hot", "--kills", "5", "--postgres"),
    "ingest": ("tests.faults.kill_ingest", "--kills", "3"),
    "archive": ("tests.faults.kill_archive", "--minutes", "2"),
    "archive-postgres": ("tests.faults.kill_archive", "--minutes", "2", "--postgres"),
    "storm": ("tests.faults.storm", "--rate", "1,50", "--stall", "5", "--seconds", "15"),
    "replicas-spark": ("tests.faults.kill_replicas", "--kills", "3", "--spark"),
}
"""Each suite, its module and its arguments in addition to a seed."""


def command(suite: str, seed: int) -> list[str]:
    """Return the command that runs, and repeats, a suite with a seed."""
    return [sys.executable, "-m", *SUITES[suite], "--seed", str(seed)]


def run(arguments: Sequence[str], log: Path, longest_s: float = RUN_MAX_S) -> str | None:
    """Run to the end, writing its output; return the problem, or None."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            arguments, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code = process.wait(longest_s)
        except subprocess.TimeoutExpired:
            return f"not over after {longest_s:g} s"
        finally:
            end_group(process)
    return None if code == 0 else f"exit code {code}"


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End the process and all its descendants."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def soak(seed: int, seconds: float, keep: Path, suites: Sequence[str] = tuple(SUITES)) -> Counter[str]:
    """Run suites in turn until the time is over; return the failures of each, also 0."""
    keep.mkdir(parents=True, exist_ok=True)
    chance = random.Random(seed)
    failures = Counter(dict.fromkeys(suites, 0))
    runs = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        suite = suites[runs % len(suites)]
        own_seed = chance.randrange(1 << 32)
        log = keep / f"{runs:04d}-{suite}-{own_seed}.log"
        started = time.monotonic()
        problem = run(command(suite, own_seed), log)
        took_s = time.monotonic() - started
        print(f"{suite:<16} seed {own_seed:<11} {took_s:6.1f} s  {problem or 'passed'}", flush=True)
        if problem is None:
            log.unlink()
        else:
            failures[suite] += 1
            again = " ".join(command(suite, own_seed))
            with log.open("a", encoding="utf-8") as out:
                out.write(f"\n{problem}\nagain: {again}\n")
            print(f"  kept in {log}; again: {again}", flush=True)
        runs += 1
    print(f"{runs} runs, {failures.total()} failed")
    return failures


def main() -> int:
    """Run from the command line; return 1 after a failure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=None, help="by default, a new one")
    parser.add_argument("--keep", type=Path, default=Path("soak-failed"), help="where failed runs are kept")
    parser.add_argument(
        "--suite", action="append", choices=sorted(SUITES), help="only this one; may be repeated"
    )
    given = parser.parse_args()
    seed = random.randrange(1 << 32) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    return 1 if soak(seed, given.minutes * 60, given.keep, given.suite or tuple(SUITES)).total() else 0


if __name__ == "__main__":
    sys.exit(main())
