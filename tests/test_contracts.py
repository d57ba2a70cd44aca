"""Names that users and stored lakes rely on stay: commands, HTTP, metrics and fields of records.

`python -m tests.test_contracts` adds new names to `tests/contracts.txt`. A name leaves that file only by hand.
Records are listed by class, so a renamed class takes its lines along; a renamed field keeps its stored name.
"""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import msgspec
from prometheus_client.parser import text_string_to_metric_families

import tracelake
from scripts import imports, reference
from tests.pipeline.spans import a_line, a_span
from tests.server.beside import FakeBeside
from tests.server.client import Client
from tracelake.cli import app
from tracelake.server.app import create_app
from tracelake.tasks.runners import InProcess
from tracelake.tracking.ingest_queue import Inbox

CONTRACTS: Final = Path(__file__).with_name("contracts.txt")
"""One name a line, in order."""
NOT_IMPORTED: Final = ("__main__", "query_worker", ".migrations.")
"""Parts of the names of modules that run when they are imported, or only inside Alembic."""


def commands() -> Iterator[str]:
    """Yield each option and argument of each command."""
    for path, command in reference.commands(app):
        for parameter in command.params:
            for name in (*parameter.opts, *parameter.secondary_opts):
                yield f"command: {' '.join(path)} {name}"


def http_and_metrics() -> Iterator[str]:
    """Yield each route, each property of a JSON body in the OpenAPI document, and each metric with its type."""
    with (
        tempfile.TemporaryDirectory() as folder,
        tracelake.init(f"{folder}/lake", buckets=1) as lake,
        closing(Inbox(lake.objects)) as inbox,
    ):
        inbox.append("json", a_line(a_span(0, 0)))
        pipeline = lake.pipeline(replica="a", runner=InProcess())
        pipeline.run_once()
        server = create_app(lake, inbox, FakeBeside(tell=pipeline.replica))
        document = server.openapi()
        metrics = Client(server).get("/metrics").text
        pipeline.close()
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            yield f"http: {method.upper()} {path}"
            for parameter in operation.get("parameters", ()):
                yield f"http: {method.upper()} {path} {parameter['in']} {parameter['name']}"
    for name, schema in document.get("components", {}).get("schemas", {}).items():
        for field in schema.get("properties", ()):
            yield f"json: {name}.{field}"
    for family in text_string_to_metric_families(metrics):
        if family.name.startswith("tracelake_"):
            yield f"metric: {family.name} {family.type}"


def results() -> Iterator[str]:
    """Yield each field of each public record, from which `--json` and the API make their keys."""
    for name in tracelake.__all__:
        kind = getattr(tracelake, name)
        if isinstance(kind, type):
            for field in getattr(kind, "__dataclass_fields__", getattr(kind, "__struct_fields__", ())):
                yield f"result: {name}.{field}"


def records() -> Iterator[str]:
    """Yield the tag and each field, as encoded, of each record with a version of its format, and of its parts."""
    roots: list[type] = []
    for module in imports.modules():
        if not any(part in module for part in NOT_IMPORTED):
            roots += vars(importlib.import_module(module)).values()
    stored = {
        kind
        for kind in roots
        if isinstance(kind, type) and "format_version" in getattr(kind, "__struct_fields__", ())
    }
    for kind in sorted(_with_parts(stored), key=lambda each: each.__qualname__):
        config: Any = kind.__struct_config__
        yield f"record: {kind.__qualname__} tag {config.tag}"
        for field in kind.__struct_encode_fields__:
            yield f"record: {kind.__qualname__}.{field}"


def _with_parts(kinds: set[Any]) -> set[Any]:
    """Return the records and the records that they contain."""
    found: set[Any] = set()
    for kind in kinds:
        stack: list[Any] = [msgspec.inspect.type_info(kind)]
        while stack:
            info = stack.pop()
            if isinstance(info, msgspec.inspect.StructType):
                if info.cls in found:
                    continue
                found.add(info.cls)
                stack += [field.type for field in info.fields]
            else:
                below = [getattr(info, name, None) for name in info.__struct_fields__]
                stack += [each for each in below if isinstance(each, msgspec.inspect.Type)]
                stack += [
                    part
                    for each in below
                    if isinstance(each, tuple)
                    for part in each
                    if isinstance(part, msgspec.inspect.Type)
                ]
    return found


def names() -> set[str]:
    """Return all names that must stay."""
    return {*commands(), *http_and_metrics(), *results(), *records()}


def test_names_stay() -> None:
    """No command, option, route, parameter, JSON property, metric or field of a record is gone or renamed."""
    pinned = CONTRACTS.read_text("utf-8").splitlines()
    assert pinned == sorted(set(pinned))
    kinds = {name.partition(":")[0] for name in pinned}
    assert kinds == {"command", "http", "json", "metric", "record", "result"}
    assert sorted(set(pinned) - names()) == []


if __name__ == "__main__":
    written = set(CONTRACTS.read_text("utf-8").splitlines()) if CONTRACTS.exists() else set()
    CONTRACTS.write_text("\n".join(sorted(written | names())) + "\n", encoding="utf-8")
