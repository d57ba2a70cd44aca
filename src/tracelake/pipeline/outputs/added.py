"""Outputs that users add to a lake: records that every replica reads before it publishes a transaction."""

from __future__ import annotations

import pkgutil
import re
import uuid
from collections.abc import Callable
from typing import Final

import msgspec

from tracelake._errors import ContentionError, TracelakeError, UsageError
from tracelake.formats import decode, encode
from tracelake.limits import CONDITIONAL_WRITE_TRIES_MAX, OUTPUT_NAME_MAX_CHARS
from tracelake.pipeline.kafka.client import SCHEME
from tracelake.pipeline.outputs.contents import Content, NewSpans, TableChanges
from tracelake.pipeline.outputs.kafka import KafkaSink
from tracelake.pipeline.outputs.keyed import KeyedOutput, Sink
from tracelake.pipeline.outputs.keyed_protocol import begins_at
from tracelake.pipeline.outputs.left_out import LeftOuts
from tracelake.storage import ABSENT, Done, Entry, KeyValueStore, ObjectStore
from tracelake.tables.built_in import BUILT_IN

FORMAT_VERSION: Final = 1
_NAME: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{OUTPUT_NAME_MAX_CHARS}}}")


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


class AddedOutputs:
    """The outputs of one pipeline that users have added, and keep open."""

    def __init__(
        self, key_value: KeyValueStore, objects: ObjectStore, buckets: int, pipeline: str = "main"
    ) -> None:
        self._buckets = buckets
        self._key_value = key_value
        self._objects = objects
        self._pipeline = pipeline
        self._partition = f"outputs/{pipeline}"
        self._open: dict[str, KeyedOutput] = {}

    def records(self) -> list[OutputRecord]:
        """Return what was added, by name."""
        return [self._decode(entry) for entry in self._key_value.scan(self._partition, "", "~")]

    def add(self, name: str, to: str, upper: Callable[[], int], changes: str = "") -> OutputRecord:
        """Add an output, which begins with a transaction that nobody has begun. Raises UsageError."""
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"{name!r} is no name of an output: it has 1 to {OUTPUT_NAME_MAX_CHARS} letters of A-Z, digits, and "
                "._-"
            )
        if changes and changes not in BUILT_IN:
            raise UsageError(
                f"an output gets the changes of table {' or '.join(BUILT_IN)}, and not of {changes!r}."
            )
        record = OutputRecord(name, to, uuid.uuid4().hex, changes)
        _sink(record)  # what cannot be opened is refused
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            if isinstance(self._key_value.set_if(self._partition, name, encode(record), ABSENT), Done):
                return self._begun(name, upper)
            entry = self._key_value.get(self._partition, name)
            if entry is None:
                continue  # it was not written, though nobody could tell
            if self._decode(entry).id != record.id:
                raise UsageError(f"output {name} is there already; remove it first, or choose another name.")
            return self._begun(name, upper)
        raise self._contention(name)

    def remove(self, name: str) -> None:
        """Write no more to an output. Raises UsageError where there is none of this name."""
        entry = self._key_value.get(self._partition, name)
        if entry is None:
            raise UsageError(f"there is no output {name}. See `tracelake output list`.")
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            self._key_value.delete_if(self._partition, name, entry.version)
            current = self._key_value.get(self._partition, name)
            if current is None or not self._is_same(entry, current):
                LeftOuts(self._key_value, self._pipeline).forget(self._decode(entry).id)
                return
            entry = current  # it was begun meanwhile, or the write was lost
        raise self._contention(name)

    def _is_same(self, before: Entry, now: Entry) -> bool:
        """Whether a record is of the same output, and not of one that was added again."""
        return before.version == now.version or self._decode(before).id == self._decode(now).id

    def opened(self, upper: Callable[[], int]) -> list[KeyedOutput]:
        """Return the outputs as they are now; each transaction is published to these. Raises UsageError."""
        records = [
            self._begun(record.name, upper) if record.since is None else record for record in self.records()
        ]
        self._open = {record.id: self._open.get(record.id) or self._to_output(record) for record in records}
        return list(self._open.values())

    def _begun(self, name: str, upper: Callable[[], int]) -> OutputRecord:
        """Settle with which transaction an output begins: the upper is read after its record was seen."""
        for _ in range(CONDITIONAL_WRITE_TRIES_MAX):
            entry = self._key_value.get(self._partition, name)
            if entry is None:
                raise UsageError(f"output {name} was removed meanwhile.")
            record = self._decode(entry)
            if record.since is not None:
                return record
            record = msgspec.structs.replace(record, since=begins_at(upper()))
            self._key_value.set_if(self._partition, name, encode(record), entry.version)
        raise self._contention(name)

    def _contention(self, name: str) -> ContentionError:
        return ContentionError(f"{self._partition}/{name}: conditional writes were lost, too many in a row.")

    def _to_output(self, record: OutputRecord) -> KeyedOutput:
        assert record.since is not None
        content: Content = (
            TableChanges(record.changes, self._key_value, self._objects, self._buckets)
            if record.changes
            else NewSpans(self._key_value, self._objects)
        )
        return KeyedOutput(record.name, record.id, record.since, _sink(record), content, self._key_value)

    def _decode(self, entry: Entry) -> OutputRecord:
        return decode(OutputRecord, entry.value, f"record {self._partition}/{entry.key}", FORMAT_VERSION)


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
