"""Two replicas, three sources and a Kafka output: processes, broker and database are killed at random.

    python -m tests.faults.kill_journal --minutes 30 --seed 7

Files appear and grow, an official OTLP exporter sends to a server, and messages arrive in a topic. The metadata and
the tracking store are in PostgreSQL. Every few seconds an event happens. A replica or the server is killed with -9
or stopped for a while (SIGSTOP), or the broker or the database is killed and restarted. Or a source is paused, or
removed and added again. In the end table `spans` has exactly the sent spans, each once and unchanged. Each
transaction has one commit, in order, and no input is in two. In the output, a consumer of committed messages sees
the new spans of each transaction, each once. The seed decides the input and the events; the code running at a
moment depends on the machine.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Final

import tracelake
from tests.faults.archive_told import Told
from tests.faults.journal_inputs import Inputs, Key, committed_spans
from tests.faults.kill_archive import Role, RoleProcess
from tests.faults.otlp_exporter import URL
from tests.kafka.broker import Broker
from tests.patience import HANG_S, Patience
from tests.server.process import PROGRAM
from tests.storage.servers.postgres import PostgresServer
from tracelake import Lake
from tracelake._errors import StorageError, UsageError
from tracelake.indexing.merge import COMMITTER
from tracelake.journal.model import inputs_of
from tracelake.journal.store import Journal
from tracelake.pipeline.outputs.configured import TRANSACTION_HEADER
from tracelake.tasks.runners import InProcess

BACKLOG_MAX: Final = 300
"""Maximum inputs that wait at all sources. Beyond: nothing is sent, so a slow machine gets no more than it can do."""
PAUSE_MAX_S: Final = 6.0
EVENTS_APART_MAX_S: Final = 6.0
_EVENTS: Final = {"kill": 6, "stop": 4, "broker": 1, "database": 1, "source": 3}
"""Relative frequency of each event."""


class JournalCampaign:
    """One lake, its processes, and the record of everything sent."""

    def __init__(self, folder: Path, seed: int, tell: Callable[[str], None]) -> None:
        self._folder, self._tell = folder, tell
        self._rng = random.Random(seed)
        self._told = Told(folder)
        self._happened: Counter[str] = Counter()
        self._waits = self._database_kills = 0
        self._kills_before: dict[str, int] = {}  # by process, the number of database kills before it began

    def run(self, seconds: float, events: int) -> None:
        """Run for at least this long and this many events; then wait until the lake is idle, and compare.

        If everything stops, also compare the work so far before the campaign fails.
        """
        (self._folder / "drops").mkdir()
        with ExitStack() as stack:
            self._database = stack.enter_context(closing(PostgresServer()))
            self._broker = stack.enter_context(closing(Broker(self._folder / "broker")))
            records = self._database.url(self._database.new_schema())
            lake = stack.enter_context(
                closing(tracelake.init(self._folder / "lake", metadata=records, buckets=2))
            )
            lake.hot.set_up()
            self._add_all(lake)
            lake.outputs.add("stream", self._broker.url("out"))
            processes = self._start(stack)
            inputs = Inputs(
                self._folder / "drops", self._broker, "in", self._rng.randrange(1 << 32), self._may_send
            )
            stands_still: AssertionError | None = None
            try:
                self._disturb(lake, processes, time.monotonic() + seconds, events)
                self._end_exporter()
            except AssertionError as error:
                self._tell(f"does not go on, and is compared as far as it went: {error}")
                stands_still = error
            finally:
                for process in processes:
                    process.kill()
                inputs.end()
            self._rest(lake)
            self._check(lake, inputs)
            if stands_still is not None:
                raise stands_still

    def _add_all(self, lake: Lake) -> None:
        for topic in ("in", "out"):
            self._broker.make_topic(topic, 3)
        self._addresses = {
            "drops": str(self._folder / "drops" / "*.jsonl"),
            "topic": self._broker.url("in"),
        }
        for name, address in self._addresses.items():
            lake.sources.add(name, address)

    def _start(self, stack: ExitStack) -> list[RoleProcess]:
        lake, python = str(self._folder / "lake"), sys.executable
        pipeline = ("pipeline", "run", "--lake", lake, "--interval", "0.2", "--json", "--replica")
        replica = (python, "-m", "tests.faults.replica_process", *pipeline)
        roles = [Role("server", (python, "-c", PROGRAM, lake, "0", "no", "", "hot"), "http://")]
        roles += [Role(name, (*replica, name), "looks for input") for name in ("a", "b")]
        (self._folder / URL).write_text("")
        command = [python, "-m", "tests.faults.otlp_exporter", str(self._folder), "1"]
        self._exporter = Popen([*command, str(self._rng.randrange(1 << 32))], stdin=PIPE)
        stack.callback(self._exporter.kill)
        self._kills_before = dict.fromkeys((role.name for role in roles), self._database_kills)
        return [RoleProcess(role, self._folder) for role in roles]

    def _start_again(self, process: RoleProcess) -> None:
        self._kills_before[process.role.name] = self._database_kills
        process.start()

    def _end_exporter(self) -> None:
        assert self._exporter.stdin is not None
        self._exporter.stdin.close()
        assert self._exporter.wait(HANG_S) == 0, "the exporter failed"

    def _may_send(self) -> bool:
        return self._waits <= BACKLOG_MAX

    def _disturb(self, lake: Lake, processes: list[RoleProcess], end_s: float, events: int) -> None:
        """Cause events, each only after a commit since the one before."""
        while self._happened.total() < events or time.monotonic() < end_s:
            what = self._rng.choices(list(_EVENTS), list(_EVENTS.values()))[0]
            victim = self._rng.choice(processes)
            until_s = time.monotonic() + self._rng.uniform(0.5, EVENTS_APART_MAX_S)
            before, patience = self._upper(lake), Patience()
            while time.monotonic() < until_s or not self._is_up(lake, processes, before):
                works = [each.role.works in each.said for each in processes]
                patience.look((self._upper(lake), works), lambda: f"nothing moves: {self._state(lake)}")
                time.sleep(0.1)
            name = self._happen(lake, what, victim)
            self._happened[name] += 1
            self._tell(
                f"event {self._happened.total()}: {name}; transaction {self._upper(lake)}, {self._waits} wait"
            )

    def _happen(self, lake: Lake, what: str, victim: RoleProcess) -> str:
        match what:
            case "kill":
                victim.kill()
                self._start_again(victim)
                return f"{victim.role.name} killed"
            case "stop":
                victim.process.send_signal(signal.SIGSTOP)
                time.sleep(self._rng.uniform(0, PAUSE_MAX_S))
                victim.process.send_signal(signal.SIGCONT)
                return f"{victim.role.name} stopped"
            case "broker":
                self._broker.kill()
                time.sleep(self._rng.uniform(0, 3))
                self._broker.start()
                return "broker killed"
            case "database":
                self._database.kill()
                time.sleep(self._rng.uniform(0, 3))
                self._database_kills += 1
                self._database.start()
                return "database killed"
        return self._change_a_source(lake)

    def _change_a_source(self, lake: Lake) -> str:
        """Pause a source, resume it, or remove it and add it again."""
        name = self._rng.choice(list(self._addresses))
        what = self._rng.choice(["paused", "resumed", "added again"])

        def change() -> None:
            match what:
                case "paused":
                    lake.sources.pause(name)
                case "resumed":
                    lake.sources.resume(name)
                case _:
                    with suppress(UsageError):  # removed before a reply was lost
                        lake.sources.remove(name)
                    lake.sources.add(name, self._addresses[name])

        _surely(change)
        return f"source {what}"

    def _upper(self, lake: Lake) -> int:
        try:
            commits = [each for each in lake.log(limit=2) if each.committer != COMMITTER]
        except StorageError:
            return -1
        return int(commits[0].metadata["transaction"]) + 1 if commits else 0

    def _is_up(self, lake: Lake, processes: list[RoleProcess], before: int) -> bool:
        """Return whether all processes work and a replica has committed."""
        works = [self._works(each) for each in processes]
        try:
            infos = lake.sources.all()
            waiting = lake.hot.waiting()
        except StorageError:
            return False
        self._waits = sum(info.waiting or 0 for info in infos if info.added) + (
            waiting.segments if waiting else 0
        )
        lines = processes[0].said.split() if all(works) and self._may_send() else []
        temporary = self._folder / f"{URL}.new"
        temporary.write_text(lines[0] if lines else "")
        temporary.replace(self._folder / URL)
        self._told.read()
        # If both sources are paused and the exporter waits for the server, no commit need follow.
        return all(works) and (self._upper(lake) > before or not self._waits)

    def _works(self, each: RoleProcess) -> bool:
        """Return whether a process makes progress. A process that could not start, or met the end of the database,
        restarts.

        Restarts are unlimited: lack of progress reveals a process that never works, without a separate clock.
        """
        has_worked = each.role.works in each.said
        if each.process.poll() is None:
            return has_worked
        had_database = self._kills_before[each.role.name] == self._database_kills
        assert not (has_worked and had_database), f"{each.role.name} ended: {self._errors(each.role.name)}"
        self._start_again(each)
        self._happened["began again"] += 1
        return False

    def _errors(self, name: str) -> str:
        return (self._folder / f"{name}.errors").read_text(errors="replace")[-3000:]

    def _state(self, lake: Lake) -> str:
        told = "; ".join(self._errors(name) for name in ("a", "b", "server"))
        try:
            return f"{lake.replicas()}, {lake.sources.all()}; {told}"
        except StorageError as error:
            return f"{error}; {told}"

    def _rest(self, lake: Lake) -> None:
        """Let one pipeline take all waiting input, including input quarantined after deaths."""
        for name in self._addresses:
            _surely(partial(lake.sources.resume, name))
        time.sleep(tracelake.limits.WATCHED_FILE_QUIET_S + 0.5)
        with closing(lake.pipeline(replica="last", runner=InProcess())) as pipeline:
            patience = Patience()
            while True:
                try:
                    if pipeline.run_once() is None:
                        aside = {
                            each.transaction for each in lake.quarantine.all() if each.state == "set aside"
                        }
                        if not aside:
                            return
                        for t in aside:
                            lake.quarantine.retry(t)
                except StorageError as error:  # also for temporarily unreadable inputs
                    patience.look(self._upper(lake), partial("does not come to rest: {}".format, error))
                    time.sleep(0.1)

    def _check(self, lake: Lake, inputs: Inputs) -> None:
        """Compare tables, commits, journal and output with the sent input."""
        self._told.read()
        sure, names = set(inputs.sent.sure), dict(inputs.sent.names)
        exported = {(trace, span) for trace, spans in self._told.taken.items() for span in spans}
        for trace, number in exported | self._told.unknown:
            names[trace, f"{number:016x}"] = f"step {number}"
        sure |= {(trace, f"{number:016x}") for trace, number in exported}
        rows = lake.sql("SELECT trace_id, span_id, name, transaction FROM spans").to_pylist()
        table: dict[Key, str] = {(row["trace_id"], row["span_id"]): row["name"] for row in rows}
        assert len(table) == len(rows), "a span is there twice"
        assert sure <= table.keys(), f"lost: {sorted(sure - table.keys())[:10]} of {len(sure - table.keys())}"
        strange = [key for key, name in table.items() if names.get(key) != name]
        assert not strange, f"not as they were sent: {strange[:10]}"
        upper = self._check_history(lake)
        by_transaction: dict[int, list[Key]] = {}
        (output,) = lake.outputs.all()
        for row in rows:
            if row["transaction"] >= (output.since or 0):
                by_transaction.setdefault(row["transaction"], []).append((row["trace_id"], row["span_id"]))
        seen = committed_spans(self._broker, "out", TRANSACTION_HEADER)
        wrong = {
            t for t in by_transaction | seen if sorted(seen.get(t, ())) != sorted(by_transaction.get(t, ()))
        }
        assert not wrong, f"the output is not what the table has of transactions {sorted(wrong)}"
        marks = [
            int(dict(each.headers())[TRANSACTION_HEADER])
            for each in self._broker.read(f"tracelake-{output.id}")
        ]
        assert marks == sorted(set(marks)), "markers do not increase"
        report = lake.verify()
        assert report.findings == (), report.findings
        events = ", ".join(f"{count} {what}" for what, count in sorted(self._happened.items()))
        self._tell(
            f"{events}. {len(table)} spans ({len(sure)} of them known to be taken) in {upper} transactions; "
            f"{sum(map(len, seen.values()))} in the output, in {len(seen)} transactions: all is as it was sent"
        )

    def _check_history(self, lake: Lake) -> int:
        """One commit for each transaction, in order; no input is in two."""
        commits = [each for each in lake.log() if each.committer != COMMITTER]
        numbers = [int(each.metadata["transaction"]) for each in commits]
        upper = len(numbers)
        assert numbers == list(reversed(range(upper))), f"transactions of commits: {numbers}"
        journal, taken = Journal(lake._opened.key_value, "main"), Counter[tuple[str, str, object]]()
        for t in range(upper):
            if journal.quarantine_record(t) is None:
                for step in journal.read(t).steps:
                    taken.update(
                        (source, each.path, each.size_bytes if source == "files" else None)
                        for source, ranges in step.sources.items()
                        for each in inputs_of(ranges)
                    )
        twice = [each for each, count in taken.items() if count > 1]
        assert not twice, f"in more than one transaction: {twice[:10]}"
        sources = Counter(source for source, _, _ in taken)
        assert set(sources) == {"files", "outbox", "kafka"}, sources
        self._tell(f"inputs: {dict(sources)}")
        return upper


def _surely(act: Callable[[], object]) -> None:
    """Call it, and retry while a store gives no answer."""
    patience = Patience()
    while True:
        try:
            act()
        except StorageError as error:
            patience.look(None, partial("a store gives no answer: {}".format, error))
            time.sleep(0.5)
        else:
            return


def main() -> None:
    """Run a campaign."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=0.0)
    parser.add_argument("--events", type=int, default=10, help="at least so many, whatever the time")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4)))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="tracelake-kill-") as folder:
        campaign = JournalCampaign(Path(folder), options.seed, lambda text: print(text, flush=True))
        try:
            campaign.run(options.minutes * 60, options.events)
        except BaseException:
            for log in Path(folder).glob("*.errors"):
                print(f"{log.name}: {log.read_text(errors='replace')[-3000:]}", flush=True)
            raise


if __name__ == "__main__":
    main()
