"""Columns that many spans share: resources and scopes, kept once each until `take` repeats them."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pyarrow as pa
from google.protobuf.message import DecodeError as ProtobufDecodeError
from opentelemetry.proto.common.v1.common_pb2 import EntityRef
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from tracelake.otlp.attributes import Array, Attributes, check_texts, read_attributes
from tracelake.otlp.conventions import SERVICE, WORKSPACE, WORKSPACE_DEFAULT
from tracelake.otlp.messages import Message
from tracelake.otlp.schema import ATTRIBUTES, SCOPE
from tracelake.otlp.values import READABLE, RefusedError


class Resources:
    """Collects resources; a resource is known by its number from 0."""

    def __init__(self) -> None:
        self.sizes_bytes: list[int] = []
        self._columns: dict[str, list[Any]] = {name: [] for name in _RESOURCE_TYPES}

    def add(self, resource_spans: Message) -> int:
        """Take resource and schema URL of a ResourceSpans, and return its number. Raises RefusedError."""
        row: dict[str, Any] = {"resource_schema_url": resource_spans.schema_url or None}
        size_bytes = len(resource_spans.schema_url)
        if resource_spans.HasField("resource"):
            resource = resource_spans.resource
            attributes = read_attributes([resource.attributes])
            check_texts(attributes.keys, "resource.attributes")
            check_texts(attributes.texts, "resource.attributes")
            row["resource"] = list(zip(attributes.keys, attributes.texts, strict=True))
            row["resource_types"] = attributes.types[0]
            row["resource_dropped_attributes_count"] = resource.dropped_attributes_count
            row["resource_entity_refs"] = [_entity_ref(ref) for ref in resource.entity_refs] or None
            row["service"] = _named(attributes, SERVICE)
            row["workspace"] = _named(attributes, WORKSPACE)
            size_bytes += sum(map(len, attributes.keys)) + sum(map(len, attributes.texts))
            size_bytes += len(attributes.types[0] or "")
        row["workspace"] = row.get("workspace") or WORKSPACE_DEFAULT
        for name, values in self._columns.items():
            values.append(row.get(name))
        self.sizes_bytes.append(size_bytes)
        return len(self.sizes_bytes) - 1

    def names(self, number: int) -> tuple[str | None, str]:
        """Return service and workspace of a resource."""
        return self._columns["service"][number], self._columns["workspace"][number]

    def workspaces(self) -> set[str]:
        """Return the workspaces of all resources."""
        return set(self._columns["workspace"])

    def arrays(self) -> dict[str, Array]:
        """Return the columns, one row for each resource."""
        return {name: pa.array(values, _RESOURCE_TYPES[name]) for name, values in self._columns.items()}


_RESOURCE_TYPES: dict[str, pa.DataType] = {
    "workspace": pa.string(),
    "service": pa.string(),
    "resource": ATTRIBUTES,
    "resource_types": pa.string(),
    "resource_dropped_attributes_count": pa.uint32(),
    "resource_entity_refs": pa.list_(pa.binary()),
    "resource_schema_url": pa.string(),
}


class Scopes:
    """Collects scopes; a scope is known by its number from 0. `resources` has the resource of each."""

    def __init__(self) -> None:
        self.resources: list[int] = []
        self.sizes_bytes: list[int] = []
        self._scopes: list[dict[str, Any] | None] = []
        self._schema_urls: list[str | None] = []

    def add(self, resource: int, scope_spans: Message) -> int:
        """Take scope and schema URL of a ScopeSpans, and return its number. Raises RefusedError."""
        row: dict[str, Any] | None = None
        size_bytes = len(scope_spans.schema_url)
        if scope_spans.HasField("scope"):
            scope = scope_spans.scope
            attributes = read_attributes([scope.attributes])
            check_texts(attributes.keys, "scope.attributes")
            check_texts(attributes.texts, "scope.attributes")
            row = {
                "name": scope.name,
                "version": scope.version,
                "attributes": list(zip(attributes.keys, attributes.texts, strict=True)),
                "attribute_types": attributes.types[0],
                "dropped_attributes_count": scope.dropped_attributes_count,
            }
            size_bytes += len(scope.name) + len(scope.version)
            size_bytes += sum(map(len, attributes.keys)) + sum(map(len, attributes.texts))
            size_bytes += len(attributes.types[0] or "")
        self.resources.append(resource)
        self.sizes_bytes.append(size_bytes)
        self._scopes.append(row)
        self._schema_urls.append(scope_spans.schema_url or None)
        return len(self.resources) - 1

    def arrays(self) -> dict[str, Array]:
        """Return the columns, one row for each scope."""
        return {
            "scope": pa.array(self._scopes, SCOPE),
            "scope_schema_url": pa.array(self._schema_urls, pa.string()),
        }


def of_workspace(data: bytes, workspace: str) -> bytes:
    """Return the spans of one workspace of a `TracesData`; of what is none all, for decoding says what is wrong."""
    resources = Resources()
    with suppress(ProtobufDecodeError, RefusedError):
        groups = TracesData.FromString(data).resource_spans
        own = [group for group in groups if resources.names(resources.add(group))[1] == workspace]
        return TracesData(resource_spans=own).SerializeToString()
    return data


def _named(attributes: Attributes, name: str) -> str | None:
    """Return the text of the first attribute of that name, where it can be read."""
    if name not in attributes.keys:
        return None
    at = attributes.keys.index(name)
    return attributes.texts[at] if attributes.letters is None or attributes.letters[at] in READABLE else None


def _entity_ref(ref: Message) -> bytes:
    reference = EntityRef(
        schema_url=ref.schema_url, type=ref.type, id_keys=ref.id_keys, description_keys=ref.description_keys
    )
    return reference.SerializeToString(deterministic=True)
