"""Input for a campaign: successive segments, as fast as they are taken."""

from __future__ import annotations

import random
import threading

from tests.pipeline.spans import a_line, a_span
from tracelake.otlp.framing import write_segment
from tracelake.storage import ObjectStore

BACKLOG_MAX = 40
"""Maximum pending segments. Beyond: no more come, so that a slow machine gets no more work than it can do."""


class Feeder:
    """Puts segments into the inbox, one after the other, from a separate thread; keeps a copy of each."""

    def __init__(self, objects: ObjectStore, interval_s: float, seed: int) -> None:
        self._objects = objects
        self._interval_s = interval_s
        self._chance = random.Random(seed)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.fed: dict[str, bytes] = {}

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Stop putting segments."""
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        number = 0
        while not self._ending.wait(self._chance.uniform(0, 2 * self._interval_s)):
            if sum(1 for _ in self._objects.list("inbox/")) >= BACKLOG_MAX:
                continue
            number += 1
            path = f"inbox/{number:08}.segment"
            self.fed[path] = self._segment(number)
            self._objects.create(path, self.fed[path])

    def _segment(self, number: int) -> bytes:
        """Return a segment with new spans, and some that repeat or replace earlier ones."""
        spans = [a_span(number, part, end=10, note=f"new {number}") for part in range(3)]
        earlier = self._chance.randrange(number)
        spans.append(a_span(earlier, 0, end=10 + number, note=f"later claim {number}"))
        spans.append(a_span(earlier, 1, end=10, note=f"new {earlier}"))
        return write_segment([("json", a_line(*spans, service=f"shop-{number % 3}"))])
