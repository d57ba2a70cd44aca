"""Looking what stands at a transaction, once the inputs of the one before are let go."""

from __future__ import annotations

from tracelake._errors import DamageError, TrimmedError
from tracelake.journal.protocol import Started
from tracelake.pipeline.feeding import Feeding
from tracelake.pipeline.outcome import RunResult
from tracelake.pipeline.publish import TRANSFORM
from tracelake.pipeline.rooms import Dependencies


class Looking:
    """Looks for one run."""

    def __init__(self, rooms: Dependencies, feeding: Feeding, result: RunResult) -> None:
        self._rooms = rooms
        self._feeding = feeding
        self._result = result
        self._settled = -1  # the transaction of which this run has let the inputs go

    def settle(self, t: int) -> None:
        """Let go of the inputs of a committed transaction, and note what is kept of them."""
        self._result.note(self._rooms.settling.settle(t))
        self._settled = t

    def look(self, at_least: int) -> Started:
        """Say what stands at the least transaction, from `at_least` on, that has no commit."""
        while True:
            t = max(at_least, self._rooms.outputs.upper())
            try:
                return self._look_at(t)
            except TrimmedError:  # we were late: peers have gone on
                self._rooms.outputs.require_committed(t)

    def _look_at(self, t: int) -> Started:
        if t > 0 and t - 1 != self._settled:
            # Before T is open, the segments that T-1 holds are gone: none can be recorded a second time.
            self.settle(t - 1)
        # Outputs first: a peer may seal and append between the two looks, and a seal is never taken back.
        begun = self._rooms.outputs.begun(t)
        recorded = self._rooms.journal.read(t)
        aside = recorded.step is not None and self._rooms.journal.aside(t) is not None
        if recorded.seal is None and begun:
            raise DamageError(
                f"tables or index hold transaction {t}, and the journal has no seal of it. "
                "Restore the metadata from a backup."
            )
        held = recorded.step is not None and self._rooms.outputs.has_rows(t)
        only_commit_missing = recorded.seal is not None and self._rooms.outputs.only_commit_missing(t)
        if aside or only_commit_missing:
            self._feeding.discard()
        return Started(
            transaction=t,
            steps=recorded.steps,
            sealed=recorded.seal is not None,
            only_commit_missing=only_commit_missing,
            transform=TRANSFORM,
            fed=self._feeding.fed(recorded.steps),
            aside=aside and not held,
            held=held,
        )

    def require_aside(self, t: int) -> None:
        """Check that a transaction of which table `spans` has no rows was set aside. Raises DamageError."""
        if self._rooms.journal.aside(t) is None:
            raise DamageError(
                f"table spans has passed transaction {t} without its rows, and the journal does not say that it "
                "is set aside. Restore the metadata from a backup."
            )
