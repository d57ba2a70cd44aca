"""N committers on one branch, beside N writers to one table of deltalake and of pyiceberg, in one run.

    scripts/setup-bench                                            # installs the peers beside Tracelake
    python benchmarks/commit_contention.py                         # 1, 4 and 16 processes, 2 s each, all stores
    python benchmarks/commit_contention.py --committers 1,4,16,64 --workers both --seconds 10
    python benchmarks/commit_contention.py --stores sqlite --no-peers --json

A turn writes ten rows as a Parquet file, and commits it; each committer takes turn after turn until time is up, and
its last one is waited for. Its first one, before the others, is not timed. *p50*, *p99* and *max* are of turns that
were acknowledged, *failed* is the share of turns that raised. After each race history must be linear and hold each
acknowledged commit exactly once.

- sqlite, postgres: records in a database, objects in local files; a PostgreSQL server is started for the run.
- files: records as objects in local files, no database. s3: both in a bucket of a server on this machine, `versitygw`
  where scripts/setup-s3 has built it, else `moto`.
- peers: processes, on local files; pyiceberg's catalog is in SQLite. Once as they are (15 and 4 retries), once
  *raised*: 1,000 and 100 retries, and pyiceberg's pauses up to a second in place of a minute.

Tracelake syncs each file to the disk before it goes on, deltalake and pyiceberg do not.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

# For `benchmarks` and `tests`, where this is run as a file.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.committing import Contestant, Tracelake, peers
from benchmarks.racing import Line, race
from tests.storage.servers.postgres import PostgresServer
from tests.storage.servers.s3 import S3Server

STORES = ("sqlite", "postgres", "s3")
WORKERS = ("processes", "threads")


class Places:
    """New, empty stores, and the servers behind them, each started when it is first wanted."""

    def __init__(self, folder: Path, upload: bool, stack: ExitStack) -> None:
        self._folder, self._upload, self._stack = folder, upload, stack
        self._postgres: PostgresServer | None = None
        self._s3: S3Server | None = None

    def new(self, store: str) -> Tracelake:
        """Return a place in a store of this kind where nothing is."""
        place = self._folder / uuid.uuid4().hex
        files = (place / "objects").as_uri()
        if store == "postgres":
            if self._postgres is None:
                self._postgres = PostgresServer(connections_max=400)
                self._stack.callback(self._postgres.close)
            records = self._postgres.url(self._postgres.new_schema())
        elif store == "s3":
            if self._s3 is None:
                self._s3 = S3Server()
                self._stack.callback(self._s3.close)
                os.environ.update(self._s3.environment())
            files = self._s3.url()
            records = f"{files}/records"
        else:
            records = f"sqlite://{place}/records.db"
        return Tracelake(store, records, files, self._upload)


def contests(
    places: Places, folder: Path, given: argparse.Namespace
) -> Iterator[tuple[Contestant, str, int]]:
    """Yield all races: those of peers and ours with as many committers stand beside one another."""
    for committers in given.committers:
        for workers in WORKERS if given.workers == "both" else (given.workers,):
            for store in given.stores:
                yield places.new(store), workers, committers
            if given.peers and workers == "processes":
                yield from ((peer, workers, committers) for peer in peers(folder))


def main() -> None:
    """Run all races, one after the other."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--committers", type=numbers, default=[1, 4, 16], help="such as 1,4,16,64")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each race")
    parser.add_argument("--stores", type=stores, default=list(STORES), help="some of " + ",".join(STORES))
    parser.add_argument("--workers", choices=(*WORKERS, "both"), default="processes")
    parser.add_argument("--peers", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument(
        "--upload", action=argparse.BooleanOptionalAction, default=True, help="write rows in each turn"
    )
    parser.add_argument(
        "--folder", type=Path, help="where files go; the system's temporary directory if not given"
    )
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    lines = []
    with (
        tempfile.TemporaryDirectory(prefix="tracelake-contention-", dir=given.folder) as name,
        ExitStack() as stack,
    ):
        places = Places(Path(name), given.upload, stack)
        for contestant, workers, committers in contests(places, Path(name), given):
            line = race(contestant, workers, committers, given.seconds)
            told = f"{line.title}: {line.commits_per_s:.1f} commits/s, {line.failed_percent:.0f} % failed"
            print(told, file=sys.stderr, flush=True)
            lines.append(line)
    if given.json:
        print(json.dumps([asdict(line) for line in lines], indent=2))
    else:
        print_results(lines)


def numbers(text: str) -> list[int]:
    """Read how many committers there shall be."""
    found = sorted({int(number) for number in text.split(",")})
    if found[0] < 1:
        raise ValueError(text)
    return found


def stores(text: str) -> list[str]:
    """Read the names of stores."""
    found = text.split(",")
    if not set(found) <= set(STORES):
        raise ValueError(text)
    return found


# Reporting


def print_results(lines: Sequence[Line]) -> None:
    """Print a table, and what became of the aims."""
    table = Table(
        *("", "workers", "N", "commits/s", "p50 ms", "p99 ms", "max ms", "failed %"),
        *("record calls", "object calls", "× better peer"),
    )
    for line in lines:
        ours = line.contestant.startswith("tracelake")
        peer = better_peer(lines, line.committers)
        table.add_row(
            line.contestant,
            line.workers,
            str(line.committers),
            f"{line.commits_per_s:,.1f}",
            f"{line.p50_ms:,.1f}",
            f"{line.p99_ms:,.1f}",
            f"{line.max_ms:,.1f}",
            f"{line.failed_percent:.0f}",
            f"{line.record_calls_per_commit:.1f}" if ours else "",
            f"{line.object_calls_per_commit:.1f}" if ours else "",
            f"{line.commits_per_s / peer:.1f}" if ours and peer else "",
        )
    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(table)
    for line in lines:
        if line.errors:
            console.print(f"{line.title}: {line.errors}")
    print_aims(console, lines)


def better_peer(lines: Sequence[Line], committers: int) -> float | None:
    """Return the most commits a second of any peer with so many writers, None where none ran."""
    rates = [
        line.commits_per_s
        for line in lines
        if line.committers == committers and not line.contestant.startswith("tracelake")
    ]
    return max(rates, default=None)


def print_aims(console: Console, lines: Sequence[Line]) -> None:
    """Print, for each store, how the most committers fare against one."""
    ours = [line for line in lines if line.contestant.startswith("tracelake")]
    for contestant, workers in dict.fromkeys((line.contestant, line.workers) for line in ours):
        found = [line for line in ours if (line.contestant, line.workers) == (contestant, workers)]
        one, most = found[0], found[-1]
        failed = sum(sum(line.errors.values()) for line in found)
        console.print(
            f"{contestant}, {workers}: {failed} failed; {most.committers} against {one.committers}: "
            f"{most.commits_per_s / one.commits_per_s:.2f} × the commits/s, "
            f"p99 {most.p99_ms / one.p50_ms:.0f} × p50"
        )


if __name__ == "__main__":
    main()
