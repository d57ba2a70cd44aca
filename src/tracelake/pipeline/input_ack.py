"""Acknowledgement of committed inputs to their sources. It happens before the next transaction opens, and again after
a crash."""

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
from tracelake.pipeline.input_failures import ASIDE_REASON_MAX_CHARS
from tracelake.pipeline.publish import Outputs
from tracelake.pipeline.run_result import now
from tracelake.pipeline.sources.registry import SourceRegistry, to_range


class InputAcker:
    """Acknowledges the inputs of one pipeline to their sources."""

    def __init__(
        self, journal: Journal, sources: SourceRegistry, suspects: QuarantineStore, outputs: Outputs
    ) -> None:
        self._journal = journal
        self._sources = sources
        self._suspects = suspects
        self._outputs = outputs

    def settle(self, t: int) -> list[QuarantinedInput]:
        """Acknowledge the inputs of a committed transaction to their sources.

        If the transaction was quarantined, only inputs that the user discarded are released. Return the inputs that
        are kept: those of a quarantined transaction, and those that cannot be deleted.
        """
        try:
            step, aside = self._journal.read(t).step, self._journal.aside(t)
        except TrimmedError:
            return []  # older than the journal's floor: acknowledged long ago
        except FormatError:
            raise
        except DamageError as error:
            raise DamageError(f"{error} {repairable(t)}") from error
        if step is None:
            self._journal.check_format()
            raise DamageError(f"the journal has no record of transaction {t}. {repairable(t)}")
        # The commit decides: a peer may have published the transaction completely before it was quarantined.
        if aside is not None and self._outputs.was_set_aside(t):
            return self._keep(aside, step)
        inputs = {source: list(inputs_of(ranges)) for source, ranges in step.sources.items()}
        kept = [suspect for source, taken in inputs.items() for suspect in self.let_go(t, source, taken)]
        # Forget the quarantine records last. A process that quarantines an input concurrently checks
        # afterwards whether it was taken.
        left = {suspect.path for suspect in kept}
        taken = {each.path: each for of in inputs.values() for each in of if each.path not in left}
        self._suspects.forget(taken)
        return kept

    def let_go(self, t: int, source: str, inputs: Sequence[RecordedInput]) -> list[QuarantinedInput]:
        """Acknowledge inputs. If one cannot be deleted, record that it is taken, and return it."""
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
        """Retry deleting inputs that were taken or discarded earlier. Return those that still cannot be deleted."""
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
        """Return whether a commit contains an input by now, for example one of a peer."""
        return self._sources[suspect.source].is_taken(suspect.path, suspect.size_bytes, suspect.sha256)

    def _keep(self, aside: QuarantineRecord, step: Step) -> list[QuarantinedInput]:
        if aside.by == "client":
            return []  # the input is fine: inbox input stays pending as before
        kept = []
        for suspect in quarantined_inputs(aside, step):
            stands = None
            # the input is kept, and each run that finds it reports the damaged record
            with contextlib.suppress(DamageError):
                stands = self._suspects.change(suspect, partial(on_transaction, suspect=suspect))
            if stands is not None:
                with contextlib.suppress(StorageError):  # each run tries again
                    self.give_up(stands)
                kept.append(stands)
        return kept

    def give_up(self, suspect: QuarantinedInput) -> None:
        """Delete a discarded input. Its quarantine record already says so, and stays."""
        if suspect.state == "discarded":
            self._sources[suspect.source].give_up(suspect.path, unread=suspect.unread)


def _range_of(suspect: QuarantinedInput) -> ReadRange:
    """Return the range that a source needs to acknowledge an input."""
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
