"""What writes the receipts of transactions, by the progress that is told of them."""

from __future__ import annotations

from itertools import pairwise

from tracelake.journal.receipts import PublishReceipt, PublishReceipts
from tracelake.pipeline.outcome import now
from tracelake.replicas.account import default_name
from tracelake.storage import KeyValueStore
from tracelake.tasks.progress import OnProgress, Progress


def with_receipts(key_value: KeyValueStore, name: str | None, progress: OnProgress) -> OnProgress:
    """Return what passes progress on, and keeps a receipt of each transaction that is published meanwhile."""
    receipts, by = PublishReceipts(key_value, "main"), name or default_name()
    begun: dict[int, list[float]] = {}

    def note(step: Progress) -> None:
        progress(step)
        t = step.transaction
        if step.stage != "publishing" or t is None:
            return
        if step.done == 0:
            begun.clear()
            begun[t] = []
        if t not in begun:
            return
        at = now()
        begun[t].append(at.timestamp())
        if step.done == step.total:
            times = begun.pop(t)
            took = tuple(round(max(0.0, after - before), 6) for before, after in pairwise(times))
            written_at = type(at).fromtimestamp(times[0], at.tzinfo).isoformat(timespec="microseconds")
            committed_at = at.isoformat(timespec="microseconds")
            receipts.note(PublishReceipt(t, written_at, committed_at, took, by, step.commit))

    return note
