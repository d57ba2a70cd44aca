"""Where a lake's new spans go besides its tables: topics of Kafka, and sinks of the user."""

from __future__ import annotations

from dataclasses import dataclass

from tracelake.lake.opened import OpenLake
from tracelake.pipeline.outputs.added import AddedOutputs, OutputRecord
from tracelake.pipeline.publish import Outputs


@dataclass(frozen=True, slots=True)
class OutputInfo:
    """One output that was added to a lake."""

    name: str
    to: str
    since: int | None
    """Its first transaction; None for a moment after it was added."""
    id: str
    """Random: part of its transactional id, and of the name of the topic of its markers, in Kafka."""


class LakeOutputs:
    """The outputs of a lake that were added to it: `lake.outputs`."""

    def __init__(self, opened: OpenLake) -> None:
        self._opened = opened

    def all(self) -> list[OutputInfo]:
        """Return the outputs, by name."""
        return [_shown(record) for record in self._added().records()]

    def add(self, name: str, to: str) -> OutputInfo:
        """Send the new spans of each transaction to an output, each transaction exactly once, from the next on.

        Args:
            name: what the output is called.
            to: `kafka://broker:9092/topic`, or `module:name` of what makes a sink.

        Raises UsageError where there is one of this name, or `to` names nothing that can be opened.
        """
        outputs = Outputs(self._opened.key_value, self._opened.objects, self._opened.config.buckets)
        return _shown(self._added().add(name, to, outputs.upper))

    def remove(self, name: str) -> None:
        """Send nothing more to an output. Raises UsageError where there is none of this name."""
        self._added().remove(name)

    def _added(self) -> AddedOutputs:
        return AddedOutputs(self._opened.key_value, self._opened.objects)


def _shown(record: OutputRecord) -> OutputInfo:
    return OutputInfo(record.name, record.to, record.since, record.id)
