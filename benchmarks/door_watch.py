"""What `door.py` looks at while a load is sent: when spans are found, and what becomes of servers minute by minute."""

from __future__ import annotations

import queue
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

import psutil

import tracelake
from benchmarks.door_figures import Lines, share
from benchmarks.door_senders import Answer
from benchmarks.door_servers import Contestant, tree
from benchmarks.first_span import is_found

if TYPE_CHECKING:
    from multiprocessing.queues import Queue

LOOK_S: Final = 0.05
LOOK_AGAIN_S: Final = 0.25
"""How often a server is asked for what it did not find."""
OUTSTANDING_MAX: Final = 20
"""Requests that are looked for at one time: a search each."""
STALLED_S: Final = 120.0
"""Without another span in the tables: what is left is taken to be lost."""
MINUTE_S: Final = 60.0
MEMORY_EVERY_S: Final = 10.0
WORKERS: Final = "workers"
PIPELINE_CHILD: Final = "tracelake.server.pipeline_process"
"""In the command line of a pipeline that a server runs."""
COUNTED: Final = (
    'tracelake_table_parts{table="spans"}',
    'tracelake_table_parts{table="traces"}',
    'tracelake_table_rows{table="spans"}',
    "tracelake_index_parts",
    "tracelake_outbox_rows",
    "tracelake_outbox_oldest_seconds",
    "tracelake_pipeline_restarts_total",
)
"""Of what a server tells in `/metrics`."""


class Visibility(threading.Thread):
    """Looks for requests that were answered until a search finds them.

    Where the server has a hot tier it is asked, at once and again and again; else the lake, after each commit.
    """

    def __init__(self, contestant: Contestant, samples: Queue[Answer]) -> None:
        super().__init__(daemon=True)
        self.seen: list[tuple[float, float]] = []
        """When a request was answered, and how long after that a search found it, in seconds."""
        self.latencies: list[tuple[float, float]] = []
        """When a request that was looked for was answered, and how long that had taken."""
        self.search_s: list[float] = []
        """How long each search took."""
        self.oldest_s: float | None = None
        """When the oldest one was answered that is looked for."""
        self._contestant, self._samples = contestant, samples
        self._no_more = threading.Event()
        self._end = threading.Event()
        self._problem = ""

    def run(self) -> None:
        """Look until told to stop, and then until all are found."""
        try:
            with _finder(self._contestant) as (find, when):
                self._look(find, when)
        except Exception as error:  # noqa: BLE001  whatever it is, who waits is told
            self._problem = f"{type(error).__name__}: {error}"

    def _look(self, find: Callable[[str], bool], when: Callable[[], object]) -> None:
        waiting: list[Answer] = []
        before = None
        while (waiting or not self._no_more.is_set()) and not self._end.wait(LOOK_S):
            new = self._new(OUTSTANDING_MAX - len(waiting))
            self.latencies += [(answer.at_s, answer.latency_s) for answer in new]
            now = when()
            waiting += new
            if now != before:
                waiting = waiting[self._found_first(waiting, find) :]
            self.oldest_s = min((answer.at_s for answer in waiting), default=None)
            before = now

    def _found_first(self, waiting: Sequence[Answer], find: Callable[[str], bool]) -> int:
        """Return how many are found, the oldest first; who is behind one that is not found is not asked for.

        So what is found late makes no more searches than what is found at once.
        """
        for number, answer in enumerate(waiting):
            asked_s = time.monotonic()
            is_there = find(answer.token)
            at_s = time.monotonic()
            self.search_s.append(at_s - asked_s)
            if not is_there:
                return number
            self.seen.append((answer.at_s, at_s - answer.at_s))
        return len(waiting)

    def _new(self, at_most: int) -> list[Answer]:
        new: list[Answer] = []
        with suppress(queue.Empty):
            while len(new) < at_most:
                new.append(self._samples.get_nowait())
        return new

    def finish(self, within_s: float) -> None:
        """Let it find what it has still to find."""
        self._no_more.set()
        self.join(within_s)
        assert not self._problem, self._problem

    def __enter__(self) -> Visibility:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self.join()


@contextmanager
def _finder(contestant: Contestant) -> Iterator[tuple[Callable[[str], bool], Callable[[], object]]]:
    """Lend what tells whether a word is found, and what changes when it is worth to look again."""
    if contestant.is_hot:

        def find_at_server(token: str) -> bool:
            return is_found(
                f"{contestant.url}/api/v1/search?{urllib.parse.urlencode({'q': token, 'limit': 1})}"
            )

        yield find_at_server, lambda: int(time.monotonic() / LOOK_AGAIN_S)
        return
    assert contestant.lake is not None
    with tracelake.open(contestant.lake) as lake:
        yield lambda token: bool(lake.search(token, limit=1)), lambda: lake.log(limit=1)


def wait_for_rows(lake: str, rows: int, within_s: float) -> None:
    """Wait until the table of spans has so many rows: as long as more come, and longer than that for none."""
    begun_s = at_s = time.monotonic()
    before = -1
    with tracelake.open(lake) as opened:
        while (there := opened.table("spans").info().rows) < rows:
            now_s = time.monotonic()
            before, at_s = there, now_s if there > before else at_s
            assert now_s - at_s < STALLED_S, f"for {STALLED_S:.0f} s no span came after {there} of {rows}"
            assert now_s - begun_s < within_s, (
                f"{there} of {rows} spans are in the tables after {within_s:.0f} s"
            )
            time.sleep(LOOK_S)


class Minutes(threading.Thread):
    """Writes a line each minute: what was found in it and how late, and memory and processor time of the servers."""

    def __init__(self, contestant: Contestant, visibility: Visibility, lines: Lines) -> None:
        super().__init__(daemon=True)
        self._contestant, self._visibility, self._lines = contestant, visibility, lines
        self._end = threading.Event()

    def run(self) -> None:
        """Write until told to stop; what is left of a minute is written, too."""
        minute, seen, asked, searched = 0, 0, 0, 0
        while not self._end.is_set():
            cpu_s, of_kinds_s = self._contestant.cpu_s(), self._cpu_s()
            memory_mib = self._most_memory(time.monotonic() + MINUTE_S)
            took_s = [took_s for _, took_s in self._visibility.seen[seen:]]
            latencies_ms = [latency_s * 1e3 for _, latency_s in self._visibility.latencies[asked:]]
            searches_ms = [search_s * 1e3 for search_s in self._visibility.search_s[searched:]]
            seen, asked = seen + len(took_s), asked + len(latencies_ms)
            searched += len(searches_ms)
            oldest_s = self._visibility.oldest_s
            line = {
                "minute": minute,
                "contestant": self._contestant.name,
                "found": len(took_s),
                "searchable_p50_s": share(took_s, 0.5) if took_s else None,
                "searchable_p99_s": share(took_s, 0.99) if took_s else None,
                "oldest_waits_s": None if oldest_s is None else time.monotonic() - oldest_s,
                "search_p50_ms": share(searches_ms, 0.5) if searches_ms else None,
                "search_p99_ms": share(searches_ms, 0.99) if searches_ms else None,
                "p50_ms": share(latencies_ms, 0.5) if latencies_ms else None,
                "p99_ms": share(latencies_ms, 0.99) if latencies_ms else None,
                "cpu_s": {kind: s - of_kinds_s.get(kind, 0.0) for kind, s in self._cpu_s().items()},
                "all_cpu_s": self._contestant.cpu_s() - cpu_s,
                "memory_mib": memory_mib,
                "counted": _counted(self._contestant),
            }
            self._lines.write(line)
            minute += 1

    def _most_memory(self, until_s: float) -> dict[str, float]:
        """Return the most that each kind of process had until then, sampled now and then."""
        most: dict[str, float] = {}
        ended = False
        while not ended:
            for kind, mib in self._memory_mib().items():
                most[kind] = max(most.get(kind, 0.0), mib)
            left_s = until_s - time.monotonic()
            ended = left_s <= 0 or self._end.wait(min(MEMORY_EVERY_S, left_s))
        return most

    def _memory_mib(self) -> dict[str, float]:
        """Return what processes have: the server, the pipeline, JVMs, and workers, by proportional set size."""
        now: dict[str, float] = {}
        for kind, process in _by_kind(self._contestant):
            with suppress(psutil.Error):
                now[kind] = now.get(kind, 0.0) + process.memory_full_info().pss / 2**20
        return now

    def _cpu_s(self) -> dict[str, float]:
        """Return the processor time of the processes that there are, by kind."""
        now: dict[str, float] = {}
        for kind, process in _by_kind(self._contestant):
            with suppress(psutil.Error):
                now[kind] = now.get(kind, 0.0) + sum(process.cpu_times()[:2])
        return now

    def __enter__(self) -> Minutes:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self.join()


def _by_kind(contestant: Contestant) -> Iterator[tuple[str, psutil.Process]]:
    """Return its processes, each with what it is: the server, the pipeline, a JVM, or a worker."""
    for pid in contestant.pids():
        root = "serve" if pid in contestant.door else "pipeline"
        for process in tree(pid):
            with suppress(psutil.Error):
                if process.pid == pid:
                    yield root, process
                elif PIPELINE_CHILD in process.cmdline():
                    yield "pipeline", process
                else:
                    yield ("jvm" if process.name() == "java" else WORKERS), process


def _counted(contestant: Contestant) -> dict[str, float]:
    """Return what a server of Tracelake counts that may grow; nothing of others, or where it does not answer."""
    if contestant.lake is None:
        return {}
    try:
        with urllib.request.urlopen(f"{contestant.url}/metrics", timeout=MEMORY_EVERY_S) as answer:
            lines = answer.read().decode().splitlines()
    except OSError:
        return {}
    figures = (line.rpartition(" ") for line in lines)
    return {name: float(value) for name, _, value in figures if name in COUNTED}
