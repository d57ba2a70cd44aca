"""Poller of all sources of a pipeline: those of every lake, those that a replica watches, and configured ones.

Each poll runs in a separate thread with a deadline, so that a slow source does not delay the others.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from threading import Thread
from typing import Final, Literal, TypeAlias, TypeVar

from tracelake.limits import ERROR_MAX_CHARS
from tracelake.pipeline.decode_task import INPUT_COST_BYTES
from tracelake.pipeline.protocol import counts, in_turn
from tracelake.pipeline.registrations import AddedSources, SourceRecord
from tracelake.pipeline.sources.base import Lag, Watch
from tracelake.replicas.protocol import SourceAccount
from tracelake.replicas.replica import BacklogEntry
from tracelake.tasks.backoff import Backoff

_SOURCES_TOLD_MAX: Final = 200
"""Sources that a replica reports in its status."""
_SOURCE_RATE_S: Final = 60.0
"""Time over which the rate of a source is averaged."""
LOOK_WAIT_S: Final = 2.0
"""Time that a continuous pipeline waits for a source's poll."""
LOOK_ONCE_MAX_S: Final = 600.0
"""Time for the poll of a single run, or for all input acknowledged before a client's commit."""
LOOK_STOP_S: Final = 0.1
"""Longest uninterrupted wait for a source."""
LOOK_LATE_S: Final = 30.0
"""Duration of a poll before it is reported."""
LOOKS_LEFT_MAX: Final = 50
"""Hanging polls of removed sources."""

ResultT = TypeVar("ResultT")
Spawn: TypeAlias = Callable[[Callable[[], None]], object]
"""Function that starts some work. The work raises nothing."""


def in_thread(work: Callable[[], None]) -> None:
    """Run work in a thread. See `Spawn`."""
    # A daemon thread, so that a stopping process waits for no source.
    Thread(target=work, name="tracelake-look", daemon=True).start()


def at_once(work: Callable[[], None]) -> None:
    """Run work to its end at once, as in a simulation. See `Spawn`."""
    work()


def call_async(question: Callable[[], ResultT], begin: Spawn) -> Future[ResultT]:
    """Call a function in the background. The returned Future gets its result or exception."""
    answer: Future[ResultT] = Future()

    def ask() -> None:
        try:
            answer.set_result(question())
        except BaseException as error:  # noqa: BLE001
            answer.set_exception(error)

    begin(ask)
    return answer


OpenWatch: TypeAlias = Callable[[str], Watch]
"""Function that opens a source by its address. Raises UsageError."""
_State: TypeAlias = Literal["active", "paused", "failing"]


@dataclass(slots=True)
class _Rate:
    """Rate per second, an exponential average over SOURCE_RATE_S."""

    per_s: float = 0.0
    at_s: float = 0.0

    def now(self) -> float:
        return self.per_s * math.exp((self.at_s - time.monotonic()) / _SOURCE_RATE_S)

    def add(self, amount: float) -> None:
        self.per_s, self.at_s = self.now() + amount / _SOURCE_RATE_S, time.monotonic()


@dataclass(slots=True)
class _PolledSource:
    """A source, and the results of polling it."""

    name: str
    address: str
    """Empty for a source that every lake has."""
    id: str = ""
    """Id of the record of a configured source."""
    watch: Watch | None = None
    """None until it is opened."""
    state: _State = "active"
    reason: str | None = None
    lag: Lag | None = None
    looked_s: float | None = None
    waiting: list[BacklogEntry] = field(default_factory=list)
    """Result of the last poll."""
    look: Future[list[BacklogEntry]] | None = None
    """The poll in progress. Until it ends, nothing else may use the watch."""
    began_s: float = 0.0
    """Start of the poll."""
    ended_s: float | None = None
    """End of the poll."""
    is_late: bool = False
    """True if the last poll missed its deadline. The next one is not waited for."""
    taken_inputs: int = 0
    taken_bytes: int = 0
    rate: _Rate = field(default_factory=_Rate)

    @property
    def kind(self) -> str:
        return "" if self.watch is None else self.watch.source

    @property
    def key(self) -> str:
        return self.id or self.name


@dataclass(frozen=True, slots=True)
class PollResult:
    """Pending inputs by source and path in the order to take them, and the errors of sources that failed."""

    waiting: list[tuple[str, BacklogEntry]]
    unseen: list[str]
    is_own_unseen: bool = False
    """True if a source of every lake failed. Then servers may have acknowledged more than `waiting` shows."""


class SourcePoller:
    """Poller of the sources of one replica. Used by one thread."""

    def __init__(
        self,
        own: Sequence[Watch],
        addresses: Iterable[str],
        added: AddedSources,
        open_watch: OpenWatch,
        begin: Spawn = in_thread,
    ) -> None:
        """Create a poller. Raises UsageError if an address cannot be watched."""
        self._fixed = [_PolledSource(watch.source, "", watch=watch) for watch in own]
        self._fixed += [_PolledSource(address, address, watch=open_watch(address)) for address in addresses]
        self._added = added
        self._of_records: dict[str, _PolledSource] = {}
        self._damaged: dict[str, str] = {}
        self._open_watch = open_watch
        self._begin = begin
        self._abandoned: list[Future[list[BacklogEntry]]] = []  # polls of sources that were removed
        self.pauses = Backoff[str]()

    def look(
        self,
        excluded_paths: Collection[str],
        *,
        continuous: bool,
        ending: bool = False,
        stopping: Callable[[], bool] = lambda: False,
    ) -> PollResult:
        """Poll all sources that are not paused. Adding, pausing or removing a source takes effect at once.

        Args:
            excluded_paths: paths of quarantined inputs, and of those in the open transaction.
            continuous: more polls follow, so a partial listing is enough. A failed source is retried after a backoff.
            ending: a client waits for its transaction to end. The result must then include all input that servers
                acknowledged before.
            stopping: once this returns True, the poller no longer waits for unfinished polls, and counts their sources
                as failed.
        """
        self._follow_records()
        sources = [*self._fixed, *self._of_records.values()]
        polled = [
            (each, continuous and not (ending and not each.address))
            for each in sources
            if each.state != "paused"
        ]
        for each in sources:
            each.waiting = []
        round_s = time.monotonic()
        for each, may_be_partial in polled:
            self._ask(each, excluded_paths, continuous=may_be_partial)
        for each, may_be_partial in polled:  # in source order, not in order of completion
            if not may_be_partial and each.look is not None and each.began_s < round_s:
                # This poll is partial, and began before the input that must be seen now.
                _wait(each.look, round_s + LOOK_ONCE_MAX_S, stopping)
                each.look = None if each.look.done() else each.look
                self._ask(each, excluded_paths, continuous=False)
            self._hear(each, stopping, continuous=may_be_partial)
        if any(each.waiting for each in self._of_records.values()):
            self._leave_out()
        unseen = [_describe_failure(each) for each in sources if each.state == "failing"]
        unseen += self._damaged.values()
        is_own_unseen = any(not each.address and each.state == "failing" for each in self._fixed)
        return PollResult(_in_order([each for each in sources if each.waiting]), unseen, is_own_unseen)

    def _follow_records(self) -> None:
        """Apply source records that were added, paused, resumed or removed since the last poll."""
        records = self._added.records()
        self._damaged = records.damaged
        before, self._of_records = self._of_records, {}
        for record in records.readable:
            source = before.get(record.id) or _PolledSource(record.name, record.address, record.id)
            source.state = "paused" if record.is_paused else "active"
            if record.is_paused:
                source.lag, source.reason = None, None
            self._of_records[record.id] = source
        for id_ in before.keys() - self._of_records.keys():
            self._abandoned += [look] if (look := before[id_].look) is not None else []

    def _leave_out(self) -> None:
        """Drop the input of sources that were paused or removed during the poll."""
        now = {record.name: record for record in self._added.records().readable}
        for each in self._of_records.values():
            record: SourceRecord | None = now.get(each.name)
            is_paused = record is not None and record.is_paused
            if not counts(each.id, None if record is None else record.id, is_paused=is_paused):
                each.waiting = []

    def _ask(self, source: _PolledSource, excluded_paths: Collection[str], *, continuous: bool) -> None:
        """Start a poll, unless one is in progress or the source is in backoff."""
        if source.look is not None or (continuous and self.pauses.failing(source.key) is not None):
            return
        self._abandoned = [look for look in self._abandoned if not look.done()]
        if source.watch is None and len(self._abandoned) >= LOOKS_LEFT_MAX:
            source.reason = (
                f"LOOKS_LEFT_MAX = {LOOKS_LEFT_MAX} polls of removed sources do not end; this source is "
                "polled once one of them ends. Restart the pipeline if none does"
            )
            return

        def question() -> list[BacklogEntry]:
            try:
                source.watch = source.watch or self._open_watch(source.address)
                return sorted(
                    source.watch.look(excluded_paths, continuous=continuous), key=lambda item: item.since_s
                )
            finally:
                source.ended_s = time.monotonic()

        source.began_s, source.ended_s = time.monotonic(), None
        source.look = call_async(question, self._begin)

    def _hear(self, source: _PolledSource, stopping: Callable[[], bool], *, continuous: bool) -> None:
        """Wait a limited time for a poll, and take its result. With `continuous`, do not wait for a source that was
        late before."""
        if source.look is not None:
            wait_s = 0.0 if source.is_late and continuous else LOOK_WAIT_S if continuous else LOOK_ONCE_MAX_S
            _wait(source.look, source.began_s + wait_s, stopping)
            took_s = (source.ended_s or time.monotonic()) - source.began_s
            if source.look.done():
                look, source.look = source.look, None
                self._answered(source, look)
            elif not continuous or took_s > LOOK_LATE_S:
                source.reason = (
                    f"a poll of {source.name} has had no answer for {took_s:.0f} s; waiting for it"
                )
            source.is_late = source.look is not None or took_s >= LOOK_WAIT_S
        source.state = "active" if source.reason is None else "failing"

    def _answered(self, looked: _PolledSource, look: Future[list[BacklogEntry]]) -> None:
        try:
            looked.waiting = look.result()
            assert looked.watch is not None
            looked.lag = looked.watch.lag()
        except Exception as error:  # noqa: BLE001  a failure concerns only this source
            looked.reason = str(error) or type(error).__name__
            self.pauses.failed(looked.key, looked.reason)
        else:
            looked.looked_s = time.time()
            looked.reason = (looked.lag.left_out or None) if looked.lag is not None else None
            self.pauses.succeeded(looked.key)

    def took(self, paths: Collection[tuple[str, str]], recorded: Collection[tuple[str, str]]) -> None:
        """Mark inputs of the last poll as taken. `recorded` are those that this replica recorded, which count in its
        statistics."""
        counted: set[tuple[str, str]] = set()
        for each in (*self._fixed, *self._of_records.values()):
            if each.watch is None or each.look is not None:
                continue
            each.watch.took(path for source, path in paths if source == each.kind)
            ours = {
                (each.kind, item.path): item.size_bytes
                for item in each.waiting
                if (each.kind, item.path) in recorded
            }
            new = ours.keys() - counted
            counted |= new
            size_bytes = sum(ours[item] for item in new)
            each.taken_inputs += len(new)
            each.taken_bytes += size_bytes
            each.rate.add(size_bytes)

    def accounts(self) -> tuple[SourceAccount, ...]:
        """Return the public status of each source."""
        looked = (*self._fixed, *self._of_records.values())
        return tuple(_account(each) for each in looked[:_SOURCES_TOLD_MAX])


def _wait(look: Future[list[BacklogEntry]], until_s: float, stopping: Callable[[], bool]) -> None:
    """Wait for a poll until a deadline, or until a stop is requested."""
    while not look.done() and not stopping() and (left_s := until_s - time.monotonic()) > 0:
        wait([look], min(left_s, LOOK_STOP_S))


def _in_order(looked: Sequence[_PolledSource]) -> list[tuple[str, BacklogEntry]]:
    """Return pending inputs, each once: sources take turns, and each source gives its oldest first."""
    costs = [[item.size_bytes + INPUT_COST_BYTES for item in each.waiting] for each in looked]
    waiting: dict[tuple[str, str], BacklogEntry] = {}
    for source, number in in_turn(costs):
        item = looked[source].waiting[number]
        waiting.setdefault((looked[source].kind, item.path), item)
    return [(source, item) for (source, _), item in waiting.items()]


def _describe_failure(source: _PolledSource) -> str:
    return f"source {source.name}: {source.reason}" if source.id else str(source.reason)


def _account(looked: _PolledSource) -> SourceAccount:
    lag = looked.lag
    return SourceAccount(
        name=looked.name,
        address=looked.address,
        id=looked.id,
        kind=looked.kind,
        state=looked.state,
        reason=None if looked.reason is None else looked.reason[:ERROR_MAX_CHARS],
        waiting=None if lag is None else lag.waiting,
        unit="" if lag is None else lag.unit,
        waiting_bytes=None if lag is None else lag.size_bytes,
        oldest_waiting_s=None if lag is None else lag.oldest_s,
        looked_s=looked.looked_s,
        taken_inputs=looked.taken_inputs,
        taken_bytes=looked.taken_bytes,
        bytes_per_s=looked.rate.now(),
    )
