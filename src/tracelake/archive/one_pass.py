"""One pass over what is due: experiment by experiment, batch by batch, as many traces as it may take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from tracelake.archive.batches import BEGINNING, Place, TraceBatch
from tracelake.archive.candidates import Candidates
from tracelake.archive.model import ArchiveDue, ArchiveReport
from tracelake.archive.retention import TraceFate, is_now_done
from tracelake.archive.scheduling import Marks
from tracelake.archive.spread import Archived
from tracelake.limits import ARCHIVE_FAILURES_TOLD_MAX

Archive = Callable[[Sequence[TraceBatch]], Sequence[Archived]]
"""(batches) → what became of each."""


@dataclass(slots=True)
class OnePass:
    """A pass that is under way; `places` is where it begins in each experiment, and where the next one goes on."""

    candidates: Candidates
    archive: Archive
    at_once: int
    """How many batches it is given."""
    places: dict[tuple[str, str], Place]
    report: ArchiveReport
    stopping: Callable[[], bool]
    marks: Marks
    """Those of archiveNow as they were before the pass looked what is due: what was set since is for the next one."""

    def take(
        self,
        due: Sequence[ArchiveDue],
        traces_max: int | None,
        on_progress: Callable[[ArchiveReport], None],
    ) -> None:
        """Archive what is due. Each experiment has its share of a bound, and what those before it have left.

        One that workspaces share is here once for each of them, and its mark is done where all of these are.
        """
        left = traces_max
        undone = Counter(each.experiment_id for each in due if each.is_now)
        marks = dict(self.marks)
        for place, each in enumerate(due):
            if self.stopping():
                return
            share = None if left is None else share_of(left, len(due) - place)
            taken, is_done = self._experiment(each, share, on_progress)
            left = None if left is None else left - taken
            undone[each.experiment_id] -= each.is_now and is_done
            if each.is_now and not undone[each.experiment_id] and each.experiment_id in marks:
                self.candidates.done_at_once(each.experiment_id, marks[each.experiment_id])

    def _experiment(
        self, due: ArchiveDue, share: int | None, on_progress: Callable[[ArchiveReport], None]
    ) -> tuple[int, bool]:
        """Take so many traces of an experiment at most; return how many those were, and whether that is all."""
        key = (due.experiment_id, due.workspace)
        began = behind = self.places.pop(key, BEGINNING)
        fates: list[TraceFate] = []
        for batches in _rounds(self.candidates.batches(due, share, began), self.at_once):
            if self.stopping():
                return len(fates), False
            for archived in self.archive(batches):
                fates += [fate for fate, _ in archived.fates.values()]
                self._tell(archived)
            behind = batches[-1].end
            on_progress(self.report)
        if len(fates) == share:
            self.places[key] = behind
        if len(fates) == share or began != BEGINNING:  # there may be more, behind it or before
            self.report.goes_on = True
            return len(fates), False
        return len(fates), is_now_done(fates)

    def _tell(self, archived: Archived) -> None:
        """Note what became of a batch."""
        report = self.report
        report.archived_bytes += archived.cleared_bytes
        report.stored_bytes += archived.stored_bytes
        for trace_id, (fate, reason) in archived.fates.items():
            report.fates[fate.value] = report.fates.get(fate.value, 0) + 1
            if fate is TraceFate.FAILED and report.failed_first is None:
                report.failed_first = f"trace {trace_id}: {reason}"
            if reason and len(report.failures) < ARCHIVE_FAILURES_TOLD_MAX:
                report.failures[trace_id] = reason


def _rounds(batches: Iterable[TraceBatch], at_once: int) -> Iterator[list[TraceBatch]]:
    """Yield batches so many at a time. Those of one round are looked for before any of them is archived."""
    rest = iter(batches)
    while some := list(islice(rest, at_once)):
        yield some


def share_of(left: int, experiments: int) -> int:
    """Return how many traces the next of some experiments may take: none waits until another is through."""
    return -(-left // experiments)
