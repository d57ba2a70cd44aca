"""Inputs of any source, cut into transactions and tasks, and what tasks say of them put together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tracelake.journal.model import CHECKSUM_MODULUS, ReadRange, Sources
from tracelake.limits import (
    PROBLEM_MAX_CHARS,
    PROBLEMS_MAX,
    READ_TASK_INPUT_BYTES,
    STRIPE_INPUT_BYTES,
    STRIPES_MAX,
    TRANSACTION_INPUTS_MAX,
)
from tracelake.otlp.whole import why_not_whole
from tracelake.pipeline.decode import InputShare, ReadReceipt, ReadTask, ShareReceipt
from tracelake.pipeline.pieces import Piece
from tracelake.pipeline.sources.port import Input
from tracelake.pipeline.sources.registry import known_bytes, to_range

INPUT_COST_BYTES: Final = 2 * 1024
"""What each input counts for beside its bytes: about what can be decoded while one is opened."""


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
    """Return the tasks that read these inputs, the longest first: several for a large one, one for many small ones."""
    groups: list[tuple[InputShare, ...]] = []
    together: list[InputShare] = []
    room = 0
    for item in sorted(inputs, key=lambda item: (-item.size_bytes, item.source, item.path)):
        stripes = min(STRIPES_MAX, 1 + item.size_bytes // STRIPE_INPUT_BYTES)
        shares = [
            InputShare(item.source, item.path, item.size_bytes, stripe, stripes) for stripe in range(stripes)
        ]
        cost = item.size_bytes + INPUT_COST_BYTES
        if stripes > 1:
            groups += [(share,) for share in shares]
        elif cost <= room:
            together += shares
            room -= cost
        else:
            groups.append(tuple(together))
            together, room = shares, READ_TASK_INPUT_BYTES - cost
    groups.append(tuple(together))
    return [ReadTask(objects_url, group, buckets, staging) for group in groups if group]


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
    by_input: dict[tuple[str, str], list[ShareReceipt]] = {}
    for receipt in receipts:
        for of_share in receipt.shares:
            by_input.setdefault((of_share.share.source, of_share.share.path), []).append(of_share)
    sources: dict[str, list[ReadRange]] = {}
    gathered = Gathered({}, [piece for receipt in receipts for piece in receipt.pieces], [], {})
    for item in inputs:
        stripes = sorted(by_input[item.source, item.path], key=lambda receipt: receipt.share.stripe)
        pieces = [piece for stripe in stripes for piece in stripe.pieces]
        failure = next((stripe.failure for stripe in stripes if stripe.failure), None)
        reason = failure or why_not_whole(
            known_bytes(item.source, item.size_bytes), [stripe.whole for stripe in stripes]
        )
        if failure is not None:
            gathered.failed[item.path] = failure
        (gathered.pieces if reason is None else gathered.dropped).extend(pieces)
        taken = _to_range(stripes) if reason is None else _to_nothing(item, reason)
        sources.setdefault(item.source, []).append(taken)
    gathered.sources.update((source, tuple(ranges)) for source, ranges in sources.items())
    return gathered


def _to_nothing(item: Input, reason: str) -> ReadRange:
    """Return the range of an input of which nothing is taken; `sha256` is that of no file."""
    return to_range(
        item.source,
        item.path,
        size_bytes=0,
        sha256="",
        records=0,
        checksum=f"{0:032x}",
        spans=0,
        problems=((None, None, reason),),
        problems_total=1,
    )


def _to_range(stripes: Sequence[ShareReceipt]) -> ReadRange:
    problems = [
        (item.line, item.offset, item.reason[:PROBLEM_MAX_CHARS])
        for stripe in stripes
        for item in stripe.problems
    ]
    problems.sort(key=lambda item: (item[0] or 0, item[1] or 0, item[2]))
    whole = stripes[0].whole
    return to_range(
        stripes[0].share.source,
        stripes[0].share.path,
        size_bytes=whole.size_bytes,
        sha256=whole.sha256,
        records=sum(stripe.records for stripe in stripes),
        checksum=f"{sum(stripe.checksum for stripe in stripes) % CHECKSUM_MODULUS:032x}",
        spans=sum(stripe.spans for stripe in stripes),
        problems=tuple(problems[:PROBLEMS_MAX]),
        problems_total=sum(stripe.problems_total for stripe in stripes),
        damaged=any(stripe.damaged for stripe in stripes),
    )
