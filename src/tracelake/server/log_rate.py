"""Says a thing that repeats once a second, and how often it was left out: a flood of requests is none of the log."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tracelake.limits import LOG_REPEAT_S, LOG_THING_CHARS, LOG_THINGS_MAX

LOGGERS = ("asyncio", "uvicorn.error", "tracelake.server", "tracelake.pipeline")
"""Who speaks while a server runs."""


class OncePerSecond(logging.Filter):
    """Lets a record pass unless its like passed less than a second ago: same logger, level and text without values."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin without a memory."""
        super().__init__()
        self._clock = clock
        self._lock = threading.Lock()
        self._said: dict[tuple[str, int, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to say it; who is let through tells how many were not."""
        # Text that a caller has put values into already differs each time: its beginning tells what it is.
        thing = (record.name, record.levelno, str(record.msg)[:LOG_THING_CHARS])
        now = self._clock()
        with self._lock:
            said_s, left_out = self._said.get(thing, (float("-inf"), 0))
            if now - said_s < LOG_REPEAT_S:
                self._said[thing] = (said_s, left_out + 1)
                return False
            if len(self._said) >= LOG_THINGS_MAX:
                self._said.clear()
            self._said[thing] = (now, 0)
        if left_out:
            record.msg = f"{record.getMessage()} (and {left_out} more like it)"
            record.args = ()
        return True


@contextmanager
def once_per_second() -> Iterator[None]:
    """Let the loggers of a server say a thing once a second, until the end of the block."""
    rate = OncePerSecond()
    loggers = [logging.getLogger(name) for name in LOGGERS]
    for logger in loggers:
        logger.addFilter(rate)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(rate)
