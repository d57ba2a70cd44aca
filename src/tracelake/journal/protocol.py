"""The recovery state machine: every decision about the next action of a pipeline (PROTOCOLS §2). Pure: no I/O.

| state         | event                          | next state      | action              |
|---------------|--------------------------------|-----------------|---------------------|
| any but Failed| StateRead, T recorded, its output partial or missing | Replaying(T) | Feed(its first step left) |
| any but Failed| StateRead, T recorded and fed, not sealed | AtBoundary(T) | Decide(T)   |
| any but Failed| StateRead, T recorded and fed, sealed     | Finalizing(T) | Publish(T)  |
| any but Failed| StateRead, T recorded, only its commit missing, sealed | Finalizing(T)| Publish(T) |
| any but Failed| StateRead, T sealed, table spans has its rows, more is missing | Replaying(T) | Restage(T) |
| any but Failed| StateRead, nothing recorded at T | Live(T)       | OpenInputs(T)       |
| Replaying(T)  | Replayed, equal to the record, more steps left | Replaying(T) | Feed(the next) |
| Replaying(T)  | Replayed, equal to the record, the last | AtBoundary(T) | Decide(T), or |
|               |                                | Finalizing(T)   | Publish(T) if sealed |
| Replaying(T)  | Replayed, differs              | Failed          | Stop                |
| Replaying(T)  | Published, by a peer           | Live(T+1)       | ReadState(T+1)      |
| Replaying(T), Finalizing(T) | AttemptFailed, may be retried | Live(T) | ReadState(T) |
| Replaying(T), Finalizing(T) | AttemptFailed too often | Live(T)    | Quarantine(T)       |
| Replaying(T), Finalizing(T) | AttemptFailed too often, table spans has its rows | Live(T) | Abandon(T) |
| Live(T)       | Read                           | Live(T)         | Append(T)           |
| Live(T)       | Appended, ours                 | AtBoundary(T)   | Decide(T)           |
| Live(T), AtBoundary(T) | Appended, a peer's    | Replaying(T)    | Feed(it)            |
| Live(T), AtBoundary(T) | Appended, by a peer of another release | Failed | Stop     |
| Live(T)       | Sealed, by a faster peer       | Finalizing(T)   | Publish(T)          |
| Live(T)       | NoInput, T has no step         | Live(T)         | Stop                |
| Live(T)       | NoInput, T has steps           | AtBoundary(T)   | Decide(T), exhausted |
| AtBoundary(T) | Decided: more                  | Live(T)         | OpenInputs(T)       |
| AtBoundary(T) | Decided: seal                  | AtBoundary(T)   | WriteSeal(T)        |
| AtBoundary(T) | Decided: wait                  | Live(T)         | Stop                |
| AtBoundary(T) | Decided: discard               | Live(T)         | Abort(T)            |
| AtBoundary(T) | Sealed                         | Finalizing(T)   | Publish(T)          |
| Finalizing(T) | Published                      | Live(T+1)       | ReadState(T+1)      |
| any but Failed| StateRead, T quarantined, no rows of it in a table | Skipping(T) | PublishEmpty(T) |
| Skipping(T)   | Published                      | Live(T+1)       | ReadState(T+1)      |
| Finalizing(T) | LostRace: T is quarantined, and the empty result came first | Live(T) | ReadState(T) |
| Skipping(T)   | LostRace: its rows were appended first | Live(T) | ReadState(T)        |
| any but Failed| Published, by peers so long ago that T is trimmed | Live(T+1) | ReadState(T+1) |

After `ReadState`, the driver answers with `StateRead` again, which includes records that a peer wrote in the
meantime. It does so after `Quarantine` and `Abort` too. The commit policy, `decide`, determines whether T takes more
steps. Any other combination is a bug in the driver.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from tracelake.journal import model
from tracelake.limits import TRANSACTION_STEPS_MAX, TRANSACTION_TRIES_MAX


@dataclass(frozen=True, slots=True)
class _OfTransaction:
    transaction: int


@dataclass(frozen=True, slots=True)
class Feed:
    """Action: read the ranges that the step names, and answer Replayed."""

    step: model.Step


@dataclass(frozen=True, slots=True)
class Restage:
    """Action: read the rows of T from table `spans` instead of the ranges that the step names, and answer Replayed."""

    step: model.Step


class OpenInputs(_OfTransaction):
    """Action: read new input for T, and answer Read or NoInput."""


@dataclass(frozen=True, slots=True)
class Append:
    """Action: record the new input as the next step of T, and answer Appended; or Sealed, if a peer was faster."""

    transaction: int
    number: int


@dataclass(frozen=True, slots=True)
class Decide:
    """Action: apply the commit policy (`decide`) to T, and answer Decided."""

    transaction: int
    steps: int
    exhausted: bool = False
    """Whether no more input is pending."""


class Abort(_OfTransaction):
    """Action: record the quarantine of T at its client's request, and answer StateRead."""


@dataclass(frozen=True, slots=True)
class WriteSeal:
    """Action: record Seal(T) after its steps, and answer Sealed; or Appended, if a peer was faster with another
    step."""

    transaction: int
    steps: int


class Publish(_OfTransaction):
    """Action: append to each table, finalize the index, commit, and answer Published."""


class QuarantineInputs(_OfTransaction):
    """Action: record the quarantine of T, unless a peer has, and answer StateRead."""


class Abandon(_OfTransaction):
    """Action: raise the tasks' error. T must be finished, because a table has its rows, but this run cannot."""


class PublishEmpty(_OfTransaction):
    """Action: seal T if it is not sealed, add an empty batch to the tables and an unchanged index, commit, and answer
    Published."""


class ReadState(_OfTransaction):
    """Action: read the recorded state of T, and answer StateRead."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Action: end the run. After a failure, it has a reason."""

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
    """State: transaction T is open, and the rows of all its `steps` recorded steps are staged. It takes new input."""

    transaction: int
    steps: int = 0


@dataclass(frozen=True, slots=True)
class Replaying:
    """State: T has records but not all of its output. The pipeline reads its input again, in the order of its steps."""

    transaction: int
    remaining: tuple[model.Step, ...]
    """The steps whose feeding is not complete; the first one is being fed."""
    sealed: bool


@dataclass(frozen=True, slots=True)
class AtBoundary:
    """State: the rows of all `steps` recorded steps of T are staged. T takes more input, is sealed, or waits."""

    transaction: int
    steps: int


class Finalizing(_OfTransaction):
    """State: T is sealed, and its output is being published."""


class Skipping(_OfTransaction):
    """State: T is quarantined, and an empty result is being published."""


@dataclass(frozen=True, slots=True)
class Failed:
    """State: the pipeline must stop. The reason names the difference and the remedy."""

    reason: str


State: TypeAlias = Live | Replaying | AtBoundary | Finalizing | Skipping | Failed


# Events
@dataclass(frozen=True, slots=True)
class StateRead:
    """The recorded state of T, the least upper of all outputs: its records, and whether only the commit is missing.

    Field `fed` is the number of its steps that are already fed, for example by the previous run. Field `is_quarantined`
    means that T is quarantined and no table has rows of it; field `has_rows` means that table `spans` has rows of it.
    """

    transaction: int
    steps: tuple[model.Step, ...]
    sealed: bool
    only_commit_missing: bool
    transform: str
    fed: int = 0
    is_quarantined: bool = False
    has_rows: bool = False


@dataclass(frozen=True, slots=True)
class Replayed:
    """Event: the recorded ranges of a step were read again, with this result."""

    sources: Mapping[str, Sequence[model.RecordedRange]]


@dataclass(frozen=True, slots=True)
class Read:
    """Event: new input was read."""


@dataclass(frozen=True, slots=True)
class NoInput:
    """Event: no new input is pending."""


@dataclass(frozen=True, slots=True)
class Appended:
    """Event: a step of T is recorded, ours or that of a faster peer. `transform` is the fingerprint of our code."""

    step: model.Step
    ours: bool
    transform: str


Verdict: TypeAlias = Literal["more", "seal", "wait", "discard"]


@dataclass(frozen=True, slots=True)
class Decided:
    """Event: the commit policy's decision on T."""

    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Sealed:
    """Event: Seal(T) is durable, written by this pipeline or a peer."""


@dataclass(frozen=True, slots=True)
class Published:
    """Event: tables, index and commit of T are published, by this pipeline or a peer."""


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """A task failed on the inputs of T. This was attempt number `tries` in this run, with `inputs` inputs.

    Field `suspected` means that the inputs come from a quarantined transaction. `has_rows` means that table `spans` has
    rows of T, so that T can only be finished. `unread` means that some inputs were unreadable for too long.
    """

    tries: int
    inputs: int
    suspected: bool
    has_rows: bool = False
    unread: bool = False


@dataclass(frozen=True, slots=True)
class LostRace:
    """Event: a peer appended another result of T to the first table: an empty batch instead of our rows, or rows
    instead of our empty batch."""


Event: TypeAlias = (
    StateRead | Replayed | Read | NoInput | Appended | Decided | Sealed | Published | AttemptFailed | LostRace
)


def advance(state: State | None, event: Event) -> tuple[State, Action]:  # noqa: PLR0911, PLR0912  one line for each row
    """Return the next state and the one action that the driver must perform. `state` is None at the start."""
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
                return _of_another_release(step, event.transform, has_rows=False)
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
            return Live(t), Abandon(t) if event.has_rows else QuarantineInputs(t)
        case ((Finalizing(t) | Skipping(t)), LostRace()):
            return Live(t), ReadState(t)
    raise AssertionError(f"the pipeline reported {event!r} in state {state!r}; this is a bug in Tracelake")


def _fed(
    t: int,
    remaining: tuple[model.Step, ...],
    sources: Mapping[str, Sequence[model.RecordedRange]],
    *,
    sealed: bool,
) -> tuple[State, Action]:
    step, more = remaining[0], remaining[1:]
    difference = compare(step.sources, sources)
    if difference is not None:
        return _fail(
            f"transaction {t}: {difference}; or ingest its inputs in their current state, with `tracelake "
            f"pipeline retry {t}`; or discard those that changed, with `tracelake pipeline discard {t}`"
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
    """Return the maximum number of attempts after this failure. It is one if the attempt only serves to find the input
    at fault."""
    return 1 if event.unread or (event.suspected and event.inputs > 1) else TRANSACTION_TRIES_MAX


def _start(event: StateRead) -> tuple[State, Action]:  # noqa: PLR0911  one line for each row
    t, steps = event.transaction, event.steps
    if event.is_quarantined:
        return Skipping(t), PublishEmpty(t)
    if not steps:
        return Live(t), OpenInputs(t)
    if event.sealed and event.only_commit_missing:
        return Finalizing(t), Publish(t)
    for step in steps:
        if step.transform != event.transform:
            return _of_another_release(step, event.transform, has_rows=event.has_rows)
    if event.sealed and event.has_rows:
        merged = merge_steps(steps)
        return Replaying(t, (merged,), sealed=True), Restage(merged)
    remaining = steps[event.fed :]
    if remaining:
        return Replaying(t, remaining, event.sealed), Feed(remaining[0])
    return (Finalizing(t), Publish(t)) if event.sealed else (AtBoundary(t, len(steps)), Decide(t, len(steps)))


def _of_another_release(step: model.Step, transform: str, *, has_rows: bool) -> tuple[State, Action]:
    """Refuse a step of another release. Once a table has its rows, the outputs derived from them must be of that
    release too."""
    t = step.transaction
    alternative = (
        "" if has_rows else f"; or ingest its inputs again with this release: `tracelake pipeline retry {t}`"
    )
    return _fail(
        f"transaction {t} was started by another release (transform {step.transform}, now {transform}). "
        f"Finish it with that release: run `tracelake pipeline run --once`, then upgrade{alternative}"
    )


def merge_steps(steps: Sequence[model.Step]) -> model.Step:
    """Merge all steps of a transaction into one: the inputs of each source, in the order in which they were taken."""
    first, *others = steps
    if not others:
        return first
    sources: dict[str, tuple[model.RecordedRange, ...]] = {}
    for step in steps:
        for source, ranges in step.sources.items():
            sources[source] = (*sources.get(source, ()), *ranges)
    return model.Step(first.transaction, sources, first.transform, client=first.client)


def _fail(reason: str) -> tuple[State, Action]:
    return Failed(reason), Stop(reason)


def totals(sources: Mapping[str, Sequence[model.RecordedRange]]) -> tuple[int, str]:
    """Return (records, checksum) over all sources of a step."""
    ranges = [recorded_range for source_ranges in sources.values() for recorded_range in source_ranges]
    return sum(recorded_range.records for recorded_range in ranges), model.add_checksums(
        *(recorded_range.checksum for recorded_range in ranges)
    )


def compare(
    recorded: Mapping[str, Sequence[model.RecordedRange]], read: Mapping[str, Sequence[model.RecordedRange]]
) -> str | None:
    """Return the first difference between the recorded and the newly read inputs, or None. Sources are compared
    first."""
    for source in sorted(recorded.keys() ^ read.keys()):
        names, was = ("names", "was not read") if source in recorded else ("does not name", "was read")
        return f"source {source}: the journal {names} it, and it {was}"
    for source, ranges in recorded.items():
        before, again = list(model.inputs_of(ranges)), list(model.inputs_of(read[source]))
        if [recorded_input.path for recorded_input in before] != [
            recorded_input.path for recorded_input in again
        ]:
            return f"source {source}: the journal names {len(before)} inputs, and {len(again)} were read"
        for recorded_input, now in zip(before, again, strict=True):
            if (difference := _differs(recorded_input, now)) is not None:
                return (
                    f"source {source}: {recorded_input.path} {difference}. Restore its content and run again"
                )
        # A range records only sums. They differ if the same bytes gave other records.
        if (difference := _gave(totals({source: ranges}), totals({source: read[source]}))) is not None:
            return (
                f"source {source}: its {len(before)} inputs {difference}. Finish it with the release that "
                "started it"
            )
    return None


def _differs(recorded: model.RecordedInput, read: model.RecordedInput) -> str | None:
    if _kind(recorded) is not _kind(read):
        return f"was read as {_kind(read).__name__}; the journal says {_kind(recorded).__name__}"
    if (recorded.size_bytes, recorded.sha256) != (read.size_bytes, read.sha256):
        now = f"{read.size_bytes} bytes, sha256 {read.sha256[:12]}…"
        if not read.sha256:  # it was not read completely
            problems = () if isinstance(read, model.SegmentOfRun) else read.problems
            now = next((reason for _, _, reason in problems), "nothing is there")
        return (
            f"has changed since the journal recorded it ({recorded.size_bytes} bytes, sha256 {recorded.sha256[:12]}…; "
            f"now: {now})"
        )
    if isinstance(recorded, model.SegmentOfRun) or isinstance(read, model.SegmentOfRun):
        return None
    return _gave((recorded.records, recorded.checksum), (read.records, read.checksum))


def _gave(recorded: tuple[int, str], read: tuple[int, str]) -> str | None:
    if recorded == read:
        return None
    return (
        f"gave {read[0]} records with checksum {read[1]}; the journal says {recorded[0]} with {recorded[1]}"
    )


def _kind(recorded_input: model.RecordedInput) -> type:
    return model.Segment if isinstance(recorded_input, model.SegmentOfRun) else type(recorded_input)


def sealed_totals_agree(step: model.Step, seal: model.Seal) -> bool:
    """Return whether a seal has the totals of its step."""
    return totals(step.sources) == (seal.records, seal.checksum)


def floor_above(upper: int, retained: int) -> int:
    """Return the lowest transaction to keep, so that `retained` committed transactions (those below `upper`) remain,
    and at least one."""
    # Before the step of the newest was recorded, its pipeline saw that all earlier inputs were acknowledged.
    return max(0, upper - max(1, retained))


def beginnings_below(stop: str, begin: str) -> list[str]:
    """Return key prefixes that together match exactly the numbers below `stop` that begin with `begin`. `begin` must be
    a prefix of `stop`."""
    return [f"{stop[:at]}{digit}" for at in range(len(begin), len(stop)) for digit in range(int(stop[at]))]


ClientRequest: TypeAlias = Literal["open", "commit", "abort"]
"""The request of an explicit transaction's client: to continue, or to end."""


@dataclass(frozen=True, slots=True)
class CommitPolicy:
    """Commit policy for transactions without a client. Peers may have other policies."""

    max_rows: int = 1
    """Seal with this many spans, or more."""
    max_delay_s: float = 0.0
    """Seal at this age of its first step, by the local clock."""


EACH_STEP: Final = CommitPolicy()
"""Policy that makes each step a transaction."""


@dataclass(frozen=True, slots=True)
class OpenTransactionStats:
    """Input of a commit policy: an unsealed transaction with at least one step."""

    steps: int
    rows: int
    age_s: float
    request: ClientRequest | None = None
    """The request of its client, read before the search for more input; None without a client."""


def decide(mode: CommitPolicy, opened: OpenTransactionStats, *, exhausted: bool, continuous: bool) -> Verdict:
    """Decide whether an open transaction takes more input, is sealed, waits for more, or is discarded."""
    is_full = opened.steps >= TRANSACTION_STEPS_MAX
    if opened.request == "abort":
        return "discard"
    if opened.request is not None:
        if not exhausted and not is_full:
            return "more"
        return "seal" if opened.request == "commit" else "wait"
    if is_full or opened.rows >= mode.max_rows or opened.age_s >= mode.max_delay_s:
        return "seal"
    if not exhausted:
        return "more"
    return "wait" if continuous else "seal"
