"""What becomes of the inputs of a committed transaction: done before the next one is open, and again after a crash."""

from __future__ import annotations

import contextlib
from functools import partial

from tracelake._errors import DamageError, TrimmedError
from tracelake.journal.model import Aside, Step, Suspect
from tracelake.journal.store import Journal
from tracelake.journal.suspects import Suspects, on_transaction, suspects_of
from tracelake.pipeline.publish import Outputs
from tracelake.pipeline.sources.registry import SourceRegistry


class Settling:
    """Settles inputs of one pipeline."""

    def __init__(
        self, journal: Journal, sources: SourceRegistry, suspects: Suspects, outputs: Outputs
    ) -> None:
        self._journal = journal
        self._sources = sources
        self._suspects = suspects
        self._outputs = outputs

    def settle(self, t: int) -> list[Suspect]:
        """Let go of the inputs of a committed transaction: each source knows how.

        Of one that was set aside nothing is let go but what the user gave up: return what became of its inputs.
        """
        try:
            step, aside = self._journal.read(t).step, self._journal.aside(t)
        except TrimmedError:
            return []  # long ago: nothing below the floor is left to let go
        if step is None:
            raise DamageError(
                f"transaction {t} is committed, and the journal has no record of it. Restore the journal."
            )
        # Its commit says which it was: a peer may have published all of it before it could be set aside.
        if aside is not None and self._outputs.was_set_aside(t):
            return self._keep(aside, step)
        for source, ranges in step.sources.items():
            self._sources[source].let_go(ranges)
        # And then the records: who sets one of them aside meanwhile looks afterwards whether it was taken.
        self._suspects.forget({taken.path: taken for ranges in step.sources.values() for taken in ranges})
        return []

    def is_taken(self, suspect: Suspect) -> bool:
        """Whether a commit holds an input by now, as of a peer that could do what we could not."""
        return self._sources[suspect.source].is_taken(suspect.path, suspect.size_bytes, suspect.sha256)

    def _keep(self, aside: Aside, step: Step) -> list[Suspect]:
        kept = []
        for suspect in suspects_of(aside, step):
            stands = None
            with contextlib.suppress(
                DamageError
            ):  # the input is kept, and each run that meets it names its record
                stands = self._suspects.change(suspect, partial(on_transaction, suspect=suspect))
            if stands is not None:
                self.give_up(stands)
                kept.append(stands)
        return kept

    def give_up(self, suspect: Suspect) -> None:
        """Let go of an input that is discarded: its record, which stays, says so first."""
        if suspect.state == "discarded":
            self._sources[suspect.source].give_up(suspect.path)
