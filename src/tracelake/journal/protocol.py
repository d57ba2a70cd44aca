"""The recovery machine: every decision on what a pipeline does next (PROTOCOLS §2). Pure: no I/O, no clock.

| state         | event                          | next state      | action              |
|---------------|--------------------------------|-----------------|---------------------|
| any but Failed| Started, T recorded, output of T in part or not at all | Replaying(T) | Feed(T) |
| any but Failed| Started, T recorded, only its commit missing, sealed   | Finalizing(T)| Publish(T) |
| any but Failed| Started, T sealed, table spans has its rows, more is missing | Replaying(T) | Restage(T) |
| any but Failed| Started, nothing recorded at T | Live(T)         | OpenInputs(T)       |
| Replaying(T)  | Fed, equal to the record       | AtBoundary(T)   | SealIt(T), or        |
|               |                                | Finalizing(T)   | Publish(T) if sealed |
| Replaying(T)  | Fed, differs                   | Failed          | Stop                |
| Replaying(T)  | Published, by a peer           | Live(T+1)       | Look(T+1)           |
| Replaying(T), Finalizing(T) | Undone, may be tried again | Live(T) | Look(T)          |
| Replaying(T), Finalizing(T) | Undone too often | Live(T)           | SetAside(T)         |
| Replaying(T), Finalizing(T) | Undone too often, table spans has its rows | Live(T) | GiveUp(T) |
| Live(T)       | Read                           | Live(T)         | Append(T)           |
| Live(T)       | Appended, ours                 | AtBoundary(T)   | SealIt(T)           |
| Live(T)       | Appended, a peer's             | Replaying(T)    | Feed(T)             |
| Live(T)       | NoInput                        | Live(T)         | Stop                |
| AtBoundary(T) | Sealed                         | Finalizing(T)   | Publish(T)          |
| Finalizing(T) | Published                      | Live(T+1)       | Look(T+1)           |
| any but Failed| Started, T set aside, no rows of it in a table | Skipping(T) | PublishNothing(T) |
| Skipping(T)   | Published                      | Live(T+1)       | Look(T+1)           |
| Finalizing(T) | Overtaken: T is set aside, and nothing was appended first | Live(T) | Look(T) |
| Skipping(T)   | Overtaken: its rows were appended first | Live(T) | Look(T)            |
| any but Failed| Published, by peers so long ago that T is trimmed | Live(T+1) | Look(T+1) |

Each step is its own transaction so far. After `Look` the driver answers with `Started` again, so that records
which a peer wrote meanwhile are taken up; so it does after `SetAside`. Anything not in the table is a mistake in
the driver.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tracelake.journal.model import (
    RecordedInput,
    RecordedRange,
    Seal,
    Segment,
    SegmentOfRun,
    Step,
    add_checksums,
)
from tracelake.journal.runs import inputs_of
from tracelake.limits import TRANSACTION_TRIES_MAX


# States
@dataclass(frozen=True, slots=True)
class Live:
    """Transaction T is open and has no record: take new input."""

    transaction: int


@dataclass(frozen=True, slots=True)
class Replaying:
    """Transaction T has records but not all of its output: read its input again."""

    transaction: int
    step: Step
    sealed: bool


@dataclass(frozen=True, slots=True)
class AtBoundary:
    """All input of T is read and recorded: seal it."""

    transaction: int


@dataclass(frozen=True, slots=True)
class Finalizing:
    """T is sealed: publish its output."""

    transaction: int


@dataclass(frozen=True, slots=True)
class Skipping:
    """T is set aside: publish that it changes nothing."""

    transaction: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The pipeline must not go on; the reason says what differs and what to do."""

    reason: str


State: TypeAlias = Live | Replaying | AtBoundary | Finalizing | Skipping | Failed


# Events
@dataclass(frozen=True, slots=True)
class Started:
    """What stands at T, the least upper of all outputs: its records, and whether only the commit is missing.

    `aside` says that T is set aside, and that no table has rows of it; `held` that table `spans` has them.
    """

    transaction: int
    step: Step | None
    sealed: bool
    only_commit_missing: bool
    transform: str
    aside: bool = False
    held: bool = False


@dataclass(frozen=True, slots=True)
class Fed:
    """The recorded ranges of T were read again, with this result."""

    sources: Mapping[str, Sequence[RecordedRange]]


@dataclass(frozen=True, slots=True)
class Read:
    """New input was read."""


@dataclass(frozen=True, slots=True)
class NoInput:
    """There is no new input."""


@dataclass(frozen=True, slots=True)
class Appended:
    """The step of T is recorded: ours, or that of a peer that was faster."""

    step: Step
    ours: bool
    sealed: bool


@dataclass(frozen=True, slots=True)
class Sealed:
    """Seal(T) is durable, whoever wrote it."""


@dataclass(frozen=True, slots=True)
class Published:
    """Tables, index and commit of T are there: we have published them, or a peer has."""


@dataclass(frozen=True, slots=True)
class Undone:
    """A task failed on the input of T, which has so many inputs, for the so manieth time in this run.

    `suspected` says that the inputs come from a transaction that was set aside, `held` that table `spans` has rows
    of T: then it can only be finished.
    """

    tries: int
    inputs: int
    suspected: bool
    held: bool = False


@dataclass(frozen=True, slots=True)
class Overtaken:
    """A peer has appended to the first table: nothing where we have rows, or rows where we have nothing."""


Event: TypeAlias = Started | Fed | Read | NoInput | Appended | Sealed | Published | Undone | Overtaken


# Actions
@dataclass(frozen=True, slots=True)
class Feed:
    """Read the ranges that the step names, and answer Fed."""

    step: Step


@dataclass(frozen=True, slots=True)
class Restage:
    """Read the rows of T from table `spans`, in the place of the ranges that the step names, and answer Fed."""

    step: Step


@dataclass(frozen=True, slots=True)
class OpenInputs:
    """Read new input for T and answer Read, or NoInput."""

    transaction: int


@dataclass(frozen=True, slots=True)
class Append:
    """Record what was read as the step of T and answer Appended."""

    transaction: int


@dataclass(frozen=True, slots=True)
class SealIt:
    """Record Seal(T) and answer Sealed."""

    transaction: int


@dataclass(frozen=True, slots=True)
class Publish:
    """Append to each table, finalize the index, commit; answer Published."""

    transaction: int


@dataclass(frozen=True, slots=True)
class SetAside:
    """Record that T is set aside, unless a peer has, and answer Started."""

    transaction: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Raise what the tasks failed with: T can only be finished, and not here."""

    transaction: int


@dataclass(frozen=True, slots=True)
class PublishNothing:
    """Seal T where nobody has, let tables and index advance by nothing, commit; answer Published."""

    transaction: int


@dataclass(frozen=True, slots=True)
class Look:
    """Look what stands at T and answer Started."""

    transaction: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Nothing more to do; with a reason after a failure."""

    reason: str | None = None


Action: TypeAlias = (
    Feed | Restage | OpenInputs | Append | SealIt | Publish | SetAside | GiveUp | PublishNothing | Look | Stop
)


def advance(state: State | None, event: Event) -> tuple[State, Action]:  # noqa: PLR0911  one line for each row
    """Return the next state and the one action to carry out; `state` is None at the very start."""
    match state, event:
        case (None | Live(), Started()):
            return _start(event)
        case Live(t), Read():
            return Live(t), Append(t)
        case Live(t), NoInput():
            return Live(t), Stop()
        case Live(t), Appended(ours=True):
            return AtBoundary(t), SealIt(t)
        case Live(t), Appended(step, sealed=sealed):
            return Replaying(t, step, sealed), Feed(step)
        case Replaying(t, step, sealed), Fed(sources):
            difference = compare(step.sources, sources)
            if difference is not None:
                return _fail(
                    f"transaction {t}: {difference}; or take its inputs as they are now, by `tracelake pipeline "
                    f"retry {t}`; or give up those that changed, by `tracelake pipeline discard {t}`"
                )
            return (Finalizing(t), Publish(t)) if sealed else (AtBoundary(t), SealIt(t))
        case AtBoundary(t), Sealed():
            return Finalizing(t), Publish(t)
        case ((Live(t) | Replaying(t) | AtBoundary(t) | Finalizing(t) | Skipping(t)), Published()):
            return Live(t + 1), Look(t + 1)
        case ((Replaying(t) | Finalizing(t)), Undone(tries)):
            if tries < tries_max(event):
                return Live(t), Look(t)
            return Live(t), GiveUp(t) if event.held else SetAside(t)
        case ((Finalizing(t) | Skipping(t)), Overtaken()):
            return Live(t), Look(t)
    raise AssertionError(f"the pipeline answered {event!r} in state {state!r}; this is a bug in Tracelake")


def tries_max(event: Undone) -> int:
    """Return how often a transaction is tried; once where it only remains to find out which input is at fault."""
    return 1 if event.suspected and event.inputs > 1 else TRANSACTION_TRIES_MAX


def _start(event: Started) -> tuple[State, Action]:
    t, step = event.transaction, event.step
    if event.aside:
        return Skipping(t), PublishNothing(t)
    if step is None:
        return Live(t), OpenInputs(t)
    if event.sealed and event.only_commit_missing:
        return Finalizing(t), Publish(t)
    if step.transform != event.transform:
        # Once a table has its rows they are of that release, and so has to be what is made of them.
        anew = f"; or let this one take its inputs anew: `tracelake pipeline retry {t}`"
        return _fail(
            f"transaction {t} was begun by another release (transform {step.transform}, now {event.transform}). "
            f"Finish it with that release by `tracelake pipeline run --once`, then upgrade"
            f"{'' if event.held else anew}"
        )
    if event.sealed and event.held:
        return Replaying(t, step, sealed=True), Restage(step)
    return Replaying(t, step, event.sealed), Feed(step)


def _fail(reason: str) -> tuple[State, Action]:
    return Failed(reason), Stop(reason)


def totals(sources: Mapping[str, Sequence[RecordedRange]]) -> tuple[int, str]:
    """Return (records, checksum) over all sources of a step."""
    ranges = [taken for taken_of in sources.values() for taken in taken_of]
    return sum(taken.records for taken in ranges), add_checksums(*(taken.checksum for taken in ranges))


def compare(
    recorded: Mapping[str, Sequence[RecordedRange]], read: Mapping[str, Sequence[RecordedRange]]
) -> str | None:
    """Say how what was read differs from what the journal recorded, or None: first the sources, then values."""
    if recorded.keys() != read.keys():
        return f"the journal names the sources {sorted(recorded)}, and {sorted(read)} were read"
    for source, ranges in recorded.items():
        before, again = list(inputs_of(ranges)), list(inputs_of(read[source]))
        if [taken.path for taken in before] != [taken.path for taken in again]:
            return f"source {source}: the journal names {len(before)} inputs, and {len(again)} were read"
        for taken, now in zip(before, again, strict=True):
            if (difference := _differs(taken, now)) is not None:
                return f"source {source}: {taken.path} {difference}. Put it back as it was and run again"
        # Of a run only the sums are recorded; they differ where the same bytes gave other records.
        if (difference := _gave(totals({source: ranges}), totals({source: read[source]}))) is not None:
            return f"source {source}: its {len(before)} inputs {difference}. Finish it with the release that began it"
    return None


def _differs(recorded: RecordedInput, read: RecordedInput) -> str | None:
    if _kind(recorded) is not _kind(read):
        return f"was read as {_kind(read).__name__}; the journal says {_kind(recorded).__name__}"
    if (recorded.size_bytes, recorded.sha256) != (read.size_bytes, read.sha256):
        now = f"{read.size_bytes} bytes, sha256 {read.sha256[:12]}…"
        if not read.sha256:  # it was not read whole
            problems = () if isinstance(read, SegmentOfRun) else read.problems
            now = next((reason for _, _, reason in problems), "nothing is there")
        return (
            f"has changed since the journal recorded it ({recorded.size_bytes} bytes, sha256 {recorded.sha256[:12]}…; "
            f"now: {now})"
        )
    if isinstance(recorded, SegmentOfRun) or isinstance(read, SegmentOfRun):
        return None
    return _gave((recorded.records, recorded.checksum), (read.records, read.checksum))


def _gave(recorded: tuple[int, str], read: tuple[int, str]) -> str | None:
    if recorded == read:
        return None
    return (
        f"gave {read[0]} records with checksum {read[1]}; the journal says {recorded[0]} with {recorded[1]}"
    )


def _kind(taken: RecordedInput) -> type:
    return Segment if isinstance(taken, SegmentOfRun) else type(taken)


def sealed_totals_agree(step: Step, seal: Seal) -> bool:
    """Check that a seal carries the totals of its step."""
    return totals(step.sources) == (seal.records, seal.checksum)


def floor_above(upper: int, kept: int) -> int:
    """Return the least transaction to keep, of all below `upper`, which are committed: the newest, at least one.

    The inputs of all before the newest are settled: whoever recorded the step of the newest has seen to that first.
    """
    return max(0, upper - max(1, kept))


def beginnings_below(stop: str, begin: str) -> list[str]:
    """Return beginnings of all numbers that begin so and are below `stop`, which does too, and of no other."""
    return [
        f"{stop[:place]}{digit}"
        for place in range(len(begin), len(stop))
        for digit in range(int(stop[place]))
    ]
