"""One pass over what is due: experiment by experiment, batch by batch, as many traces as it may take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tracelake.archive.candidates import BEGINNING, Candidates, Place
from tracelake.archive.model import ArchiveDue, ArchiveReport, HotSnapshot, LayoutName, Stored
from tracelake.archive.passes import TraceRepository, archive_batch
from tracelake.archive.retention import TraceFate, is_now_done
from tracelake.archive.store import ArchiveStore
from tracelake.limits import ARCHIVE_FAILURES_TOLD_MAX
from tracelake.storage import ObjectStore


@dataclass(frozen=True, slots=True)
class Into:
    """Where a pass puts traces."""

    layout: LayoutName
    repository: TraceRepository
    objects: ObjectStore | None
    """None where nothing is uploaded."""


@dataclass(slots=True)
class OnePass:
    """A pass that is under way; `places` is where it begins in each experiment, and where the next one goes on."""

    store: ArchiveStore
    candidates: Candidates
    into: Into
    places: dict[tuple[str, str], Place]
    report: ArchiveReport
    stopping: Callable[[], bool]

    def take(
        self,
        due: Sequence[ArchiveDue],
        traces_max: int | None,
        on_progress: Callable[[ArchiveReport], None],
    ) -> None:
        """Archive what is due. Each experiment has its share of a bound, and what those before it have left."""
        left = traces_max
        for place, each in enumerate(due):
            if self.stopping():
                return
            share = None if left is None else share_of(left, len(due) - place)
            taken = self._experiment(each, share, on_progress)
            left = None if left is None else left - taken

    def _experiment(
        self, due: ArchiveDue, share: int | None, on_progress: Callable[[ArchiveReport], None]
    ) -> int:
        """Take so many traces of an experiment at most; return how many those were."""
        key = (due.experiment_id, due.workspace)
        tag = self.candidates.at_once_of(due.experiment_id) if due.is_now else None
        began = behind = self.places.pop(key, BEGINNING)
        fates: list[TraceFate] = []
        for batch, place in self.candidates.batches(due, share, began):
            if self.stopping():
                return len(fates)
            told = archive_batch(
                self.store, self.into.layout, self.into.repository, self.into.objects, batch, self._stored
            )
            fates += [fate for fate, _ in told.values()]
            self._tell(told)
            behind = place
            on_progress(self.report)
        if len(fates) == share:
            self.places[key] = behind
        if len(fates) == share or began != BEGINNING:  # there may be more, behind it or before
            self.report.goes_on = True
        elif tag is not None and is_now_done(fates):
            self.candidates.done_at_once(due.experiment_id, tag)
        return len(fates)

    def _stored(self, snapshot: HotSnapshot, stored: Stored) -> None:
        self.report.archived_bytes += len(snapshot.data)
        self.report.stored_bytes += stored.size_bytes

    def _tell(self, told: Mapping[str, tuple[TraceFate, str]]) -> None:
        """Note what became of the traces of a batch."""
        report = self.report
        for trace_id, (fate, reason) in told.items():
            report.fates[fate.value] = report.fates.get(fate.value, 0) + 1
            if fate is TraceFate.FAILED and report.failed_first is None:
                report.failed_first = f"trace {trace_id}: {reason}"
            if reason and len(report.failures) < ARCHIVE_FAILURES_TOLD_MAX:
                report.failures[trace_id] = reason


def share_of(left: int, experiments: int) -> int:
    """Return how many traces the next of some experiments may take: none waits until another is through."""
    return -(-left // experiments)
