"""Where a lake's spans come from while its pipelines run: added, paused, resumed and removed at any time.

Where a lake's new spans go besides its tables: topics of Kafka, and sinks of the user.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from tracelake.journal.store import IngestedFiles
from tracelake.lake.context import LakeContext
from tracelake.limits import OUTPUT_LEFT_OUT_TOLD
from tracelake.pipeline.outputs.added import AddedOutputs, OutputRecord
from tracelake.pipeline.outputs.external import OversizedRecord, OversizedRowStore
from tracelake.pipeline.publish import Outputs
from tracelake.pipeline.registrations import AddedSources, SourceRecords
from tracelake.pipeline.sources.registry import source_of, watch_of
from tracelake.replicas.protocol import Replica, SourceAccount, status
from tracelake.replicas.replica import replicas


@dataclass(frozen=True, slots=True)
class LeftOutRow:
    """One row that an output left out, since its system takes no message so large."""

    row: str
    transaction: int
    size_bytes: int
    max_bytes: int
    """What the system took then."""


@dataclass(frozen=True, slots=True)
class OutputInfo:
    """One output that was added to a lake."""

    name: str
    to: str
    since: int | None
    """Its first transaction; None for a moment after it was added."""
    id: str
    """Random: part of its transactional id, and of the name of the topic of its markers, in Kafka."""
    changes: str = ""
    """The table whose changes it gets; empty: new spans, as OTLP."""
    left_out_total: int = 0
    """Rows that were too large for it: each is in the tables, and was not sent."""
    left_out: tuple[LeftOutRow, ...] = ()
    """The last of them."""
    damaged: str = ""
    """Why its record cannot be read, and what to do: nothing is committed till then. All else is empty."""

    def explain(self) -> list[str]:
        """Say what it left out, in sentences."""
        if self.damaged:
            return [f"Nothing is committed, for it would miss an output. {self.damaged}"]
        if not self.left_out_total:
            return []
        told = [
            f"{each.row} of transaction {each.transaction} ({each.size_bytes:,} bytes; it takes {each.max_bytes:,})"
            for each in self.left_out[-OUTPUT_LEFT_OUT_TOLD:]
        ]
        return [
            f"output {self.name} has left out {self.left_out_total:,} rows, too large for it; they are in the tables. "
            f"The last: {', '.join(told)}. Let it take more (max.message.bytes of a topic of Kafka)."
        ]


class LakeOutputs:
    """The outputs of a lake that were added to it: `lake.outputs`."""

    def __init__(self, opened: LakeContext) -> None:
        self._opened = opened

    def all(self) -> list[OutputInfo]:
        """Return the outputs, by name."""
        left_out = OversizedRowStore(self._opened.key_value).all()
        records = self._added().records()
        damaged = [OutputInfo(name, "", None, "", damaged=reason) for name, reason in records.damaged.items()]
        shown = [_shown(record, left_out.get(record.id)) for record in records.whole]
        return sorted([*shown, *damaged], key=lambda info: info.name)

    def add(self, name: str, to: str, changes: str = "") -> OutputInfo:
        """Send the new spans of each transaction to an output, each transaction exactly once, from the next on.

        Args:
            name: what the output is called.
            to: `kafka://broker:9092/topic`, or `module:name` of what makes a sink.
            changes: `spans` or `traces`: the changes of this table, as JSON with their sign, instead.

        Raises UsageError where there is one of this name, or `to` names nothing that can be opened.
        """
        outputs = Outputs(self._opened.key_value, self._opened.objects, self._opened.config.buckets)
        return _shown(self._added().add(name, to, outputs.upper, changes))

    def remove(self, name: str) -> None:
        """Send nothing more to an output. Raises UsageError where there is none of this name."""
        self._added().remove(name)

    def _added(self) -> AddedOutputs:
        return AddedOutputs(self._opened.key_value, self._opened.objects, self._opened.config.buckets)


def _shown(record: OutputRecord, left_out: OversizedRecord | None = None) -> OutputInfo:
    rows = (
        []
        if left_out is None
        else [
            LeftOutRow(each.row, of.transaction, each.size_bytes, of.max_bytes)
            for of in left_out.newest
            for each in of.first
        ]
    )
    total = 0 if left_out is None else left_out.total
    return OutputInfo(record.name, record.to, record.since, record.id, record.changes, total, tuple(rows))


STATES: Final = ("active", "paused", "failing", "unwatched", "damaged")


@dataclass(frozen=True, slots=True)
class SourceInfo:
    """One source of a lake's pipelines, by its record and by what live replicas told of it last."""

    name: str
    address: str
    """What it names: a pattern of files or objects, a topic; empty for `inbox` and `outbox`, which every lake has."""
    kind: str
    """files | buckets | kafka | inbox | outbox; empty where nobody knows."""
    state: str
    """active | paused | failing (a replica could not look) | unwatched (no replica looks) | damaged (its record is)"""
    reason: str
    """Why it fails, or is damaged; empty for the others."""
    added: bool
    """Whether it was added to the lake; else replicas are told to watch it, or every lake has it."""
    waiting: int | None
    """Its lag: how much waits, as it was seen last; None where nobody knows."""
    unit: str
    """Of what: files, objects, segments, rows, messages."""
    waiting_bytes: int | None
    oldest_waiting_s: float | None
    """How long the oldest has been waiting, in seconds; None where none waits, or nobody knows."""
    taken_inputs: int
    """Inputs of it that the replicas that run have recorded, each since it began."""
    taken_bytes: int
    bytes_per_s: float
    """How fast they take it, over the last minute or so."""
    replicas: tuple[str, ...]
    """Names of the live replicas that look at it."""


class LakeSources:
    """The sources of a lake: `lake.sources`."""

    def __init__(self, opened: LakeContext) -> None:
        self._opened = opened

    def all(self) -> list[SourceInfo]:
        """Return the sources: what every lake has, what replicas are told to watch, and what was added, by name."""
        return merged(self._added().records(), replicas(self._opened.key_value), time.time())

    def add(self, name: str, address: str) -> SourceInfo:
        """Let each pipeline of the lake take what appears somewhere, from its next look on.

        Args:
            name: what the source is called.
            address: a glob pattern of files, or of objects (`s3://bucket/otlp/*.gz`), a directory or prefix that holds
                an archive repository, or a topic (`kafka://broker:9092/topic`).

        Raises UsageError where there is one of this name, or `address` names nothing that can be watched; LimitError
        where there are too many.
        """
        known = IngestedFiles(self._opened.key_value, "main")
        self._added().add(name, address, lambda each: watch_of(self._opened.objects, known, each))
        return self._one(name)

    def pause(self, name: str) -> SourceInfo:
        """Take nothing more of a source: nothing that appears after this has returned. Raises UsageError."""
        self._added().pause(name, on=True)
        return self._one(name)

    def resume(self, name: str) -> SourceInfo:
        """Take again what waits at a source, and what appears. Raises UsageError."""
        self._added().pause(name, on=False)
        return self._one(name)

    def remove(self, name: str) -> None:
        """Forget a source. What is recorded of it is finished; nothing more is taken. Raises UsageError."""
        self._added().remove(name)

    def _one(self, name: str) -> SourceInfo:
        return next(info for info in self.all() if info.added and info.name == name)

    def _added(self) -> AddedSources:
        return AddedSources(self._opened.key_value)


class WithSources:
    """What a lake has of where spans come from, and go to."""

    _opened: LakeContext

    @property
    def sources(self) -> LakeSources:
        """Where its pipelines take spans from."""
        return LakeSources(self._opened)

    @property
    def outputs(self) -> LakeOutputs:
        """Where new spans go besides its tables."""
        return LakeOutputs(self._opened)


_GONE: Final = "gone"


def merged(records: SourceRecords, told: Iterable[Replica], now_s: float) -> list[SourceInfo]:
    """Put together what records and live replicas say of each source."""
    live = [replica for replica in told if status(replica, now_s).word != _GONE]
    by_key: dict[tuple[str, str], list[tuple[str, SourceAccount]]] = {}
    for replica in live:
        for account in replica.sources:
            by_key.setdefault((account.name, account.id), []).append((replica.name, account))
    added = {(record.name, record.id): record for record in records.whole}
    infos = [
        _info(name, of[0][1].address, of, now_s) for (name, id_), of in sorted(by_key.items()) if not id_
    ]
    for key, record in added.items():
        infos.append(
            _info(
                record.name,
                record.address,
                by_key.get(key, ()),
                now_s,
                added=True,
                state="paused" if record.is_paused else None,
            )
        )
    for name, reason in records.damaged.items():
        infos.append(_info(name, "", (), now_s, added=True, state="damaged", reason=reason))
    return infos


def _info(
    name: str,
    address: str,
    told: Sequence[tuple[str, SourceAccount]],
    now_s: float,
    *,
    added: bool = False,
    state: str | None = None,
    reason: str = "",
) -> SourceInfo:
    """Return what is known of one source: the newest look counts, and any replica that could not look."""
    accounts = [account for _, account in told]
    newest = max(accounts, key=lambda account: account.looked_s or 0.0, default=None)
    failing = [f"replica {replica}: {each.reason}" for replica, each in told if each.state == "failing"]
    if state is None:
        state = "failing" if failing else "active" if accounts else "unwatched"
        reason = "; ".join(failing)
    oldest_s = None if newest is None else newest.oldest_waiting_s
    is_known = newest is not None and state != "paused"
    return SourceInfo(
        name=name,
        address=address,
        kind=source_of(address) if address else "" if newest is None else newest.kind,
        state=state,
        reason=reason,
        added=added,
        waiting=newest.waiting if newest is not None and is_known else None,
        unit="" if newest is None else newest.unit,
        waiting_bytes=newest.waiting_bytes if newest is not None and is_known else None,
        oldest_waiting_s=None if oldest_s is None or not is_known else max(0.0, now_s - oldest_s),
        taken_inputs=sum(account.taken_inputs for account in accounts),
        taken_bytes=sum(account.taken_bytes for account in accounts),
        bytes_per_s=sum(account.bytes_per_s for account in accounts),
        replicas=tuple(replica for replica, _ in told),
    )
