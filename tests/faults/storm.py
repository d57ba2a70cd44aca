"""V2, the storm: PostgreSQL stops while commits arrive; afterwards every one of them completes, once.

    python -m tests.faults.storm --rate 50 --stall 10 --seconds 30 --seed 7
    python -m tests.faults.storm --rate 1,50 --picture docs/images/storm.svg

All processes of a real server are stopped (SIGSTOP) for the stall, five seconds after the first commit. Each commit
has a separate thread and uses one of four stores with separate connections, as on four machines. Commits arrive at
random moments from the seed, at this average rate a second.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from tests.faults.storm_picture import draw
from tests.patience import HANG_S
from tests.storage.servers.postgres import PostgresServer
from tests.versions.histories import check_history
from tracelake.storage import KeyValueStore, open_key_value, open_objects
from tracelake.versions.model import TableAt
from tracelake.versions.repository import Repository

STALL_BEGINS_S = 5.0
STORES = 4
"""Time that commits have to complete after the last arrival, with the server answering."""


@dataclass
class Arrival:
    """One commit: its arrival, in seconds since the first possible one, and its result."""

    number: int
    at_s: float
    took_s: float = float("nan")
    commit_id: str = ""
    error: str = ""

    @property
    def entry(self) -> str:
        """The name of its entry."""
        return f"files/{self.number}"


@dataclass
class Storm:
    """Commits at an average rate for some time, with a stall in between."""

    rate: float
    stall_s: float
    seconds: float
    seed: int
    stall_begins_s: float = STALL_BEGINS_S
    arrivals: list[Arrival] = field(init=False)
    overtaken_most: int = 0
    """The most later arrivals that precede a commit in the history."""

    def __post_init__(self) -> None:
        """Draw the arrival of each commit."""
        assert self.stall_begins_s + self.stall_s <= self.seconds, "the stall must end before the arrivals do"
        chance = random.Random(self.seed)
        moments = sorted(chance.uniform(0, self.seconds) for _ in range(round(self.rate * self.seconds)))
        self.arrivals = [Arrival(number, at_s) for number, at_s in enumerate(moments)]

    def run(self, server: PostgresServer, folder: Path) -> None:
        """Run the storm on an empty branch, then check the results."""
        objects = open_objects((folder / "objects").as_uri())
        records_url = server.url(server.new_schema())
        stores = [open_key_value(records_url) for _ in range(STORES)]
        repositories = [Repository(store, objects) for store in stores]
        begin = time.monotonic()
        stall = threading.Thread(target=self._stall, args=(server, begin))
        threads = [
            threading.Thread(
                target=commit, args=(repositories[arrival.number % STORES], arrival, begin), daemon=True
            )
            for arrival in self.arrivals
        ]
        stall.start()
        for arrival, thread in zip(self.arrivals, threads, strict=True):
            sleep_until(begin + arrival.at_s)
            thread.start()
        stall.join()
        end = time.monotonic() + HANG_S
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))
        late = [
            arrival.entry for arrival, thread in zip(self.arrivals, threads, strict=True) if thread.is_alive()
        ]
        assert not late, f"{len(late)} commits, {late[:3]} among them, are not over after {HANG_S} s"
        self._check(repositories[0], stores)

    def _stall(self, server: PostgresServer, begin: float) -> None:
        sleep_until(begin + self.stall_begins_s)
        server.pause()
        try:
            time.sleep(self.stall_s)
        finally:
            server.resume()

    def _check(self, repository: Repository, stores: list[KeyValueStore]) -> None:
        failed = [f"{arrival.entry}: {arrival.error}" for arrival in self.arrivals if arrival.error]
        assert not failed, f"{len(failed)} of {len(self.arrivals)} commits failed: {failed[:3]}"
        history = check_history(repository, [(arrival.entry, arrival.commit_id) for arrival in self.arrivals])
        assert len(history) == len(self.arrivals)
        self.overtaken_most = most_overtaken(history, [arrival.entry for arrival in self.arrivals])
        for store in stores:
            store.close()

    def summary(self) -> str:
        """Summarize the durations of commits."""
        took_s = sorted(arrival.took_s for arrival in self.arrivals)
        return (
            f"{self.rate:g} commits a second, stall of {self.stall_s:g} s: all {len(took_s)} commits completed, "
            f"each once; p50 {statistics.median(took_s):.3f} s, p99 {took_s[len(took_s) * 99 // 100]:.2f} s, "
            f"max {took_s[-1]:.2f} s; overtaken by at most {self.overtaken_most} later ones"
        )


def commit(repository: Repository, arrival: Arrival, begin: float) -> None:
    """Commit one entry, and record the result."""
    try:
        arrival.commit_id = repository.commit_entries(
            {arrival.entry: TableAt(arrival.entry, 0)},
            message=arrival.entry,
            committer="storm",
            created_at=datetime.now(UTC).isoformat(),
            metadata={},
        )
    except Exception as error:  # noqa: BLE001  whatever it is, it is told
        arrival.error = f"{type(error).__name__}: {error}"
    arrival.took_s = time.monotonic() - begin - arrival.at_s


def most_overtaken(history: list[str], entries: list[str]) -> int:
    """Return the most later arrivals that precede one commit in the history; `entries` in order of arrival."""
    number = {entry: at for at, entry in enumerate(entries)}
    seen: list[int] = []
    most = 0
    for entry in history:
        most = max(most, sum(earlier > number[entry] for earlier in seen))
        seen.append(number[entry])
    return most


def sleep_until(moment: float) -> None:
    """Wait until a moment of the monotonic clock."""
    time.sleep(max(0.0, moment - time.monotonic()))


def main() -> None:
    """Run a storm of each rate, and draw them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rate", default="1,50", help="commits a second, such as 1,50 for one storm after the other"
    )
    parser.add_argument("--stall", type=float, default=10.0)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--picture", type=Path, help="an SVG file of time to commit against arrival")
    given = parser.parse_args()
    seed = random.randrange(1 << 32) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    storms = [Storm(float(rate), given.stall, given.seconds, seed) for rate in given.rate.split(",")]
    server = PostgresServer()
    try:
        for storm in storms:
            with tempfile.TemporaryDirectory(prefix="tracelake-storm-") as name:
                storm.run(server, Path(name))
            print(storm.summary(), flush=True)
    finally:
        server.close()
    if given.picture:
        panels = [
            (
                f"{storm.rate:g} commits a second",
                [(arrival.at_s, arrival.took_s) for arrival in storm.arrivals],
            )
            for storm in storms
        ]
        stall = (STALL_BEGINS_S, STALL_BEGINS_S + given.stall)
        given.picture.write_text(draw(panels, stall, given.seconds), encoding="utf-8")


if __name__ == "__main__":
    main()
