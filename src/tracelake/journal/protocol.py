"""The recovery machine: every decision on what a pipeline does next (PROTOCOLS §2). Pure: no I/O, no clock.

| state         | event                          | next state      | action              |
|---------------|--------------------------------|-----------------|---------------------|
| any but Failed| Started, T recorded, output of T in part or not at all | Replaying(T) | Feed(its first step left) |
| any but Failed| Started, T recorded and fed, not sealed | AtBoundary(T) | Weigh(T)     |
| any but Failed| Started, T recorded and fed, sealed     | Finalizing(T) | Publish(T)   |
| any but Failed| Started, T recorded, only its commit missing, sealed   | Finalizing(T)| Publish(T) |
| any but Failed| Started, T sealed, table spans has its rows, more is missing | Replaying(T) | Restage(T) |
| any but Failed| Started, nothing recorded at T | Live(T)         | OpenInputs(T)       |
| Replaying(T)  | Fed, equal to the record, more steps are | Replaying(T) | Feed(the next) |
| Replaying(T)  | Fed, equal to the record, the last | AtBoundary(T) | Weigh(T), or      |
|               |                                | Finalizing(T)   | Publish(T) if sealed |
| Replaying(T)  | Fed, differs                   | Failed          | Stop                |
| Replaying(T)  | Published, by a peer           | Live(T+1)       | Look(T+1)           |
| Replaying(T), Finalizing(T) | Undone, may be tried again | Live(T) | Look(T)          |
| Replaying(T), Finalizing(T) | Undone too often | Live(T)           | SetAside(T)         |
| Replaying(T), Finalizing(T) | Undone too often, table spans has its rows | Live(T) | GiveUp(T) |
| Live(T)       | Read                           | Live(T)         | Append(T)           |
| Live(T)       | Appended, ours                 | AtBoundary(T)   | Weigh(T)            |
| Live(T), AtBoundary(T) | Appended, a peer's    | Replaying(T)    | Feed(it)            |
| Live(T), AtBoundary(T) | Appended, that of a peer of another release | Failed | Stop   |
| Live(T)       | Sealed, by a peer that was faster | Finalizing(T) | Publish(T)         |
| Live(T)       | NoInput, T has no step         | Live(T)         | Stop                |
| Live(T)       | NoInput, T has some            | AtBoundary(T)   | Weigh(T), exhausted |
| AtBoundary(T) | Decided: more                  | Live(T)         | OpenInputs(T)       |
| AtBoundary(T) | Decided: seal                  | AtBoundary(T)   | SealIt(T)           |
| AtBoundary(T) | Decided: wait                  | Live(T)         | Stop                |
| AtBoundary(T) | Decided: discard               | Live(T)         | Abort(T)            |
| AtBoundary(T) | Sealed                         | Finalizing(T)   | Publish(T)          |
| Finalizing(T) | Published                      | Live(T+1)       | Look(T+1)           |
| any but Failed| Started, T set aside, no rows of it in a table | Skipping(T) | PublishNothing(T) |
| Skipping(T)   | Published                      | Live(T+1)       | Look(T+1)           |
| Finalizing(T) | Overtaken: T is set aside, and nothing was appended first | Live(T) | Look(T) |
| Skipping(T)   | Overtaken: its rows were appended first | Live(T) | Look(T)            |
| any but Failed| Published, by peers so long ago that T is trimmed | Live(T+1) | Look(T+1) |

After `Look` the driver answers with `Started` again, so that records which a peer wrote meanwhile are taken up; so it
does after `SetAside` and `Abort`. Whether T takes more, `weigh` says. Anything else is a mistake in the driver.

What the recovery machine asks the driver to do (`protocol.py`).

When a transaction takes one more step, and when it is sealed. Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from tracelake.journal.model import (
    RecordedInput,
    RecordedRange,
    Seal,
    Segment,
    SegmentOfRun,
    Step,
    add_checksums,
    inputs_of,
)
from tracelake.limits import TRANSACTION_STEPS_MAX, TRANSACTION_TRIES_MAX


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
    """Record what was read as the next step of T and answer Appended; or Sealed, if a peer was faster."""

    transaction: int
    number: int


@dataclass(frozen=True, slots=True)
class Decide:
    """Say by `weigh` what is to become of T, and answer Decided."""

    transaction: int
    steps: int
    exhausted: bool = False
    """Whether nothing more waits."""


@dataclass(frozen=True, slots=True)
class Abort:
    """Record that T is set aside, as its client wants it, and answer Started."""

    transaction: int


@dataclass(frozen=True, slots=True)
class WriteSeal:
    """Record Seal(T) behind its steps and answer Sealed; or Appended, if a peer was faster with one more."""

    transaction: int
    steps: int


@dataclass(frozen=True, slots=True)
class Publish:
    """Append to each table, finalize the index, commit; answer Published."""

    transaction: int


@dataclass(frozen=True, slots=True)
class QuarantineInputs:
    """Record that T is set aside, unless a peer has, and answer Started."""

    transaction: int


@dataclass(frozen=True, slots=True)
class Abandon:
    """Raise what the tasks failed with: T can only be finished, and not here."""

    transaction: int


@dataclass(frozen=True, slots=True)
class PublishEmpty:
    """Seal T where nobody has, let tables and index advance by nothing, commit; answer Published."""

    transaction: int


@dataclass(frozen=True, slots=True)
class ReadState:
    """Look what stands at T and answer Started."""

    transaction: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Nothing more to do; with a reason after a failure."""

    reason: str | None = None


Action: TypeAlias = (
    Feed
    | Restage
    | OpenInputs
    | Append
    | Decide
    | Abort
    | WriteSeal
    | Publish
    | QuarantineInputs
    | Abandon
    | PublishEmpty
    | ReadState
    | Stop
)


# States
@dataclass(frozen=True, slots=True)
class Live:
    """Transaction T is open, and all that is recorded of it is fed, so many steps: take new input."""

    transaction: int
    steps: int = 0


@dataclass(frozen=True, slots=True)
class Replaying:
    """Transaction T has records but not all of its output: read its input again, in the order of its steps."""

    transaction: int
    left: tuple[Step, ...]
    """The steps that are not fed yet: the first of them is."""
    sealed: bool


@dataclass(frozen=True, slots=True)
class AtBoundary:
    """All that is recorded of T is fed, so many steps: it takes more, or is sealed, or waits."""

    transaction: int
    steps: int


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
class StateRead:
    """What stands at T, the least upper of all outputs: its records, and whether only the commit is missing.

    `aside` says that T is set aside, and that no table has rows of it; `held` that table `spans` has them; `fed` how
    many of its steps are fed, as by the run before.
    """

    transaction: int
    steps: tuple[Step, ...]
    sealed: bool
    only_commit_missing: bool
    transform: str
    fed: int = 0
    aside: bool = False
    held: bool = False


@dataclass(frozen=True, slots=True)
class Replayed:
    """The recorded ranges of a step were read again, with this result."""

    sources: Mapping[str, Sequence[RecordedRange]]


@dataclass(frozen=True, slots=True)
class Read:
    """New input was read."""


@dataclass(frozen=True, slots=True)
class NoInput:
    """There is no new input."""


@dataclass(frozen=True, slots=True)
class Appended:
    """A step of T is recorded: ours, or that of a peer that was faster; `transform` is that of our code."""

    step: Step
    ours: bool
    transform: str


Verdict: TypeAlias = Literal["more", "seal", "wait", "discard"]


@dataclass(frozen=True, slots=True)
class Decided:
    """What is to become of T, by `weigh`."""

    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Sealed:
    """Seal(T) is durable, whoever wrote it."""


@dataclass(frozen=True, slots=True)
class Published:
    """Tables, index and commit of T are there: we have published them, or a peer has."""


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """A task failed on the input of T, which has so many inputs, for the so manieth time in this run.

    `suspected` says that the inputs come from a transaction that was set aside, `held` that table `spans` has rows
    of T: then it can only be finished, `unread` that some could not be read, for too long.
    """

    tries: int
    inputs: int
    suspected: bool
    held: bool = False
    unread: bool = False


@dataclass(frozen=True, slots=True)
class LostRace:
    """A peer has appended to the first table: nothing where we have rows, or rows where we have nothing."""


Event: TypeAlias = (
    StateRead | Replayed | Read | NoInput | Appended | Decided | Sealed | Published | AttemptFailed | LostRace
)


def advance(state: State | None, event: Event) -> tuple[State, Action]:  # noqa: PLR0911, PLR0912  one line for each row
    """Return the next state and the one action to carry out; `state` is None at the very start."""
    match state, event:
        case (None | Live(), StateRead()):
            return _start(event)
        case Live(t, steps), Read():
            return Live(t, steps), Append(t, steps)
        case Live(t, 0), NoInput():
            return Live(t), Stop()
        case Live(t, steps), NoInput():
            return AtBoundary(t, steps), Decide(t, steps, exhausted=True)
        case Live(t, steps), Appended(ours=True):
            return AtBoundary(t, steps + 1), Decide(t, steps + 1)
        case ((Live(t) | AtBoundary(t)), Appended(step)):
            if step.transform != event.transform:
                return _of_another_release(step, event.transform, held=False)
            return Replaying(t, (step,), sealed=False), Feed(step)
        case Replaying(t, left, sealed), Replayed(sources):
            return _fed(t, left, sources, sealed=sealed)
        case AtBoundary(t, steps), Decided(verdict):
            return _weighed(t, steps, verdict)
        case ((Live(t) | AtBoundary(t)), Sealed()):
            return Finalizing(t), Publish(t)
        case ((Live(t) | Replaying(t) | AtBoundary(t) | Finalizing(t) | Skipping(t)), Published()):
            return Live(t + 1), ReadState(t + 1)
        case ((Replaying(t) | Finalizing(t)), AttemptFailed(tries)):
            if tries < tries_max(event):
                return Live(t), ReadState(t)
            return Live(t), Abandon(t) if event.held else QuarantineInputs(t)
        case ((Finalizing(t) | Skipping(t)), LostRace()):
            return Live(t), ReadState(t)
    raise AssertionError(f"the pipeline answered {event!r} in state {state!r}; this is a bug in Tracelake")


def _fed(
    t: int, left: tuple[Step, ...], sources: Mapping[str, Sequence[RecordedRange]], *, sealed: bool
) -> tuple[State, Action]:
    step, more = left[0], left[1:]
    difference = compare(step.sources, sources)
    if difference is not None:
        return _fail(
            f"transaction {t}: {difference}; or take its inputs as they are now, by `tracelake pipeline "
            f"retry {t}`; or give up those that changed, by `tracelake pipeline discard {t}`"
        )
    if more:
        return Replaying(t, more, sealed), Feed(more[0])
    if sealed:
        return Finalizing(t), Publish(t)
    return AtBoundary(t, step.number + 1), Decide(t, step.number + 1)


def _weighed(t: int, steps: int, verdict: Verdict) -> tuple[State, Action]:
    match verdict:
        case "more":
            return Live(t, steps), OpenInputs(t)
        case "seal":
            return AtBoundary(t, steps), WriteSeal(t, steps)
        case "wait":
            return Live(t, steps), Stop()
        case "discard":
            return Live(t, steps), Abort(t)


def tries_max(event: AttemptFailed) -> int:
    """Return how often a transaction is tried; once where it only remains to find out which input is at fault."""
    return 1 if event.unread or (event.suspected and event.inputs > 1) else TRANSACTION_TRIES_MAX


def _start(event: StateRead) -> tuple[State, Action]:  # noqa: PLR0911  one line for each row
    t, steps = event.transaction, event.steps
    if event.aside:
        return Skipping(t), PublishEmpty(t)
    if not steps:
        return Live(t), OpenInputs(t)
    if event.sealed and event.only_commit_missing:
        return Finalizing(t), Publish(t)
    for step in steps:
        if step.transform != event.transform:
            return _of_another_release(step, event.transform, held=event.held)
    if event.sealed and event.held:
        whole = merge_steps(steps)
        return Replaying(t, (whole,), sealed=True), Restage(whole)
    left = steps[event.fed :]
    if left:
        return Replaying(t, left, event.sealed), Feed(left[0])
    return (Finalizing(t), Publish(t)) if event.sealed else (AtBoundary(t, len(steps)), Decide(t, len(steps)))


def _of_another_release(step: Step, transform: str, *, held: bool) -> tuple[State, Action]:
    """Refuse a step of other code. Once a table has its rows, what is made of them has to be of that release, too."""
    t = step.transaction
    anew = "" if held else f"; or let this one take its inputs anew: `tracelake pipeline retry {t}`"
    return _fail(
        f"transaction {t} was begun by another release (transform {step.transform}, now {transform}). "
        f"Finish it with that release by `tracelake pipeline run --once`, then upgrade{anew}"
    )


def merge_steps(steps: Sequence[Step]) -> Step:
    """Return all steps of a transaction as one: the inputs of each source, in the order in which they were taken."""
    first, *others = steps
    if not others:
        return first
    sources: dict[str, tuple[RecordedRange, ...]] = {}
    for step in steps:
        for source, ranges in step.sources.items():
            sources[source] = (*sources.get(source, ()), *ranges)
    return Step(first.transaction, sources, first.transform, client=first.client)


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
    for source in sorted(recorded.keys() ^ read.keys()):
        names, was = ("names", "was not read") if source in recorded else ("does not name", "was read")
        return f"source {source}: the journal {names} it, and it {was}"
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
    """Return the least transaction to keep, of all below `upper`, which are committed: the newest, at least one."""
    # Whoever recorded the step of the newest has seen first that the inputs of all before it are settled.
    return max(0, upper - max(1, kept))


def beginnings_below(stop: str, begin: str) -> list[str]:
    """Return beginnings of all numbers that begin so and are below `stop`, which does too, and of no other."""
    return [f"{stop[:at]}{digit}" for at in range(len(begin), len(stop)) for digit in range(int(stop[at]))]


ClientRequest: TypeAlias = Literal["open", "commit", "abort"]
"""What the client of an explicit transaction wants: that it goes on, or ends."""


@dataclass(frozen=True, slots=True)
class CommitPolicy:
    """How long transactions take steps that belong to no client. Peers may have modes of their own."""

    max_rows: int = 1
    """Sealed with so many spans, or more."""
    max_delay_s: float = 0.0
    """Sealed when its first step was fed so long ago, by the clock of who looks."""


EACH_STEP: Final = CommitPolicy()
"""Each step is a transaction of its own."""


@dataclass(frozen=True, slots=True)
class OpenTransactionStats:
    """What a mode is asked of: a transaction with a step at least, and without a seal."""

    steps: int
    rows: int
    age_s: float
    wish: ClientRequest | None = None
    """That of its client, as it was before anybody looked for more input; None where it has no client."""


def decide(mode: CommitPolicy, opened: OpenTransactionStats, *, exhausted: bool, goes_on: bool) -> Verdict:
    """Say whether a transaction takes more, is sealed, waits for more, or is discarded.

    `goes_on`: this run is followed by another, so that it may stay open where nothing more waits.

    One of a client is sealed where the client wants it, once all is taken that waited then, and never else: whoever
    speaks for a client that is gone has said so first (`clients.py`).
    """
    is_full = opened.steps >= TRANSACTION_STEPS_MAX
    if opened.wish == "abort":
        return "discard"
    if opened.wish is not None:
        if not exhausted and not is_full:
            return "more"
        return "seal" if opened.wish == "commit" else "wait"
    if is_full or opened.rows >= mode.max_rows or opened.age_s >= mode.max_delay_s:
        return "seal"
    if not exhausted:
        return "more"
    return "wait" if goes_on else "seal"
