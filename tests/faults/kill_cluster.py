"""Two pipelines on a real Spark cluster, a bucket and PostgreSQL: executors, workers and drivers die at random.

    python -m tests.faults.kill_cluster --minutes 10 --seed 7
    python -m tests.faults.kill_cluster --minutes 10 --seed 7 --connect

A standalone master has two workers, whose executors are separate processes; objects are on an S3 server, metadata
in PostgreSQL. The real agents' file waits from the start, request by request, and more input arrives all the time.
An executor is killed with -9, or a worker with its executors (another starts), or a driver (it restarts); or a
driver is stopped for a while (SIGSTOP). Over Spark Connect its server dies instead of that. Each event follows a
commit since the previous one. In the end the tables are those of a single writer, each input is in one transaction,
and `verify` finds nothing. The seed decides the events and moments; the code running at a moment depends on the
machine.
"""

from __future__ import annotations

import argparse
import gzip
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final

import tracelake
from tests.cluster.servers import ROOT, Cluster, ConnectServer
from tests.faults.as_of_one import check_as_of_one
from tests.faults.feeder import Feeder
from tests.faults.kill_archive import Role, RoleProcess
from tests.patience import Patience
from tests.pipeline.spans import AGENTS
from tests.storage.servers.postgres import PostgresServer
from tests.storage.servers.s3 import S3Server
from tracelake import Lake
from tracelake.otlp.framing import write_segment

AFTER_COMMIT_MAX_S: Final = 4.0
"""Maximum delay of an event after a commit, because the next transaction is in progress before that."""
PAUSE_MAX_S: Final = 6.0
_KINDS: Final = ("executor", "worker", "driver", "pause")
_CONF: Final = {
    "spark.pyspark.python": sys.executable,
    "spark.executor.memory": "512m",
    "spark.cores.max": "1",  # so that both drivers have an executor
}


class ClusterCampaign:
    """One lake, two drivers, their cluster, and the events."""

    def __init__(self, folder: Path, seed: int, tell: Callable[[str], None], *, connect: bool) -> None:
        self._folder, self._tell, self._connect = folder, tell, connect
        self._rng = random.Random(seed)
        self._seed = seed
        self._happened: Counter[str] = Counter()

    def run(self, seconds: float, events: int) -> None:
        """Run for at least this long and this many events; then wait until the lake is idle, and compare."""
        with ExitStack() as stack:
            s3 = stack.enter_context(closing(S3Server()))
            database = stack.enter_context(closing(PostgresServer()))
            if not self._connect:  # workers have no bucket settings: drivers pass on the executors' settings
                self._cluster = stack.enter_context(closing(Cluster(self._folder)))
            os.environ.update(s3.environment())
            if self._connect:
                self._cluster = stack.enter_context(closing(Cluster(self._folder)))
                self._server = ConnectServer(self._folder, self._cluster.master)
                stack.callback(self._server.kill)
            url = s3.url()
            lake = stack.enter_context(
                closing(tracelake.init(url, metadata=database.url(database.new_schema()), buckets=4))
            )
            feeder = Feeder(lake.objects, 1.0, self._seed)
            for number, segment in enumerate(real_segments()):
                path = f"inbox/real-{number:04}.segment"
                feeder.fed[path] = segment
                lake.objects.put(path, segment)
            drivers = [RoleProcess(role, self._folder) for role in self._roles(url)]
            for driver in drivers:
                stack.callback(driver.kill)
            feeder.start()
            try:
                self._disturb(lake, drivers, time.monotonic() + seconds, events)
            finally:
                feeder.stop()
            self._wait_until_nothing_waits(lake, drivers)
            for driver in drivers:
                driver.kill()
            told = check_as_of_one(lake, feeder.fed, self._folder / "reference")
            happened = ", ".join(f"{count} {what}" for what, count in sorted(self._happened.items()))
            self._tell(f"{happened}; {told}")

    def _roles(self, url: str) -> Iterator[Role]:
        conf = [argument for name, value in _CONF.items() for argument in ("--conf", f"{name}={value}")]
        spark = ["--master", self._server.url] if self._connect else ["--master", self._cluster.master, *conf]
        command = (
            sys.executable,
            "-m",
            "tracelake.cli",
            "pipeline",
            "run",
            "--lake",
            url,
            "--interval",
            "0.2",
        )
        for name in ("a", "b"):
            yield Role(name, (*command, "--replica", name, *spark), "looks for input")

    def _disturb(self, lake: Lake, drivers: list[RoleProcess], end_s: float, events: int) -> None:
        """Cause events, each after a commit since the one before; each kind as often as others."""
        kinds = list[str]()
        while self._happened.total() < events or time.monotonic() < end_s:
            before, patience = upper_of(lake), Patience()
            while upper_of(lake) == before:
                self._look(patience, lake, drivers)
            until_s = time.monotonic() + self._rng.uniform(0, AFTER_COMMIT_MAX_S)
            while time.monotonic() < until_s:
                self._look(patience, lake, drivers)
            kinds = kinds or self._rng.sample(_KINDS, len(_KINDS))
            what = self._happen(kinds.pop(), self._rng.choice(drivers))
            self._happened[what] += 1
            self._tell(f"event {self._happened.total()}: {what}; transaction {upper_of(lake)}")

    def _look(self, patience: Patience, lake: Lake, drivers: list[RoleProcess]) -> None:
        works = [driver.works() for driver in drivers]
        patience.look(
            (upper_of(lake), works), lambda: f"nothing moves: {lake.replicas()}; {self._said(drivers)}"
        )
        time.sleep(0.1)

    def _said(self, drivers: list[RoleProcess]) -> list[str]:
        return [driver.said[-1000:] for driver in drivers]

    def _happen(self, what: str, victim: RoleProcess) -> str:
        match what:
            case "executor":
                running = self._cluster.executors()
                if not running:
                    return "no executor was there"
                self._cluster.kill_executor(self._rng.choice(running))
                return "executors killed"
            case "worker":
                self._cluster.kill_worker()
                return "workers killed"
            case "driver":
                victim.kill()
                victim.start()
                return "drivers killed"
        if self._connect:
            self._server.kill()
            self._server.start()
            return "servers of Spark Connect killed"
        victim.process.send_signal(signal.SIGSTOP)
        time.sleep(self._rng.uniform(0, PAUSE_MAX_S))
        victim.process.send_signal(signal.SIGCONT)
        return "drivers paused"

    def _wait_until_nothing_waits(self, lake: Lake, drivers: list[RoleProcess]) -> None:
        patience = Patience()
        while lake.inbox().segments or not all(driver.works() for driver in drivers):
            self._look(patience, lake, drivers)


def upper_of(lake: Lake) -> int:
    """Return the number of committed transactions."""
    return lake.table("spans").info().upper


def real_segments() -> Iterator[bytes]:
    """Return the requests of the agents' file, a segment each."""
    with gzip.open(AGENTS) as file:
        for line in file:
            yield write_segment([("json", line)])


def main() -> None:
    """Run a campaign."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=0.0)
    parser.add_argument("--events", type=int, default=len(_KINDS), help="at least")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument(
        "--connect", action="store_true", help="drivers are clients of a server of Spark Connect"
    )
    arguments = parser.parse_args()
    seed = random.randrange(1 << 32) if arguments.seed is None else arguments.seed
    print(f"seed {seed}", flush=True)
    os.chdir(ROOT)  # processes of roles are modules of this tree
    with tempfile.TemporaryDirectory(prefix="tracelake-faults-") as name:
        os.environ["XDG_CACHE_HOME"] = str(Path(name) / "cache")
        began_s = time.monotonic()
        ClusterCampaign(
            Path(name), seed, lambda line: print(line, flush=True), connect=arguments.connect
        ).run(arguments.minutes * 60, arguments.events)
        print(f"{time.monotonic() - began_s:.0f} s", flush=True)


if __name__ == "__main__":
    main()
