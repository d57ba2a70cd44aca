"""Ingest, retention, erasure, expiry, compaction, garbage collection and archive, each killed with -9 at random.

    python -m tests.faults.kill_lifecycle --minutes 5 --seed 7 [--postgres] [--s3]

Traces of three kinds arrive: some are erased, some are deleted by a retention rule, the others stay. In the end exactly
these are in tables, index and archive, each tagged commit reads as before but for erased traces, and no byte of an
erased trace is left. The seed decides moments and victims; the code running at a moment also depends on the machine.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from unittest import mock

import tracelake
from tests.patience import wait_until
from tests.storage.servers.postgres import PostgresServer
from tests.storage.servers.s3 import S3Server
from tests.tracking.requests import request
from tests.tracking.requests import trace_id as id_of
from tracelake import Lake
from tracelake._errors import (
    CommitExpiredError,
    ContentionError,
    ExpiredError,
    NotFoundError,
    StorageError,
)
from tracelake.lake import maintenance
from tracelake.tasks.runners import InProcess

TRACES_MAX: Final = 400
HISTORY_S: Final = 2.0
"""Age at which commits expire, shorter than a setting may be."""
TRIES: Final = 40
"""Rounds of erasers and pipelines in which everything must end."""
_PROCESSES: Final = multiprocessing.get_context("fork")  # a child need not import everything again
_RETRIED: Final = (CommitExpiredError, ContentionError, ExpiredError, StorageError)
"""Errors after which a process tries again: other processes were faster, or the database was busy."""
Tell = Callable[[str], None]
Rows = dict[str, list[list[str]]]


def is_erased(number: int) -> bool:
    """Return whether a user asks to erase this trace."""
    return number % 5 == 2


def is_ephemeral(number: int) -> bool:
    """Return whether the retention rule matches this trace."""
    return number % 4 == 1


def key_of(number: int) -> int:
    """Return the id of a trace as a number. Ids are random, so that no part of two neighbors is the id of a third."""
    return random.Random(number).getrandbits(128)


def trace_id(number: int) -> str:
    """Return the id of a trace."""
    return id_of(key_of(number))


def text_of(number: int) -> str:
    """Return the text of a trace, which occurs in no other one."""
    return f"secret{number}x {'ephemeral' if is_ephemeral(number) else 'lasting'}"


@dataclass(frozen=True, slots=True)
class Place:
    """Location of a lake, and the folder of the processes' logs."""

    lake: str
    metadata: str | None
    archive: str | None
    folder: Path

    def open(self) -> Lake:
        """Open the lake."""
        return tracelake.open(self.lake, metadata=self.metadata)

    def log(self, role: str, *words: object) -> None:
        """Append a line to the log of a role. A line that a kill cut off counts as absent."""
        with (self.folder / f"{role}.log").open("a") as file:
            file.write(" ".join(map(str, words)) + "\n")

    def lines(self, role: str, word: str) -> list[int]:
        """Return the numbers of the logged lines that begin with a word."""
        path = self.folder / f"{role}.log"
        text = path.read_text() if path.exists() else ""
        lines = [line.split() for line in text.splitlines(keepends=True) if line.endswith("\n")]
        return [int(line[1]) for line in lines if line[0] == word]

    def requested(self) -> set[str]:
        """Return the traces that are erased, or perhaps are."""
        return {trace_id(number) for number in self.lines("eraser", "erasing")}

    def accepted(self) -> set[str]:
        """Return the traces whose erasure is accepted."""
        return {trace_id(number) for number in self.lines("eraser", "accepted")}


def rows_at(lake: Lake, ref: str) -> Rows:
    """Return the spans that tables and search show at a commit."""
    spans = lake.sql("select trace_id, span_id, input from spans order by all", ref).to_pylist()
    hits = sorted([hit.trace_id, hit.span_id] for hit in lake.search("*", at=ref, limit=1_000))
    return {"spans": [list(map(str, span.values())) for span in spans], "hits": hits}


def without(rows: Rows, traces: set[str]) -> Rows:
    """Return the rows of other traces."""
    return {name: [row for row in each if row[0] not in traces] for name, each in rows.items()}


# Work of the processes, each called again and again


def send(lake: Lake, place: Place, chance: random.Random) -> None:
    """Send a trace, or a late span of an earlier one."""
    store = lake.hot.set_up()
    sent = place.lines("sender", "sent")
    if sent and chance.random() < 0.3:
        number = chance.choice(sent)
        store.write([request((key_of(number), 3), text=text_of(number))])  # refused if the trace is erased
    elif len(sent) < TRACES_MAX:
        number = max(place.lines("sender", "sending"), default=0) + 1
        place.log("sender", "sending", number)
        store.write([request((key_of(number), 1), (key_of(number), 2), text=text_of(number))])
        place.log("sender", "sent", number)
    time.sleep(chance.uniform(0.1, 0.6))


def ingest(lake: Lake, _place: Place, chance: random.Random) -> None:
    """Commit the pending input."""
    with closing(lake.pipeline(runner=InProcess())) as pipeline:
        for _ in range(5):
            pipeline.run_once()
            time.sleep(chance.uniform(0, 0.3))


def retain(lake: Lake, _place: Place, chance: random.Random) -> None:
    """Delete the traces that the rule matches."""
    lake.retention.apply(runner=InProcess())
    time.sleep(chance.uniform(0.5, 2))


def erase(lake: Lake, place: Place, chance: random.Random) -> None:
    """Request erasures, and carry them out."""
    left = set(place.lines("sender", "sent")) - set(place.lines("eraser", "accepted"))
    due = sorted(number for number in left if is_erased(number))
    if due:
        number = chance.choice(due)
        place.log("eraser", "erasing", number)
        lake.erasures.request(trace=trace_id(number))
        place.log("eraser", "accepted", number)
    for report in lake.erasures.all():
        if report.state == "open":
            lake.erasures.run(report.id)
            # Kills let erasures accumulate, so a round of all would take minutes without a sign of progress.
            place.log("eraser.rounds", "round", 1)
    lake.erasures.run()  # those that late spans have opened again
    time.sleep(chance.uniform(0.5, 2))


def collect(lake: Lake, _place: Place, chance: random.Random) -> None:
    """Let history expire, and collect garbage with epochs that exceed an upload."""
    started_s = time.monotonic()
    with mock.patch.object(maintenance, "find_history", return_value=(HISTORY_S, 0.0)):
        lake.maintenance.gc(epoch_min_s=0)
    time.sleep(chance.uniform(1, 3) + 2 * (time.monotonic() - started_s))


def compact(lake: Lake, _place: Place, chance: random.Random) -> None:
    """Compact tables, and merge index parts."""
    lake.maintenance.compact(runner=InProcess())
    time.sleep(chance.uniform(0.2, 1.5))


def archive(lake: Lake, _place: Place, chance: random.Random) -> None:
    """Archive all traces, and sweep now and then."""
    lake.archive.run(older_than="1d")
    if chance.random() < 0.3:
        lake.archive.sweep(3600)
    time.sleep(chance.uniform(0.5, 2))


def read(lake: Lake, place: Place, chance: random.Random) -> None:
    """Tag a commit and record its rows, or compare the rows of a tagged commit."""
    accepted = place.accepted()
    recorded = sorted(place.folder.glob("tag-*.json"))
    if not recorded or (len(recorded) < 30 and chance.random() < 0.4):
        name = f"tag-{time.time_ns()}"
        with suppress(NotFoundError, tracelake.UsageError):  # no commit yet
            lake.tag(name)
            rows = rows_at(lake, name)
            temporary = place.folder / f"{name}.new"
            temporary.write_text(json.dumps(rows))
            temporary.rename(place.folder / f"{name}.json")
    else:
        path = chance.choice(recorded)
        rows = rows_at(lake, path.stem)
        seen = {row[0] for each in rows.values() for row in each} & accepted
        assert not seen, f"{path.stem} shows erased traces {seen}"
        requested = place.requested()
        compare(path.stem, without(rows, requested), without(json.loads(path.read_text()), requested))
    time.sleep(chance.uniform(0.1, 1))


def compare(name: str, rows: Rows, before: Rows) -> None:
    """Check that a commit reads as before, and that search finds the spans of the table."""
    assert rows == before, f"{name} changed: {rows} is not {before}"
    in_table = sorted(span[:2] for span in rows["spans"])
    assert rows["hits"] == in_table, f"{name}: search finds {rows['hits']}, the table has {in_table}"


ACTS: Final[dict[str, Callable[[Lake, Place, random.Random], None]]] = {
    "sender": send,
    "pipeline": ingest,
    "retention": retain,
    "eraser": erase,
    "collector": collect,
    "compactor": compact,
    "archiver": archive,
    "reader": read,
}


def act(role: str, place: Place, seed: int) -> None:
    """Work until killed. Raise an error that no other process explains."""
    os.setsid()
    sys.stderr = (place.folder / f"{role}.errors").open("a", buffering=1)
    chance = random.Random(seed)
    try:
        with place.open() as lake:
            while True:
                try:
                    ACTS[role](lake, place, chance)
                except _RETRIED as error:
                    print(f"again: {type(error).__name__}: {error}", file=sys.stderr)
                    time.sleep(0.2)
                place.log(f"{role}.rounds", "round", 1)
    except BaseException:
        traceback.print_exc()
        raise


class Worker:
    """A role as a process."""

    def __init__(self, role: str, place: Place, seed: int) -> None:
        self._role, self._place = role, place
        self._rounds = self._rounds_now()
        self._process = _PROCESSES.Process(target=act, args=(role, place, seed))
        self._process.start()

    def has_progressed(self) -> bool:
        """Return whether it has finished a round. Fails if it has ended by itself."""
        errors = self._place.folder / f"{self._role}.errors"
        assert self._process.is_alive(), f"{self._role} ended:\n{errors.read_text()[-4000:]}"
        return self._rounds_now() > self._rounds

    def kill(self) -> None:
        """Kill it with -9, and its children."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid or 0, signal.SIGKILL)
        self._process.kill()
        self._process.join()

    def _rounds_now(self) -> int:
        return len(self._place.lines(f"{self._role}.rounds", "round"))


class Campaign:
    """One lake, its processes, and the final check."""

    def __init__(self, place: Place, seed: int, tell: Tell) -> None:
        self._place, self._tell = place, tell
        self._chance = random.Random(seed)

    def prepare(self) -> None:
        """Create the lake in a child process, because a process with threads cannot fork safely."""
        _in_child(self._prepare)

    def _prepare(self) -> None:
        with tracelake.init(self._place.lake, metadata=self._place.metadata, buckets=2) as lake:
            lake.hot.set_up()
            lake.retention.set("ephemeral", "1h", query="ephemeral")
            layout = self._chance.choice(["trace", "pack"])
            lake.archive.configure(layout=layout, location=self._place.archive)

    def run(self, seconds: float) -> int:
        """Let all roles work for this long, killing one after the other; return the number of kills.

        A process that works on transactions is killed only after a finished round. Otherwise three deaths at one
        transaction would quarantine its input.
        """
        workers = {role: self._start(role) for role in ACTS}
        kills, stop = 0, time.monotonic() + seconds
        try:
            while time.monotonic() < stop:
                time.sleep(self._chance.uniform(0.2, 3))
                role = self._chance.choice(list(ACTS))
                progressed = {name: worker.has_progressed() for name, worker in workers.items()}
                if progressed[role] or role not in ("pipeline", "retention"):
                    workers[role].kill()
                    workers[role] = self._start(role)
                    kills += 1
            for role, worker in workers.items():
                wait_until(worker.has_progressed, f"{role} does not work", poll_s=0.3)
        finally:
            for worker in workers.values():
                worker.kill()
        return kills

    def check(self) -> None:
        """Let all work end, and check the lake."""
        _in_child(self._check)

    def _check(self) -> None:
        place = self._place
        sending, sent = set(place.lines("sender", "sending")), set(place.lines("sender", "sent"))
        with place.open() as lake:
            self._settle(lake)
            erased = {number for number in sent if trace_id(number) in place.requested()}
            rows = rows_at(lake, "main")
            compare("main", rows, rows)
            found = {row[0] for row in rows["spans"]}
            stay = {trace_id(each) for each in sent - erased if not is_ephemeral(each)}
            may_stay = {trace_id(each) for each in sending - erased if not is_ephemeral(each)}
            assert stay <= found <= may_stay, f"lost {stay - found}; found again {found - may_stay}"
            spans = {tuple(row[:2]) for row in rows["spans"]}
            lacking = {each for each in stay for span in (1, 2) if (each, f"{span:016x}") not in spans}
            assert not lacking, f"{lacking} have lost spans"
            for number in sorted(erased | {each for each in sent if is_ephemeral(each)}):
                with suppress(NotFoundError):
                    lake.trace(trace_id(number))
                    raise AssertionError(f"trace {number} is found again")
                assert lake.search(f"secret{number}x").total == 0, number
            for each in self._chance.sample(sorted(stay), min(20, len(stay))):
                assert len(lake.trace(each).spans) >= 2, each
            tags = sorted(place.folder.glob("tag-*.json"))
            requested = place.requested()
            for path in tags:
                before = without(json.loads(path.read_text()), requested)
                compare(path.stem, rows_at(lake, path.stem), before)
            self._verify(lake, erased)
            self._tell(f"{len(sent)} traces, {len(stay)} stay, {len(erased)} erased, {len(tags)} tags")

    def _settle(self, lake: Lake) -> None:
        """Let the pipeline take all input, and end the retention and all erasures."""
        place = self._place
        with closing(lake.pipeline(runner=InProcess())) as pipeline:
            self._take_all(pipeline)
            for number in set(place.lines("eraser", "erasing")) - set(place.lines("eraser", "accepted")):
                lake.erase(trace=trace_id(number))
            for _ in range(TRIES):
                lake.retention.apply(runner=InProcess())
                self._take_all(pipeline)
                lake.erasures.run()
                if all(report.state == "finished" for report in lake.erasures.all()):
                    break
        lake.archive.sweep(0)  # uploads of archivers that were killed beside the last eraser
        states = [report for report in lake.erasures.all() if report.state != "finished"]
        assert not states, f"erasures do not end: {states}"
        assert lake.quarantine.all() == [], lake.quarantine.all()

    def _take_all(self, pipeline: Any) -> None:
        for _ in range(TRIES):
            if pipeline.run_once() is None:
                return
        raise AssertionError("the input does not end")

    def _verify(self, lake: Lake, erased: set[int]) -> None:
        values = [f"secret{number}x" for number in sorted(erased)]
        for report in lake.erasures.all()[:3]:
            check = lake.erasures.verify(report.id, values)
            assert (check.findings, check.unread) == ((), ()), check
        findings = lake.verify().findings
        assert findings == (), findings

    def _start(self, role: str) -> Worker:
        return Worker(role, self._place, self._chance.randrange(1 << 32))


def _in_child(work: Callable[[], None]) -> None:
    process = _PROCESSES.Process(target=work)
    process.start()
    process.join()
    assert process.exitcode == 0, f"{work.__name__} failed"


@contextmanager
def place_of(folder: Path, *, postgres: bool, s3: bool) -> Iterator[Place]:
    """Start the servers of a lake, and name its place. Child processes inherit the environment."""
    before = dict(os.environ)
    with ExitStack() as stack:
        lake, tracking = str(folder / "lake"), f"sqlite://{folder / 'tracking.db'}"
        metadata = location = None
        if s3:
            server = stack.enter_context(closing(S3Server()))
            os.environ |= server.environment()
            lake, location, metadata = server.url(), server.url(), f"sqlite://{folder / 'metadata.db'}"
        if postgres:
            database = stack.enter_context(closing(PostgresServer()))
            metadata, tracking = (database.url(database.new_schema()) for _ in range(2))
        os.environ["TRACELAKE_TRACKING"] = tracking
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        try:
            yield Place(lake, metadata, location, folder)
        finally:
            os.environ.clear()
            os.environ |= before


def run(
    folder: Path, seed: int, seconds: float, tell: Tell, *, postgres: bool = False, s3: bool = False
) -> int:
    """Run a campaign in a folder; return the number of kills."""
    with place_of(folder, postgres=postgres, s3=s3) as place:
        campaign = Campaign(place, seed, tell)
        campaign.prepare()
        kills = campaign.run(seconds)
        tell(f"{kills} kills")
        campaign.check()
        return kills


def main() -> None:
    """Run a campaign."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4)))
    parser.add_argument("--postgres", action="store_true", help="records and tracking store in PostgreSQL")
    parser.add_argument("--s3", action="store_true", help="the lake and its archive on an S3 server")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="tracelake-lifecycle-") as folder:
        tell: Tell = lambda text: print(text, flush=True)  # noqa: E731
        run(Path(folder), options.seed, options.minutes * 60, tell, postgres=options.postgres, s3=options.s3)


if __name__ == "__main__":
    main()
