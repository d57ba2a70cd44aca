"""Let N committers race, each in a process or a thread of its own, and gather what became of each turn."""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.context import SpawnProcess
from multiprocessing.synchronize import Barrier
from pathlib import Path

import msgspec

from benchmarks.committing import Contestant, key_of

START_MAX_S = 300.0
"""What all processes together have to come up, and to open the stores."""
OVERTIME_MAX_S = 60.0
"""What turns that are under way have to finish when time is up; then their processes are killed."""
LEAVE_MAX_S = 10.0
"""What all processes together have to end, once they are let go."""
# Spawned and never forked: most clients of object stores do not survive a fork.
spawn = multiprocessing.get_context("spawn")


class Turn(msgspec.Struct):
    """What became of one turn; times are those of the monotonic clock, which processes share."""

    key: str
    begun_s: float
    ended_s: float
    commit_id: str
    error: str
    """Empty where it was acknowledged."""
    record_calls: float
    object_calls: float


@dataclass(frozen=True)
class Line:
    """One race."""

    contestant: str
    workers: str
    committers: int
    commits: int
    commits_per_s: float
    p50_ms: float
    p99_ms: float
    max_ms: float
    failed_percent: float
    record_calls_per_commit: float
    object_calls_per_commit: float
    errors: dict[str, int]

    @property
    def title(self) -> str:
        """Who raced."""
        return f"{self.contestant}, {self.committers} {self.workers}"


def race(contestant: Contestant, workers: str, committers: int, seconds: float) -> Line:
    """Let so many commit for so long, then check what is there; `workers` is `processes` or `threads`."""
    contestant.prepare()
    groups = [range(committers)] if workers == "threads" else [range(n, n + 1) for n in range(committers)]
    with tempfile.TemporaryDirectory(prefix="tracelake-race-") as name:
        begin, end = spawn.Barrier(committers + 1), spawn.Barrier(committers + 1)
        processes = [
            spawn.Process(target=work, args=(contestant, group, begin, end, seconds, Path(name)), daemon=True)
            for group in groups
        ]
        for process in processes:
            process.start()
        wait_for_all(begin, processes)
        begin.wait()
        deadline = time.monotonic() + seconds + OVERTIME_MAX_S
        while end.n_waiting < committers and time.monotonic() < deadline:
            time.sleep(0.02)
        end.abort()  # lets them go
        deadline = time.monotonic() + LEAVE_MAX_S
        killed = 0
        for process, group in zip(processes, groups, strict=True):
            process.join(max(0.0, deadline - time.monotonic()))
            if process.exitcode is None:
                process.kill()
                process.join()
                killed += len(group)
            else:
                assert process.exitcode == 0, f"a worker of {contestant.name} ended with {process.exitcode}"
        turns = [turn for path in Path(name).iterdir() for turn in read_turns(path)]
    contestant.check([(turn.key, turn.commit_id) for turn in turns if not turn.error])
    return summary(contestant.name, workers, committers, turns, killed)


def wait_for_all(barrier: Barrier, processes: Sequence[SpawnProcess]) -> None:
    """Wait until every committer is ready; fail as soon as one never will be."""
    deadline = time.monotonic() + START_MAX_S
    while barrier.n_waiting < barrier.parties - 1:
        ended = [process.name for process in processes if process.exitcode is not None]
        if ended or time.monotonic() > deadline:
            barrier.abort()
            raise RuntimeError(f"no race: {ended or 'some'} did not come up")
        time.sleep(0.02)


def work(
    contestant: Contestant, numbers: range, begin: Barrier, end: Barrier, seconds: float, folder: Path
) -> None:
    """Be the process of some committers, each a thread.

    The first turn of each is not timed: it imports what is imported late. Nobody leaves before all have ended, for
    processes that go away take time from those that commit.
    """
    make = contestant.open()

    def commit_all(number: int) -> None:
        committer = make(number)
        with (folder / f"{number}.jsonl").open("wb") as out:
            with suppress(Exception):
                committer.commit(0)
            begin.wait(START_MAX_S)
            stop = time.monotonic() + seconds
            turn, before = 1, committer.operations()
            while turn == 1 or time.monotonic() < stop:
                begun_s, commit_id, error = time.monotonic(), "", ""
                try:
                    commit_id = committer.commit(turn)
                except Exception as failure:  # noqa: BLE001  a failure of any kind is what is counted
                    error = f"{type(failure).__name__}: {failure}"[:300]
                ended_s, after = time.monotonic(), committer.operations()
                calls = (after[0] - before[0], after[1] - before[1])
                done = Turn(key_of(number, turn), begun_s, ended_s, commit_id, error, *calls)
                out.write(msgspec.json.encode(done) + b"\n")
                out.flush()
                turn, before = turn + 1, after
        with suppress(threading.BrokenBarrierError):
            end.wait()

    threads = [threading.Thread(target=commit_all, args=(number,)) for number in numbers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def read_turns(path: Path) -> Iterator[Turn]:
    """Yield the turns of one committer; one that was killed may have left half a line."""
    for line in path.read_bytes().split(b"\n")[:-1]:
        yield msgspec.json.decode(line, type=Turn)


def summary(contestant: str, workers: str, committers: int, turns: Sequence[Turn], killed: int) -> Line:
    """Add up; `killed` turns were not over when their time was."""
    good = [turn for turn in turns if not turn.error]
    errors = Counter(turn.error.partition(":")[0] for turn in turns if turn.error)
    if killed:
        errors["not over in time"] = killed
    took_ms = sorted((turn.ended_s - turn.begun_s) * 1_000 for turn in good) or [float("nan")]
    wall_s = max(turn.ended_s for turn in turns) - min(turn.begun_s for turn in turns)
    commits = len(good)
    return Line(
        contestant,
        workers,
        committers,
        commits,
        commits / wall_s,
        statistics.median(took_ms),
        took_ms[min(len(took_ms) - 1, len(took_ms) * 99 // 100)],
        took_ms[-1],
        100 * sum(errors.values()) / (commits + sum(errors.values())),
        sum(turn.record_calls for turn in turns) / max(1, commits),
        sum(turn.object_calls for turn in turns) / max(1, commits),
        dict(errors),
    )
