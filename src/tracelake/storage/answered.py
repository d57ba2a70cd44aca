"""Connections to PostgreSQL that end where no reply comes: who asks a machine that vanished would wait for good."""

from __future__ import annotations

import math
import time
from collections.abc import Generator
from typing import Any, TypeAlias, TypeVar

import psycopg

from tracelake import limits

Row: TypeAlias = tuple[Any, ...]
T = TypeVar("T")


class AnsweredConnection(psycopg.Connection[Row]):
    """A connection that gives up a reply of which nothing comes any more, as from a machine that vanished."""

    answered_s: float = -math.inf
    """When the server last replied, by the monotonic clock."""
    is_patient: bool = False
    """Whether a reply is waited for however long it takes."""

    def wait(
        self,
        gen: Generator[Any, Any, T],
        interval: float = limits.POSTGRES_POLL_S,
        timeout: float | None = None,
    ) -> T:
        """Run one exchange with the server. Raises OperationalError after POSTGRES_REPLY_TIMEOUT_S of silence."""
        reply = super().wait(gen if self.is_patient else self._in_time(gen), interval, timeout)
        self.answered_s = time.monotonic()
        return reply

    def _in_time(self, gen: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        heard_s = time.monotonic()
        try:
            state = next(gen)
            while True:
                ready = yield state
                if ready:  # a long reply over a slow line comes piece by piece
                    heard_s = time.monotonic()
                elif time.monotonic() > heard_s + limits.POSTGRES_REPLY_TIMEOUT_S:
                    # The reply may still come: nothing else may be asked on this connection.
                    self.pgconn.finish()
                    raise psycopg.OperationalError(f"no reply in {limits.POSTGRES_REPLY_TIMEOUT_S} s")
                state = gen.send(ready)
        except StopIteration as end:
            value: T = end.value
            return value
