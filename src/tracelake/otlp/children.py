"""The list columns of a span: events and links."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Final, NamedTuple

import pyarrow as pa

from tracelake.otlp.attributes import Array, Attributes, AttributesColumn, list_array, read_attributes
from tracelake.otlp.messages import Message
from tracelake.otlp.schema import EVENT, LINK


class Children(NamedTuple):
    """The events, or the links, of several spans, one span after the other."""

    flat: list[Message]
    counts: list[int]
    attributes: Attributes


_NO_ATTRIBUTES: Final = Attributes([], [], None, [], [])


def read_children(lists: Sequence[Sequence[Message]]) -> Children:
    """Return the children of all spans. Raises RefusedError for an attribute that cannot be taken."""
    flat = list(chain.from_iterable(lists))
    attributes = read_attributes([child.attributes for child in flat]) if flat else _NO_ATTRIBUTES
    return Children(flat, list(map(len, lists)), attributes)


class EventsColumn:
    """Collects events."""

    def __init__(self) -> None:
        self._counts: list[int] = []
        self._times: list[int] = []
        self._names: list[str] = []
        self._dropped: list[int] = []
        self._attributes = AttributesColumn()

    def extend(self, events: Children) -> None:
        """Add the events of more spans."""
        self._counts += events.counts
        if events.flat:
            self._times += [event.time_unix_nano for event in events.flat]
            self._names += [event.name for event in events.flat]
            self._dropped += [event.dropped_attributes_count for event in events.flat]
            self._attributes.extend(events.attributes)

    def lists(self) -> Array:
        """Return one list for each span."""
        fields: list[Array] = [
            pa.array(self._times, pa.int64()),
            pa.array(self._names, pa.string()),
            self._attributes.maps(),
            self._attributes.letters(),
            pa.array(self._dropped, pa.uint32()),
        ]
        events = pa.StructArray.from_arrays(fields, fields=list(EVENT))
        return list_array(self._counts, events)


class LinksColumn:
    """Collects links."""

    def __init__(self) -> None:
        self._counts: list[int] = []
        self._trace_ids: list[str] = []
        self._span_ids: list[str] = []
        self._trace_states: list[str | None] = []
        self._dropped: list[int] = []
        self._flags: list[int] = []
        self._attributes = AttributesColumn()

    def extend(self, links: Children, trace_ids: list[str], span_ids: list[str]) -> None:
        """Add the links of more spans; the ids are hex."""
        self._counts += links.counts
        if links.flat:
            self._trace_ids += trace_ids
            self._span_ids += span_ids
            self._trace_states += [link.trace_state or None for link in links.flat]
            self._dropped += [link.dropped_attributes_count for link in links.flat]
            self._flags += [link.flags for link in links.flat]
            self._attributes.extend(links.attributes)

    def lists(self) -> Array:
        """Return one list for each span."""
        fields: list[Array] = [
            pa.array(self._trace_ids, pa.string()),
            pa.array(self._span_ids, pa.string()),
            pa.array(self._trace_states, pa.string()),
            self._attributes.maps(),
            self._attributes.letters(),
            pa.array(self._dropped, pa.uint32()),
            pa.array(self._flags, pa.uint32()),
        ]
        links = pa.StructArray.from_arrays(fields, fields=list(LINK))
        return list_array(self._counts, links)
