"""Two real replicas on one lake during input: killed, paused and restarted at random moments.

    python -m tests.faults.kill_replicas --kills 200 --seed 7
    python -m tests.faults.kill_replicas --kills 20 --seed 7 --spark

Half of the events are kills (SIGKILL, then a cold start), half are pauses (SIGSTOP, later SIGCONT). At the end the
tables must equal those of a single writer, each request must be in one transaction, and `verify` must find nothing.

No gap may exceed the stated bound. It is the longest pause, since a paused process may hold SQLite's write lock,
plus twice the time of a cold start and a transaction on this machine. If other work slows the machine later, the
bound grows with the slowest cold start. A gap is a time in which input waited, the same replica was up throughout,
and no commit happened. "Up" means past its cold start, neither killed nor paused.

A transaction whose attempts are all killed is quarantined, and later ones take its inputs. The seed decides events
and moments. The code running at a moment also depends on the machine, so a failure names both.
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
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psutil

import tracelake
from tests.faults.as_of_one import check_as_of_one
from tests.faults.feeder import Feeder
from tests.patience import TOTAL_MAX_S, Patience
from tracelake.limits import REPLICA_GONE_S
from tracelake.replicas.replica import REPLICA_HEARTBEAT_S
from tracelake.storage import FileObjectStore

NAMES = ("a", "b")
POLL_S = 0.05
EVENTS_APART_MAX_S = 30.0
LONG_PAUSE_FROM = 20
"""Minimum kills of a campaign that ends with a pause of PAUSE_MAX_S."""
SPARK_MASTER = "local[2]"
"""Without a named master, the small transactions of this campaign run in the replica's process."""
PAUSE_MAX_S = REPLICA_GONE_S + 2 * REPLICA_HEARTBEAT_S

Tell = Callable[[str], None]


class Replica:
    """`tracelake pipeline run` as a process, restarted after each kill."""

    def __init__(self, lake: Path, name: str, *, spark: bool) -> None:
        program = "tracelake.cli" if spark else "tests.faults.replica_process"
        self.name = name
        self._command = [sys.executable, "-m", program, "pipeline", "run", "--lake", str(lake)]
        self._command += ["--replica", name, "--interval", "0.2", "--json"]
        if spark:
            self._command += ["--master", SPARK_MASTER]
        self._log = lake.with_name(f"{lake.name}-{name}.log")
        self._process: subprocess.Popen[bytes] | None = None
        self.paused_since: float | None = None
        self._started_at: float | None = None
        self._working_since: float | None = None
        self._log_at = 0
        self.starts_s: list[float] = []
        """Durations of cold starts without a pause."""
        self.has_run_java = False
        """Whether a kill or pause found a JVM below it."""

    def start(self) -> None:
        """Start cold."""
        self._working_since, self._started_at = None, time.monotonic()
        with self._log.open("ab") as log:
            self._log_at = log.tell()
            self._process = subprocess.Popen(
                self._command, stdout=subprocess.PIPE, stderr=log, start_new_session=True
            )

    def alive(self) -> bool:
        """Return whether it is neither dead nor paused."""
        return self._process is not None and self._process.poll() is None and self.paused_since is None

    def working_since(self) -> float | None:
        """Return the start of its uninterrupted uptime; None while it is dead, paused or starting."""
        if not self.alive():
            self._working_since = None
        elif self._working_since is None and b"looks for input" in self._log.read_bytes()[self._log_at :]:
            self._working_since = time.monotonic()
            if self._started_at is not None:
                self.starts_s.append(self._working_since - self._started_at)
        return self._working_since

    def kill(self) -> None:
        """End it at once, as kill -9 does; resume its paused children, which must notice by themselves."""
        assert self._process is not None
        self._signal(signal.SIGCONT, below_only=True)
        self._process.kill()
        self._process.communicate()
        self.paused_since = None

    def pause(self) -> None:
        """Stop the process and all its children."""
        self.paused_since, self._working_since, self._started_at = time.monotonic(), None, None
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume it."""
        self._signal(signal.SIGCONT)
        self.paused_since = None

    def _signal(self, number: int, *, below_only: bool = False) -> None:
        assert self._process is not None
        own = psutil.Process(self._process.pid)
        for process in [*([] if below_only else [own]), *own.children(recursive=True)]:
            try:
                self.has_run_java |= process.name() == "java"
                process.send_signal(number)
            except psutil.NoSuchProcess:
                continue  # a worker that has just ended

    def end(self) -> dict[str, object]:
        """Let it finish, and return its reported result."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        said, _ = self._process.communicate(timeout=TOTAL_MAX_S)  # it ends a transaction first
        assert self._process.returncode == 0, self.log()
        told: dict[str, object] = json.loads(said)
        return told

    def log(self) -> str:
        """Return its standard error over all its lives."""
        return self._log.read_text("utf-8", errors="replace")


@dataclass
class Gaps:
    """Measures the time without output while input waited and one replica was up without a break."""

    longest_s: float = 0.0
    commits: int = 0
    _head: str | None = None
    _moved: float = field(default_factory=time.monotonic)

    def look(self, head: str | None, *, waiting: bool, working_since: Sequence[float | None]) -> None:
        """Record the current state."""
        now = time.monotonic()
        self.commits += head != self._head
        if head != self._head or not waiting:
            self._head, self._moved = head, now
        for since in working_since:
            if since is not None:
                self.longest_s = max(self.longest_s, now - max(since, self._moved))


class Campaign:
    """Two replicas, a feeder, and the events."""

    def __init__(
        self, folder: Path, seed: int, tell: Tell, *, spark: bool = False, gap_max_s: float | None = None
    ) -> None:
        self._chance = random.Random(seed)
        self._seed = seed
        self._spark = spark
        self._tell = tell
        self._path = folder / "lake"
        self._lake = tracelake.init(self._path)
        self._replicas = [Replica(self._path, name, spark=spark) for name in NAMES]
        self._objects = FileObjectStore(self._path)
        self._feeder = Feeder(self._objects, 0.5 if spark else 0.15, seed)
        self._resume_at: dict[str, float] = {}
        self._events: Counter[str] = Counter()
        self._gap_max_s = gap_max_s
        self._first_commit_s = 0.0
        self.gaps = Gaps()

    def run(self, kills: int) -> None:
        """Do this many kills and pauses, wait until the replicas are idle, and check everything."""
        with closing(self._lake):
            try:
                for replica in self._replicas:
                    replica.start()
                self._feeder.start()
                apart_s = self._seconds_to_a_commit()
                for number in range(kills):
                    self._one_event(number + 1, kills)
                    self._wait(min(self._chance.expovariate(1 / apart_s), EVENTS_APART_MAX_S))
                if kills >= LONG_PAUSE_FROM:
                    self._long_pause()
                self._come_to_rest()
            finally:
                self._feeder.stop()
                for replica in self._replicas:
                    if replica.alive() or replica.paused_since is not None:
                        replica.kill()
            self._check()

    def _long_pause(self) -> None:
        """Pause one replica until the others consider it gone, while the other one works."""
        if self._replicas[0].paused_since is None:
            self._replicas[0].pause()
        self._resume_at[self._replicas[0].name] = time.monotonic() + PAUSE_MAX_S
        self._wait(PAUSE_MAX_S)
        assert self._events["seen as gone"], "a paused replica was never seen as gone"

    def _seconds_to_a_commit(self) -> float:
        """Return the duration of a cold start and a transaction here: kills at that distance let some of them
        succeed."""
        started, patience = time.monotonic(), Patience()
        while not self.gaps.commits or not self._lake.log(limit=1):
            self._wait(POLL_S)
            patience.look(self._progress(), lambda: f"no replica comes up: {self._lake.replicas()}")
        took_s = time.monotonic() - started
        self._tell(f"a cold start and a transaction: {took_s:.1f} s")
        self._first_commit_s = took_s
        return min(took_s, EVENTS_APART_MAX_S) / 2  # each event meets one of the two

    def _one_event(self, number: int, kills: int) -> None:
        replica = self._chance.choice(self._replicas)
        kill = self._chance.random() < 0.5 or replica.paused_since is not None
        if kill:
            what = "killed while paused" if replica.paused_since is not None else "killed"
            replica.kill()
            self._resume_at.pop(replica.name, None)
            replica.start()
        else:
            what = "paused"
            pause_s = min(self._chance.expovariate(1 / 2.0), PAUSE_MAX_S)
            if self._chance.random() < 0.05:
                pause_s = PAUSE_MAX_S
            replica.pause()
            self._resume_at[replica.name] = time.monotonic() + pause_s
        self._events[what] += 1
        if number % 10 == 0 or number == kills:
            self._tell(
                f"event {number} of {kills}: {replica.name} {what}; {self.gaps.commits} commits, "
                f"longest gap {self.gaps.longest_s:.1f} s"
            )

    def _wait(self, seconds: float) -> None:
        """Watch for this long, and resume replicas at the end of their pauses."""
        deadline = time.monotonic() + seconds
        while True:
            self._watch()
            if time.monotonic() >= deadline:
                return
            time.sleep(POLL_S)

    def _watch(self) -> None:
        for replica in self._replicas:
            paused_s = time.monotonic() - (replica.paused_since or time.monotonic())
            if paused_s > REPLICA_GONE_S + 1:
                self._must_show_as_gone(replica)
            if replica.paused_since is not None and time.monotonic() >= self._resume_at[replica.name]:
                replica.resume()
            died = replica.paused_since is None and not replica.alive()
            assert not died, f"{replica.name} ended by itself: {replica.log()[-2000:]}"
        commits = self._lake.log(limit=1)
        self.gaps.look(
            commits[0].id if commits else None,
            waiting=any(True for _ in self._objects.list("inbox/")),
            working_since=[replica.working_since() for replica in self._replicas],
        )

    def _must_show_as_gone(self, replica: Replica) -> None:
        told = {info.name: info.status for info in self._lake.replicas()}
        assert told.get(replica.name, "gone") == "gone", f"{replica.name} is paused, and shows as {told}"
        self._events["seen as gone"] = 1

    def _progress(self) -> object:
        """Return a value that changes whenever a replica progresses. Idle loops do not count."""
        commits = self._lake.log(limit=1)
        return commits[:1], [
            (info.instance, info.frontier, info.status, info.oldest_waiting_s and info.moved_at)
            for info in self._lake.replicas()
        ]

    def _come_to_rest(self) -> None:
        """Stop the input, resume all replicas, and wait until no input waits and both are idle."""
        self._feeder.stop()
        for replica in self._replicas:
            if replica.paused_since is not None:
                replica.resume()
        patience = Patience()
        while True:
            self._watch()
            infos = self._lake.replicas()
            upper = self._lake.table("spans").info().upper
            if (
                self._lake.inbox().segments == 0
                and {info.name: info.frontier for info in infos} == dict.fromkeys(NAMES, upper)
                and {info.status for info in infos} == {"idle"}
            ):
                break
            patience.look(self._progress(), partial("not at rest at upper {}: {}".format, upper, infos))
            time.sleep(POLL_S)
        for replica in self._replicas:
            told = replica.end()
            info = told["replica"]
            assert isinstance(info, dict)
            self._tell(
                f"{replica.name}, in its last life: {told['transactions']} transactions, "
                f"{info['batches_won']} batches won, {info['batches_of_peers']} of peers, "
                f"{info['rows_dropped']} rows dropped, {info['failures']} failures"
            )

    def _check(self) -> None:
        """Compare with a single writer, and the longest gap with the bound."""
        assert self._spark == any(replica.has_run_java for replica in self._replicas), "Spark"
        told = check_as_of_one(self._lake, self._feeder.fed, self._path.with_name("reference"))
        events = ", ".join(f"{count} {what}" for what, count in sorted(self._events.items()))
        self._tell(f"{events}; {told}")
        stated_s = self._gap_max_s or self._stated_gap_s()
        self._tell(f"longest gap: {self.gaps.longest_s:.2f} s (stated: {stated_s:.0f} s)")
        assert self.gaps.longest_s <= stated_s

    def _stated_gap_s(self) -> float:
        """Return the bound of a gap: stated at the start for this machine, and larger if it became slower since."""
        starts_s = [took_s for replica in self._replicas for took_s in replica.starts_s]
        first_s = min(replica.starts_s[0] for replica in self._replicas if replica.starts_s)
        return PAUSE_MAX_S + 2 * self._first_commit_s * max(starts_s) / first_s


def main() -> None:
    """Run a campaign."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=50, help="kills and pauses")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--spark", action="store_true", help="replicas run Spark")
    arguments = parser.parse_args()
    seed = random.randrange(1 << 32) if arguments.seed is None else arguments.seed
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="tracelake-faults-") as name:
        os.environ["XDG_CACHE_HOME"] = str(Path(name) / "cache")
        started = time.monotonic()
        Campaign(Path(name), seed, lambda line: print(line, flush=True), spark=arguments.spark).run(
            arguments.kills
        )
        print(f"{time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
