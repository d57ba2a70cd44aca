"""Time and random ids inside a simulation: `time` and `uuid` answer actors from the run, all others as ever."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Protocol


class TimeSource(Protocol):
    """Where actors get time and ids from."""

    def sleep(self, seconds: float) -> None:
        """Let simulated time pass."""

    def now_s(self) -> float:
        """Return the simulated time in seconds."""

    def new_uuid(self) -> uuid.UUID:
        """Return an id that is the same in every run of the same schedule."""

    def is_inside(self) -> bool:
        """Whether an actor asks."""


class Simulated:
    """While entered, `time.sleep`, `time.time`, `time.monotonic` and `uuid.uuid4` answer actors from a run.

    Code must call them through their modules, as `time.sleep(1)`. Made once for a run, and entered for each step.
    """

    def __init__(
        self,
        source: TimeSource,
        wall_s: Callable[[], float] | None = None,
        steady_s: Callable[[], float] | None = None,
        others: Sequence[tuple[Any, str, Callable[..., Any]]] = (),
    ) -> None:
        """Take what stands there now as the answer to all others.

        `wall_s` and `steady_s` answer for `time.time` and `time.monotonic` where clocks differ from the run's.
        `others` are functions of other modules, each with what answers actors in its place.
        """
        ours: tuple[tuple[Any, str, Callable[..., Any]], ...] = (
            (time, "sleep", source.sleep),
            (time, "time", wall_s or source.now_s),
            (time, "monotonic", steady_s or source.now_s),
            (uuid, "uuid4", source.new_uuid),
            *others,
        )
        self._before = [(module, name, getattr(module, name)) for module, name, _ in ours]
        self._either = [
            (module, name, _either(source, inside, getattr(module, name))) for module, name, inside in ours
        ]

    def __enter__(self) -> None:
        for module, name, function in self._either:
            setattr(module, name, function)

    def __exit__(self, *_: object) -> None:
        for module, name, function in self._before:
            setattr(module, name, function)


def _either(
    source: TimeSource, inside: Callable[..., Any], outside: Callable[..., Any]
) -> Callable[..., Any]:
    def answer(*given: Any, **others: Any) -> Any:
        return inside(*given, **others) if source.is_inside() else outside(*given, **others)

    return answer
