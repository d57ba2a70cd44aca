"""What a simulation runs: actors, what stands before they begin, and what must hold during and after."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from tracelake.testing.process import Process
    from tracelake.testing.simulation import Run

StandIn: TypeAlias = tuple[Any, str, Callable[..., Any]]
"""(a module, the name of a function in it, what actors call in its place)."""
Body: TypeAlias = "Callable[[Process], object]"
"""What an actor does; called again, from the beginning, when it is restarted. Its return value is its result."""


class Violation(AssertionError):  # noqa: N818  what the literature calls it
    """A run broke a rule; the message says which."""


@dataclass(frozen=True, slots=True)
class Actor:
    """A process of the simulation."""

    name: str
    body: Body


class Scenario:
    """Actors over shared stores. It keeps nothing between runs; subclasses say the rest.

    A StorageError that leaves an actor's body is no violation: the process failed, and is started again.
    Any other exception is one.
    """

    name = "scenario"
    steps_max = 1_000
    """Calls after which a run counts as one that never ends."""

    def actors(self) -> list[Actor]:
        """Return the actors, the same at each call."""
        raise NotImplementedError

    def prepare(self, run: Run) -> None:
        """Put into the stores of a run what stands there before it begins."""

    def wall_s(self, who: str, now_s: float) -> float:
        """Return the time of day by the clock of an actor's machine, which may be wrong; right by default."""
        del who
        return now_s

    def steady_s(self, who: str, now_s: float) -> float:
        """Return the same by its steady clock, which begins anywhere."""
        del who
        return now_s

    def stand_ins(self, run: Run) -> Sequence[StandIn]:
        """Return what stands for functions that ask other systems; all but actors call those as ever.

        `run.current()` is the process of the actor that calls.
        """
        del run
        return ()

    def invariant(self, run: Run) -> None:
        """Raise Violation where the stores are as they must never be; called after each write."""

    def check(self, run: Run) -> None:
        """Raise Violation where the end of a run, with all actors finished, is not as it must be."""
