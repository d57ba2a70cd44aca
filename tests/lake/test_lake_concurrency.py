"""Concurrent use of one lake: readers and a writer, several writers, files and the inbox."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path

import tracelake
from tests.patience import HANG_S, wait_until
from tests.pipeline.spans import a_line, a_span
from tracelake import IngestReport, Lake
from tracelake.indexing.merge import COMMITTER
from tracelake.search.searcher import SearchRequest
from tracelake.tasks.runners import InProcess
from tracelake.tracking.ingest_queue import Inbox

INGEST = """
import json, sys, tracelake
from tracelake.tasks.runners import InProcess
with tracelake.open(sys.argv[1]) as lake:
    print("ready", flush=True)
    sys.stdin.readline()
    report = lake.ingest(*sys.argv[2:], runner=InProcess(), transaction_bytes=1)
    print(json.dumps(report.to_dict()))
"""
SPANS = 40
"""Spans of a file: 20 of traces that all files share, and 20 of a separate trace."""
TRACES = 20


def write_files(folder: Path, first: int, last: int) -> list[Path]:
    """Write files that share one span, so that writers change the same traces."""
    paths = []
    for number in range(first, last):
        own = [a_span(1_000 + number, n, note=f"own{number}") for n in range(SPANS - TRACES)]
        shared = [a_span(trace, number, start=number + 2, end=number + 3) for trace in range(TRACES)]
        paths.append(folder / f"{number}.jsonl")
        paths[-1].write_bytes(a_line(*own, *shared, a_span(9_999, 0)))
    return paths


def check_whole(lake: Lake, files: int) -> None:
    """Check that each file is ingested once, and that the history is linear and complete."""
    report = lake.verify()
    assert report.findings == ()
    assert {info.name: info.rows for info in lake.tables()} == {
        "spans": files * SPANS + 1,
        "traces": files + TRACES + 1,
    }
    commits = lake.log()
    ingested = [commit for commit in commits if commit.committer != COMMITTER]
    assert [commit.metadata["transaction"] for commit in ingested] == [
        str(t) for t in reversed(range(len(ingested)))
    ]
    assert [commit.parents for commit in commits] == [*((c.id,) for c in commits[1:]), ()]
    assert sum(int(commit.metadata["spans_new"]) for commit in ingested) == files * SPANS + 1
    for number in range(files):
        assert len(lake.search(f"own{number}", limit=100)) == SPANS - TRACES


def ingest(lake: Lake, files: Sequence[Path]) -> IngestReport:
    """Ingest each file as a transaction, in this process."""
    return lake.ingest(*files, runner=InProcess(), transaction_bytes=1)


def test_a_reader_sees_whole_commits_while_another_lake_writes(tmp_path: Path) -> None:
    """Tables, SQL and search of one `Lake` show one commit at any time, while another ingests files."""
    files = write_files(tmp_path, 0, 8)
    states = {(0, 0), *((n * SPANS + 1, n + TRACES + 1) for n in range(1, len(files) + 1))}
    seen: list[tuple[int, int]] = []
    done = threading.Event()

    def read(lake: Lake) -> None:
        while not done.is_set():
            rows = lake.sql("select (select count(*) from spans), (select sum(span_count) from traces)")
            spans, counted = (column[0].as_py() or 0 for column in rows.columns)
            assert spans == counted
            view = lake._opened.view()
            tables = {info.name: info.rows for info in view.tables()}
            assert len(view.search(SearchRequest(limit=1_000))) == min(1_000, tables["spans"])
            seen.append((tables["spans"], tables["traces"]))

    with tracelake.init(tmp_path / "lake") as writer, tracelake.open(tmp_path / "lake") as reader:
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(read, reader)

            def wait_for_a_read() -> None:
                before = len(seen)
                wait_until(lambda: reading.done() or len(seen) > before + 1)  # the second began after now

            try:
                for file in files[:3]:
                    ingest(writer, [file])
                    wait_for_a_read()
                ingest(writer, files[3:])
            finally:
                done.set()
            reading.result()
        check_whole(reader, len(files))
    assert set(seen) <= states
    assert len(set(seen)) > 2
    assert seen == sorted(seen)


def test_two_processes_ingest_at_once(tmp_path: Path) -> None:
    """Two processes ingest different files concurrently: all are ingested, each commit is complete, in one history."""
    files = write_files(tmp_path, 0, 8)
    tracelake.init(tmp_path / "lake").close()
    command = [sys.executable, "-c", INGEST, str(tmp_path / "lake")]
    writers = [
        subprocess.Popen(
            [*command, *map(str, share)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for share in (files[::2], files[1::2])
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate(timeout=HANG_S)
        assert writer.returncode == 0
    with tracelake.open(tmp_path / "lake") as lake:
        check_whole(lake, len(files))


def test_threads_ingest_at_once_the_same_files_among_others(tmp_path: Path) -> None:
    """Threads that share a `Lake`, with one file in common, ingest every file once."""
    files = write_files(tmp_path, 0, 6)
    shares = [files[:3], files[2:5], [files[5], files[2]]]
    with tracelake.init(tmp_path / "lake") as lake:
        at_once([partial(ingest, lake, share) for share in shares])
        check_whole(lake, len(files))
        again = ingest(lake, files)
        assert (again.files_known, again.spans_new) == (6, 0)


def test_threads_read_different_commits_of_one_lake(tmp_path: Path) -> None:
    """Threads that share a `Lake` each read the commit that they request."""
    with tracelake.init(tmp_path / "lake") as lake:
        ingest(lake, write_files(tmp_path, 0, 3))
        commits = lake.log()[::-1]
        wrong: list[tuple[int, int]] = []

        def read(n: int) -> None:
            for _ in range(60):
                rows = lake.table("spans", at=commits[n].id).info().rows
                if rows != (n + 1) * SPANS + 1:
                    wrong.append((n, rows))

        at_once([partial(read, n) for n in range(len(commits))])
        assert wrong == []


def test_files_and_the_inbox_at_once(tmp_path: Path) -> None:
    """During an ingest of files, the pipeline commits server inputs: the lake has both, and the inbox is empty."""
    files = write_files(tmp_path, 0, 3)
    requests = [path.read_bytes() for path in write_files(tmp_path, 3, 6)]
    with tracelake.init(tmp_path / "lake") as lake, closing(Inbox(lake.objects)) as inbox:
        pipeline = lake.pipeline(runner=InProcess())

        def serve() -> None:
            for request in requests:
                inbox.append("json", request)
                pipeline.run_once()

        at_once([serve, lambda: ingest(lake, files)])
        pipeline.run_once()
        assert inbox.segments() == []
        check_whole(lake, len(files) + len(requests))
        assert pipeline.run_once() is None
        pipeline.close()


def at_once(calls: Sequence[Callable[[], object]]) -> None:
    """Run all calls in threads that start together; raise the error of one of them."""
    barrier = threading.Barrier(len(calls))

    def run(call: Callable[[], object]) -> None:
        barrier.wait()
        call()

    with ThreadPoolExecutor(len(calls)) as pool:
        for result in [pool.submit(run, call) for call in calls]:
            result.result()


def test_threads_share_each_component(tmp_path: Path) -> None:
    """Threads that use a component for the first time at once get the same one."""
    threads = 8
    with tracelake.init(tmp_path / "lake") as lake, ThreadPoolExecutor(threads) as pool:
        for name in ("hot", "datasets", "transactions"):
            barrier = threading.Barrier(threads)

            def read(_: int, name: str = name, barrier: threading.Barrier = barrier) -> object:
                barrier.wait(HANG_S)
                return getattr(lake, name)

            assert len({id(component) for component in pool.map(read, range(threads))}) == 1
