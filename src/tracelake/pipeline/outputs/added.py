"""Outputs that users add to a lake: records that every replica reads before it publishes a transaction."""

from __future__ import annotations

import pkgutil
import uuid
from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec

from tracelake._errors import DamageError, TracelakeError, UsageError
from tracelake.pipeline.kafka_client import SCHEME
from tracelake.pipeline.outputs.external import (
    Content,
    KeyedOutput,
    NewSpans,
    OversizedRowStore,
    Sink,
    TableChanges,
)
from tracelake.pipeline.outputs.kafka import KafkaSink
from tracelake.pipeline.protocol import begins_at
from tracelake.pipeline.registrations import Registrations, RegistrationStore
from tracelake.storage import KeyValueStore, ObjectStore
from tracelake.tables.builtin import BUILT_IN

FORMAT_VERSION: Final = 1


class OutputRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One output that was added."""

    name: str
    to: str
    """`kafka://brokers/topic`, or `module:name` of what makes a sink."""
    id: str
    """Random: one that is removed and added again is another."""
    changes: str = ""
    """The table whose changes it gets; empty: the new spans, as OTLP."""
    since: int | None = None
    """Its first transaction; None until somebody has found out which it can be."""
    format_version: int = FORMAT_VERSION


OutputRecords: TypeAlias = Registrations[OutputRecord]


class AddedOutputs:
    """The outputs of one pipeline that users have added, and keep open."""

    def __init__(
        self, key_value: KeyValueStore, objects: ObjectStore, buckets: int, pipeline: str = "main"
    ) -> None:
        self._buckets = buckets
        self._key_value = key_value
        self._objects = objects
        self._pipeline = pipeline
        self._records = RegistrationStore(
            key_value, f"outputs/{pipeline}", OutputRecord, "output", FORMAT_VERSION
        )
        self._open: dict[str, KeyedOutput] = {}

    def records(self) -> OutputRecords:
        """Return what was added, by name. A record that is damaged hides no other."""
        return self._records.all()

    def add(self, name: str, to: str, upper: Callable[[], int], changes: str = "") -> OutputRecord:
        """Add an output, which begins with a transaction that nobody has begun. Raises UsageError."""
        self._records.require_name(name)
        if changes and changes not in BUILT_IN:
            raise UsageError(
                f"an output gets the changes of table {' or '.join(BUILT_IN)}, and not of {changes!r}."
            )
        record = OutputRecord(name, to, uuid.uuid4().hex, changes)
        _sink(record)  # what cannot be opened is refused
        self._records.create(record)
        return self._begun(name, upper)

    def remove(self, name: str) -> None:
        """Write no more to an output. Raises UsageError where there is none of this name."""
        removed = self._records.remove(name)
        if removed is not None:
            OversizedRowStore(self._key_value, self._pipeline).forget(removed.id)

    def opened(self, upper: Callable[[], int]) -> list[KeyedOutput]:
        """Return the outputs as they are now; each transaction is published to these. Raises UsageError.

        Raises DamageError where one cannot be read: what is committed without it, it would never have.
        """
        records = self.records()
        for reason in records.damaged.values():
            raise DamageError(f"nothing is committed, for it would miss an output. {reason}")
        begun = [
            self._begun(record.name, upper) if record.since is None else record for record in records.whole
        ]
        self._open = {record.id: self._open.get(record.id) or self._to_output(record) for record in begun}
        return list(self._open.values())

    def _begun(self, name: str, upper: Callable[[], int]) -> OutputRecord:
        """Settle with which transaction an output begins: the upper is read after its record was seen."""

        def begin(record: OutputRecord) -> OutputRecord:
            if record.since is not None:
                return record
            return msgspec.structs.replace(record, since=begins_at(upper()))

        return self._records.change(name, begin)

    def _to_output(self, record: OutputRecord) -> KeyedOutput:
        assert record.since is not None
        content: Content = (
            TableChanges(record.changes, self._key_value, self._objects, self._buckets)
            if record.changes
            else NewSpans(self._key_value, self._objects)
        )
        return KeyedOutput(record.name, record.id, record.since, _sink(record), content, self._key_value)


def _sink(record: OutputRecord) -> Sink:
    """Return what an output writes to. Raises UsageError."""
    if record.to.startswith(f"{SCHEME}://"):
        return KafkaSink(record.id, record.to)
    try:
        make = pkgutil.resolve_name(record.to)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(
            f"output {record.name}: {record.to!r} is neither kafka://brokers/topic nor module:name of what makes a "
            f"sink: {error}"
        ) from error
    try:
        sink: Sink = make(record.id)
    except TracelakeError:
        raise
    except Exception as error:  # it is code of the user
        raise _no_sink(record, f"{type(error).__name__}: {error}") from error
    for method in ("fence", "write"):
        if not callable(getattr(sink, method, None)):
            raise _no_sink(record, f"it made a {type(sink).__name__}, which has no {method}")
    return sink


def _no_sink(record: OutputRecord, reason: str) -> UsageError:
    return UsageError(
        f"output {record.name}: {record.to!r} does not make a sink of the id of an output: {reason}"
    )
