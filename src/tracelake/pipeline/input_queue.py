"""Reading of new input: what waits, less what is taken already, less what cannot be read by any task.

Reads the input of the next transaction beside the one that is published; `protocol.py` says when it stands.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence, Set
from functools import cached_property, partial
from typing import TypeAlias

from msgspec.structs import replace

from tracelake._errors import StorageError, TracelakeError
from tracelake.journal.model import QuarantinedInput, ReadRange, Step, WholeFile, to_bytes
from tracelake.journal.quarantine import Standing, next_offer, on_unread
from tracelake.limits import (
    ASIDE_REASON_MAX_CHARS,
    STEP_RECORD_MAX_BYTES,
    TRANSACTION_TRIES_MAX,
    UNREAD_INPUT_MAX_S,
)
from tracelake.pipeline.context import PipelineContext
from tracelake.pipeline.input_failures import CrashMarkers, InputFaultError, mark_of
from tracelake.pipeline.poison_input import PoisonInputFinder
from tracelake.pipeline.protocol import may_prefetch, stands_for
from tracelake.pipeline.run_result import RunResult
from tracelake.pipeline.sources.base import UNKNOWN_SIZE, Held, Input, Known, NewInputs, QuarantinedPaths
from tracelake.pipeline.sources.registry import content_of
from tracelake.pipeline.staging import InputReader, ReadInput
from tracelake.tasks.runners import OnProgress, Progress

StartWork: TypeAlias = Callable[[Callable[[], None]], Callable[[], None]]
"""Begins some work, and returns what waits until it is done."""


def in_thread(work: Callable[[], None]) -> Callable[[], None]:
    """Work in a thread; see `Beside`."""
    # A daemon: a process that is told twice to stop does not wait.
    thread = threading.Thread(target=work, name="tracelake-read-ahead", daemon=True)
    thread.start()
    return thread.join


def run_inline(work: Callable[[], None]) -> Callable[[], None]:
    """Work before anything else is done, as in a simulation; see `Beside`."""
    work()
    return lambda: None


class Prefetcher:
    """Input that is read beside a transaction, of one transaction at most."""

    def __init__(self, rooms: PipelineContext, progress: OnProgress, beside: StartWork | None) -> None:
        """Read by `beside`; None: nothing is read ahead."""
        self._beside = beside
        self._progress = progress
        self._reader = InputReader(rooms.objects, rooms.buckets, rooms.runner, self._tell)
        self._rooms = rooms
        self._inputs: tuple[Input, ...] = ()
        self._staged: ReadInput | None = None
        self._wait: Callable[[], None] | None = None
        self._reads_in = 0
        self._is_awaited = False
        self._is_dropped = False

    @cached_property
    def _tries(self) -> CrashMarkers:
        """A note of its own: who dies now has died of this input, or of the transaction beside it."""
        return self._rooms.tries.another()

    @property
    def is_on(self) -> bool:
        """Whether anything is read ahead at all."""
        return self._beside is not None

    def begin(self, t: int, inputs: Sequence[Input]) -> None:
        """Begin to read what may become transaction T. Raises what the store of notes raises, or who begins work."""
        assert self._beside is not None
        assert self._wait is None
        assert self._staged is None
        self._inputs, self._is_awaited, self._is_dropped = tuple(inputs), False, False
        try:
            self._tries.begin(t, inputs)
            self._wait = self._beside(self._read)
        except (Exception, KeyboardInterrupt, SystemExit):  # as where no thread can be started
            self._tries.end()
            raise

    def _read(self) -> None:
        self._reads_in = threading.get_ident()
        # Whatever fails here fails again, and counts, when its turn has come.
        with contextlib.suppress(Exception):
            self._staged = self._reader.stage(self._inputs)

    def _tell(self, step: Progress) -> None:
        self._tries.beat()
        if self._is_dropped and threading.get_ident() == self._reads_in:
            raise InterruptedError("nobody wants any more what is read")
        if self._is_awaited:
            self._progress(step)

    def end(self) -> None:
        """Wait until nothing is read beside any more: then what was read has its turn, or is dropped."""
        if self._wait is not None:
            self._is_awaited = not self._is_dropped
            self._wait()
            self._wait = None
            self._tries.end()

    def take(self, inputs: Sequence[Input]) -> ReadInput | None:
        """Return what was read, if it was just these inputs; else it is deleted.

        So it is where one of them was not read whole that time: it is read again as it is now.
        """
        self.end()
        staged = self._staged
        if staged is not None and stands_for(self._inputs, inputs) and staged.is_whole():
            self._staged = None
            return staged
        self.drop()
        return None

    def drop(self) -> None:
        """Delete what was read, as well as it goes: what is left is deleted when it is old."""
        self._is_dropped = True
        self.end()
        staged, self._staged = self._staged, None
        if staged is not None:
            with contextlib.suppress(TracelakeError, OSError):
                self._reader.discard(staged)


class InputQueue:
    """The inputs that wait for one run."""

    def __init__(
        self,
        reader: InputReader,
        rooms: PipelineContext,
        result: RunResult,
        stopping: Callable[[], bool],
        ahead: Prefetcher,
        held: Callable[[], Set[tuple[str, str]]],
    ) -> None:
        """`held` tells sources and paths of what the open transaction has already."""
        self._ahead = ahead
        self._held = held
        self._cut: list[Input] | None = None  # what waits first, where it is read ahead
        self._narrowing = PoisonInputFinder(reader, rooms, result, stopping)
        self._reader = reader
        self._rooms = rooms
        self._result = result
        self._stopping = stopping
        self._waiting: deque[list[Input]] = deque()
        self._offered: set[QuarantinedInput] = set()  # and read, each once in a run

    def add(self, runs: Sequence[Sequence[Input]]) -> None:
        """Let runs of inputs wait, each for one transaction."""
        self._waiting.extend(list(run) for run in runs)

    def put_back(self, inputs: Sequence[Input]) -> None:
        """Let inputs that were read wait again, before all others."""
        self._waiting.appendleft(list(inputs))
        paths = {item.path for item in inputs}
        self._offered = {suspect for suspect in self._offered if suspect.path not in paths}

    def waits(self) -> bool:
        """Whether there is new input."""
        return bool(self._waiting)

    def read_ahead(self, t: int, *, is_new: bool) -> None:
        """Begin to read what T will take, if it is new when its turn comes; nothing is noted of it before.

        `is_new`: the transaction that is published meanwhile was read in this run, and no task failed on it.
        """
        if not self._ahead.is_on or not self._waiting:
            return
        # What fails now, whatever it is, fails again, and is told, when its turn has come.
        with contextlib.suppress(Exception):
            self._cut = taken = self._next()
            self._waiting.appendleft(taken)
            is_alone = self._rooms.tries.is_alone(t - 1, taken)
            if may_prefetch(is_new=is_new, is_alone=is_alone, is_stopping=self._stopping()):
                held = self._rooms.sources.held(self._rooms.suspects.all(), self._held())
                if inputs := [item for item in taken if self._seems_new(item, held)]:
                    self._ahead.begin(t, inputs)

    def _seems_new(self, item: Input, held: Held) -> bool:
        source = self._rooms.sources[item.source]
        if (item.source, item.path) in held.in_open:
            return False
        if source.is_ours:
            return (item.source, item.path) not in held.by_path
        return item.size_bytes != UNKNOWN_SIZE and isinstance(source.judge(item, held), NewInputs)

    def _next(self) -> list[Input]:
        """Return what is to be one transaction, of what waits first."""
        taken, fitting = self._waiting.popleft(), self._rooms.fitting
        if fitting is not None and taken is not self._cut:
            taken, left = fitting.cut(taken)
            if left:
                self._waiting.appendleft(left)
        self._cut = None
        return taken

    def open(self, t: int, *, goes_on: bool) -> ReadInput | None:
        """Read what is to be the next step of transaction T; None where there is nothing more.

        What a transaction that was set aside has left comes last: new input does not wait for it. It is a
        transaction of its own, and so not taken where T has a step already, and `goes_on`.
        """
        if self._stopping():
            self._ahead.drop()  # and nobody waits until it is read
        self._ahead.end()
        while not self._stopping():
            standing = self._rooms.suspects.read()
            offers: list[QuarantinedInput] = []
            if self._waiting:
                inputs = self._without_taken(self._next(), standing)
            elif goes_on:
                return None
            else:
                offers = next_offer(suspect for suspect in standing.whole if suspect not in self._offered)
                if not offers:
                    return None
                self._offered.update(offers)
                inputs = self._measured(list(map(self._again, offers)))
                paths = {item.path for item in inputs}
                self._waited([offer for offer in offers if offer.path not in paths], self._result.failed)
                offers = [offer for offer in offers if offer.path in paths]
            self._rooms.tries.suspected = bool(offers)
            inputs = self._narrowing.without_deadly(t, inputs, suspected=bool(offers)) if inputs else []
            if not inputs:
                continue
            staged = self._kept(t, self._read(t, inputs), offers)
            if staged.sources and (offers or self._is_bounded(staged)):
                return staged
        return None

    def _kept(self, t: int, staged: ReadInput, offers: Sequence[QuarantinedInput]) -> ReadInput:
        """Leave out what gave no span: it is reported and not recorded, so that a later run may read it, mended."""
        self._result.failed |= staged.failed
        self._waited(offers, staged.failed)
        for source, ranges in staged.sources.items():
            for taken in ranges:
                if not taken.spans:
                    self._leave(t, source, taken)
        if offers:
            empty = {
                taken.path: taken
                for source, ranges in staged.sources.items()
                for taken in ranges
                if not taken.spans
                and taken.path not in self._result.failed
                and not self._changed(source, taken)
            }
            self._rooms.suspects.forget(empty)
        kept = {
            source: some
            for source, ranges in staged.sources.items()
            if (some := tuple(taken for taken in ranges if taken.spans))
        }
        paths = {(source, taken.path) for source, ranges in kept.items() for taken in ranges}
        left = tuple(item for item in staged.inputs if (item.source, item.path) in paths)
        return ReadInput(kept, staged.pieces, left)

    def _waited(self, offers: Sequence[QuarantinedInput], failed: Mapping[str, str]) -> None:
        """Set aside what was offered and cannot be read: nobody asks for it at each run for ever."""
        for offer in offers:
            reason, key = failed.get(offer.path), mark_of(offer)
            if reason is None:
                self._rooms.unread.was_read(offer.transaction, key)
            elif offer.unread or self._rooms.unread.again(offer.transaction, key) >= UNREAD_INPUT_MAX_S:
                deciding = partial(on_unread, reason=reason[:ASIDE_REASON_MAX_CHARS])
                stands = self._rooms.suspects.change(offer, deciding)
                self._rooms.unread.was_read(offer.transaction, key)
                if stands is not None:
                    self._result.note_aside(stands)

    def _changed(self, source: str, taken: ReadRange) -> bool:
        """Whether an offered input was not read whole, and still is there to be read."""
        try:
            return not taken.sha256 and content_of(self._rooms.objects, source, taken.path, 1)[1] != ""
        except OSError:
            return True

    def _leave(self, t: int, source: str, taken: ReadRange) -> None:
        """Report an input that gave no span. One of ours goes, unless it was not read whole: it was acknowledged."""
        of = self._rooms.sources[source]
        if of.is_ours:
            if not taken.sha256:
                if self._is_taken(source, taken):
                    self._result.failed.pop(taken.path, None)
                    return  # a peer has taken it
                self._result.failed.setdefault(taken.path, taken.problems[0][2])
            else:
                for kept in self._rooms.settling.let_go(t, source, [taken]):
                    self._result.note_aside(kept)
        self._result.ranges.append(taken)

    def _is_taken(self, source: str, taken: ReadRange) -> bool:
        try:
            return self._rooms.sources[source].is_taken(taken.path, taken.size_bytes, taken.sha256)
        except StorageError:
            return False  # then it is named as one that could not be read

    def _is_bounded(self, staged: ReadInput) -> bool:
        """Whether one transaction can record these inputs; else they wait again, in halves."""
        size_bytes = len(to_bytes(Step(0, staged.recorded, "")))
        if size_bytes <= STEP_RECORD_MAX_BYTES or len(staged.inputs) == 1:
            return True
        self._reader.discard(staged)
        middle = len(staged.inputs) // 2
        self.put_back(staged.inputs[middle:])
        self.put_back(staged.inputs[:middle])
        return False

    def _without_taken(self, inputs: list[Input], standing: Standing) -> list[Input]:
        """Leave out what a peer took, what an earlier transaction holds, and all that is set aside."""
        left = []
        in_open = set(self._held())
        inputs = [item for item in inputs if (item.source, item.path) not in in_open]
        taken_now = {
            (taken.path, taken.sha256) for taken in self._result.ranges if isinstance(taken, WholeFile)
        }
        held = self._rooms.sources.held(standing.whole, in_open)
        measured = self._measured(inputs)
        verdicts = {
            name: self._rooms.sources[name].judge_all(
                [item for item in measured if item.source == name], held
            )
            for name in {item.source for item in measured}
        }
        for item in measured:
            source = self._rooms.sources[item.source]
            match next(verdicts[item.source]):
                case NewInputs(is_there) if not self._is_damaged(item, standing):
                    left.append(item)
                    in_open.add((item.source, item.path))  # another look may have cut what overlaps it
                    if not is_there:
                        self._ahead.drop()  # a peer may have taken it since
                case QuarantinedPaths(suspect) if source.is_ours:
                    self._rooms.settling.give_up(suspect)  # again, after a crash
                case QuarantinedPaths(suspect):
                    self._result.note_aside(replace(suspect, path=item.path))
                case Known(before) if (item.path, before.sha256) not in taken_now:
                    self._result.known.append(replace(before, path=item.path))
        return left

    def _again(self, offer: QuarantinedInput) -> Input:
        """Return an input that is taken again, as it is now: a file may have been mended since."""
        is_ours = self._rooms.sources[offer.source].is_ours
        return Input(offer.source, offer.path, offer.size_bytes if is_ours else UNKNOWN_SIZE)

    def _measured(self, inputs: Sequence[Input]) -> list[Input]:
        """Return inputs with their sizes; those of which none can be told this time are named, and left out."""
        left = []
        for item in inputs:
            try:
                size_bytes = item.size_bytes
                if size_bytes == UNKNOWN_SIZE:
                    size_bytes = self._rooms.sources[item.source].measured_bytes(item.path)
            except OSError as error:
                self._result.failed[item.path] = f"cannot be read: {error.strerror or error}"
            else:
                left.append(Input(item.source, item.path, size_bytes))
        return left

    def _is_damaged(self, item: Input, standing: Standing) -> bool:
        """Whether the record is damaged that says what is to become of an input: it waits, and is named."""

        def sha256() -> str:
            return content_of(self._rooms.objects, item.source, item.path, item.size_bytes)[1]

        try:
            damage = standing.damage(item.size_bytes, sha256)
        except OSError as error:
            damage = f"cannot be read: {error.strerror or error}"
        if damage is not None:
            self._result.failed[item.path] = damage
        return damage is not None

    def _read(self, t: int, inputs: Sequence[Input]) -> ReadInput:
        """Read inputs; those on which a task fails, each alone, are set aside, and the others are read."""
        tries = 0
        while True:
            self._rooms.tries.begin(t, inputs)
            try:
                staged = self._ahead.take(inputs) or self._reader.stage(inputs)
            except InputFaultError as fault:
                tries += 1
                if self._stopping():
                    raise fault.error from fault
                if len(inputs) > 1:
                    break
                if tries >= TRANSACTION_TRIES_MAX:
                    self._narrowing.set_aside(t, inputs[0], tries, fault.error)
                    return ReadInput({}, [], ())
            else:
                self._rooms.tries.read_well(inputs)
                return staged
        middle = len(inputs) // 2
        first, second = self._read(t, inputs[:middle]), self._read(t, inputs[middle:])
        sources = {
            source: (*first.sources.get(source, ()), *second.sources.get(source, ()))
            for source in dict.fromkeys((*first.sources, *second.sources))
        }
        return ReadInput(
            sources, first.pieces + second.pieces, first.inputs + second.inputs, first.failed | second.failed
        )
