"""Kill -9 server, pipeline and archivers under the load of official OTLP exporters, on SQLite or PostgreSQL.

    python -m tests.faults.kill_archive --minutes 10 --seed 7 [--postgres] [--layout pack]

Four exporters send new traces and late spans. Two archivers make a pass every two seconds, and a user restores and
deletes traces and changes the layout. Every few seconds one process other than the exporters is killed with -9, or
an archiver is stopped for a while (SIGSTOP). In the end each acknowledged span is in the tables once, and no
refused one. Each trace is wholly hot or wholly archived, with all its spans. No orphaned object remains after a
sweep, and `verify` finds nothing. The seed decides the input, the victims and the moments; the code running at a
moment also depends on the machine.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import tracelake
from tests.faults.archive_told import Told, check_everything, check_trace
from tests.faults.kill_hot import tracking_database
from tests.faults.otlp_exporter import URL
from tests.patience import HANG_S, wait_until
from tests.server.process import PROGRAM
from tracelake import Lake
from tracelake._errors import StorageError
from tracelake.archive.model import LAYOUTS
from tracelake.tasks.runners import InProcess
from tracelake.tracking.outbox import Outbox

BACKLOG_MAX: Final = 200
"""Maximum rows that wait for the pipeline. Beyond: exporters wait, so a slow machine gets no more than it can do."""
PAUSE_MAX_S: Final = 6.0
EVENTS_APART_MAX_S: Final = 5.0
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Role:
    """A process that is killed and restarted: its command, and the output that shows that it works."""

    name: str
    command: tuple[str, ...]
    works: str


class RoleProcess:
    """A running role."""

    def __init__(self, role: Role, folder: Path) -> None:
        self.role = role
        self.log = folder / f"{role.name}.log"
        self._errors = folder / f"{role.name}.errors"
        self.kills = 0
        self.start()

    def start(self) -> None:
        """Start it; append its output to its log."""
        with self.log.open("ab") as log, self._errors.open("ab") as errors:
            self._since = log.tell() if self.role.works != "looks for input" else errors.tell()
            self.process = subprocess.Popen(
                self.role.command, stdin=subprocess.DEVNULL, stdout=log, stderr=errors
            )

    @property
    def said(self) -> str:
        """Return its output since it began."""
        source = self._errors if self.role.works == "looks for input" else self.log
        return source.read_bytes()[self._since :].decode(errors="replace")

    def works(self) -> bool:
        """Return whether it has made progress since it began. Fails if it has ended by itself."""
        code = self.process.poll()
        assert code is None, f"{self.role.name} ended with {code}: {self._errors.read_text()[-3000:]}"
        return self.role.works in self.said

    def kill(self) -> None:
        """End it at once."""
        self.process.kill()
        self.process.wait(HANG_S)
        self.kills += 1


class Campaign:
    """One lake, its processes, and the results that they got."""

    def __init__(
        self, folder: Path, seed: int, tell: Tell, exporters: int = 4, archivers: int = 2, users: int = 1
    ) -> None:
        self._folder, self._lake_path, self._tell = folder, folder / "lake", tell
        self._rng = random.Random(seed)
        self._exporters, self._archivers, self._users = exporters, archivers, users
        self.told = Told(folder)
        self.looks = self.pauses = self._waits = 0

    def run(self, seconds: float, kills: int, layout: str | None = None) -> None:
        """Run for at least this long and this many kills; then wait until the lake is idle, and compare."""
        with tracelake.init(self._lake_path, buckets=2) as lake:
            lake.hot.set_up()
            layout = layout or self._rng.choice(list(LAYOUTS))
            lake.archive.configure(layout=layout, retention="1m")
            self._tell(f"layout {layout}")
            with self._working() as processes:
                self._disturb(lake, processes, time.monotonic() + seconds, kills)
                killed = Counter({each.role.name: each.kills for each in processes})
            self._tell(f"killed: {dict(killed)}, {self.pauses} pauses; {self.looks} traces were looked at")
            self._rest(lake)
            self._tell(check_everything(lake, self.told))

    @contextmanager
    def _working(self) -> Iterator[list[RoleProcess]]:
        """Keep all of them running until the end of the block."""
        processes: list[RoleProcess] = []
        exporters: list[subprocess.Popen[bytes]] = []
        (self._folder / URL).write_text("")
        try:
            processes += [RoleProcess(role, self._folder) for role in self._roles()]
            wait_until(processes[0].works, "the server does not start")
            for number in range(1, self._exporters + 1):
                command = [sys.executable, "-m", "tests.faults.otlp_exporter", str(self._folder), str(number)]
                command.append(str(self._rng.randrange(1 << 32)))
                exporters.append(subprocess.Popen(command, stdin=subprocess.PIPE))
            yield processes
            for each in exporters:  # while all others still work
                assert each.stdin is not None
                each.stdin.close()
            for each in exporters:
                assert each.wait(HANG_S) == 0, "an exporter failed"
        finally:
            for each in [*exporters, *(role.process for role in processes)]:
                each.kill()
                each.wait(HANG_S)

    def _roles(self) -> list[Role]:
        lake, python = str(self._lake_path), sys.executable
        server = (python, "-c", PROGRAM, lake, "0", "no", "", "hot")
        replica = (python, "-m", "tests.faults.replica_process", "pipeline", "run", "--lake", lake)
        archive = (python, "-m", "tests.faults.archive_process", lake)
        seeds = [str(self._rng.randrange(1 << 32)) for _ in range(self._archivers + 1)]
        return [
            Role("server", server, "http://"),
            Role("pipeline", (*replica, "--replica", "a", "--interval", "0.2", "--json"), "looks for input"),
            *[Role("user", (*archive, "user", seeds[0]), "restored")][: self._users],
            *(
                Role(f"archiver-{n}", (*archive, "archiver", seeds[n + 1]), "pass")
                for n in range(self._archivers)
            ),
        ]

    def _disturb(self, lake: Lake, processes: list[RoleProcess], end_s: float, kills: int) -> None:
        """Kill or stop one process after the other, each only once it has made progress; read traces in between."""
        killed = 0
        while killed < kills or time.monotonic() < end_s:
            victim = self._rng.choice(processes)
            until_s = time.monotonic() + self._rng.uniform(0.5, EVENTS_APART_MAX_S)
            acknowledged = self.told.acknowledged
            wait_until(
                lambda: (
                    self._go_on(lake, processes)
                    and time.monotonic() > until_s  # noqa: B023
                    and self.told.acknowledged > acknowledged  # noqa: B023
                    and victim.works()  # noqa: B023
                ),
                f"{victim.role.name} does nothing, or nothing is acknowledged",
                # If much input waits, exporters wait, too: then the pipeline shows the progress.
                moving=lambda: (self.told.acknowledged, self._waits),
                poll_s=0.1,
            )
            if victim.role.name.startswith("archiver") and self._rng.random() < 0.4:
                self._pause(victim)
                continue
            victim.kill()
            victim.start()
            killed += 1
            self._tell(
                f"kill {killed}: {victim.role.name}; {self.told.acknowledged - acknowledged} spans acknowledged"
            )

    def _pause(self, victim: RoleProcess) -> None:
        victim.process.send_signal(signal.SIGSTOP)
        time.sleep(self._rng.uniform(0, PAUSE_MAX_S))
        victim.process.send_signal(signal.SIGCONT)
        self.pauses += 1
        self._tell(f"{victim.role.name} stood still")

    def _go_on(self, lake: Lake, processes: list[RoleProcess]) -> bool:
        """Let exporters send to the running server, unless too much waits; read a trace."""
        server = processes[0]
        store = lake.hot.store
        assert store is not None
        try:
            self._waits = Outbox(store).totals()[0]
            url = server.said.split()[0] if server.works() and self._waits <= BACKLOG_MAX else ""
            temporary = self._folder / f"{URL}.new"
            temporary.write_text(url)
            temporary.replace(self._folder / URL)
            self.told.read()
            if (trace_id := self.told.some(self._rng)) is not None:
                check_trace(lake, trace_id, self.told)
                self.looks += 1
        except StorageError as error:  # a stopped process may hold the lock
            self._tell(f"again: {error}")
        return True

    def _rest(self, lake: Lake) -> None:
        """Let the pipeline take all waiting input, and a last pass all due traces."""
        self.told.read()
        pipeline = lake.pipeline(runner=InProcess())
        while pipeline.run_once() is not None:
            pass
        pipeline.close()


def main() -> None:
    """Run a campaign."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=0.0)
    parser.add_argument("--kills", type=int, default=10, help="at least so many, whatever the time")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4)))
    parser.add_argument("--layout", choices=list(LAYOUTS), help="to begin with; by default, by the seed")
    parser.add_argument("--postgres", action="store_true")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with (
        tempfile.TemporaryDirectory(prefix="tracelake-kill-") as folder,
        tracking_database(options.postgres),
    ):
        campaign = Campaign(Path(folder), options.seed, lambda text: print(text, flush=True))
        try:
            campaign.run(options.minutes * 60, options.kills, options.layout)
        except BaseException:
            for log in [*Path(folder).glob("*.errors")]:
                print(f"{log.name}: {log.read_text()[-3000:]}", flush=True)
            raise


if __name__ == "__main__":
    main()
