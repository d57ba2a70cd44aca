"""Outputs that users configured, stored as records. Every replica reads them before it publishes a transaction."""

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
    """An output that a user configured."""

    name: str
    to: str
    """`kafka://brokers/topic`, or `module:name` of a function that creates a sink."""
    id: str
    """Random id. An output that is removed and added again gets a new one."""
    changes: str = ""
    """Table whose changes the output gets. Empty: it gets the new spans, as OTLP."""
    since: int | None = None
    """First transaction of the output. None until a replica has determined it."""
    format_version: int = FORMAT_VERSION


OutputRecords: TypeAlias = Registrations[OutputRecord]


class AddedOutputs:
    """Outputs that users configured for one pipeline. They are kept open."""

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
        """Return the configured outputs by name. A damaged record hides no other."""
        return self._records.all()

    def add(self, name: str, to: str, upper: Callable[[], int], changes: str = "") -> OutputRecord:
        """Add an output that starts with a transaction that no replica has begun. Raises UsageError."""
        self._records.require_name(name)
        if changes and changes not in BUILT_IN:
            raise UsageError(
                f"an output gets the changes of table {' or '.join(BUILT_IN)}, and not of {changes!r}."
            )
        record = OutputRecord(name, to, uuid.uuid4().hex, changes)
        _sink(record)  # rejects an output that cannot be opened
        self._records.create(record)
        return self._begun(name, upper)

    def remove(self, name: str) -> None:
        """Remove an output, so that no more is written to it. Raises UsageError if the name is unknown."""
        removed = self._records.remove(name)
        if removed is not None:
            OversizedRowStore(self._key_value, self._pipeline).forget(removed.id)

    def opened(self, upper: Callable[[], int]) -> list[KeyedOutput]:
        """Return the present outputs, opened, to publish a transaction to. Raises UsageError.

        Raises DamageError if a record is unreadable, because its output would never get what is committed without it.
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
        """Determine the first transaction of an output. The upper is read after the record is visible."""

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
    """Return the sink of an output. Raises UsageError."""
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
    except Exception as error:  # user code may raise anything
        raise _no_sink(record, f"{type(error).__name__}: {error}") from error
    for method in ("fence", "write"):
        if not callable(getattr(sink, method, None)):
            raise _no_sink(record, f"it made a {type(sink).__name__}, which has no {method}")
    return sink


def _no_sink(record: OutputRecord, reason: str) -> UsageError:
    return UsageError(
        f"output {record.name}: {record.to!r} does not make a sink of the id of an output: {reason}"
    )
