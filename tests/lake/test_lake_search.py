"""The index of a lake from its users' view: damage, replacement, collection."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import tracelake
from tests.pipeline.spans import a_line, a_span
from tracelake import Lake
from tracelake._errors import DamageError, ExpiredError, QueryError, UsageError
from tracelake.search.finalize import finalize
from tracelake.tables.table import Table
from tracelake.tasks.runners import InProcess
from tracelake.versions.repository import Repository


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """Return an empty lake of two buckets."""
    with tracelake.init(tmp_path / "lake", buckets=2) as lake:
        yield lake


def ingest(lake: Lake, folder: Path, number: int, *spans: dict[str, Any], service: str = "shop") -> None:
    """Ingest one transaction with these spans, or with one new span."""
    path = folder / f"{number}.jsonl"
    path.write_bytes(a_line(*(spans or (a_span(number, 0, note=f"only{number}"),)), service=service))
    lake.ingest(path, runner=InProcess())


def found(lake: Lake, query: str, **options: Any) -> set[str]:
    """Return the trace ids that a search finds, without their leading zeros."""
    return {hit.trace_id.lstrip("0") for hit in lake.search(query, **options)}


def test_a_flipped_bit_of_a_staged_part_is_refused_and_the_next_run_mends_it(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The damaged part is never published, readers stay at the last commit, and another run repairs it."""
    ingest(lake, tmp_path, 0)

    def after_a_flip(*args: Any) -> Any:
        for info in list(lake.objects.list("search/spans/staging/")):
            if info.path.endswith(".pack"):
                data = bytearray(lake.objects.get(info.path))
                data[len(data) // 2] ^= 1
                lake.objects.put(info.path, bytes(data))
        return finalize(*args)

    with monkeypatch.context() as patch:
        patch.setattr("tracelake.pipeline.outputs.builtin.finalize", after_a_flip)
        with pytest.raises(DamageError, match=r"staged part .* is damaged"):
            ingest(lake, tmp_path, 1)
    assert found(lake, "work") == {"1"}
    ingest(lake, tmp_path, 2)
    assert found(lake, "work") == {"1", "2", "3"}
    assert lake.verify().findings == ()


def test_a_service_without_hits_reads_no_rows(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index answers without reading rows, for any number of other services' spans with the word."""
    ingest(lake, tmp_path, 0, *(a_span(0, n) for n in range(300)), service="shop")
    ingest(lake, tmp_path, 1, a_span(1, 0), service="Cart")
    looked_up: list[int] = []
    lookup = Table.lookup

    def counted(table: Table, trace_ids: Sequence[str], *rest: Any, **more: Any) -> Any:
        looked_up.extend([len(trace_ids)] if table.name == "spans" else [])
        return lookup(table, trace_ids, *rest, **more)

    monkeypatch.setattr(Table, "lookup", counted)
    assert found(lake, "work", service="nobody", limit=5) == set()
    assert looked_up == []
    assert found(lake, "work", service="Cart", limit=5) == {"2"}
    assert looked_up == [1]
    assert found(lake, "work", service="cart", limit=5) == set(), "a service is its exact name"
    assert found(lake, "work", service="'\0\udc80", limit=5) == set()


def scores(lake: Lake, query: str) -> list[tuple[str, float]]:
    """Return span and score of each hit, in order."""
    return [(hit.trace_id + hit.span_id, round(hit.score, 5)) for hit in lake.search(query, limit=100)]


def test_a_rebuilt_index_scores_as_if_nothing_had_ever_been_replaced(lake: Lake, tmp_path: Path) -> None:
    """Two lakes with equal content have equal scores after a rebuild, and the pipeline continues with the new
    index."""
    for end in range(20, 26):
        ingest(lake, tmp_path, 0, *(a_span(n, 0, end=end, note=f"rare{n} work {end}") for n in range(4)))
    with tracelake.init(tmp_path / "other", buckets=2) as other:
        ingest(other, tmp_path, 0, *(a_span(n, 0, end=25, note=f"rare{n} work 25") for n in range(4)))
        assert scores(lake, "work") != scores(other, "work"), "replaced rows are counted until then"
        before = lake.index()
        report = lake.maintenance.rebuild_index(runner=InProcess())
        assert before is not None
        assert (before.documents, report.documents, report.parts) == (24, 4, 1)
        assert lake.log()[0].id == report.commit
        assert sorted(scores(lake, "work")) == sorted(scores(other, "work"))
        assert found(lake, "work", at="main~1") == found(lake, "work"), "older commits keep their index"
        ingest(lake, tmp_path, 7, a_span(7, 0, note="rare7 work"))
        ingest(other, tmp_path, 8, a_span(7, 0, note="rare7 work"))
        assert sorted(scores(lake, "work")) == sorted(scores(other, "work"))
        after = lake.index()
        assert after is not None
        assert (after.documents, after.parts) == (5, 2)
    assert lake.verify().findings == ()


@pytest.mark.parametrize("damage", ["manifest", "part", "gone"])
def test_a_damaged_index_is_built_anew(lake: Lake, tmp_path: Path, damage: str) -> None:
    """A damaged or missing manifest or part stops searches; a rebuild repairs it for later transactions."""
    ingest(lake, tmp_path, 0)
    ingest(lake, tmp_path, 1)
    info = lake.index()
    assert info is not None
    path = info.manifest
    if damage == "part":
        path = next(part.path for part in lake.objects.list("search/spans/parts/"))
    data = lake.objects.get(path)
    lake.objects.delete(path)
    if damage != "gone":
        lake.objects.put(path, data[:-1])
    with (
        tracelake.open(lake.url) as reader,
        pytest.raises(DamageError, match=r"tracelake index rebuild|backup"),
    ):
        found(reader, "work")
    lake.maintenance.rebuild_index(runner=InProcess())
    assert found(lake, "work") == {"1", "2"}
    ingest(lake, tmp_path, 2)
    assert found(lake, "work") == {"1", "2", "3"}
    assert {finding.path for finding in lake.verify().findings} == {path}


def test_an_empty_lake_has_no_index_to_rebuild(lake: Lake) -> None:
    """The error reports that, and suggests a solution."""
    assert lake.index() is None
    with pytest.raises(UsageError, match="the lake is empty"):
        lake.maintenance.rebuild_index(runner=InProcess())


def check_refused_of_nothing(lake: Lake) -> None:
    """Check the queries that every lake refuses on an empty lake."""
    assert lake.search("work", facets=["service"]).total == 0
    for query, options in (
        ("nofield:x", {}),
        ('"open', {}),
        ("work", {"facets": ["nope"]}),
        ("work", {"mode": "semantic", "sort": "newest"}),
    ):
        with pytest.raises(QueryError):
            lake.search(query, **options)


def test_an_empty_lake_refuses_what_others_refuse(lake: Lake) -> None:
    """A query over an empty lake reports the same errors as a query over a full one."""
    check_refused_of_nothing(lake)


@pytest.mark.parametrize("moment", ["tasks", "marker", "commit"])
def test_a_rebuild_keeps_what_pipelines_commit_meanwhile(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """For a transaction committed at any time during the rebuild, its spans are found, and the index is the new
    one."""
    for number in range(3):
        ingest(lake, tmp_path, 0, a_span(0, 0, end=20 + number))
    target = {
        "tasks": "tracelake.indexing.build.write_parts",
        "marker": "tracelake.indexing.build.write_marker",
        "commit": "tracelake.versions.repository.Repository.commit_entries",
    }[moment]
    module, _, name = target.rpartition(".")
    holder = Repository if name == "commit_entries" else importlib.import_module(module)
    original = getattr(holder, name)
    done: list[bool] = []

    def after_a_transaction(*args: Any, **options: Any) -> Any:
        if not done:
            done.append(True)
            with tracelake.open(lake.url) as peer:
                ingest(peer, tmp_path, 5)
        return original(*args, **options)

    monkeypatch.setattr(holder, name, after_a_transaction)
    report = lake.maintenance.rebuild_index(runner=InProcess())
    assert done
    assert (report.documents, report.upper) == (2, 4)
    assert found(lake, "work") == {"1", "6"}
    ingest(lake, tmp_path, 6)
    assert found(lake, "work") == {"1", "6", "7"}
    info = lake.index()
    assert info is not None
    assert (info.documents, info.upper) == (3, 5)
    assert lake.verify().findings == ()


def test_a_transaction_that_did_not_see_a_rebuild_does_not_undo_it_for_good(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is committed with the index that it had read; the next transaction returns to the new one."""
    for number in range(3):
        ingest(lake, tmp_path, 0, a_span(0, 0, end=20 + number))

    def after_a_rebuild(*args: Any) -> Any:
        made = finalize(*args)
        with tracelake.open(lake.url) as peer:
            assert peer.maintenance.rebuild_index(runner=InProcess()).documents == 1
        return made

    with monkeypatch.context() as patch:
        patch.setattr("tracelake.pipeline.outputs.builtin.finalize", after_a_rebuild)
        ingest(lake, tmp_path, 5)
    documents = [index.documents for index in [lake.index()] if index is not None]
    assert documents == [4]
    assert found(lake, "work") == {"1", "6"}
    for number in (6, 7):
        ingest(lake, tmp_path, number)
        documents += [index.documents for index in [lake.index()] if index is not None]
    assert documents == [4, 3, 4]
    assert found(lake, "work") == {"1", "6", "7", "8"}
    assert lake.verify().findings == ()


def holder_of(step: str) -> Any:
    """Return the object that has the rebuild's step as an attribute."""
    return Repository if step == "commit_entries" else importlib.import_module("tracelake.indexing.build")


class Killed(BaseException):
    """The end of a process."""


@pytest.mark.parametrize(
    "step", ["write_parts", "with_lists", "write_marker", "commit_entries", "clean_staging"]
)
def test_what_a_killed_rebuild_left_is_collected(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """A rebuild killed at any point has changed nothing or everything; the third collection removes its leftovers."""
    ingest(lake, tmp_path, 0)
    ingest(lake, tmp_path, 1)
    before = {info.path for info in lake.objects.list("search/")}

    def die(*_: Any, **__: Any) -> None:
        raise Killed

    holder = holder_of(step)
    with monkeypatch.context() as patch:
        patch.setattr(holder, step, die)
        with pytest.raises(Killed):
            lake.maintenance.rebuild_index(runner=InProcess())
    assert {info.path for info in lake.objects.list("search/")} > before
    for _ in range(3):
        lake.maintenance.gc(epoch_min_s=0)
    left = {info.path for info in lake.objects.list("search/")} - before
    if step == "clean_staging":
        assert {path.split("/")[2] for path in left} == {"manifests", "parts"}
    else:
        assert left == set()
    assert found(lake, "work") == {"1", "2"}
    assert found(lake, "work", at="main~1")
    ingest(lake, tmp_path, 2)
    assert found(lake, "work") == {"1", "2", "3"}
    assert lake.verify().findings == ()


@pytest.mark.parametrize("step", ["write_parts", "write_marker", "commit_entries"])
@pytest.mark.parametrize("collections", [1, 2, 3])
def test_a_rebuild_beside_collections_is_published_whole_or_refused(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, collections: int
) -> None:
    """For any number of collections during the rebuild, no commit names a collected object."""
    ingest(lake, tmp_path, 0)
    holder = holder_of(step)
    original = getattr(holder, step)

    def after_collections(*args: Any, **options: Any) -> Any:
        with tracelake.open(lake.url) as peer:
            for _ in range(collections):
                peer.maintenance.gc(epoch_min_s=0)
        return original(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(holder, step, after_collections)
        if collections < 2:
            lake.maintenance.rebuild_index(runner=InProcess())
        else:
            with pytest.raises(ExpiredError, match=r"run it again|then commit"):
                lake.maintenance.rebuild_index(runner=InProcess())
    assert found(lake, "work") == {"1"}
    for _ in range(3):
        lake.maintenance.gc(epoch_min_s=0)
    assert found(lake, "work") == {"1"}
    assert lake.verify().findings == ()
