"""Kill -9 a real `tracelake ingest` at random moments, and check the state after each kill: whole commits only.

    python -m tests.faults.kill_ingest --kills 10 --seed 7

The seed decides the moments. The code running at a moment also depends on the machine, so a failure names both.
"""

from __future__ import annotations

import argparse
import gzip
import os
import random
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

import tracelake
from tests.patience import HANG_S, TOTAL_MAX_S
from tests.pipeline.spans import AGENTS, MICROSERVICES
from tracelake import Lake
from tracelake.indexing.merge import COMMITTER
from tracelake.limits import TRANSACTION_TRIES_MAX

PROGRAM = Path(sys.executable).with_name("tracelake")
_MARK = "TRACELAKE_FAULTS_RUN"
"""An environment variable that marks a run and all its descendants, even after reparenting."""

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Committed:
    """The invariant content of a commit: everything but its id and time."""

    message: str
    metadata: dict[str, str]
    spans: str
    traces: str


def history(lake: Lake) -> list[Committed]:
    """Return the commits of a lake, oldest first, with the contents of both tables at each."""
    return [
        Committed(
            commit.message,
            commit.metadata,
            lake.table("spans", at=commit.id).content_hash(),
            lake.table("traces", at=commit.id).content_hash(),
        )
        for commit in reversed(lake.log())
        if commit.committer != COMMITTER
    ]


class Ingest:
    """`tracelake ingest` as a process in a separate session; each file is a transaction."""

    def __init__(self, lake: Path, files: Sequence[Path]) -> None:
        self._mark = uuid.uuid4().hex
        command = [PROGRAM, "ingest", *files, "--lake", lake, "--transaction-mb", "0.001", "--json"]
        self._process = subprocess.Popen(
            [*map(str, command)],
            env={**os.environ, _MARK: self._mark},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def finish(self) -> None:
        """Let it run to a successful end."""
        _, errors = self._process.communicate(timeout=TOTAL_MAX_S)
        assert self._process.returncode == 0, errors.decode()

    def ends_within(self, seconds: float) -> bool:
        """Wait, and return whether it ended in time."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """Kill -9 the one Python process; its children stay."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()

    def seconds_until_gone(self) -> float:
        """Wait until the JVM and the workers have ended by themselves. Fails if they do not."""
        started = time.monotonic()
        while left := [process for process in psutil.process_iter() if self._started(process)]:
            waited = time.monotonic() - started
            assert waited < HANG_S, f"still running: {left}"
            time.sleep(0.1)
        return time.monotonic() - started

    def _started(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get(_MARK) == self._mark
        except psutil.Error:
            return False


def split(path: Path, pieces: int, folder: Path) -> list[Path]:
    """Split a gzip file of JSON lines into files of about equal numbers of lines."""
    with gzip.open(path) as file:
        lines = file.readlines()
    size = -(-len(lines) // pieces)
    paths = []
    for number, start in enumerate(range(0, len(lines), size)):
        paths.append(folder / f"{path.name.partition('.')[0]}-{number}.jsonl.gz")
        with gzip.open(paths[-1], "wb", compresslevel=1) as out:
            out.writelines(lines[start : start + size])
    return paths


class Campaign:
    """Kills over successive lakes that all take the same files, each until it is done."""

    def __init__(self, files: Sequence[Path], folder: Path, seed: int, tell: Tell) -> None:
        self._files = files
        self._folder = folder
        self._chance = random.Random(seed)
        self._tell = tell
        started = time.monotonic()
        reference = self._new_lake("reference")
        Ingest(reference, files).finish()
        self._run_s = time.monotonic() - started
        with tracelake.open(reference) as lake:
            self.expected = history(lake)
            assert lake.verify().findings == ()
        tell(f"a run that is not killed: {self._run_s:.1f} s, {len(self.expected)} transactions")

    def run(self, kills: int) -> None:
        """Kill this many times. After each, and at the end of each lake, the history must be that of the reference.

        A transaction is killed less often than it takes to suspect its input. Otherwise, it would be taken in
        parts, which another test covers.
        """
        done, lakes, path = 0, 1, self._new_lake("lake-1")
        killed_at: Counter[int] = Counter()
        is_new = True
        while done < kills:
            moment = self._chance.uniform(0, self._run_s)
            started = time.monotonic()
            ingest = Ingest(path, self._files)
            spared = max(killed_at.values(), default=0) == TRANSACTION_TRIES_MAX - 1
            if spared or ingest.ends_within(moment):
                ingest.finish()
                if is_new:  # a faster run than all before: moments after its end kill nothing
                    self._run_s = min(self._run_s, time.monotonic() - started)
                is_new = True
                self._check_end(path)
                lakes += 1
                path = self._new_lake(f"lake-{lakes}")
                killed_at.clear()
                continue
            ingest.kill()
            done += 1
            is_new = False
            gone = ingest.seconds_until_gone()
            committed = self._check(path)
            killed_at[committed] += 1
            self._tell(
                f"kill {done} of {kills} after {moment:.2f} s: {committed} transactions committed, all whole; "
                f"its processes were gone after {gone:.1f} s"
            )
        Ingest(path, self._files).finish()
        self._check_end(path)

    def _new_lake(self, name: str) -> Path:
        tracelake.init(self._folder / name).close()
        return self._folder / name

    def _check(self, path: Path) -> int:
        """Check that the lake has only whole commits, and return their number."""
        with tracelake.open(path) as lake:
            found = history(lake)
            assert found == self.expected[: len(found)], (
                f"{path}: a commit is not that of a run without kills"
            )
            rows = sum(int(commit.metadata["spans_new"]) for commit in found)
            assert lake.table("spans").info().rows == rows, f"{path}: rows without a commit"
            assert lake.verify().findings == ()
        return len(found)

    def _check_end(self, path: Path) -> None:
        committed = self._check(path)
        assert committed == len(self.expected), f"{path}: {committed} of {len(self.expected)} transactions"
        assert self._hits(path) == self._hits(self._folder / "reference"), f"{path}: the index differs"
        self._tell(f"run to its end: the history is that of the run without kills, {committed} transactions")

    @staticmethod
    def _hits(path: Path) -> list[tuple[str, str, float]]:
        with tracelake.open(path) as lake:
            return [(hit.trace_id, hit.span_id, hit.score) for hit in lake.search("error OR user", limit=50)]


def main() -> None:
    """Run a campaign over both real files, cut in eight."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=None)
    arguments = parser.parse_args()
    seed = random.randrange(1 << 32) if arguments.seed is None else arguments.seed
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="tracelake-faults-") as name:
        folder = Path(name)
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        files = [*split(AGENTS, 2, folder), *split(MICROSERVICES, 6, folder)]
        Campaign(files, folder, seed, lambda line: print(line, flush=True)).run(arguments.kills)


if __name__ == "__main__":
    main()
