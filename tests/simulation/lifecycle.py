"""All actors around an erasure in one simulation: writers, compactor, index merger, rebuild, collector, archivers,
readers of every commit, eraser, and a process that applies retention rules.

The rules of `erasing` hold. The archive and the hot tier lose the trace, and keep the other one. A request of the
retention process that lists the trace does not outlive the erasure.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

from tests.simulation.archiving import (
    ArchivingScenario,
    ErasedRows,
    RefusedSpanError,
    SimulatedArchive,
    SimulatedArchiveStore,
    log_spans,
    rows,
    spans_in,
    trace_id,
    tracking,
    write,
)
from tests.simulation.deleting import rows_of
from tests.simulation.erasing import ERASED, POLLS, ErasingScenario, JsonErasures
from tests.simulation.scenarios import require
from tracelake._errors import DamageError, ExpiredError, NotFoundError
from tracelake.archive.archive_pass import ObjectRepository, archive_batch
from tracelake.archive.repositories import is_pack, read_archived, traces_of_pack
from tracelake.lake import erasure as lake_erasure
from tracelake.pipeline.sources import deletions
from tracelake.pipeline.sources.deletions import DeletionRequest, RequestFence
from tracelake.shards.shard import Shard
from tracelake.testing import Actor, Process, Run
from tracelake.testing.simulation import StandIn
from tracelake.tracking.erasure import ErasedTraces
from tracelake.versions.repository import Repository

HOT: Final = (int(ERASED, 16) - 1, 0)
"""Numbers of the traces in the hot tier; the first is erased."""
HOT_IDS: Final = [trace_id(number) for number in HOT]
DELETED: Final = "1"
"""Trace that the retention rule deletes, with the erased one."""


class HotErasures(JsonErasures):
    """Erasures of a lake with a tracking store."""

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        self._hot: Any = SimpleNamespace(store=tracking())

    def _tracking(self) -> ErasedTraces:
        return ErasedRows(self._opened.process)  # type: ignore[attr-defined]


class PendingRequests:
    """Stands in for `lake.retention` and `lake.prices` of an eraser."""

    def __init__(self, scenario: LifecycleScenario, opened: Any, _: Any = None) -> None:
        self._scenario, self._process = scenario, opened.process

    def finish_pending(self) -> None:
        """Carry out all requests."""
        self._scenario.finish_pending(self._process)


class LifecycleScenario(ErasingScenario):
    """The scenario `erasing` with archivers, and with retention."""

    name = "lifecycle"
    steps_max = 30_000
    erasures = HotErasures

    def actors(self) -> list[Actor]:
        return [
            *super().actors(),
            Actor("retention", self._retain),
            Actor("archiver", self._archive),
            Actor("client", self._write_late),
        ]

    def stand_ins(self, run: Run) -> Sequence[StandIn]:
        """Let the eraser open the simulated archive, and finish requests by the pipeline of the scenario."""
        requests = partial(PendingRequests, self)
        return [
            *super().stand_ins(run),
            (lake_erasure, "open_archive", lambda opened: SimulatedArchive(opened.process)),
            (lake_erasure, "Retention", requests),
            (lake_erasure, "LakePrices", requests),
            (lake_erasure, "scrub", lambda _: None),
        ]

    def prepare(self, run: Run) -> None:
        """Put the segments into the inbox, and both traces into the hot tier."""
        super().prepare(run)
        ArchivingScenario(traces=0).prepare(run)
        for number in HOT:
            log_spans(number, 0)

    # Actors

    def _archive(self, process: Process) -> None:
        store, objects = SimulatedArchiveStore(process), process.objects
        for _ in range(3):
            archive_batch(store, "pack", ObjectRepository(objects, 1), objects, HOT_IDS, finalize_traces=1)
            process.sleep(0.5)

    def _write_late(self, process: Process) -> None:
        for number in HOT:
            process.sleep(0.5)
            with contextlib.suppress(RefusedSpanError):
                write(process, f"log_spans {number}", partial(log_spans, number, 1))

    def _erase(self, process: Process) -> None:
        process.sleep(2)  # so that the request of the retention process exists
        super()._erase(process)

    def _retain(self, process: Process) -> None:
        """Delete old traces slowly, so that an erasure may be accepted in the meantime. Finish what a kill left."""
        for _ in range(POLLS):
            if (head := Repository(process.key_value, process.objects).head()) is not None:
                break
            process.sleep(0.1)
        if head is not None and not deletions.pending(process.objects):
            with contextlib.suppress(DamageError, ExpiredError, NotFoundError):  # as for readers
                self._request(process, head)
                process.sleep(8)
        self.finish_pending(process)

    def _request(self, process: Process, head: str) -> None:
        fence = RequestFence(process.objects)
        repository = Repository(process.key_value, process.objects)
        decided, masked = repository.transaction_of(head), self.masked(process.key_value, process.objects)
        stored = rows_of(
            process.objects, Shard("spans", process.key_value, process.objects).snapshot(decided)
        )
        due = ({row[1] for row in stored} - set(masked)) & {ERASED, DELETED}
        request = DeletionRequest(decided, None, tuple(sorted(due)), len(stored), "test", "ada", "2026-01-01")
        fence.submit(request)
        fence.close()

    def finish_pending(self, process: Process) -> None:
        """Carry out the requests that no process has finished."""
        for item in deletions.pending(process.objects):
            self._take(process, item)
            deletions.finish(process.objects, item.path)

    # Rules

    def check_finished(self, run: Run) -> None:
        """No request from before the erasure lists the trace."""
        left = self._left(run) & run.notes.get("before", set())
        requests = {path for path in left if path.startswith(deletions.PREFIX)}
        require(not requests, f"{requests} list the trace after its erasure")

    def invariant(self, run: Run) -> None:
        """The other trace is wholly hot or wholly archived."""
        super().invariant(run)
        row = rows(HOT_IDS[1:])[HOT_IDS[1]]
        data = read_archived(run.direct_objects, *row.place) if row.is_archived else row.data
        require(0 in spans_in(data), "the other trace has lost a span")

    def check(self, run: Run) -> None:
        """After the last run of the eraser, hot tier and archive have nothing of the trace."""
        super().check(run)
        if run.notes.get("accepted"):
            require(ERASED not in rows(HOT_IDS), "the hot tier has the trace")
            for path in filter(is_pack, run.objects.objects):
                require(ERASED not in traces_of_pack(run.direct_objects, path), f"{path} has the trace")
