"""The whole demo, as a user runs it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import tracelake
from tests.patience import HANG_S
from tracelake.demo.agent import QUESTIONS
from tracelake.demo.run import _quoted


def test_the_demo_ends_by_itself_with_everything_committed(tmp_path: Path) -> None:
    """Without a terminal, the demo ends by itself and leaves a lake with exactly its spans."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("TRACELAKE_")}
    command = [sys.executable, "-m", "tracelake.cli", "demo", "--spans", "300", "--json"]
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    for said in (
        "--master 'local[*]'",
        "$ tracelake tables",
        "p99_ms",
        "[[sorted]]",
        "execute_tool read_doc",
        "whole",
        "tracelake serve",
    ):
        assert said in done.stderr
    assert re.search(r"^engine +Spark *$", done.stderr, re.MULTILINE)
    with tracelake.open(tmp_path / "demo-lake") as lake:
        assert lake.table("spans").info().rows == facts["agent_spans"] + facts["generated_spans"]
        agents = lake.sql("select distinct trace_id from spans where service = 'docs-agent'")
        assert agents.num_rows == len(QUESTIONS) == facts["questions"]
        trace = lake.trace(facts["trace_id"])
        assert trace.summary["error_count"] == 1
        assert trace.summary["input_tokens"] > 0


def test_commands_are_shown_as_a_shell_takes_them() -> None:
    """Commands are shown in shell syntax: arguments are quoted only if necessary."""
    assert _quoted("tables") == "tables"
    assert _quoted("sorted list") == "'sorted list'"
    assert _quoted("service = 'a'") == "\"service = 'a'\""
    assert _quoted("a='$x'") == "'a='\"'\"'$x'\"'\"''"
