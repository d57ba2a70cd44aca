"""Records of a shard: its state, and the batches that the state names (PROTOCOLS §1).

The state record is small and mutable by compare-and-set; all that it names is immutable.
"""

from __future__ import annotations

from typing import Final

import msgspec

from tracelake._errors import DamageError
from tracelake.shards.statistics import Ranges

FORMAT_VERSION: Final = 1


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One Parquet object. `first_key` and `last_key` bound its rows, which are sorted by key."""

    path: str
    bucket: int
    rows: int
    size_bytes: int
    sha256: str
    first_key: str = ""
    last_key: str = ""
    ranges: Ranges = {}
    """Least and greatest value of some columns."""


class Batch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rows of the times [lower, upper): what came (parts), and what went (retractions).

    A retraction part has the columns `part` (path of an older part) and `row` (its row number from 0):
    those rows are gone from `lower` on. Older parts are never rewritten for it.
    """

    lower: int
    upper: int
    id: str
    parts: tuple[Part, ...]
    retractions: tuple[Part, ...]
    counts: dict[str, int]
    """What the writer counted on the way, such as spans read, new, replaced, repeated."""
    version: int = FORMAT_VERSION

    @property
    def is_empty(self) -> bool:
        """Whether the batch changes no row."""
        return not self.parts and not self.retractions


class BatchRef(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the state says of one batch: where its record is, and enough for totals without reading it."""

    lower: int
    upper: int
    id: str
    path: str
    sha256: str
    rows: int
    """Rows that came less rows that went."""
    parts: int
    size_bytes: int


class ShardState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The state record. Batches cover [since, upper) in order and without a gap."""

    since: int = 0
    upper: int = 0
    batches: tuple[BatchRef, ...] = ()
    version: int = FORMAT_VERSION


_state_decoder = msgspec.json.Decoder(ShardState)
_batch_decoder = msgspec.json.Decoder(Batch)


def to_bytes(record: ShardState | Batch) -> bytes:
    """Encode as JSON."""
    return msgspec.json.encode(record)


def state_from_bytes(data: bytes, shard: str) -> ShardState:
    """Decode a state record. Raises DamageError for one that is torn or of another format."""
    try:
        state = _state_decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise DamageError(f"the state of shard {shard} cannot be read: {error}") from error
    _check_version(state.version, f"the state of shard {shard}")
    return state


def batch_from_bytes(data: bytes, path: str) -> Batch:
    """Decode a batch record. Raises DamageError for one that is torn or of another format."""
    try:
        batch = _batch_decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise DamageError(f"batch {path} cannot be read: {error}") from error
    _check_version(batch.version, f"batch {path}")
    return batch


def _check_version(version: int, what: str) -> None:
    if version != FORMAT_VERSION:
        raise DamageError(f"{what} has format {version}; this release reads {FORMAT_VERSION}.")
