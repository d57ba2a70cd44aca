"""The results that exporters and the user of an archive got, and the check that the lake agrees with them."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opentelemetry.proto.trace.v1.trace_pb2 import TracesData
from sqlalchemy import select

from tracelake import Lake
from tracelake._errors import DamageError
from tracelake.archive.protocol import LIVE
from tracelake.archive.repositories import is_ours, path_in, read_archived
from tracelake.storage import ObjectStore, open_objects
from tracelake.tracking.schema import ARCHIVE_REPO, LAKE_LOCATION, archive_objects, trace_info
from tracelake.tracking.store import HotTrace

Span = tuple[str, int]
"""Trace id, and number of the span."""


@dataclass
class Told:
    """The logs of exporters and user, as far as they have been read."""

    folder: Path
    taken: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    """Acknowledged spans, by trace."""
    unknown: set[Span] = field(default_factory=set)
    """Sent spans with an unknown result."""
    refused: set[Span] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)
    """Traces with a deletion begun."""
    acknowledged: int = 0
    partial: int = 0
    _read_to: dict[Path, int] = field(default_factory=dict)

    def read(self) -> None:
        """Read new log lines."""
        for log in self.folder.glob("exporter-*.jsonl"):
            for line in self._lines(log):
                self._note(json.loads(line))
        for line in self._lines(self.folder / "user.log"):
            words = line.split()
            if words[:1] == ["deleting"]:
                self.deleted.update(words[1:])

    def _lines(self, log: Path) -> list[str]:
        if not log.exists():
            return []
        data = log.read_bytes()[self._read_to.get(log, 0) :]
        whole = data[: data.rfind(b"\n") + 1]
        self._read_to[log] = self._read_to.get(log, 0) + len(whole)
        return whole.decode().splitlines()

    def _note(self, export: dict[str, Any]) -> None:
        """Record one export. Its refused spans are not reported: the late ones, if no earlier span exists."""
        parts = dict(export["parts"])
        late = next(iter(parts)) if export["rejected"] else None
        first = export["attempt"] == 0 and export["sent"] == 1
        for trace_id, spans in parts.items():
            all_spans = {(trace_id, span) for span in spans}
            if not export["acknowledged"] or (export["rejected"] and not first):
                self.unknown |= all_spans
            elif trace_id == late:
                assert len(spans) == export["rejected"], export
                self.refused |= all_spans
                self.partial += 1
            else:
                self.taken[trace_id].update(spans)
                self.acknowledged += len(spans)

    def some(self, rng: random.Random) -> str | None:
        """Return a random trace that no process deletes."""
        ids = [trace_id for trace_id in self.taken if trace_id not in self.deleted]
        return rng.choice(ids) if ids else None

    def never_taken(self) -> set[Span]:
        """Return exactly the refused spans."""
        taken = {(trace_id, span) for trace_id, spans in self.taken.items() for span in spans}
        return self.refused - taken - self.unknown


def check_trace(lake: Lake, trace_id: str, told: Told) -> None:
    """Read a trace from either tier, and check the place of its payload."""
    taken = set(told.taken[trace_id])
    read = [int(str(span["span_id"]), 16) for span in lake.trace(trace_id).spans]
    assert len(set(read)) == len(read), (trace_id, read)
    told.read()
    if trace_id not in told.deleted:
        assert taken <= set(read), f"of trace {trace_id} {taken - set(read)} were acknowledged, and are lost"


def check_everything(lake: Lake, told: Told) -> str:
    """Compare the idle lake with the recorded results; return the figures."""
    tables = _check_tables(lake, told)
    before = _check_traces(lake, told, tables)
    report = lake.archive.run(older_than="1m")
    assert not report.fates.keys() - {"archived"}, (report.line, report.failures)
    swept = lake.archive.sweep(0)
    after = _check_traces(lake, told, tables)
    _check_objects(lake)
    verified = lake.verify()
    assert verified.ok, verified.findings
    return (
        f"{told.acknowledged} spans of {len(told.taken)} traces acknowledged, each in the tables once; "
        f"{len(told.unknown)} sent without an answer, {len(told.refused)} late ones refused in {told.partial} "
        f"requests; {len(told.deleted)} traces deleted; {dict(before)} at rest, then {dict(after)}; "
        f"the last sweep took {swept} objects; verify read {verified.commits} commits"
    )


def _check_tables(lake: Lake, told: Told) -> dict[str, set[int]]:
    """Compare table `spans` with the recorded results; return its spans by trace."""
    rows = lake.sql("SELECT trace_id, span_id FROM spans").to_pylist()
    stored = Counter((row["trace_id"], int(row["span_id"], 16)) for row in rows)
    assert all(count == 1 for count in stored.values()), [span for span, count in stored.items() if count > 1]
    taken = {(trace_id, span) for trace_id, spans in told.taken.items() for span in spans}
    assert not taken - stored.keys(), f"acknowledged, and in no table: {sorted(taken - stored.keys())[:5]}"
    never = told.never_taken() & stored.keys()
    assert not never, f"refused, and in a table: {sorted(never)[:5]}"
    others = stored.keys() - taken - told.unknown
    assert not others, f"in a table, and never sent: {sorted(others)[:5]}"
    return _by_trace(stored)


def _by_trace(spans: Iterable[Span]) -> dict[str, set[int]]:
    by_trace: dict[str, set[int]] = defaultdict(set)
    for trace_id, span in spans:
        by_trace[trace_id].add(span)
    return by_trace


def _check_traces(lake: Lake, told: Told, tables: Mapping[str, set[int]]) -> Counter[str]:
    """Check each trace in the tracking store: it is in one place and complete there."""
    store = lake.hot.store
    assert store is not None
    stored = store.traces(list(told.taken))
    repository = _repository(lake)
    unknown = _by_trace(told.unknown)
    places = Counter[str]()
    for trace_id, taken in told.taken.items():
        trace = stored.get(trace_id)
        if trace is None:
            assert trace_id in told.deleted, f"trace {trace_id} is gone, and nobody deleted it"
            continue
        assert trace.info["archival_failure"] is None, trace.info
        place, spans = _payload(trace_id, trace, repository, tables)
        places[place] += 1
        if trace_id not in told.deleted:
            lost = taken - spans
            assert not lost, f"trace {trace_id} is {place} without {lost}: {trace.info}"
        extra = spans - taken - unknown.get(trace_id, set())
        assert not extra, f"trace {trace_id} is {place} with {extra}: {trace.info}"
    return places


def _payload(
    trace_id: str, trace: HotTrace, repository: ObjectStore, tables: Mapping[str, set[int]]
) -> tuple[str, set[int]]:
    """Return the place of a trace, and its spans there."""
    if trace.is_hot:
        assert trace.parts, f"trace {trace_id} is hot, but it has no payload"
        return "hot", _spans(trace.data)
    assert not trace.parts, f"trace {trace_id} is archived, and in the store as well"
    location = trace.info["archive_location"]
    if location.startswith(LAKE_LOCATION):
        return "in the tables", tables[trace_id]
    size_bytes, sha256 = trace.info["archive_bytes"], trace.info["archive_sha256"]
    try:
        data = read_archived(repository, location, size_bytes, sha256)
    except DamageError as error:
        raise AssertionError(f"trace {trace_id}: {error}") from error
    return "in packs" if "#" in location else "in files", _spans(data)


def _check_objects(lake: Lake) -> None:
    """Check the repository: each object has as many traces as its row says, and no other object exists."""
    store = lake.hot.store
    assert store is not None
    with store.database.reading() as connection:
        locations = list(connection.execute(_archived(store.lake)).scalars())
        objects = archive_objects.c
        rows = connection.execute(select(objects.path, objects.state, objects.traces)).all()
    repository = _repository(lake)
    named = Counter(path_in(repository, location) for location in locations)
    assert {(path, state, count) for path, state, count in rows} == {
        (path, LIVE, count) for path, count in named.items()
    }
    listed = {each.path for each in repository.list("") if is_ours(each.path)}
    assert listed == set(named), f"orphans: {sorted(listed - set(named))[:5]}"


def _archived(lake: int) -> Any:
    info = trace_info.c
    return select(info.archive_location).where(
        info.lake == lake,
        info.spans_location == ARCHIVE_REPO,
        info.archive_location.not_like(f"{LAKE_LOCATION}%"),
    )


def _repository(lake: Lake) -> ObjectStore:
    return open_objects(f"{lake.url}/archive")


def _spans(data: bytes) -> set[int]:
    groups = TracesData.FromString(data).resource_spans
    return {
        int.from_bytes(span.span_id)
        for group in groups
        for scope in group.scope_spans
        for span in scope.spans
    }
