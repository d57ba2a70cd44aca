"""Records of erasures: the requests, and the mask that hides traces from readers until their bytes are gone."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from tracelake.formats import decode, encode

FORMAT_VERSION: Final = 1
Criterion: TypeAlias = Literal["trace", "session", "user", "where"]
"""Kind of selection: a trace id, a session, a user, or a DuckDB condition on table `spans`."""


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
