"""Makes what a server took findable ahead of searches, while they come, in a thread of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Event, Thread

from tracelake import limits
from tracelake._errors import TracelakeError

logger = logging.getLogger("tracelake.server")


class IndexingAhead:
    """Calls a function in a `with` block. A failure is logged, and tried again: searches do without, and say why."""

    def __init__(self, index_ahead: Callable[[], bool]) -> None:
        """`index_ahead` does a step, and returns whether there is more to do now."""
        self._index_ahead = index_ahead
        self._stopping = Event()
        self._thread = Thread(target=self._run, name="tracelake-indexing", daemon=True)

    def __enter__(self) -> None:
        """Begin."""
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        """Let the step that is under way finish, for so long at most, and begin no other."""
        self._stopping.set()
        self._thread.join(limits.UNCOMMITTED_AHEAD_STOP_MAX_S)
        if self._thread.is_alive():
            logger.warning(
                "what is made findable ahead of searches was not done in %.0f s and is left; nothing is lost by it",
                limits.UNCOMMITTED_AHEAD_STOP_MAX_S,
            )

    def _run(self) -> None:
        told = ""
        while not self._stopping.is_set():
            try:
                is_more = self._index_ahead()
            except Exception as error:  # whatever it is, the server goes on
                if str(error) != told:
                    told = str(error)
                    logger.warning(
                        "nothing is made findable ahead of searches, which do so themselves: %s",
                        error,
                        exc_info=None if isinstance(error, TracelakeError | OSError) else error,
                    )
                pause_s = limits.UNCOMMITTED_AHEAD_FAILED_S
            else:
                told = ""
                pause_s = limits.UNCOMMITTED_AHEAD_TURN_S if is_more else limits.UNCOMMITTED_AHEAD_EVERY_S
            self._stopping.wait(pause_s)
