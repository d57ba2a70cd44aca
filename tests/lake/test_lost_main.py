"""The record of branch `main` is missing: every caller gets an error, and no caller treats the lake as empty."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

import tracelake
from tests.patience import HANG_S
from tests.pipeline.poison import good
from tests.server.client import Client
from tracelake import DamageError, Lake
from tracelake.cli import run
from tracelake.server.app import create_app
from tracelake.tasks.runners import InProcess
from tracelake.tracking.ingest_queue import Inbox

GONE = "record of branch main is missing"
USES: dict[str, Callable[[Lake], object]] = {
    "sql": lambda lake: lake.sql("select 1 from spans"),
    "search": lambda lake: list(lake.search("why")),
    "log": lambda lake: list(lake.log()),
    "branches": lambda lake: lake.branches(),
    "a branch": lambda lake: lake.create_branch("other"),
    "a tag": lambda lake: lake.tag("v1"),
    "a commit": lambda lake: lake.datasets.create("questions", message="questions"),
    "a run": lambda lake: lake.pipeline(runner=InProcess()).run_once(),
}


@pytest.fixture(params=["memory", "files"])
def lost(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lake]:
    """Return a reopened lake with a commit whose `main` is missing."""
    url = f"memory://{uuid.uuid4().hex}" if request.param == "memory" else str(tmp_path / "lake")
    with tracelake.init(url, buckets=2) as lake:
        lake.objects.put("inbox/1.segment", good(1))
        lake.pipeline(runner=InProcess()).run_once()
        lake.objects.put("inbox/2.segment", good(2))
        lake._opened.key_value.erase("branches", "main")
    with tracelake.open(url) as opened:
        yield opened


def test_a_lake_that_has_lost_main_is_not_empty(lost: Lake) -> None:
    """Reads and writes are refused, collections delete nothing, and no new branch is started."""
    before = {info.path for info in lost.objects.list("")}
    for name, use in USES.items():
        with pytest.raises(DamageError, match=GONE):
            raise AssertionError((name, use(lost)))
    for _ in range(4):
        assert any(GONE in told for report in lost.maintenance.gc(epoch_min_s=0.0) for told in report.damage)
    assert not before - {info.path for info in lost.objects.list("")}
    assert lost._opened.key_value.get("branches", "main") is None
    (finding,) = [each for each in lost.verify().findings if each.path == "branch main"]
    assert GONE in finding.detail


def test_pages_of_a_lake_that_has_lost_main_say_so(lost: Lake) -> None:
    """Pages and JSON show the error as a message."""
    with closing(Inbox(lost.objects, ack_timeout_s=HANG_S)) as inbox:
        client = Client(create_app(lost, inbox))
        for page in ("/", "/search?q=why", "/versions", "/api/v1/commits", "/api/v1/search?q=why"):
            answer = client.get(page)
            assert answer.status_code == 500, page
            assert GONE in answer.text, page


@pytest.mark.parametrize("command", [("sql", "select 1 from spans"), ("search", "why"), ("log",), ("gc",)])
def test_commands_say_so(
    tmp_path: Path, command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Commands print the error as a message."""
    with tracelake.init(tmp_path / "lake", buckets=2) as lake:
        lake.objects.put("inbox/1.segment", good(1))
        lake.pipeline(runner=InProcess()).run_once()
        lake._opened.key_value.erase("branches", "main")
    assert run([*command, "--lake", str(tmp_path / "lake")]) != 0
    out, err = capsys.readouterr()
    assert GONE in out + err
    assert "Traceback" not in out + err
