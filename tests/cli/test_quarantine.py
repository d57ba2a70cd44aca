"""`pipeline quarantine`, `retry` and `discard`: their text, their JSON and their exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tracelake
from tests.cli.conftest import RunCli
from tests.pipeline.poison import Poisoned, good, names, poisoned
from tracelake.tasks.runners import InProcess


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Return a lake with one quarantined segment, as transaction 0."""
    place = tmp_path / "lake"
    with tracelake.init(place, buckets=2) as opened:
        opened.objects.put("inbox/0.segment", poisoned(0))
        opened.pipeline(runner=Poisoned("merge")).run_once()
    return place


def test_nothing_is_set_aside(cli: RunCli, tmp_path: Path) -> None:
    """An empty quarantine is reported as success; deciding about an absent item is an error."""
    tracelake.init(tmp_path / "lake").close()
    listed = cli("pipeline", "quarantine", "--lake", tmp_path / "lake")
    assert (listed.code, listed.out) == (0, "Nothing is set aside.\n")
    assert json.loads(cli("pipeline", "quarantine", "--json", "--lake", tmp_path / "lake").out) == []
    for verb in ("retry", "discard"):
        refused = cli("pipeline", verb, "0", "--lake", tmp_path / "lake")
        assert refused.code == 2
        assert "no input of transaction 0 is set aside" in refused.err
        assert "Traceback" not in refused.err


def test_what_is_set_aside_is_listed_with_what_to_do(cli: RunCli, lake: Path) -> None:
    """`quarantine` lists the path, the reason and both commands, and exits with 1 because a decision is needed."""
    listed = cli("pipeline", "quarantine", "--lake", lake)
    assert listed.code == 1
    for text in ("inbox/0.segment", "the sum does not fit", "pipeline retry 0", "discard 0"):
        assert text in listed.out
    as_json = cli("pipeline", "quarantine", "--json", "--lake", lake)
    assert as_json.code == 1
    (item,) = json.loads(as_json.out)
    assert (item["path"], item["state"], item["transaction"]) == ("inbox/0.segment", "set aside", 0)
    assert json.loads(cli("pipeline", "status", "--json", "--lake", lake).out)["quarantine"] == [item]


def test_retry_offers_it_again(cli: RunCli, lake: Path) -> None:
    """`retry` reports the new state; the next run ingests the input, and the list is empty."""
    (item,) = json.loads(cli("pipeline", "retry", "0", "--json", "--lake", lake).out)
    assert item["state"] == "offered"
    listed = cli("pipeline", "quarantine", "--lake", lake)
    assert listed.code == 0
    assert "inbox/0.segment" in listed.out
    with tracelake.open(lake) as opened:
        opened.pipeline(runner=InProcess()).run_once()
        assert names(opened) == {0}
    assert cli("pipeline", "quarantine", "--lake", lake).out == "Nothing is set aside.\n"


def test_discard_names_it_for_ever(cli: RunCli, lake: Path) -> None:
    """`discard` deletes the segment and keeps its name for good; other inputs are ingested."""
    done = cli("pipeline", "discard", "0", "--lake", lake)
    assert done.code == 0
    assert "inbox/0.segment" in done.out
    with tracelake.open(lake) as opened:
        assert list(opened.objects.list("inbox/")) == []
        opened.objects.put("inbox/1.segment", good(1))
        opened.pipeline(runner=InProcess()).run_once()
        assert names(opened) == {1}
    (item,) = json.loads(cli("pipeline", "quarantine", "--json", "--lake", lake).out)
    assert item["state"] == "discarded"
    (again,) = json.loads(cli("pipeline", "retry", "0", "--json", "--lake", lake).out)
    assert again["state"] == "discarded"
