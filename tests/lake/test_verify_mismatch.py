"""`verify` of intact records with wrong content: each redundant number is compared."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tracelake
from tests.altered import sealed
from tests.datasets.conversations import ingest, talk
from tests.pipeline.spans import a_span
from tracelake import Lake
from tracelake.datasets import files
from tracelake.shards.shard import SHARDS_PARTITION

Json = dict[str, Any]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Return a lake of three transactions."""
    return made(tmp_path)


def made(tmp_path: Path) -> Lake:
    """Make a lake of three transactions, the second of which replaces spans of the first."""
    lake = tracelake.init(tmp_path / "lake", buckets=1)
    ingest(lake, tmp_path, *(a_span(trace, 0, end=0) for trace in range(4)))
    ingest(lake, tmp_path, *(a_span(trace, 0, end=20) for trace in range(2)))
    ingest(lake, tmp_path, talk(9, 0, "why", "so"))
    assert lake.verify().ok
    return lake


def rewrite(lake: Lake, transaction: int, change: Callable[[Json, Json], None]) -> str:
    """Change a batch of table `spans` and its entry in the state, with matching checksums. Return its path."""
    entry = lake._opened.key_value.get(SHARDS_PARTITION, "spans")
    assert entry is not None
    state = json.loads(entry.value)
    ref = state["batches"][transaction]
    batch = json.loads(lake.objects.get(ref["path"]))
    change(batch, ref)
    for record in (batch, state):
        del record["xxh3"]
    data = sealed(json.dumps(batch).encode())
    lake.objects.put(ref["path"], data)
    ref["sha256"] = hashlib.sha256(data).hexdigest()
    lake._opened.key_value.set(SHARDS_PARTITION, "spans", sealed(json.dumps(state).encode()))
    return str(ref["path"])


def found(lake: Lake) -> list[tuple[str, str, str]]:
    """Return a new run's findings, without their details."""
    with tracelake.open(lake.url) as again:
        return [(finding.kind, finding.what, finding.path) for finding in again.verify().findings]


def test_a_rewrite_that_changes_nothing_is_whole(lake: Lake) -> None:
    """A rewrite that changes nothing is intact: the other tests' findings come from their changes."""
    rewrite(lake, 1, lambda _batch, _ref: None)
    assert found(lake) == []


def test_rows_of_a_part(lake: Lake) -> None:
    """A batch that claims more rows of a part than it has is found."""
    parts = []

    def change(batch: Json, ref: Json) -> None:
        batch["parts"][0]["rows"] += 1
        ref["rows"] += 1
        parts.append(batch["parts"][0]["path"])

    rewrite(lake, 0, change)
    assert found(lake) == [("mismatch", "part", parts[0])]


def test_times_of_a_part(lake: Lake) -> None:
    """A part whose batch names another transaction than its rows is found."""
    parts = []

    def change(batch: Json, _ref: Json) -> None:
        batch["parts"][0].update(relative=True, first_row_id=1 << 32)
        parts.append(batch["parts"][0]["path"])

    rewrite(lake, 1, change)
    assert ("mismatch", "part", parts[0]) in found(lake)


@pytest.mark.parametrize("field", ["rows", "lower", "upper", "id"])
def test_a_batch_against_the_state(lake: Lake, field: str) -> None:
    """A state that contradicts a batch's record is found."""

    def change(batch: Json, _ref: Json) -> None:
        if field == "rows":
            batch["retractions"] = []
        else:
            batch[field] = batch[field] + ("x" if field == "id" else 1)

    path = rewrite(lake, 1, change)
    assert ("mismatch", "batch", path) in found(lake)


def test_a_span_that_is_there_twice(lake: Lake) -> None:
    """If retractions and their counts are lost, two rows of a span remain, and are found."""

    def change(batch: Json, ref: Json) -> None:
        ref["rows"] += len(batch["parts"]) and 2
        batch["retractions"] = []

    rewrite(lake, 1, change)
    assert ("mismatch", "table", f"spans: trace {1:032x}") in found(lake)


def test_a_file_that_only_a_tag_leads_to(lake: Lake) -> None:
    """If an example's branch is deleted and its tag exists, `verify` still reads its file."""
    lake.create_branch("dev")
    before = {info.path for info in lake.objects.list("files/")}
    made = lake.datasets.create("some", branch="dev", message="some")
    made.add(where="true", limit=1, message="one")
    lake.tag("kept", "dev")
    lake.delete_branch("dev")
    for path in {info.path for info in lake.objects.list("files/")} - before:
        lake.objects.delete(path)
    told = found(lake)
    assert len(told) == 2
    assert {(kind, what) for kind, what, _ in told} == {("missing", "file")}


def test_an_export_is_of_one_commit(lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit during the export adds nothing to the file, and removes nothing from it."""
    made = lake.datasets.create("some", message="some")
    made.add(where="true", limit=1, message="one")
    commit = lake.log()[0].id
    write = files.write

    def late(examples: Any, path: Path, kind: str) -> int:
        lake.datasets.get("some").delete(message="gone")
        return write(examples, path, kind)

    monkeypatch.setattr(tracelake.datasets.dataset, "write", late)
    report = made.export(tmp_path / "some.jsonl")
    assert (report.commit, report.examples) == (commit, 1)


def rewrite_manifest(lake: Lake, change: Callable[[list[Json]], None]) -> tuple[str, str]:
    """Change the newest index manifest's list of parts; return its path, and that of its last part."""
    path = max(info.path for info in lake.objects.list("search/spans/manifests/"))
    manifest = json.loads(lake.objects.get(path))
    del manifest["xxh3"]
    last = manifest["newest"][-1]["path"]
    change(manifest["newest"])
    lake.objects.put(path, sealed(json.dumps(manifest).encode(), path))
    return path, last


def test_documents_of_an_index_part(lake: Lake) -> None:
    """A part of the index whose number of documents differs from its transaction's rows is found."""

    def change(parts: list[Json]) -> None:
        parts[-1]["documents"] += 1

    _, part = rewrite_manifest(lake, change)
    assert ("mismatch", "index part", part) in found(lake)


def test_total_of_a_manifest(lake: Lake) -> None:
    """A manifest that omits a part is found: the other parts are intact, but their total is too small."""
    path, _ = rewrite_manifest(lake, lambda parts: parts.clear())
    assert found(lake) == [("mismatch", "manifest", path)]


@pytest.mark.parametrize("url", ["memory://queried", "it's a [lake]"])
def test_a_locked_query_reads_the_lake_wherever_it_is(tmp_path: Path, url: str) -> None:
    """Parts in memory are read from their copies, and paths with unusual letters work."""
    place = url if "://" in url else str(tmp_path / url)
    with tracelake.init(place, buckets=1) as lake:
        ingest(lake, tmp_path, a_span(0, 0))
        assert lake.sql("select count(*) as n from spans join traces using (trace_id)").to_pylist() == [
            {"n": 1}
        ]
