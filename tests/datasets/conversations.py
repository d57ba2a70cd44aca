"""Lake of small conversations: spans with input and output for examples."""

from __future__ import annotations

import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import tracelake
from tests.pipeline.spans import a_line, a_span
from tracelake import Lake
from tracelake.tasks.runners import InProcess


def talk(trace: int, span: int, question: str | None, answer: str | None, **fields: Any) -> dict[str, Any]:
    """Return a span with a question and an answer; None leaves one out."""
    texts = {"input.value": question, "output.value": answer}
    attributes = [{"key": k, "value": {"stringValue": v}} for k, v in texts.items() if v is not None]
    return a_span(trace, span, attributes=attributes, **fields)


def ids(trace: int, span: int) -> str:
    """Return the example id of a span."""
    return f"{trace + 1:032x}-{span + 1:016x}"


def ingest(lake: Lake, folder: Path, *spans: dict[str, Any]) -> str:
    """Ingest spans in one transaction; return its commit."""
    file = folder / f"{len(lake.log())}.jsonl"
    file.write_bytes(a_line(*spans))
    commit = lake.ingest(file, runner=InProcess()).commit
    assert commit is not None
    return commit


def a_lake(folder: Path) -> Lake:
    """Make a lake of one commit: three questions about refunds, one about weather, and a step without text."""
    shutil.copytree(_made_once().name, folder, dirs_exist_ok=True)
    return tracelake.open(folder / "lake")


@cache
def _made_once() -> tempfile.TemporaryDirectory[str]:
    """Return a folder with such a lake to copy; a lake is a directory that may be moved."""
    made = tempfile.TemporaryDirectory(prefix="tracelake-lab-")
    with tracelake.init(Path(made.name) / "lake", buckets=2) as lake:
        ingest(
            lake,
            Path(made.name),
            talk(0, 0, None, None, name="turn"),
            talk(0, 1, "refund for a coat", "within 30 days", parentSpanId=f"{1:016x}", start=2),
            talk(1, 0, "refund for shoes", "no refund", start=3),
            talk(2, 0, "refund for a hat", "ask the shop", start=4),
            talk(3, 0, "weather", "rain", start=5),
        )
    return made
