"""When a transaction takes one more step, and when it is sealed. Pure: no I/O, no clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from tracelake.journal.protocol import Verdict
from tracelake.limits import TRANSACTION_STEPS_MAX

Wish: TypeAlias = Literal["open", "commit", "abort"]
"""What the client of an explicit transaction wants: that it goes on, or ends."""


@dataclass(frozen=True, slots=True)
class StepMode:
    """How long transactions take steps that belong to no client. Peers may have modes of their own."""

    max_rows: int = 1
    """Sealed with so many spans, or more."""
    max_delay_s: float = 0.0
    """Sealed when its first step was fed so long ago, by the clock of who looks."""


EACH_STEP: Final = StepMode()
"""Each step is a transaction of its own."""


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """What a mode is asked of: a transaction with a step at least, and without a seal."""

    steps: int
    rows: int
    age_s: float
    wish: Wish | None = None
    """That of its client, as it was before anybody looked for more input; None where it has no client."""


def weigh(mode: StepMode, opened: OpenTransaction, *, exhausted: bool, goes_on: bool) -> Verdict:
    """Say whether a transaction takes more, is sealed, waits for more, or is discarded.

    `goes_on`: this run is followed by another, so that it may stay open where nothing more waits.

    One of a client is sealed where the client wants it, once all is taken that waited then, and never else: whoever
    speaks for a client that is gone has said so first (`clients.py`).
    """
    is_full = opened.steps >= TRANSACTION_STEPS_MAX
    if opened.wish == "abort":
        return "discard"
    if opened.wish is not None:
        if not exhausted and not is_full:
            return "more"
        return "seal" if opened.wish == "commit" else "wait"
    if is_full or opened.rows >= mode.max_rows or opened.age_s >= mode.max_delay_s:
        return "seal"
    if not exhausted:
        return "more"
    return "wait" if goes_on else "seal"
