"""What becomes of the inputs of a committed transaction: done before the next one is open, and again after a crash."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial
from typing import Final

from tracelake._errors import DamageError, NotFoundError
from tracelake.journal.known import KnownInputs
from tracelake.journal.model import Aside, ReadRange, Step, Suspect
from tracelake.journal.store import Journal
from tracelake.journal.suspects import Suspects, on_transaction, suspects_of
from tracelake.pipeline.inputs import INBOX
from tracelake.pipeline.publish import Outputs
from tracelake.storage import ObjectStore

QUARANTINE: Final = "quarantine/"
"""Segments that were acknowledged and could not be read whole: for a person to look at, never deleted here."""


class Settling:
    """Settles inputs of one pipeline."""

    def __init__(
        self, journal: Journal, known: KnownInputs, suspects: Suspects, outputs: Outputs, objects: ObjectStore
    ) -> None:
        self._journal = journal
        self._known = known
        self._suspects = suspects
        self._outputs = outputs
        self._objects = objects

    def settle(self, t: int) -> list[Suspect]:
        """Remember the files of a committed transaction, and delete its segments.

        Of one that was set aside nothing is deleted but what the user gave up: return what became of its inputs.
        """
        step = self._journal.read(t).step
        if step is None:
            raise DamageError(
                f"transaction {t} is committed, and the journal has no record of it. Restore the journal."
            )
        aside = self._journal.aside(t)
        # Its commit says which it was: a peer may have published all of it before it could be set aside.
        if aside is not None and self._outputs.was_set_aside(t):
            return self._keep(aside, step)
        for source, ranges in step.sources.items():
            for taken in ranges:
                if source != INBOX:
                    self._known.remember(taken)
        self.delete_segments(step.sources.get(INBOX, ()))
        # And then the records: who sets one of them aside meanwhile looks afterwards whether it was taken.
        self._suspects.forget({taken.path: taken for ranges in step.sources.values() for taken in ranges})
        return []

    def is_taken(self, suspect: Suspect) -> bool:
        """Whether a commit holds an input by now, as of a peer that could do what we could not."""
        if suspect.source == INBOX:
            return self._objects.head(suspect.path) is None
        return self._known.find(suspect.size_bytes, lambda: suspect.sha256) is not None

    def delete_segments(self, segments: Sequence[ReadRange]) -> None:
        """Delete segments that were taken; one that could not be read whole is kept in quarantine."""
        for taken in segments:
            if taken.damaged:
                with contextlib.suppress(NotFoundError):  # done before, or by a peer
                    self._objects.copy(taken.path, QUARANTINE + taken.path)
            self._objects.delete(taken.path)

    def _keep(self, aside: Aside, step: Step) -> list[Suspect]:
        kept = []
        for found in suspects_of(aside, step):
            stands = None
            with contextlib.suppress(
                DamageError
            ):  # the input is kept, and each run that meets it names its record
                stands = self._suspects.change(found, partial(on_transaction, found=found))
            if stands is not None:
                self.give_up(stands)
                kept.append(stands)
        return kept

    def give_up(self, suspect: Suspect) -> None:
        """Delete the segment of an input that is discarded: its record, which stays, says so first."""
        if suspect.state == "discarded" and suspect.source == INBOX:
            self._objects.delete(suspect.path)
