"""Queue of new inputs. The queue skips inputs that are taken or quarantined, isolates poison input, and reads the rest.

A `Prefetcher` reads the input of the next transaction while the current one is published. Module `protocol.py`
decides whether the prefetched rows may be used.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence, Set
from functools import cached_property, partial
from typing import Final, TypeAlias

from msgspec.structs import replace

from tracelake._errors import StorageError, TracelakeError
from tracelake.journal.model import DELETIONS, QuarantinedInput, ReadRange, Step, WholeFile, to_bytes
from tracelake.journal.quarantine import QuarantineListing, next_offer, on_unread
from tracelake.limits import TRANSACTION_TRIES_MAX, UNREAD_INPUT_MAX_S
from tracelake.limits.input import MIB
from tracelake.otlp.prices import SHIPPED, PriceTable
from tracelake.pipeline.context import PipelineContext
from tracelake.pipeline.input_failures import (
    ASIDE_REASON_MAX_CHARS,
    CrashMarkers,
    InputFaultError,
    PoisonInputFinder,
    mark_of,
)
from tracelake.pipeline.protocol import matches_prefetch, may_prefetch
from tracelake.pipeline.run_result import RunResult
from tracelake.pipeline.sources import base
from tracelake.pipeline.sources.registry import content_of
from tracelake.pipeline.staging import InputReader, ReadInput
from tracelake.tasks.runners import OnProgress, Progress

STEP_RECORD_MAX_BYTES: Final = 4 * MIB
"""Journal record of a transaction's inputs; a single input is always taken."""

StartWork: TypeAlias = Callable[[Callable[[], None]], Callable[[], None]]
"""Function that starts some work, and returns a function that waits for its end."""


def in_thread(work: Callable[[], None]) -> Callable[[], None]:
    """Run work in a thread. See `StartWork`."""
    # A daemon thread, so that a process that gets a second stop signal does not wait for it.
    thread = threading.Thread(target=work, name="tracelake-read-ahead", daemon=True)
    thread.start()
    return thread.join


def run_inline(work: Callable[[], None]) -> Callable[[], None]:
    """Run work to its end at once, as in a simulation. See `StartWork`."""
    work()
    return lambda: None


class Prefetcher:
    """Reads the likely input of the next transaction while the current one is published."""

    def __init__(
        self,
        context: PipelineContext,
        progress: OnProgress,
        start_work: StartWork | None,
        prices: PriceTable = SHIPPED,
    ) -> None:
        """Create a prefetcher that reads with `start_work`. None: it prefetches nothing."""
        self._start_work = start_work
        self._progress = progress
        self._reader = InputReader(context.objects, context.buckets, context.runner, self._tell, prices)
        self._context = context
        self._inputs: tuple[base.Input, ...] = ()
        self._staged: ReadInput | None = None
        self._wait: Callable[[], None] | None = None
        self._reads_in = 0
        self._is_awaited = False
        self._is_dropped = False

    @cached_property
    def _tries(self) -> CrashMarkers:
        """Crash markers separate from those of the transaction that is being published, so that a crash can be
        attributed."""
        return self._context.tries.another()

    @property
    def is_on(self) -> bool:
        """True if this pipeline prefetches."""
        return self._start_work is not None

    def begin(self, t: int, inputs: Sequence[base.Input]) -> None:
        """Start reading the likely input of transaction T. Raises an error if the crash marker cannot be written or
        `start_work` fails."""
        assert self._start_work is not None
        assert self._wait is None
        assert self._staged is None
        self._inputs, self._is_awaited, self._is_dropped = tuple(inputs), False, False
        try:
            self._tries.begin(t, inputs)
            self._wait = self._start_work(self._read)
        except (Exception, KeyboardInterrupt, SystemExit):  # for example, if no thread can start
            self._tries.end()
            raise

    def _read(self) -> None:
        self._reads_in = threading.get_ident()
        # A failure here repeats, and counts, when the input's turn comes.
        with contextlib.suppress(Exception):
            self._staged = self._reader.stage(self._inputs)

    def _tell(self, step: Progress) -> None:
        self._tries.beat()
        if self._is_dropped and threading.get_ident() == self._reads_in:
            raise InterruptedError("what is read is not needed any more")
        if self._is_awaited:
            self._progress(step)

    def end(self) -> None:
        """Wait for the prefetch to end."""
        if self._wait is not None:
            self._is_awaited = not self._is_dropped
            self._wait()
            self._wait = None
            self._tries.end()

    def take(self, inputs: Sequence[base.Input]) -> ReadInput | None:
        """Return the prefetched rows if they are exactly those of these inputs; otherwise delete them, and return
        None.

        They are also deleted if an input was not read completely; the input must then be read again.
        """
        self.end()
        staged = self._staged
        if staged is not None and matches_prefetch(self._inputs, inputs) and staged.is_complete():
            self._staged = None
            return staged
        self.drop()
        return None

    def drop(self) -> None:
        """Delete the prefetched rows, ignoring errors. Garbage collection deletes the remains later."""
        self._is_dropped = True
        self.end()
        staged, self._staged = self._staged, None
        if staged is not None:
            with contextlib.suppress(TracelakeError, OSError):
                self._reader.discard(staged)


class InputQueue:
    """Pending inputs of one run."""

    def __init__(
        self,
        reader: InputReader,
        context: PipelineContext,
        result: RunResult,
        stopping: Callable[[], bool],
        prefetcher: Prefetcher,
        open_inputs: Callable[[], Set[tuple[str, str]]],
    ) -> None:
        """Create an empty queue. `open_inputs` returns source and path of each input in the open transaction."""
        self._prefetcher = prefetcher
        self._open_inputs = open_inputs
        self._cut: list[base.Input] | None = None  # the first group, if it is being prefetched
        self._poison_finder = PoisonInputFinder(reader, context, result, stopping)
        self._reader = reader
        self._context = context
        self._result = result
        self._stopping = stopping
        self._waiting: deque[list[base.Input]] = deque()
        self._offered: set[QuarantinedInput] = set()  # offered again and read, once per run

    def add(self, runs: Sequence[Sequence[base.Input]]) -> None:
        """Append groups of inputs, each for one transaction."""
        self._waiting.extend(list(run) for run in runs)

    def put_back(self, inputs: Sequence[base.Input]) -> None:
        """Put inputs that were already read back at the front of the queue."""
        self._waiting.appendleft(list(inputs))
        paths = {item.path for item in inputs}
        self._offered = {suspect for suspect in self._offered if suspect.path not in paths}

    def waits(self) -> bool:
        """Return whether the queue has new input."""
        return bool(self._waiting)

    def prefetch(self, t: int, *, is_new: bool) -> None:
        """Start to prefetch the likely input of T. Nothing of it is recorded before its turn.

        Args:
            is_new: this run read the transaction that is being published, and no task failed on it.
        """
        if not self._prefetcher.is_on or not self._waiting:
            return
        # A failure here repeats, and is reported, when the input's turn comes.
        with contextlib.suppress(Exception):
            self._cut = group = self._next()
            self._waiting.appendleft(group)
            is_alone = self._context.tries.is_alone(t - 1, group)
            if may_prefetch(is_new=is_new, is_alone=is_alone, is_stopping=self._stopping()):
                quarantined = self._context.sources.index_quarantined(
                    self._context.suspects.all(), self._open_inputs()
                )
                if inputs := [item for item in group if self._seems_new(item, quarantined)]:
                    self._prefetcher.begin(t, inputs)

    def _seems_new(self, item: base.Input, quarantined: base.QuarantinedIndex) -> bool:
        source = self._context.sources[item.source]
        if (item.source, item.path) in quarantined.open_inputs:
            return False
        if source.is_ours:
            return (item.source, item.path) not in quarantined.by_path
        return item.size_bytes != base.UNKNOWN_SIZE and isinstance(
            source.judge(item, quarantined), base.NewInputs
        )

    def _next(self) -> list[base.Input]:
        """Return the next group of pending inputs, cut to the size of one transaction."""
        group, sizer = self._waiting.popleft(), self._context.sizer
        if sizer is not None and group is not self._cut:
            group, remainder = sizer.cut(group)
            if remainder:
                self._waiting.appendleft(remainder)
        self._cut = None
        return group

    def open(self, t: int, *, continuous: bool) -> ReadInput | None:
        """Read the next step of transaction T, and return its staged rows. Return None if no input is pending.

        Quarantined input that is offered again comes last, so that new input does not wait for it. Such input needs a
        separate transaction, so it is not taken if T has a step already (`continuous`).
        """
        if self._stopping():
            self._prefetcher.drop()  # so that stopping does not wait for the read
        self._prefetcher.end()
        while not self._stopping():
            standing = self._context.suspects.read()
            offers: list[QuarantinedInput] = []
            if self._waiting:
                inputs = self._exclude_ingested(self._next(), standing)
            elif continuous:
                return None
            else:
                offers = next_offer(suspect for suspect in standing.readable if suspect not in self._offered)
                if not offers:
                    return None
                self._offered.update(offers)
                inputs = self._measured(list(map(self._again, offers)))
                paths = {item.path for item in inputs}
                self._quarantine_unread(
                    [offer for offer in offers if offer.path not in paths], self._result.failed
                )
                offers = [offer for offer in offers if offer.path in paths]
            self._context.tries.suspected = bool(offers)
            inputs = self._poison_finder.without_deadly(t, inputs, suspected=bool(offers)) if inputs else []
            if not inputs:
                continue
            staged = self._drop_empty(t, self._read(t, inputs), offers)
            if staged.sources and (offers or self._is_bounded(staged)):
                return staged
        return None

    def _drop_empty(self, t: int, staged: ReadInput, offers: Sequence[QuarantinedInput]) -> ReadInput:
        """Remove inputs without spans from the read input. They are reported but not recorded, so that a later run may
        read a repaired file."""
        self._result.failed |= staged.failed
        self._quarantine_unread(offers, staged.failed)
        for source, ranges in staged.sources.items():
            for read_range in ranges:
                if _is_empty(source, read_range):
                    self._report_empty(t, source, read_range)
        if offers:
            empty = {
                read_range.path: read_range
                for source, ranges in staged.sources.items()
                for read_range in ranges
                if _is_empty(source, read_range)
                and read_range.path not in self._result.failed
                and not self._changed(source, read_range)
            }
            self._context.suspects.forget(empty)
        non_empty = {
            source: with_spans
            for source, ranges in staged.sources.items()
            if (with_spans := tuple(each for each in ranges if not _is_empty(source, each)))
        }
        paths = {(source, read_range.path) for source, ranges in non_empty.items() for read_range in ranges}
        inputs = tuple(item for item in staged.inputs if (item.source, item.path) in paths)
        return ReadInput(non_empty, staged.pieces, inputs)

    def _quarantine_unread(self, offers: Sequence[QuarantinedInput], failed: Mapping[str, str]) -> None:
        """Quarantine offered inputs that stay unreadable, so that runs do not retry them forever."""
        for offer in offers:
            reason, key = failed.get(offer.path), mark_of(offer)
            if reason is None:
                self._context.unread.was_read(offer.transaction, key)
            elif offer.unread or self._context.unread.again(offer.transaction, key) >= UNREAD_INPUT_MAX_S:
                deciding = partial(on_unread, reason=reason[:ASIDE_REASON_MAX_CHARS])
                current = self._context.suspects.change(offer, deciding)
                self._context.unread.was_read(offer.transaction, key)
                if current is not None:
                    self._result.add_quarantined(current)

    def _changed(self, source: str, read_range: ReadRange) -> bool:
        """Return whether an offered input was read incompletely and still exists."""
        try:
            return (
                not read_range.sha256
                and content_of(self._context.objects, source, read_range.path, 1)[1] != ""
            )
        except OSError:
            return True

    def _report_empty(self, t: int, source: str, read_range: ReadRange) -> None:
        """Report an input without spans. Acknowledge inbox input, which was acknowledged to its client, if it was
        read completely."""
        of = self._context.sources[source]
        if of.is_ours:
            if not read_range.sha256:
                if self._is_committed(source, read_range):
                    self._result.failed.pop(read_range.path, None)
                    return  # a peer has taken it
                self._result.failed.setdefault(read_range.path, read_range.problems[0][2])
            else:
                for quarantined in self._context.acker.ack(t, source, [read_range]):
                    self._result.add_quarantined(quarantined)
        self._result.ranges.append(read_range)

    def _is_committed(self, source: str, read_range: ReadRange) -> bool:
        try:
            return self._context.sources[source].is_committed(
                read_range.path, read_range.size_bytes, read_range.sha256
            )
        except StorageError:
            return False  # it is then reported as unreadable

    def _is_bounded(self, staged: ReadInput) -> bool:
        """Return whether one step record can list these inputs. Otherwise put them back in two halves."""
        size_bytes = len(to_bytes(Step(0, staged.recorded, "")))
        if size_bytes <= STEP_RECORD_MAX_BYTES or len(staged.inputs) == 1:
            return True
        self._reader.discard(staged)
        middle = len(staged.inputs) // 2
        self.put_back(staged.inputs[middle:])
        self.put_back(staged.inputs[:middle])
        return False

    def _exclude_ingested(self, inputs: list[base.Input], listing: QuarantineListing) -> list[base.Input]:
        """Return the inputs, without quarantined ones and those that the open or an earlier transaction contains."""
        new_inputs = []
        open_inputs = set(self._open_inputs())
        inputs = [item for item in inputs if (item.source, item.path) not in open_inputs]
        read_now = {
            (read_range.path, read_range.sha256)
            for read_range in self._result.ranges
            if isinstance(read_range, WholeFile)
        }
        quarantined = self._context.sources.index_quarantined(listing.readable, open_inputs)
        measured = self._measured(inputs)
        verdicts = {
            name: self._context.sources[name].judge_all(
                [item for item in measured if item.source == name], quarantined
            )
            for name in {item.source for item in measured}
        }
        for item in measured:
            source = self._context.sources[item.source]
            match next(verdicts[item.source]):
                case base.NewInputs(is_there) if not self._is_damaged(item, listing):
                    new_inputs.append(item)
                    open_inputs.add(
                        (item.source, item.path)
                    )  # another poll may have cut an overlapping range
                    if not is_there:
                        self._prefetcher.drop()  # a peer may have taken it since
                case base.QuarantinedPaths(suspect) if source.is_ours:
                    self._context.acker.discard(suspect)  # again, after a crash
                case base.QuarantinedPaths(suspect):
                    self._result.add_quarantined(replace(suspect, path=item.path))
                case base.AlreadyRead(before) if (item.path, before.sha256) not in read_now:
                    self._result.already_ingested.append(replace(before, path=item.path))
        return new_inputs

    def _again(self, offer: QuarantinedInput) -> base.Input:
        """Return an offered input with its current size, because a file may have been repaired."""
        is_ours = self._context.sources[offer.source].is_ours
        return base.Input(offer.source, offer.path, offer.size_bytes if is_ours else base.UNKNOWN_SIZE)

    def _measured(self, inputs: Sequence[base.Input]) -> list[base.Input]:
        """Return the inputs with their sizes. Report and drop inputs whose size cannot be read now."""
        measured = []
        for item in inputs:
            try:
                size_bytes = item.size_bytes
                if size_bytes == base.UNKNOWN_SIZE:
                    size_bytes = self._context.sources[item.source].measured_bytes(item.path)
            except OSError as error:
                self._result.failed[item.path] = f"cannot be read: {error.strerror or error}"
            else:
                measured.append(base.Input(item.source, item.path, size_bytes))
        return measured

    def _is_damaged(self, item: base.Input, standing: QuarantineListing) -> bool:
        """Return whether the quarantine record of an input is damaged. Such an input is reported and stays pending."""

        def sha256() -> str:
            return content_of(self._context.objects, item.source, item.path, item.size_bytes)[1]

        try:
            damage = standing.damage(item.size_bytes, sha256)
        except OSError as error:
            damage = f"cannot be read: {error.strerror or error}"
        if damage is not None:
            self._result.failed[item.path] = damage
        return damage is not None

    def _read(self, t: int, inputs: Sequence[base.Input]) -> ReadInput:
        """Read inputs. If a task fails, read them in halves; quarantine an input that fails alone repeatedly."""
        tries = 0
        while True:
            self._context.tries.begin(t, inputs)
            try:
                staged = self._prefetcher.take(inputs) or self._reader.stage(inputs)
            except InputFaultError as fault:
                tries += 1
                if self._stopping():
                    raise fault.error from fault
                if len(inputs) > 1:
                    break
                if tries >= TRANSACTION_TRIES_MAX:
                    self._poison_finder.quarantine(t, inputs[0], tries, fault.error)
                    return ReadInput({}, [], ())
            else:
                self._context.tries.read_well(inputs)
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


def _is_empty(source: str, read_range: ReadRange) -> bool:
    """Return whether an input changes nothing: it has no span, or is an unreadable deletion request."""
    return not (read_range.records if source == DELETIONS else read_range.spans)
