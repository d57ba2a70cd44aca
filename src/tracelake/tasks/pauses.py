"""What failed, each with a pause of its own: who goes on tries it again after that, and does all else meanwhile."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from tracelake.limits import PIPELINE_PAUSE_MAX_S, PIPELINE_POLL_S

KeyT = TypeVar("KeyT", bound=Hashable)


@dataclass(frozen=True, slots=True)
class _Failure:
    reason: str
    pause_s: float
    next_s: float

    @property
    def over_s(self) -> float:
        """When nobody asks for it any more, as it is gone."""
        return self.next_s + PIPELINE_PAUSE_MAX_S


def _steady_s() -> float:
    return time.monotonic()  # asked through its module each time, so that a simulation can answer


class Pauses(Generic[KeyT]):
    """The failures of things that are tried again: each doubles the pause of its own thing."""

    def __init__(
        self, clock: Callable[[], float] = _steady_s, longest_s: float = PIPELINE_PAUSE_MAX_S
    ) -> None:
        self._clock = clock
        self._longest_s = longest_s
        self._failures: dict[KeyT, _Failure] = {}
        # None is over before: so where very many fail at once, not all are looked through for each.
        self._first_over_s = math.inf

    def failing(self, key: KeyT) -> str | None:
        """Return why something failed that is not to be tried yet; None where it is."""
        failure = self._failures.get(key)
        return failure.reason if failure is not None and self._clock() < failure.next_s else None

    def failed(self, key: KeyT, reason: str) -> None:
        """Note that something failed once more."""
        now_s = self._clock()
        if now_s >= self._first_over_s:
            self._failures = {of: each for of, each in self._failures.items() if now_s < each.over_s}
            self._first_over_s = min((each.over_s for each in self._failures.values()), default=math.inf)
        before = self._failures.get(key)
        pause_s = PIPELINE_POLL_S if before is None else min(2 * before.pause_s, self._longest_s)
        self._failures[key] = failure = _Failure(reason, pause_s, now_s + pause_s)
        self._first_over_s = min(self._first_over_s, failure.over_s)

    def went_well(self, key: KeyT) -> None:
        """Forget that something failed."""
        self._failures.pop(key, None)
