"""What a pipeline reads: OTLP files and segments of the inbox, cut into transactions and tasks."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tracelake._errors import UsageError
from tracelake.journal.model import CHECKSUM_MODULUS, ReadRange, Sources
from tracelake.limits import PROBLEMS_MAX, STRIPE_INPUT_BYTES, STRIPES_MAX
from tracelake.pipeline.reading import ReadReceipt, ReadTask

FILES: Final = "files"
INBOX: Final = "inbox"


@dataclass(frozen=True, slots=True)
class Input:
    """One file (`source` FILES) or one segment (INBOX) that waits to be read."""

    source: str
    path: str
    size_bytes: int


def find_files(patterns: Iterable[str]) -> list[Input]:
    """Return the files that paths and glob patterns name, each once, in the order given.

    Raises UsageError for a pattern that matches nothing.
    """
    found: dict[str, Input] = {}
    for pattern in patterns:
        # A name that exists is taken as it is, even with `[` in it. A plain name that does not exist is an
        # input like any other: it is reported as not there, and the good files beside it go in.
        literal = Path(pattern).exists() or not glob.has_magic(pattern)
        matches = [pattern] if literal else sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207  Path.glob takes no absolute pattern
        if not matches:
            raise UsageError(f"no file matches {pattern!r}. Quote the pattern, and check the folder.")
        for match in matches:
            path = str(Path(match).resolve())
            size = Path(path).stat().st_size if Path(path).exists() else 0
            found.setdefault(path, Input(FILES, path, size))
    if not found:
        raise UsageError("no file to ingest was named.")
    return list(found.values())


def into_transactions(inputs: Sequence[Input], max_bytes: int) -> list[list[Input]]:
    """Cut inputs into runs of at most `max_bytes` stored bytes; a larger input is a run of its own."""
    runs: list[list[Input]] = []
    room = 0
    for item in inputs:
        if not runs or item.size_bytes > room:
            runs.append([])
            room = max_bytes
        runs[-1].append(item)
        room -= item.size_bytes
    return runs


def read_tasks(inputs: Sequence[Input], objects_url: str, buckets: int, staging: str) -> list[ReadTask]:
    """Return the tasks that read these inputs, the longest first."""
    return [
        ReadTask(objects_url, item.source, item.path, item.source == INBOX, stripe, stripes, buckets, staging)
        for item in sorted(inputs, key=lambda item: -item.size_bytes)
        for stripes in [min(STRIPES_MAX, 1 + item.size_bytes // STRIPE_INPUT_BYTES)]
        for stripe in range(stripes)
    ]


def to_sources(inputs: Sequence[Input], receipts: Sequence[ReadReceipt]) -> Sources:
    """Put receipts together to what the journal records; the order is that of the inputs."""
    by_input: dict[tuple[str, str], list[ReadReceipt]] = {}
    for receipt in receipts:
        by_input.setdefault((receipt.source, receipt.path), []).append(receipt)
    sources: dict[str, list[ReadRange]] = {}
    for item in inputs:
        stripes = sorted(by_input[item.source, item.path], key=lambda receipt: receipt.stripe)
        sources.setdefault(item.source, []).append(_to_range(stripes))
    return {source: tuple(ranges) for source, ranges in sources.items()}


def _to_range(stripes: Sequence[ReadReceipt]) -> ReadRange:
    problems = [(item.line, item.offset, item.reason) for stripe in stripes for item in stripe.problems]
    problems.sort(key=lambda item: (item[0] or 0, item[1] or 0, item[2]))
    return ReadRange(
        path=stripes[0].path,
        size_bytes=stripes[0].size_bytes,
        sha256=stripes[0].sha256,
        records=sum(stripe.records for stripe in stripes),
        checksum=f"{sum(stripe.checksum for stripe in stripes) % CHECKSUM_MODULUS:032x}",
        spans=sum(stripe.spans for stripe in stripes),
        problems=tuple(problems[:PROBLEMS_MAX]),
        problems_total=sum(stripe.problems_total for stripe in stripes),
        damaged=any(stripe.damaged for stripe in stripes),
    )
