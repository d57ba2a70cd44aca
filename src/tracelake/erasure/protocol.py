"""Decisions of an erasure. Pure: no I/O, no clock, no randomness.

An eraser observes where data of the erased traces is left, and takes the first step that is due. A step may run twice,
so an eraser that crashed is continued by any other. The erasure ends only if an observation finds nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tracelake.erasure.model import Mask, MaskEntry


class ErasureStep(Enum):
    """Next step of an erasure."""

    TRACKING = "delete the traces from the tracking store and the archive repository"
    WAIT = "wait until input from before the request is committed"
    RESOLVE = "apply the criterion to the committed rows"
    TABLES = "rewrite table parts without the rows"
    INDEX = "rewrite index parts without the documents"
    DATASETS = "redact the examples of datasets"
    COLLECT = "delete unreferenced objects"
    FINISH = "stop hiding the traces, and report"


@dataclass(frozen=True, slots=True)
class Observation:
    """Data of the erased traces that an eraser found, by place."""

    tracking_rows: int
    waiting: int
    """Inputs from before the request that no commit has."""
    table_rows: int
    """Rows in parts that a state of a table names, of any time."""
    documents: int
    """Documents in index parts that a manifest names."""
    examples: int
    is_resolved: bool
    is_collected: bool


def next_step(observation: Observation) -> ErasureStep:
    """Return the first step that is due.

    The tracking store comes first, so that no new span of the traces is accepted. Tables come before the index, because
    search joins documents with rows. Unreferenced objects are deleted after the last rewrite, because they may be
    parts that were replaced, or copies of an interrupted compaction.
    """
    due = (
        (observation.tracking_rows, ErasureStep.TRACKING),
        (observation.waiting, ErasureStep.WAIT),
        (not observation.is_resolved, ErasureStep.RESOLVE),
        (observation.table_rows, ErasureStep.TABLES),
        (observation.documents, ErasureStep.INDEX),
        (observation.examples, ErasureStep.DATASETS),
        (not observation.is_collected, ErasureStep.COLLECT),
    )
    return next((step for is_due, step in due if is_due), ErasureStep.FINISH)


def with_entry(mask: Mask, entry: MaskEntry) -> Mask:
    """Return the mask that also hides the traces of an erasure. Hiding them again changes nothing."""
    if entry in mask.entries:
        return mask
    others = tuple(each for each in mask.entries if each.id != entry.id)
    return Mask(mask.number + 1, (*others, entry))


def without_entry(mask: Mask, erasure_id: str) -> Mask:
    """Return the mask after an erasure has finished."""
    remaining = tuple(each for each in mask.entries if each.id != erasure_id)
    return mask if remaining == mask.entries else Mask(mask.number + 1, remaining)
