"""The markers of an output in Kafka: which transaction it has last, and what was left out of that. Pure.

| a record of the topic of markers | then |
|---|---|
| with another key than the output's id | it is nobody's business: passed over |
| with its key, and a marker of it, above those before | the output has this transaction |
| with its key, and anything else | compaction may have removed a marker for it: nobody knows what was written |
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from tracelake._errors import DamageError
from tracelake.formats import decode
from tracelake.journal.receipts import OutputReceipt, PartitionOffsets
from tracelake.pipeline.outputs.left_out import LeftOut, LeftOutOf

FORMAT_VERSION: Final = 1


class Marker(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What stands beside the messages of a transaction."""

    output: str
    transaction: int
    messages: int
    max_bytes: int = 0
    """What the topic took, where something was left out."""
    left_out_total: int = 0
    left_out: tuple[LeftOut, ...] = ()
    partitions: tuple[PartitionOffsets, ...] = ()
    """Where its messages stand: the first partitions; none where the broker did not say which offsets it gave."""
    format_version: int = FORMAT_VERSION

    def of_left_out(self) -> LeftOutOf | None:
        """Return what was left out of the transaction."""
        if not self.left_out_total:
            return None
        return LeftOutOf(self.transaction, self.left_out_total, self.max_bytes, self.left_out)

    def receipt(self) -> OutputReceipt:
        """Return what the lake keeps of the transaction, for people."""
        return OutputReceipt(self.transaction, self.messages, self.partitions)


def last_marker(
    output_id: str, topic: str, records: Iterable[tuple[int, bytes | None, bytes | None]]
) -> Marker | None:
    """Return the last marker among records (offset, key, value). Raises DamageError for what contradicts the others."""
    last: Marker | None = None
    for offset, key, value in records:
        if key != output_id.encode():
            continue
        try:
            marker = decode(Marker, value or b"", "it", FORMAT_VERSION)
        except DamageError as error:
            raise _foreign(topic, offset, f"it is no marker ({error})") from error
        if marker.output != output_id or (last is not None and marker.transaction <= last.transaction):
            raise _foreign(
                topic, offset, f"it says transaction {marker.transaction} of output {marker.output}"
            )
        last = marker
    return last


def _foreign(topic: str, offset: int, what: str) -> DamageError:
    return DamageError(
        f"topic {topic} of Kafka belongs to an output of this lake alone, and somebody else has written offset "
        f"{offset}: {what}. So nobody can tell what the output has. Let nobody else write there; remove the output "
        "(`tracelake output remove`) and add it again: it goes on with the next transaction."
    )
