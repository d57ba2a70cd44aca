"""Erasers on an S3 server and PostgreSQL, killed with -9 before a write; other processes continue."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import tracelake
from tests.erasure.test_kills import RUN
from tests.lake.test_erasure import SECRET, everything, without
from tests.storage.conftest import postgres, s3
from tests.storage.servers.postgres import PostgresServer
from tests.storage.servers.s3 import S3Server
from tests.tracking.requests import request, trace_id
from tracelake.tasks.runners import InProcess

__all__ = ["postgres", "s3"]
KILLS = 4
"""Number of erased traces. Each later erasure is killed at a later write."""


def test_an_erasure_on_s3_and_postgres_survives_kills(
    s3: S3Server, postgres: PostgresServer, tmp_path: Path
) -> None:
    """All bytes of each erased trace go from the bucket, the records, the tracking store and the archive, and all other
    rows stay at every commit."""
    records, tracking = (postgres.url(postgres.new_schema()) for _ in range(2))
    with tracelake.init(s3.url(), metadata=records) as lake:
        store = lake.hot.set_up(tracking)
        place = f"{lake.place}\t{records}\t{tracking}"
        with closing(lake.pipeline(runner=InProcess())) as pipeline:
            for span in (1, 2):
                spans = [(number, span) for number in range(1, KILLS + 2)]
                store.write(
                    [request(each, text=f"{SECRET} {each[0]}", end_ns=span * 1_000) for each in spans]
                )
                pipeline.run_once()
        lake.archive.configure(layout="pack", location=s3.url())
        assert lake.archive.run(older_than="1d").fates
        expected = {commit.id: everything(lake, commit.id) for commit in lake.log()}
        with subprocess.Popen(
            [sys.executable, "-c", RUN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:

            def run(action: str, last: int) -> int:
                assert process.stdin is not None
                assert process.stdout is not None
                print(action, last, tmp_path / "writes", place, file=process.stdin, flush=True)
                return int(process.stdout.readline())

            for number in range(1, KILLS + 1):
                assert run(f"erase:{trace_id(number)}", 1 if number == 1 else 6 * number) == -9
                run("run", 3 * number)
                expected = {commit: without(rows, trace_id(number)) for commit, rows in expected.items()}
                reports = lake.erasures.run() or [lake.erase(trace=trace_id(number))]
                assert [report.state for report in reports] == ["finished"]
                check = lake.erasures.verify(reports[0].id, [f"{SECRET} {number}"])
                assert (check.findings, check.unread) == ((), ())
                assert {commit: everything(lake, commit) for commit in expected} == expected
            process.communicate()
        assert lake.erasures.verify(reports[0].id, [f"{SECRET} {KILLS + 1}"]).findings
        assert lake.verify().findings == ()
