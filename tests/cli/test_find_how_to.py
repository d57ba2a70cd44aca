"""The how-to page for a failing conversation: its commands print the output that it shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import tracelake
from tests.cli.conftest import RunCli
from tests.pipeline.spans import a_line, a_span
from tracelake.tasks.runners import InProcess

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "find-a-failing-conversation.md"
START_NS = 1_767_225_600_000_000_000
MINUTE_NS = 60_000_000_000
FAILS = {14, 33}
"""Conversations whose refund fails."""


def said(trace: int, span: int, question: str, answer: str, **fields: Any) -> dict[str, Any]:
    """Return one turn of a conversation."""
    told = {
        "session.id": f"chat-{trace:04d}",
        "gen_ai.request.model": "gpt-4o" if trace % 2 else "gpt-4o-mini",
        "input.value": question,
        "output.value": answer,
    }
    start = START_NS + trace * 7 * 60 * MINUTE_NS + span * MINUTE_NS
    return a_span(
        trace,
        span,
        start=start,
        end=start + 1_500_000_000,
        attributes=[{"key": key, "value": {"stringValue": value}} for key, value in told.items()],
        **fields,
    )


def conversation(number: int) -> list[dict[str, Any]]:
    """Return the turns of a conversation; some want refunds, and a few of these fail, as other requests do."""
    wish = "refund" if number % 3 == 0 or number in FAILS else "seat"
    spans = [
        said(number, 0, f"I would like a {wish} for order {number}", "Let me look", name="chat"),
        said(number, 1, f"order {number}", "found, paid by card", name="execute_tool find_order"),
    ]
    if number in FAILS:
        error = "refund refused: the amount exceeds what was paid by card"
        spans.append(
            said(number, 2, f"order {number}", error, name="execute_tool refund", status={"code": 2})
        )
        spans.append(said(number, 3, "And now?", "It is done!", name="chat"))
    elif number % 5 == 0:
        spans.append(
            said(number, 2, f"{wish} {number}", "timeout", name="execute_tool book", status={"code": 2})
        )
    return spans


def commands(page: str) -> list[tuple[str, str]]:
    """Return the commands of a page, each with the output that the page shows."""
    blocks = re.findall(r"```console\n(.*?)```", page, re.DOTALL)
    return [
        (command, printed)
        for block in blocks
        for command, printed in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)
    ]


def test_the_commands_print_what_the_page_says(cli: RunCli, tmp_path: Path, monkeypatch: Any) -> None:
    """Three searches lead from a word to the conversation, and one more to others that fail alike."""
    spans = [span for number in range(60) for span in conversation(number)]
    with tracelake.init(tmp_path / "lake", buckets=2) as lake:
        (tmp_path / "a.jsonl").write_bytes(a_line(*spans, service="support-agent"))
        lake.ingest(tmp_path / "a.jsonl", runner=InProcess())
    monkeypatch.setenv("TRACELAKE_LAKE", str(tmp_path / "lake"))
    page = PAGE.read_text("utf-8")
    shown = commands(page)
    assert len(shown) == 4
    for command, printed in shown:
        program, *arguments = shlex.split(command)
        assert program == "tracelake"
        ran = cli(*arguments)
        assert (ran.code, ran.out.rstrip("\n")) == (0, printed.rstrip("\n")), ran.err
