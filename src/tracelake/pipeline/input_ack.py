"""What becomes of the inputs of a committed transaction: done before the next one is open, and again after a crash."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial

from tracelake._errors import DamageError, FormatError, StorageError, TrimmedError
from tracelake.journal.model import (
    QuarantinedInput,
    QuarantineRecord,
    ReadRange,
    RecordedInput,
    Step,
    inputs_of,
)
from tracelake.journal.quarantine import (
    QuarantineStore,
    on_commit,
    on_stay,
    on_transaction,
    quarantined_inputs,
)
from tracelake.journal.repair import repairable
from tracelake.journal.store import Journal
from tracelake.limits import ASIDE_REASON_MAX_CHARS
from tracelake.pipeline.publish import Outputs
from tracelake.pipeline.run_result import now
from tracelake.pipeline.sources.registry import SourceRegistry, to_range


class InputAcker:
    """Settles inputs of one pipeline."""

    def __init__(
        self, journal: Journal, sources: SourceRegistry, suspects: QuarantineStore, outputs: Outputs
    ) -> None:
        self._journal = journal
        self._sources = sources
        self._suspects = suspects
        self._outputs = outputs

    def settle(self, t: int) -> list[QuarantinedInput]:
        """Let go of the inputs of a committed transaction: each source knows how.

        Of one that was set aside nothing is let go but what the user gave up. Return what became of inputs that are
        kept: of such a transaction, or because they cannot be deleted.
        """
        try:
            step, aside = self._journal.read(t).step, self._journal.aside(t)
        except TrimmedError:
            return []  # long ago: nothing below the floor is left to let go
        except FormatError:
            raise
        except DamageError as error:
            raise DamageError(f"{error} {repairable(t)}") from error
        if step is None:
            self._journal.check_format()
            raise DamageError(f"the journal has no record of transaction {t}. {repairable(t)}")
        # Its commit says which it was: a peer may have published all of it before it could be set aside.
        if aside is not None and self._outputs.was_set_aside(t):
            return self._keep(aside, step)
        inputs = {source: list(inputs_of(ranges)) for source, ranges in step.sources.items()}
        kept = [suspect for source, taken in inputs.items() for suspect in self.let_go(t, source, taken)]
        # And then the records: who sets one of them aside meanwhile looks afterwards whether it was taken.
        left = {suspect.path for suspect in kept}
        taken = {each.path: each for of in inputs.values() for each in of if each.path not in left}
        self._suspects.forget(taken)
        return kept

    def let_go(self, t: int, source: str, inputs: Sequence[RecordedInput]) -> list[QuarantinedInput]:
        """Let go of inputs; of those that stay, as where they cannot be deleted, a record says that they are taken."""
        of = self._sources[source]
        try:
            of.let_go(inputs)
        except StorageError:
            if not of.is_ours:
                raise
        else:
            return []
        return [kept for each in inputs if (kept := self._let_go_alone(t, source, each)) is not None]

    def _let_go_alone(self, t: int, source: str, taken: RecordedInput) -> QuarantinedInput | None:
        try:
            self._sources[source].let_go([taken])
        except StorageError as error:
            suspect = QuarantinedInput(
                source=source,
                path=taken.path,
                size_bytes=taken.size_bytes,
                sha256=taken.sha256,
                transaction=t,
                reason=f"nothing of it is left to take, and it cannot be deleted: {error}"[
                    :ASIDE_REASON_MAX_CHARS
                ],
                tries=1,
                at=now().isoformat(timespec="microseconds"),
                state="taken",
                damaged=taken.damaged,
            )
            return self._suspects.change(suspect, partial(on_stay, suspect=suspect))
        return None

    def let_go_again(self) -> list[QuarantinedInput]:
        """Delete what was taken or given up before and could not be deleted; return what still cannot."""
        kept = []
        for suspect in self._suspects.all():
            try:
                self.give_up(suspect)
                if suspect.state == "taken":
                    taken = _range_of(suspect)
                    self._sources[suspect.source].let_go([taken])
                    self._suspects.change(suspect, partial(on_commit, taken=taken))
            except StorageError:
                kept.append(suspect)
        return kept

    def is_taken(self, suspect: QuarantinedInput) -> bool:
        """Whether a commit holds an input by now, as of a peer that could do what we could not."""
        return self._sources[suspect.source].is_taken(suspect.path, suspect.size_bytes, suspect.sha256)

    def _keep(self, aside: QuarantineRecord, step: Step) -> list[QuarantinedInput]:
        if aside.by == "client":
            return []  # nothing is wrong with it: what is the lake's own waits as before
        kept = []
        for suspect in quarantined_inputs(aside, step):
            stands = None
            with contextlib.suppress(
                DamageError
            ):  # the input is kept, and each run that meets it names its record
                stands = self._suspects.change(suspect, partial(on_transaction, suspect=suspect))
            if stands is not None:
                with contextlib.suppress(StorageError):  # each run tries again
                    self.give_up(stands)
                kept.append(stands)
        return kept

    def give_up(self, suspect: QuarantinedInput) -> None:
        """Let go of an input that is discarded: its record, which stays, says so first."""
        if suspect.state == "discarded":
            self._sources[suspect.source].give_up(suspect.path, unread=suspect.unread)


def _range_of(suspect: QuarantinedInput) -> ReadRange:
    """Return what a source has to know of an input to let it go."""
    return to_range(
        suspect.source,
        suspect.path,
        size_bytes=suspect.size_bytes,
        sha256=suspect.sha256,
        records=0,
        checksum="",
        spans=0,
        damaged=suspect.damaged,
    )
