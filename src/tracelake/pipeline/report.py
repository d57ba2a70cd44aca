"""What a run of the loop did, as the public API says it."""

from __future__ import annotations

from tracelake.journal.model import SegmentRun, Suspect
from tracelake.pipeline.outcome import RunResult
from tracelake.results import BadInput, IngestReport, Problem, SetAsideInput


def report_of(result: RunResult, seconds: float) -> IngestReport:
    """Return what a run did that took so long."""
    ranges = [*result.ranges, *result.known]
    inputs = [taken for taken in ranges if not isinstance(taken, SegmentRun)]  # all that have problems
    bad = tuple(
        BadInput(
            taken.path,
            tuple(Problem(reason, line, offset) for line, offset, reason in taken.problems),
            taken.problems_total,
        )
        for taken in inputs
        if taken.problems_total
    )
    paths = {taken.path for taken in inputs}
    bad += tuple(
        BadInput(path, (Problem(reason),), 1) for path, reason in result.failed.items() if path not in paths
    )
    return IngestReport(
        files=sum(taken.inputs for taken in ranges),
        files_known=len(result.known),
        spans_read=sum(taken.spans for taken in ranges),
        spans_new=sum(counts.new for counts in result.counts),
        spans_replaced=sum(counts.replaced for counts in result.counts),
        spans_repeated=sum(counts.repeated for counts in result.counts)
        + sum(taken.spans for taken in result.known),
        traces_touched=sum(counts.traces for counts in result.counts),
        input_bytes=sum(taken.size_bytes for taken in ranges),
        transactions=tuple(result.transactions),
        recovered=tuple(result.recovered),
        commit=result.commit,
        bad=bad,
        seconds=seconds,
        set_aside=tuple(map(shown, result.set_aside)),
        open_transaction=result.waits,
    )


def shown(suspect: Suspect) -> SetAsideInput:
    """Return an input that is not taken as the public API shows it."""
    return SetAsideInput(
        path=suspect.path,
        source=suspect.source,
        size_bytes=suspect.size_bytes,
        sha256=suspect.sha256,
        transaction=suspect.transaction,
        state=suspect.state,
        tries=suspect.tries,
        reason=suspect.reason,
        at=suspect.at,
    )
