"""The main workflow on every kind of storage: the same input gives the same lake."""

from __future__ import annotations

import gzip
import uuid
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pytest

import tracelake
from tests.pipeline.spans import AGENTS, MICROSERVICES, a_line, a_span
from tests.storage.servers.postgres import PostgresServer
from tests.storage.servers.s3 import S3Server
from tracelake import Lake
from tracelake.otlp.framing import write_segment
from tracelake.tasks.runners import InProcess, TaskRunner
from tracelake.tasks.spark import Spark

PLACES = (
    ("directory", None),
    ("s3", "objects"),
    ("s3", "postgresql"),
    ("directory", "postgresql"),
    ("memory", None),
)
ON_SPARK = ("s3", "objects")


@pytest.fixture(scope="module")
def slices(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Split the beginning of both real files into slices, with some lines in two of them."""
    folder = tmp_path_factory.mktemp("slices")
    cuts = [(MICROSERVICES, 0, 2), (MICROSERVICES, 1, 3), (AGENTS, 0, 1)]
    for number, (source, first, last) in enumerate(cuts):
        with gzip.open(source) as file, gzip.open(folder / f"{number}.jsonl.gz", "wb") as out:
            out.writelines(islice(file, first, last))
    return sorted(folder.iterdir())


@dataclass(frozen=True)
class Content:
    """Content that lakes must agree on."""

    spans: str
    traces: str
    hits: tuple[tuple[str, str], ...]
    by_service: tuple[tuple[str, int], ...]


@pytest.fixture(scope="module")
def expected(slices: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Content:
    """Return the content after all slices in one transaction, in a directory."""
    with tracelake.init(tmp_path_factory.mktemp("expected") / "lake") as lake:
        lake.ingest(*slices, runner=InProcess())
        return content(lake)


@pytest.fixture(params=PLACES, ids=lambda pair: f"{pair[0]}+{pair[1] or 'default'}")
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str | None, TaskRunner | None]:
    """Yield each kind of storage in turn: the lake's URL, its metadata URL, and its runner."""
    where, records = request.param
    if where == "s3":
        server: S3Server = request.getfixturevalue("s3")
    url = {"directory": str(tmp_path / "lake"), "memory": f"memory://{uuid.uuid4().hex}"}.get(where)
    if records == "postgresql":
        database: PostgresServer = request.getfixturevalue("postgres")
        records = database.url()  # one schema for all lakes
    runner: TaskRunner | None = InProcess()
    if request.param == ON_SPARK:
        shared: Spark = request.getfixturevalue("shared_spark")
        shared.stop()  # so that it starts after the servers, because its workers have the environment of that moment
        runner = shared
    return url or server.url(), records, None if where == "memory" else runner


def test_the_same_lake_in_every_place(
    place: tuple[str, str | None, TaskRunner | None], slices: list[Path], expected: Content
) -> None:
    """Make, ingest, read, verify, reopen and ingest again give the same rows and hits, and nothing new at last."""
    url, metadata, runner = place
    with tracelake.init(url, metadata=metadata) as lake:
        assert lake.tables()[0].rows == 0
        report = lake.ingest(*slices, runner=runner, transaction_bytes=1)
        assert (report.bad, len(report.transactions)) == ((), 3)
        assert report.spans_repeated > 0
        assert content(lake) == expected
        first = lake.sql("select min(trace_id) as id from spans")["id"][0].as_py()
        assert lake.trace(first[:12]).trace_id == first
        verified = lake.verify()
        assert verified.findings == ()
        assert (verified.commits, verified.index_parts) == (3, 3)
    with tracelake.open(url) as lake:
        assert content(lake) == expected
        again = lake.ingest(*slices, runner=runner)
        assert (again.files_known, again.spans_new, again.commit) == (3, 0, None)
        lake.objects.put("inbox/1.segment", write_segment([("json", a_line(a_span(0, 0)))]))
        inbox = lake.pipeline(runner=runner).run_once()
        assert inbox is not None
        assert inbox.spans_new == 1
        assert lake.verify().ok
    assert not list(lake.objects.list("inbox/"))


def content(lake: Lake) -> Content:
    """Return the content that all lakes must agree on."""
    rows = lake.sql("select service, count(*)::int as n from spans group by all order by all").to_pylist()
    return Content(
        lake.table("spans").content_hash(),
        lake.table("traces").content_hash(),
        tuple(sorted((hit.trace_id, hit.span_id) for hit in lake.search("refund", limit=1000))),
        tuple((row["service"], row["n"]) for row in rows),
    )
