"""Commands of the retention rules, as text and JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tracelake
from tests.lake.test_retention import old
from tests.pipeline.spans import a_line
from tracelake.cli import run
from tracelake.tasks.runners import InProcess


@pytest.fixture(name="lake")
def fixture_lake(tmp_path: Path) -> str:
    """Return the place of a lake with an old trace and a newer one."""
    file = tmp_path / "spans.jsonl"
    file.write_bytes(a_line(old(0, 40), old(0, 40, 1), old(1, 2)))
    with tracelake.init(tmp_path / "lake") as lake:
        lake.ingest(file, runner=InProcess())
    return str(tmp_path / "lake")


def test_rules_are_set_listed_previewed_applied_and_removed(
    lake: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole way of a rule, with JSON; the audit log names each change."""

    def call(*arguments: str, code: int = 0) -> Any:
        assert run(["retention", *arguments, "--lake", lake, "--json"]) == code
        captured = capsys.readouterr()
        return json.loads(captured.out if code == 0 else captured.err.splitlines()[-1])

    assert call("list") == []
    assert call("set", "errors", "1y", "--where", "status:error")["condition"] == "status:error"
    rest = call("set", "rest", "30d")
    assert (rest["priority"], rest["workspace"], rest["condition"]) == (1000, "*", "all traces")
    assert rest["by"]
    assert [rule["name"] for rule in call("list")] == ["errors", "rest"]
    now = ("--now", "2026-06-01T00:00:00+00:00")
    preview = call("preview", *now)
    assert (preview["applied"], preview["traces"], preview["spans"]) == (False, 1, 2)
    assert [each["rule"] for each in preview["due"]] == ["rest"]
    assert call("apply", *now)["spans_deleted"] == 2
    assert call("preview", *now)["due"] == []
    assert call("remove", "errors")["name"] == "errors"
    assert [rule["name"] for rule in call("list")] == ["rest"]
    assert "no retention rule" in str(call("remove", "errors", code=1))
    assert "needs a time" in str(call("preview", "--now", "soon", code=2))
    assert "with a zone" in str(call("preview", "--now", "2026-06-01", code=2))
    with tracelake.open(lake) as opened:
        actions = [record.action for record in opened.audit.newest(20)]
    assert {"retention set", "retention apply", "retention remove"} <= set(actions)


def test_text_says_what_goes_and_what_stays(lake: str, capsys: pytest.CaptureFixture[str]) -> None:
    """People read the rules in order, totals, and where deleted traces stay readable."""
    run(["retention", "list", "--lake", lake])
    assert "kept forever" in capsys.readouterr().out
    run(["retention", "set", "rest", "30d", "--lake", lake])
    assert capsys.readouterr().out == "Rule rest: all traces, kept for 30d.\n"
    run(["retention", "list", "--lake", lake])
    assert "all traces" in capsys.readouterr().out
    run(["tag", "create", "release", "main", "--lake", lake])
    capsys.readouterr()
    run(["retention", "preview", "--now", "2026-06-01T00:00:00+00:00", "--lake", lake])
    out = capsys.readouterr().out
    assert "1 trace, 2 spans, about" in out
    assert "are due." in out
    assert "Older commits show deleted traces until they expire." in out
