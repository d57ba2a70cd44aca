"""What actors of a simulation ask of the stores, and what can become of one such call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

from tracelake._errors import StorageError


class Fate(IntEnum):
    """What becomes of the next call of an actor, or of the actor itself."""

    DONE = 0
    LOST_AFTER = 1
    LOST_BEFORE = 2
    REFUSED = 3
    LATE = 4
    LAND = 5
    KILL = 6
    DELAY = 7
    STALL = 8
    PARTITION = 9


MEANING = {
    Fate.DONE: "",
    Fate.LOST_AFTER: "REPLY LOST, it happened",
    Fate.LOST_BEFORE: "REPLY LOST, it did not happen",
    Fate.REFUSED: "REFUSED by the store",
    Fate.LATE: "REPLY LOST, it is still on its way",
    Fate.LAND: "LANDS LATE",
    Fate.KILL: "KILLED before this call",
    Fate.DELAY: "DELAYED",
    Fate.STALL: "THE STORE STALLS",
    Fate.PARTITION: "CUT OFF from the store",
}


class Choice(NamedTuple):
    """One decision of the scheduler: whose call comes next, and what becomes of it.

    `wait_ms` is how long a delay, a stall, a partition or a dead process lasts on the simulated clock.
    """

    actor: int
    fate: Fate = Fate.DONE
    wait_ms: int = 0


@dataclass(frozen=True, slots=True)
class Faults:
    """How many faults of each kind one run may meet. Every run ends, since faults do.

    `lost` counts replies that are lost (the write happened or not), failing reads and refused writes. `late`
    counts writes that are still on their way when their caller is told that nobody knows. A killed actor is
    started again, unless `restart` is False.
    """

    kills: int = 0
    lost: int = 0
    late: int = 0
    delays: int = 0
    stalls: int = 0
    partitions: int = 0
    restart: bool = True


BUDGETS = ("kills", "lost", "late", "delays", "stalls", "partitions")
"""The fields of Faults that are counts, in order."""
BUDGET_OF = {
    Fate.KILL: 0,
    Fate.LOST_AFTER: 1,
    Fate.LOST_BEFORE: 1,
    Fate.REFUSED: 1,
    Fate.LATE: 2,
    Fate.DELAY: 3,
    Fate.STALL: 4,
    Fate.PARTITION: 5,
}
"""Which of the counts a fault is taken from."""


class Touch(NamedTuple):
    """A key, or all keys that begin with `name`, that a call reads or writes."""

    store: str
    name: str
    is_prefix: bool
    writes: bool


@dataclass(slots=True)
class Call:
    """One call of an actor. `effect` carries it out on the model; `unknown` is the answer to a lost reply."""

    text: str
    touches: tuple[Touch, ...]
    effect: Callable[[], Any]
    unknown: Any = None
    """What the port returns where the outcome is not known; None where it raises StorageError."""
    conditional: bool = False
    wait_ms: int = 0
    fates: tuple[Fate, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Work out which faults can hit this call."""
        if not self.touches:
            self.fates = ()
        elif not any(touch.writes for touch in self.touches):
            self.fates = (Fate.LOST_BEFORE,)
        elif self.conditional:
            self.fates = (Fate.LOST_AFTER, Fate.LOST_BEFORE, Fate.REFUSED, Fate.LATE)
        else:
            self.fates = (Fate.LOST_AFTER, Fate.LOST_BEFORE, Fate.LATE)

    def answer_unknown(self) -> object:
        """Return what the caller gets for a lost reply, an error to raise included."""
        return StorageError(f"simulated: no reply to {self.text}") if self.unknown is None else self.unknown


def commute(ours: tuple[Touch, ...], theirs: tuple[Touch, ...]) -> bool:
    """Tell whether two calls give the same in either order: no key that one writes is touched by the other."""
    return not any((a.writes or b.writes) and _overlap(a, b) for a in ours for b in theirs)


def _overlap(a: Touch, b: Touch) -> bool:
    if a.store != b.store:
        return False
    if a.is_prefix:
        return b.name.startswith(a.name) or (b.is_prefix and a.name.startswith(b.name))
    return a.name.startswith(b.name) if b.is_prefix else a.name == b.name
