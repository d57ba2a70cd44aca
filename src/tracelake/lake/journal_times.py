"""How long a transaction took, by stage. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from tracelake.journal.receipts import PublishReceipt


def stages(
    began_at: str | None, sealed_at: str | None, receipt: PublishReceipt | None, names: Sequence[str]
) -> dict[str, float]:
    """Return seconds by stage, as far as they are known; clocks of several machines may have given the times.

    `names` are those of the outputs; where an output was added or removed since, they go by number.
    """
    times: dict[str, float] = {}
    if began_at and sealed_at:
        times["open"] = _between(began_at, sealed_at)
    if sealed_at and receipt is not None:
        times["writing"] = _between(sealed_at, receipt.written_at)
    if receipt is not None:
        own = (
            names
            if len(names) == len(receipt.outputs_s)
            else [f"output {n}" for n in range(len(receipt.outputs_s))]
        )
        times |= dict(zip(own, receipt.outputs_s, strict=True))
    return times


def _between(before: str, after: str) -> float:
    return max(
        0.0, round((datetime.fromisoformat(after) - datetime.fromisoformat(before)).total_seconds(), 6)
    )
