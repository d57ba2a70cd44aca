"""Pauses between tries: growing, with jitter, and with an end."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator

from tracelake import limits


def tries(
    pause: Callable[[float], None] = time.sleep, clock: Callable[[], float] = time.monotonic
) -> Iterator[int]:
    """Yield 0, 1, … up to STORE_TRIES_MAX tries, pausing before each but the first.

    No try begins later than STORE_TRIES_TIMEOUT_S after the first: tries that each run into a time-out
    would add up to many minutes. The jitter keeps clients that lost the same store at one moment from
    coming back at one moment. `pause` takes seconds, `clock` tells them.
    """
    end = clock() + limits.STORE_TRIES_TIMEOUT_S
    for attempt in range(limits.STORE_TRIES_MAX):
        if attempt:
            longest = min(limits.STORE_PAUSE_MAX_S, limits.STORE_PAUSE_FIRST_S * 2**attempt)
            seconds = longest * random.uniform(0.5, 1.0)  # noqa: S311  no secret
            if clock() + seconds > end:
                return
            pause(seconds)
        yield attempt
