"""Decisions of an erasure, and its records: the requests, and the mask that hides traces until their bytes are gone.

The decisions are pure: no I/O, no clock, no randomness.

An eraser observes where data of the erased traces is left, and takes the first step that is due. A step may run twice,
so an eraser that crashed is continued by any other. The erasure ends only if an observation finds nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from tracelake._errors import UsageError
from tracelake.formats import decode, encode

FORMAT_VERSION: Final = 1
Criterion: TypeAlias = Literal["trace", "session", "user", "where"]
"""Kind of selection: a trace id, a session, a user, or a DuckDB condition on table `spans`."""
_TRACE_ID: Final = re.compile("[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class ErasedSelection:
    """The traces that a request selects."""

    criterion: Criterion
    value: str

    @classmethod
    def of(
        cls, *, trace: str | None, session: str | None, user: str | None, where: str | None
    ) -> ErasedSelection:
        """Return the selection of a request. Raises UsageError unless one valid criterion is given."""
        criteria: dict[Criterion, str | None] = {
            "trace": trace,
            "session": session,
            "user": user,
            "where": where,
        }
        selections = [cls(criterion, value) for criterion, value in criteria.items() if value is not None]
        if len(selections) != 1:
            raise UsageError("name what to erase: one of trace, session, user or where.")
        (selection,) = selections
        if not selection.value.strip():
            raise UsageError(f"{selection.criterion} is empty; name what to erase.")
        if selection.criterion == "trace":
            selection = cls("trace", selection.value.lower())
            if not _TRACE_ID.fullmatch(selection.value):
                raise UsageError(f"{trace!r} is not a trace id; give all 32 hex digits.")
        return selection


class ErasureRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request to erase traces. It is durable from its acceptance, and any process may carry it out."""

    id: str
    criterion: Criterion
    value: str
    """The value of the criterion; its salted hash once the erasure is finished."""
    requested: str
    """Time of the request, as ISO 8601."""
    traces: int
    """Number of erased traces."""
    path: str
    """Object with the ids of the traces."""
    state: Literal["open", "finished"] = "open"
    finished: str | None = None
    checked: int = 0
    """Transaction up to which the tables had no row of the traces when the erasure finished."""
    is_resolved: bool = False
    """Whether the criterion was applied again after all input from before the request was committed."""
    is_collected: bool = False
    """Whether unreferenced objects were deleted after the last rewritten part."""
    damaged_packs: tuple[str, ...] = ()
    """Archive packs that contain the traces, or may contain them, and other traces that cannot be read."""
    barrier: dict[str, int] = {}
    """Input that must be committed first: newest outbox row, and last transaction of the journal."""
    transactions: dict[str, int] = {}
    """Number of rows of table `spans` that are erased, by transaction, recorded before the first is removed."""
    removed: dict[str, int] = {}
    """Number of removed rows, documents, objects and bytes, by place."""
    format_version: int = FORMAT_VERSION


class TraceIds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Object with the ids of the traces of an erasure."""

    ids: tuple[str, ...]
    format_version: int = FORMAT_VERSION


class MaskEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An erasure, and the object with its trace ids."""

    id: str
    path: str
    until: int = -1
    """Newest transaction that may add rows of the traces. The erasure ends after it has looked at this transaction."""


class Mask(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Erasures of a lake. Readers hide the traces of open ones. Pipelines hide those of recent ones again, before they
    commit late spans of them."""

    number: int = 0
    """Number of changes. Readers drop cached rows if it differs."""
    entries: tuple[MaskEntry, ...] = ()
    """Open erasures."""
    finished: tuple[MaskEntry, ...] = ()
    """Finished erasures whose trace ids have not expired."""
    format_version: int = FORMAT_VERSION


def to_bytes(record: ErasureRecord | TraceIds | Mask) -> bytes:
    """Encode a record as JSON."""
    return encode(record)


def erasure_of(data: bytes, key: str) -> ErasureRecord:
    """Decode the record of an erasure. Raises DamageError if it is torn."""
    return decode(ErasureRecord, data, f"the record of erasure {key}", FORMAT_VERSION)


def mask_of(data: bytes) -> Mask:
    """Decode the mask. Raises DamageError if it is torn."""
    return decode(Mask, data, "the mask of erased traces", FORMAT_VERSION)


def trace_ids_of(data: bytes, path: str) -> tuple[str, ...]:
    """Decode the trace ids of an erasure. Raises DamageError if the object is torn."""
    return decode(TraceIds, data, path, FORMAT_VERSION).ids


class ErasureStep(Enum):
    """Next step of an erasure."""

    TRACKING = "delete the traces from the tracking store and the archive repository"
    WAIT = "wait until input from before the request is committed"
    REQUESTS = "carry out requests of retention and prices that list the traces"
    RESOLVE = "apply the criterion to the committed rows"
    TABLES = "rewrite table parts without the rows"
    INDEX = "rewrite index parts without the documents"
    DATASETS = "redact the examples of datasets"
    COLLECT = "delete unreferenced objects"
    PACKS = "wait until damaged archive packs are restored or deleted"
    FINISH = "stop hiding the traces, and report"


@dataclass(frozen=True, slots=True)
class Observation:
    """Data of the erased traces that an eraser found, by place."""

    tracking_rows: int
    waiting: int
    """Inputs from before the request that no commit has."""
    requests: int
    """Requests of killed processes that list the traces."""
    table_rows: int
    """Rows in parts that a state of a table names, of any time."""
    documents: int
    """Documents in index parts that a manifest names."""
    examples: int
    is_resolved: bool
    is_collected: bool
    damaged_packs: int = 0


def next_step(observation: Observation) -> ErasureStep:
    """Return the first step that is due.

    The tracking store comes first, so that no new span of the traces is accepted. Requests come before tables, because
    each is carried out by a transaction. Tables come before the index, because search joins documents with rows.
    Unreferenced objects are deleted after the last rewrite, because they may be parts that were replaced, or copies of
    an interrupted compaction. Damaged packs come last, because only the user can restore them.
    """
    due = (
        (observation.tracking_rows, ErasureStep.TRACKING),
        (observation.waiting, ErasureStep.WAIT),
        (observation.requests, ErasureStep.REQUESTS),
        (not observation.is_resolved, ErasureStep.RESOLVE),
        (observation.table_rows, ErasureStep.TABLES),
        (observation.documents, ErasureStep.INDEX),
        (observation.examples, ErasureStep.DATASETS),
        (not observation.is_collected, ErasureStep.COLLECT),
        (observation.damaged_packs, ErasureStep.PACKS),
    )
    return next((step for is_due, step in due if is_due), ErasureStep.FINISH)


def with_entry(mask: Mask, entry: MaskEntry) -> Mask:
    """Return the mask that also hides the traces of an erasure. Hiding them again changes nothing."""
    before = next((each for each in (*mask.entries, *mask.finished) if each.id == entry.id), entry)
    entry = replace(entry, until=max(entry.until, before.until))
    if entry in mask.entries:
        return mask
    return replace(
        mask,
        number=mask.number + 1,
        entries=(*_others(mask.entries, entry.id), entry),
        finished=_others(mask.finished, entry.id),
    )


def with_late_spans(mask: Mask, erasure_ids: Collection[str], transaction: int) -> Mask:
    """Return the mask that hides the traces of these erasures while a transaction adds rows of them.

    Safety: a pipeline writes this mask before it appends the rows to a table. No eraser then ends the erasure before
    it has looked at the transaction.
    """
    for entry in (*mask.entries, *mask.finished):
        if entry.id in erasure_ids:
            mask = with_entry(mask, replace(entry, until=max(entry.until, transaction)))
    return mask


def without_entry(mask: Mask, erasure_id: str, upper: int) -> Mask:
    """Return the mask after an erasure found no rows of transactions below `upper`. The mask is the same if a later
    transaction may add some."""
    entry = next((each for each in mask.entries if each.id == erasure_id), None)
    if entry is None or entry.until >= upper:
        return mask
    return replace(
        mask,
        number=mask.number + 1,
        entries=_others(mask.entries, erasure_id),
        finished=(*mask.finished, entry),
    )


def without_expired(mask: Mask, erasure_ids: Collection[str]) -> Mask:
    """Return the mask without finished erasures whose trace ids have expired."""
    remaining = tuple(each for each in mask.finished if each.id not in erasure_ids)
    return mask if remaining == mask.finished else replace(mask, finished=remaining)


def _others(entries: tuple[MaskEntry, ...], erasure_id: str) -> tuple[MaskEntry, ...]:
    return tuple(each for each in entries if each.id != erasure_id)
