"""Reading the recorded input of a transaction again, to compare it: nothing is written, and nothing decided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tracelake.journal.model import ReadRange, RecordedRange, Step
from tracelake.journal.protocol import compare
from tracelake.journal.runs import inputs_of
from tracelake.pipeline.decode import run_read_task
from tracelake.pipeline.inputs import gather, read_tasks
from tracelake.pipeline.sources.port import Input
from tracelake.storage import ObjectStore
from tracelake.tasks.runners import TaskRunner


@dataclass(frozen=True, slots=True)
class ReplayedSource:
    """What one source gave when it was read again."""

    source: str
    inputs: int
    records: int
    """As it was recorded."""
    spans: int
    read_records: int
    """As it was read now."""
    read_spans: int
    gone: int
    """Inputs that are not there any more: a source lets go of what is committed."""
    difference: str | None
    """The first that differs, by name; None where all is as it was recorded."""


def replay(step: Step, objects: ObjectStore, buckets: int, runner: TaskRunner) -> list[ReplayedSource]:
    """Read what a step names again, and compare it: first the sources, then their values."""
    inputs = [
        Input(source, taken.path, taken.size_bytes)
        for source, ranges in step.sources.items()
        for taken in inputs_of(ranges)
    ]
    receipts = runner.run(run_read_task, read_tasks(inputs, objects.url, buckets, ""), lambda _: None)
    read = gather(inputs, receipts).sources
    return [_compared(source, ranges, read) for source, ranges in step.sources.items()]


def _compared(
    source: str, recorded: Sequence[RecordedRange], read: Mapping[str, Sequence[ReadRange]]
) -> ReplayedSource:
    again = read.get(source, ())
    told = {source: again} if again else {}
    return ReplayedSource(
        source,
        inputs=sum(taken.inputs for taken in recorded),
        records=sum(taken.records for taken in recorded),
        spans=sum(taken.spans for taken in recorded),
        read_records=sum(taken.records for taken in again),
        read_spans=sum(taken.spans for taken in again),
        gone=sum(not taken.sha256 for taken in again),
        difference=compare({source: recorded}, told),
    )
