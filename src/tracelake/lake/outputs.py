"""Where a lake's new spans go besides its tables: topics of Kafka, and sinks of the user."""

from __future__ import annotations

from dataclasses import dataclass

from tracelake.lake.opened import OpenLake
from tracelake.limits import OUTPUT_LEFT_OUT_TOLD
from tracelake.pipeline.outputs.added import AddedOutputs, OutputRecord
from tracelake.pipeline.outputs.left_out import LeftOutRecord, LeftOuts
from tracelake.pipeline.publish import Outputs


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

    def __init__(self, opened: OpenLake) -> None:
        self._opened = opened

    def all(self) -> list[OutputInfo]:
        """Return the outputs, by name."""
        left_out = LeftOuts(self._opened.key_value).all()
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


def _shown(record: OutputRecord, left_out: LeftOutRecord | None = None) -> OutputInfo:
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
