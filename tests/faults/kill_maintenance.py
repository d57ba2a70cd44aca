"""Writer, compactors, collector and reader on one lake, all killed at random: the table is that of one writer.

    python -m tests.faults.kill_maintenance --seconds 60 --seed 7

Kills are `kill -9`. The seed decides the moments and the victims; the code running at a moment also depends on the
machine.
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
from pathlib import Path

import tracelake
from tests.patience import wait_until
from tests.pipeline.spans import a_line, a_span
from tracelake import Lake
from tracelake._errors import ExpiredError, TracelakeError
from tracelake.indexing.merge import COMMITTER
from tracelake.limits import TRANSACTION_TRIES_MAX
from tracelake.results import CommitInfo
from tracelake.tasks.runners import InProcess

ROLES = ("writer", "compactor", "compactor-2", "collector", "reader")
TRACES = 7

Tell = Callable[[str], None]
Hashes = dict[str, tuple[str, str]]
"""Contents of both tables by commit message, which names the transaction."""


def write_inputs(folder: Path, count: int, chance: random.Random) -> list[Path]:
    """Write small files: each changes some spans, adds one, and repeats one."""
    paths = []
    for number in range(count):
        spans = [a_span(number % TRACES, number + 10)]
        spans += [
            a_span(trace, 0, end=chance.randrange(10, 1000), note=f"{number}-{trace}")
            for trace in chance.sample(range(TRACES), 3)
        ]
        paths.append(folder / f"in-{number:04d}.jsonl")
        paths[-1].write_bytes(a_line(*spans))
    return paths


def ingest_one_by_one(lake: Lake, paths: Sequence[Path]) -> None:
    """Make each file a transaction."""
    lake.ingest(*paths, transaction_bytes=1, runner=InProcess())


def content(lake: Lake, commit_id: str) -> tuple[str, str]:
    view = lake._opened.view(commit_id)
    return view.table("spans").content_hash(), view.table("traces").content_hash()


# Work of the processes


def write(lake: Lake, folder: Path, _: int) -> None:
    """Ingest all files; begin again if a collector was faster."""
    while True:
        try:
            ingest_one_by_one(lake, sorted(folder.glob("in-*.jsonl")))
        except ExpiredError as error:
            print(f"expired: {error}", flush=True)
        else:
            return


def compact(lake: Lake, _folder: Path, seed: int) -> None:
    """Compact everything, again and again."""
    chance = random.Random(seed)
    while True:
        try:
            lake.maintenance.compact(runner=InProcess())
        except (ExpiredError, tracelake.ContentionError) as error:
            print(f"wasted: {error}", flush=True)
        time.sleep(chance.uniform(0, 0.3))


def collect(lake: Lake, _folder: Path, seed: int) -> None:
    """Collect with the shortest epochs that still exceed an upload, even on a busy machine."""
    chance = random.Random(seed)
    while True:
        started_s = time.monotonic()
        lake.maintenance.gc(epoch_min_s=0)
        busy_s = time.monotonic() - started_s
        time.sleep(chance.uniform(0.3, 1.0) + chance.uniform(1.0, 3.0) * busy_s)


def transactions_of(lake: Lake) -> list[CommitInfo]:
    """Return the commits of transactions, newest first, without the index merges between them."""
    return [commit for commit in lake.log() if commit.committer != COMMITTER]


def read(lake: Lake, folder: Path, seed: int) -> None:
    """Read random commits, and compare each with the undisturbed lake."""
    chance = random.Random(seed)
    expected: Hashes = {
        message: (spans, traces)
        for message, (spans, traces) in json.loads((folder / "expected.json").read_text()).items()
    }
    while True:
        log = transactions_of(lake)
        if not log:
            continue
        commit = chance.choice(log)
        try:
            found = content(lake, commit.id)
        except ExpiredError:
            continue
        assert found == expected[commit.message], (
            f"{commit.message}: other rows than without compaction; set aside: {lake.quarantine.all()}"
        )
        print("read", flush=True)


ACTS: dict[str, Callable[[Lake, Path, int], None]] = {
    "writer": write,
    "compactor": compact,
    "compactor-2": compact,
    "collector": collect,
    "reader": read,
}


class Worker:
    """One role as a process."""

    def __init__(self, role: str, lake: Path, folder: Path, seed: int) -> None:
        self.role = role
        self.log = folder / f"{role}.log"
        arguments = ["--role", role, "--lake", lake, "--folder", folder, "--seed", seed]
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.kill_maintenance", *map(str, arguments)],
                stdout=out,
                stderr=subprocess.STDOUT,
                env=os.environ,
            )

    def has_ended(self) -> bool:
        """Return whether it is over. Only a writer may end by itself, and no process with an error."""
        code = self._process.poll()
        if code is None:
            return False
        assert (self.role, code) == ("writer", 0), (
            f"{self.role} ended with {code}:\n{self.log.read_text()[-4000:]}"
        )
        return True

    def kill(self) -> None:
        """Kill -9."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()


class Campaign:
    """A lake that is written once while it is compacted, collected and read, and every process is killed."""

    def __init__(self, folder: Path, transactions: int, seed: int, tell: Tell) -> None:
        self._folder, self._tell = folder, tell
        self._chance = random.Random(seed)
        self._paths = write_inputs(folder, transactions, self._chance)
        with tracelake.init(folder / "alone", buckets=2) as lake:
            ingest_one_by_one(lake, self._paths)
            self.expected: Hashes = {
                commit.message: content(lake, commit.id) for commit in transactions_of(lake)
            }
        (folder / "expected.json").write_text(json.dumps(self.expected))
        self.lake = folder / "lake"
        tracelake.init(self.lake, buckets=2).close()
        tell(f"the lake of one writer: {len(self.expected)} transactions")

    def run(self, seconds: float) -> int:
        """Let them work for this long, killing one or all of them now and then; then let the writer end.

        The writer is killed less often at one transaction than it takes to suspect its input. Otherwise, the
        transaction would be quarantined, and the others would have other inputs than those of the single writer's
        lake.
        """
        workers = {role: self._start(role) for role in ROLES}
        kills, done, stop = 0, False, time.monotonic() + seconds
        killed_at: Counter[int] = Counter()
        try:
            while time.monotonic() < stop:
                time.sleep(self._chance.uniform(0.2, 2.5))
                chosen = ROLES if self._chance.random() < 0.2 else (self._chance.choice(ROLES),)
                for role, worker in workers.items():
                    ended = worker.has_ended()
                    done = done or ended
                    if role in chosen and not ended:
                        if role == "writer":
                            killed_at[committed := self._committed()] += 1
                            if killed_at[committed] >= TRANSACTION_TRIES_MAX:
                                continue
                        worker.kill()
                        kills += 1
                        workers[role] = self._start(role)
            self._tell(f"{kills} kills; now the writer may end")
            with tracelake.open(self.lake) as lake:
                wait_until(
                    workers["writer"].has_ended,
                    "the writer does not get on beside compactors and collector",
                    moving=lambda: len(transactions_of(lake)),
                    poll_s=0.1,
                )
            for worker in workers.values():
                worker.has_ended()  # perhaps with an error
        finally:
            for worker in workers.values():
                worker.kill()
        return kills

    def check(self) -> None:
        """Check that every commit equals that of the single writer's lake, and that the lake is intact and clean."""
        with tracelake.open(self.lake) as lake:
            found = {commit.message: content(lake, commit.id) for commit in transactions_of(lake)}
            assert found == self.expected
            assert lake.verify().findings == ()
            lake.maintenance.compact(runner=InProcess())
            for entry in lake._opened.key_value.scan("leases"):  # of killed processes
                lake._opened.key_value.delete_if("leases", entry.key, entry.version)
        with tracelake.open(self.lake) as lake:
            for _ in range(3):
                reports = lake.maintenance.gc(epoch_min_s=0)
            assert not any(report.held for report in reports)
            for shard, _ in lake.maintenance._maintained():
                batches = [shard.batch(ref) for ref in shard.state().batches]
                named = {part.path for batch in batches for part in batch.objects()}
                assert {info.path for info in lake.objects.list(f"shards/{shard.name}/parts/")} == named
            assert {
                commit.message: content(lake, commit.id) for commit in transactions_of(lake)
            } == self.expected
            assert lake.verify().findings == ()

    def _committed(self) -> int:
        with tracelake.open(self.lake) as lake:
            return len(transactions_of(lake))

    def reads(self) -> int:
        """Return the number of commits that the readers compared."""
        return (self._folder / "reader.log").read_text().count("read\n")

    def _start(self, role: str) -> Worker:
        return Worker(role, self.lake, self._folder, self._chance.randrange(1 << 32))


def act(role: str, lake: Path, folder: Path, seed: int) -> None:
    """Run as one of the processes."""
    with tracelake.open(lake) as opened:
        try:
            ACTS[role](opened, folder, seed)
        except TracelakeError as error:
            raise SystemExit(f"{role}: {type(error).__name__}: {error}") from error


def main() -> None:
    """Run a campaign, or be one of its processes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--transactions", type=int, default=100)
    parser.add_argument("--seed", type=int, default=None)
    for internal in ("--role", "--lake", "--folder"):
        parser.add_argument(internal, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    seed = random.randrange(1 << 32) if arguments.seed is None else arguments.seed
    if arguments.role:
        act(arguments.role, Path(arguments.lake), Path(arguments.folder), seed)
        return
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="tracelake-faults-") as name:
        os.environ["XDG_CACHE_HOME"] = str(Path(name) / "cache")
        campaign = Campaign(Path(name), arguments.transactions, seed, lambda line: print(line, flush=True))
        campaign.run(arguments.seconds)
        campaign.check()
        print(f"as one writer alone, and whole; {campaign.reads()} commits were read meanwhile")


if __name__ == "__main__":
    main()
