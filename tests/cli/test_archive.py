"""`tracelake archive plan` and `retention`: a limited list of experiments, and the effective retention of one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import update

from tests.archive.place import HotLake
from tests.tracking.requests import trace_id
from tracelake.cli import run
from tracelake.tracking.schema import trace_info


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the path of a lake with three hot traces, two of them in experiment 7."""
    hot = HotLake(tmp_path_factory.mktemp("archive") / "lake", layout="trace", retention="7d")
    with closing(hot.tracking), closing(hot.lake):
        hot.write((1, 1), (2, 1), (3, 1))
        with hot.tracking.database.writing() as connection:
            is_last = trace_info.c.trace_id == trace_id(3)
            connection.execute(update(trace_info).where(~is_last).values(experiment_id="7"))
        yield str(hot.path)


def test_an_experiment_has_a_retention(lake: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The retention of an experiment or its workspace is set, shown with the effective one, and removed."""
    for words, told in (
        (["1d", "--experiment", "7"], "for 1d, set for the experiment."),
        (["30d", "--experiment", "7"], "for 7d, set for the server."),
        (["2d", "--workspace", "default", "--experiment", "7"], "for 2d, set for the workspace."),
        (["none", "--experiment", "7"], "for 2d, set for the workspace."),
        (["none", "--workspace", "default"], "removed"),
    ):
        assert run(["archive", "retention", *words, "--lake", lake]) == 0
        assert told in " ".join(capsys.readouterr().out.split())
    assert run(["archive", "retention", "5m", "--experiment", "7", "--json", "--lake", lake]) == 0
    assert json.loads(capsys.readouterr().out) == {"experiment": "7", "workspace": None, "retention": "5m"}


def test_a_plan_shows_so_many(lake: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan lists the experiments with most hot traces, and says that more exist."""
    assert run(["archive", "plan", "--limit", "1", "--lake", lake]) == 0
    assert "--limit shows them" in capsys.readouterr().out
    assert run(["archive", "plan", "--limit", "1", "--json", "--lake", lake]) == 0
    assert [(each["experiment_id"], each["traces"]) for each in json.loads(capsys.readouterr().out)] == [
        ("7", 2)
    ]
    assert run(["archive", "plan", "--lake", lake]) == 0
    assert "--limit" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ["0d", "--experiment", "7"],
        ["1d", "--experiment", "8"],
        ["--experiment", "7"],
        ["1d", "--workspace="],
    ],
)
def test_mistakes_are_told(lake: str, capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    """A mistake is reported in one line that says how to fix it."""
    assert run(["archive", "retention", *words, "--lake", lake]) != 0
    told = capsys.readouterr().err
    assert "error: " in told
    assert "Traceback" not in told


def test_a_deletion_says_what_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A deletion lists both kinds of locations and unknown ids on standard error; standard output is unchanged."""
    hot = HotLake(tmp_path / "lake")
    with closing(hot.tracking), closing(hot.lake):
        hot.write((1, 1), (2, 1))
    where = ["--lake", str(tmp_path / "lake")]
    assert run(["archive", "delete", trace_id(1), trace_id(9), *where, "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == [trace_id(1)]
    for said in ("Removed from:", "Still in:", "search index", f"{trace_id(9)} is not in the tracking store"):
        assert said in printed.err
    assert run(["archive", "delete", trace_id(1), *where]) == 0
    printed = capsys.readouterr()
    assert (
        "0 of 1 traces deleted from the hot tier and the archive; tables and search keep their spans."
        in printed.out
    )
    assert "Removed from" not in printed.err
