"""What a pipeline reads: OTLP files and segments of the inbox, cut into transactions and tasks."""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tracelake._errors import NotFoundError, UsageError
from tracelake.journal.model import CHECKSUM_MODULUS, ReadRange, Sources
from tracelake.limits import (
    PROBLEM_MAX_CHARS,
    PROBLEMS_MAX,
    STRIPE_INPUT_BYTES,
    STRIPES_MAX,
    TRANSACTION_INPUTS_MAX,
)
from tracelake.otlp.whole import LASTING, fingerprint
from tracelake.pipeline.decode import Piece, ReadReceipt, ReadTask
from tracelake.pipeline.names import to_name, to_path
from tracelake.storage import ObjectStore

FILES: Final = "files"
INBOX: Final = "inbox"


@dataclass(frozen=True, slots=True)
class Input:
    """One file (`source` FILES) or one segment (INBOX) that waits to be read."""

    source: str
    path: str
    """The path of an object, or the name of a file (`names.py`)."""
    size_bytes: int


def find_files(patterns: Iterable[str]) -> list[Input]:
    """Return the files that paths and glob patterns name, each once, in the order given.

    Raises UsageError for a pattern that matches nothing.
    """
    found: dict[str, Input] = {}
    for pattern in patterns:
        if "\0" in pattern:
            raise UsageError(f"{pattern!r} is no path: it has a null character in it.")
        # A name that exists is taken as it is, even with `[` in it. A plain name that does not exist is an
        # input like any other: it is reported as not there, and the good files beside it go in.
        literal = os.path.lexists(pattern) or not glob.has_magic(pattern)
        matches = [pattern] if literal else sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207  Path.glob takes no absolute pattern
        if not matches:
            raise UsageError(f"no file matches {pattern!r}. Quote the pattern, and check the folder.")
        for match in matches:
            path = os.path.realpath(match)
            name = to_name(path)
            found.setdefault(name, Input(FILES, name, _size_or_unknown(path)))
    if not found:
        raise UsageError("no file to ingest was named.")
    return list(found.values())


UNKNOWN_SIZE: Final = -1
"""Of a file whose size the machine could not tell: it is not read, and tried again by the next run."""


def size_of(path: str) -> int:
    """Return the size of a file, 0 where no file can be read there, as reading it will say.

    Raises OSError for a failure that may pass: it says nothing of what the file has.
    """
    try:
        return Path(path).stat().st_size
    except OSError as error:
        if error.errno in LASTING:
            return 0
        raise


def content_of(objects: ObjectStore, source: str, path: str, size_bytes: int) -> tuple[int, str]:
    """Return size and SHA-256 of an input; (0, "") where there is none.

    Raises OSError for a file that cannot be read this time: that says nothing of what it has.
    """
    if source != INBOX:
        return fingerprint(to_path(path), size_bytes)
    try:
        data = objects.get(path)
    except NotFoundError:
        return 0, ""
    return len(data), hashlib.sha256(data).hexdigest()


def _size_or_unknown(path: str) -> int:
    try:
        return size_of(path)
    except OSError:
        return UNKNOWN_SIZE


def into_transactions(inputs: Sequence[Input], max_bytes: int) -> list[list[Input]]:
    """Cut inputs into runs of at most `max_bytes` stored bytes; a larger input is a run of its own.

    No run has more than TRANSACTION_INPUTS_MAX of them.
    """
    runs: list[list[Input]] = []
    room = 0
    for item in inputs:
        if not runs or item.size_bytes > room or len(runs[-1]) >= TRANSACTION_INPUTS_MAX:
            runs.append([])
            room = max_bytes
        runs[-1].append(item)
        room -= item.size_bytes
    return runs


def read_tasks(inputs: Sequence[Input], objects_url: str, buckets: int, staging: str) -> list[ReadTask]:
    """Return the tasks that read these inputs, the longest first."""
    return [
        ReadTask(
            objects_url,
            item.source,
            item.path,
            item.size_bytes,
            item.source == INBOX,
            stripe,
            stripes,
            buckets,
            staging,
        )
        for item in sorted(inputs, key=lambda item: -item.size_bytes)
        for stripes in [min(STRIPES_MAX, 1 + item.size_bytes // STRIPE_INPUT_BYTES)]
        for stripe in range(stripes)
    ]


@dataclass(frozen=True, slots=True)
class Gathered:
    """What the tasks found out about inputs. Only of whole inputs anything is taken."""

    sources: Sources
    """One range for each input, in their order; without a SHA-256 where it was not read whole."""
    pieces: list[Piece]
    """Rows of inputs that were read whole."""
    dropped: list[Piece]
    """Rows of the others."""
    failed: dict[str, str]
    """Inputs that could not be read this time, as path and reason: they are to be tried again."""


def gather(inputs: Sequence[Input], receipts: Sequence[ReadReceipt]) -> Gathered:
    """Put the receipts of all stripes together."""
    by_input: dict[tuple[str, str], list[ReadReceipt]] = {}
    for receipt in receipts:
        by_input.setdefault((receipt.source, receipt.path), []).append(receipt)
    sources: dict[str, list[ReadRange]] = {}
    gathered = Gathered({}, [], [], {})
    for item in inputs:
        stripes = sorted(by_input[item.source, item.path], key=lambda receipt: receipt.stripe)
        pieces = [piece for stripe in stripes for piece in stripe.pieces]
        failure = next((stripe.failure for stripe in stripes if stripe.failure), None)
        reason = failure or _why_not_whole(item, stripes)
        if failure is not None:
            gathered.failed[item.path] = failure
        (gathered.pieces if reason is None else gathered.dropped).extend(pieces)
        taken = _to_range(stripes) if reason is None else _to_nothing(item, reason)
        sources.setdefault(item.source, []).append(taken)
    gathered.sources.update((source, tuple(ranges)) for source, ranges in sources.items())
    return gathered


def _why_not_whole(item: Input, stripes: Sequence[ReadReceipt]) -> str | None:
    """Say why the stripes do not make one whole input, or None.

    They agree where they read the same bytes to the end and saw the same in them. What was replaced, renamed or cut
    between the first look and the last task shows in one of them.
    """
    whole = stripes[0].whole
    if not any(stripe.whole.sha256 for stripe in stripes):
        return whole.problem.reason if whole.problem is not None else "is gone"
    if any(stripe.whole != whole for stripe in stripes) or whole.size_bytes != item.size_bytes:
        lost = next((stripe.whole.problem for stripe in stripes if not stripe.whole.sha256), None)
        how = f" ({lost.reason})" if lost is not None else ""
        return (
            f"changed while it was read{how}, and nothing of it was taken: leave it as it is, and run again"
        )
    return None


def _to_nothing(item: Input, reason: str) -> ReadRange:
    """Return the range of an input of which nothing is taken; `sha256` is that of no file."""
    return ReadRange(item.path, 0, "", 0, f"{0:032x}", 0, ((None, None, reason),), 1)


def _to_range(stripes: Sequence[ReadReceipt]) -> ReadRange:
    problems = [
        (item.line, item.offset, item.reason[:PROBLEM_MAX_CHARS])
        for stripe in stripes
        for item in stripe.problems
    ]
    problems.sort(key=lambda item: (item[0] or 0, item[1] or 0, item[2]))
    whole = stripes[0].whole
    return ReadRange(
        path=stripes[0].path,
        size_bytes=whole.size_bytes,
        sha256=whole.sha256,
        records=sum(stripe.records for stripe in stripes),
        checksum=f"{sum(stripe.checksum for stripe in stripes) % CHECKSUM_MODULUS:032x}",
        spans=sum(stripe.spans for stripe in stripes),
        problems=tuple(problems[:PROBLEMS_MAX]),
        problems_total=sum(stripe.problems_total for stripe in stripes),
        damaged=any(stripe.damaged for stripe in stripes),
    )
