"""Pauses between tries: growing, with jitter, and with an end."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator

from tracelake import limits


def tries(pause: Callable[[float], None] = time.sleep) -> Iterator[int]:
    """Yield 0, 1, … up to STORE_TRIES_MAX tries, pausing before each but the first.

    The jitter keeps clients that lost the same store at one moment from coming back at one moment.
    """
    for attempt in range(limits.STORE_TRIES_MAX):
        if attempt:
            longest = min(limits.STORE_PAUSE_MAX_S, 0.05 * 2**attempt)
            pause(longest * random.uniform(0.5, 1.0))  # noqa: S311  no secret
        yield attempt
