"""Time and random ids inside a simulation: `time` and `uuid` answer actors from the run, all others as ever."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol


class Source(Protocol):
    """Where actors get time and ids from."""

    def sleep(self, seconds: float) -> None:
        """Let simulated time pass."""

    def now_s(self) -> float:
        """Return the simulated time in seconds."""

    def new_uuid(self) -> uuid.UUID:
        """Return an id that is the same in every run of the same schedule."""

    def is_inside(self) -> bool:
        """Whether an actor asks."""


@contextmanager
def simulated(source: Source) -> Iterator[None]:
    """Answer `time.sleep`, `time.time`, `time.monotonic` and `uuid.uuid4` from a run while its actors ask.

    Code must call them through their modules, as `time.sleep(1)`.
    """
    ours = {
        (time, "sleep"): source.sleep,
        (time, "time"): source.now_s,
        (time, "monotonic"): source.now_s,
        (uuid, "uuid4"): source.new_uuid,
    }

    def either(inside: Any, outside: Any) -> Any:
        return lambda *given: inside(*given) if source.is_inside() else outside(*given)

    before = {(module, name): getattr(module, name) for module, name in ours}
    for (module, name), function in ours.items():
        setattr(module, name, either(function, before[module, name]))
    try:
        yield
    finally:
        for (module, name), function in before.items():
            setattr(module, name, function)
