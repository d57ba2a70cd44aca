"""User decisions to retry or discard stuck transactions and quarantined inputs."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, TypeAlias

from tracelake._errors import SourceChangedError, StorageError, TrimmedError, UsageError
from tracelake.journal.model import QuarantinedInput, QuarantineRecord, RecordedInput, Step, inputs_of
from tracelake.journal.quarantine import QuarantineStore, narrowed, on_discard, on_retry
from tracelake.journal.store import IngestedFiles, Journal
from tracelake.pipeline.driver import Pipeline
from tracelake.pipeline.input_failures import ASIDE_REASON_MAX_CHARS, UnreadableInputs
from tracelake.pipeline.outputs.configured import AddedOutputs
from tracelake.pipeline.publish import InputAcker, Outputs
from tracelake.pipeline.run_result import now
from tracelake.pipeline.sources.registry import INPUTS_FETCHED_AT_ONCE, SourceRegistry, content_of
from tracelake.search.vectors import IndexSettings
from tracelake.storage import KeyValueStore, ObjectStore
from tracelake.tasks.runners import InProcess

QuarantineAction: TypeAlias = Literal["retry", "discard"]


class QuarantineActions:
    """Retry and discard for the transactions and inputs of one pipeline. Safe while replicas run."""

    def __init__(
        self, name: str, key_value: KeyValueStore, objects: ObjectStore, buckets: int, first: IndexSettings
    ) -> None:
        self._objects = objects
        self._journal = Journal(key_value, name)
        self._suspects = QuarantineStore(key_value, name)
        self._unread = UnreadableInputs(key_value, name)
        self._outputs = Outputs(key_value, objects, buckets, first=first)
        sources = SourceRegistry(objects, IngestedFiles(key_value, name))
        self._settling = InputAcker(self._journal, sources, self._suspects, self._outputs)
        added = AddedOutputs(key_value, objects, buckets)
        self._pipeline = Pipeline(
            name, key_value, objects, buckets, InProcess(), initial_index=first, added=added
        )

    def decide(self, t: int, action: QuarantineAction) -> list[QuarantinedInput]:
        """Retry or discard the inputs of a transaction. `retry` offers all of them to the pipelines again; `discard`
        discards those at fault. Return the new state of each.

        A stuck transaction is quarantined first. Its inputs at fault are those that changed after they were recorded;
        if there are none, the unreadable ones, or its only input. The others are taken again.
        """
        if not any(suspect.state == "set aside" for suspect in self._of(t)):
            with contextlib.suppress(TrimmedError):  # trimmed, so no longer stuck
                step = self._journal.read(t).step if t == self._outputs.upper() else None
                if step is not None:
                    self._quarantine(step, action)
        suspects = self._of(t)
        if not suspects:
            raise UsageError(
                f"no input of transaction {t} is set aside, and the pipeline is not stuck at it. "
                "See `tracelake pipeline quarantine`."
            )
        return [self._decide(suspect, action) for suspect in suspects]

    def _of(self, t: int) -> list[QuarantinedInput]:
        return [suspect for suspect in self._suspects.all() if suspect.transaction == t]

    def _quarantine(self, step: Step, action: QuarantineAction) -> None:
        """Quarantine an uncommitted transaction, and make tables and index skip it."""
        t = step.transaction
        if self._outputs.has_rows(t):
            raise UsageError(
                f"table spans already has the rows of transaction {t}: it can only be finished, and does not "
                "need its inputs. Run `tracelake pipeline run --once`."
            )
        changed, unread = self._changed(step)
        inputs = len(_paths(step))
        at_fault = changed or list(unread) or (_paths(step) if inputs == 1 else [])
        reason = "set aside by the user"
        if changed:
            reason = f"{', '.join(changed[:3])} changed since the journal recorded it"
        elif unread:
            path, why = next(iter(unread.items()))
            reason = f"{path} cannot be read: {why}"
        self._journal.quarantine(
            QuarantineRecord(
                transaction=t,
                reason=reason[:ASIDE_REASON_MAX_CHARS],
                tries=0,
                by="user",
                set_aside_at=now().isoformat(timespec="microseconds"),
                together=max(1, narrowed(inputs, died=False, suspected=True)),
                given_up=tuple(at_fault) if action == "discard" else (),
                # If some input changed, the user did not discard the unreadable ones. They are offered again.
                unread=() if action == "discard" and changed else tuple(unread),
            )
        )
        self._unread.over(t)
        try:
            # `stopping` prevents any further transaction, so that no task runs.
            self._pipeline.run([], stopping=lambda: True)
        except SourceChangedError:
            if self._outputs.upper() <= t:
                raise  # otherwise of a later one, which a replica has begun since

    def _changed(self, step: Step) -> tuple[list[str], dict[str, str]]:
        """Return the inputs that changed after they were recorded, and the unreadable ones with reasons.

        Raises StorageError for an unreadable input if no run has found it unreadable before, because the failure may be
        temporary.
        """
        inputs = [
            (source, recorded_input)
            for source, ranges in step.sources.items()
            for recorded_input in inputs_of(ranges)
        ]
        with ThreadPoolExecutor(
            INPUTS_FETCHED_AT_ONCE
        ) as pool:  # in parallel, because a lost store fails slowly
            contents = list(pool.map(lambda each: self._content(*each), inputs))
        changed, unread = [], {}
        for (_, recorded_input), content in zip(inputs, contents, strict=True):
            if isinstance(content, OSError):
                unread[recorded_input.path] = content.strerror or str(content)
            elif content != (recorded_input.size_bytes, recorded_input.sha256):
                changed.append(recorded_input.path)
        for path, reason in () if self._unread.has_unreadable(step.transaction) else unread.items():
            raise StorageError(f"{path} cannot be read: {reason}. Nothing was decided; try again.")
        return changed, unread

    def _content(self, source: str, recorded_input: RecordedInput) -> tuple[int, str] | OSError:
        try:
            return content_of(self._objects, source, recorded_input.path, recorded_input.size_bytes)
        except OSError as error:  # unreadable does not mean changed
            return error

    def _decide(self, suspect: QuarantinedInput, action: QuarantineAction) -> QuarantinedInput:
        current = self._suspects.change(suspect, on_retry if action == "retry" else on_discard) or suspect
        self._settling.discard(current)
        return current


def _paths(step: Step) -> list[str]:
    return [recorded_input.path for ranges in step.sources.values() for recorded_input in inputs_of(ranges)]
