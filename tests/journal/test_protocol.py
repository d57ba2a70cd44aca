"""The recovery state machine, row by row, and what it refuses."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from tracelake.journal.model import (
    OffsetRange,
    ReadRange,
    Seal,
    Segment,
    Sources,
    Step,
    WholeFile,
    add_checksums,
    from_bytes,
    to_bytes,
)
from tracelake.journal.protocol import (
    Abandon,
    Abort,
    Append,
    Appended,
    AtBoundary,
    AttemptFailed,
    Decide,
    Decided,
    Event,
    Failed,
    Feed,
    Finalizing,
    Live,
    LostRace,
    NoInput,
    OpenInputs,
    Publish,
    Published,
    PublishEmpty,
    QuarantineInputs,
    Read,
    ReadState,
    Replayed,
    Replaying,
    Restage,
    Sealed,
    Skipping,
    State,
    StateRead,
    Stop,
    WriteSeal,
    advance,
    compare,
    sealed_totals_agree,
    totals,
)


def a_range(path: str = "a", records: int = 2, checksum: int = 7, sha256: str = "00") -> WholeFile:
    return WholeFile(
        path, size_bytes=10, sha256=sha256, records=records, checksum=f"{checksum:032x}", spans=4
    )


STEP = Step(3, {"files": (a_range(),)}, transform="1")
SECOND = Step(3, {"files": (a_range("b"),), "inbox": (a_range("c"),)}, transform="1", number=1)
BOTH = Step(3, {"files": (a_range(), a_range("b")), "inbox": (a_range("c"),)}, transform="1")


def started(
    step: Step | None = STEP, *, sealed: bool = False, only_commit: bool = False, transform: str = "1"
) -> StateRead:
    return StateRead(3, () if step is None else (step,), sealed, only_commit, transform)


def two(*, fed: int = 0, sealed: bool = False, held: bool = False) -> StateRead:
    return StateRead(
        3, (STEP, SECOND), sealed, only_commit_missing=False, transform="1", fed=fed, has_rows=held
    )


ROWS: list[tuple[State | None, Event, State, object]] = [
    (None, started(None), Live(3), OpenInputs(3)),
    (Live(2), started(None), Live(3), OpenInputs(3)),
    (None, started(), Replaying(3, (STEP,), False), Feed(STEP)),
    (None, started(sealed=True), Replaying(3, (STEP,), True), Feed(STEP)),
    (None, started(sealed=True, only_commit=True), Finalizing(3), Publish(3)),
    (Replaying(3, (STEP,), False), Replayed(STEP.sources), AtBoundary(3, 1), Decide(3, 1)),
    (Replaying(3, (STEP,), True), Replayed(STEP.sources), Finalizing(3), Publish(3)),
    (Replaying(3, (STEP,), True), Published(), Live(4), ReadState(4)),
    (Live(3), Read(), Live(3), Append(3, 0)),
    (Live(3, 2), Read(), Live(3, 2), Append(3, 2)),
    (Live(3), NoInput(), Live(3), Stop()),
    (Live(3, 2), NoInput(), AtBoundary(3, 2), Decide(3, 2, exhausted=True)),
    (Live(3), Appended(STEP, True, "1"), AtBoundary(3, 1), Decide(3, 1)),
    (Live(3, 1), Appended(SECOND, True, "1"), AtBoundary(3, 2), Decide(3, 2)),
    (Live(3), Appended(STEP, False, "1"), Replaying(3, (STEP,), False), Feed(STEP)),
    (Live(3, 1), Appended(SECOND, False, "1"), Replaying(3, (SECOND,), False), Feed(SECOND)),
    (AtBoundary(3, 1), Appended(SECOND, False, "1"), Replaying(3, (SECOND,), False), Feed(SECOND)),
    (Live(3, 1), Sealed(), Finalizing(3), Publish(3)),
    (AtBoundary(3, 1), Sealed(), Finalizing(3), Publish(3)),
    (AtBoundary(3, 1), Decided("more"), Live(3, 1), OpenInputs(3)),
    (AtBoundary(3, 2), Decided("seal"), AtBoundary(3, 2), WriteSeal(3, 2)),
    (AtBoundary(3, 1), Decided("wait"), Live(3, 1), Stop()),
    (AtBoundary(3, 1), Decided("discard"), Live(3, 1), Abort(3)),
    (Replaying(3, (STEP, SECOND), True), Replayed(STEP.sources), Replaying(3, (SECOND,), True), Feed(SECOND)),
    (Replaying(3, (SECOND,), True), Replayed(SECOND.sources), Finalizing(3), Publish(3)),
    (Replaying(3, (SECOND,), False), Replayed(SECOND.sources), AtBoundary(3, 2), Decide(3, 2)),
    (None, two(), Replaying(3, (STEP, SECOND), False), Feed(STEP)),
    (None, two(fed=1), Replaying(3, (SECOND,), False), Feed(SECOND)),
    (None, two(fed=2), AtBoundary(3, 2), Decide(3, 2)),
    (None, two(fed=2, sealed=True), Finalizing(3), Publish(3)),
    (None, two(sealed=True, held=True), Replaying(3, (BOTH,), True), Restage(BOTH)),
    (Finalizing(3), Published(), Live(4), ReadState(4)),
    (Replaying(3, (STEP,), False), AttemptFailed(1, 2, suspected=False), Live(3), ReadState(3)),
    (Finalizing(3), AttemptFailed(2, 2, suspected=False), Live(3), ReadState(3)),
    (Finalizing(3), AttemptFailed(3, 2, suspected=False), Live(3), QuarantineInputs(3)),
    (Finalizing(3), AttemptFailed(1, 2, suspected=True), Live(3), QuarantineInputs(3)),
    (
        Replaying(3, (STEP,), False),
        AttemptFailed(1, 2, suspected=False, unread=True),
        Live(3),
        QuarantineInputs(3),
    ),
    (Finalizing(3), AttemptFailed(2, 2, suspected=False, has_rows=True), Live(3), ReadState(3)),
    (Finalizing(3), AttemptFailed(3, 2, suspected=False, has_rows=True), Live(3), Abandon(3)),
    (Replaying(3, (STEP,), True), AttemptFailed(1, 2, suspected=True, has_rows=True), Live(3), Abandon(3)),
    (None, replace(started(sealed=True), has_rows=True), Replaying(3, (STEP,), True), Restage(STEP)),
    (None, replace(started(sealed=True), has_rows=True), Replaying(3, (STEP,), True), Restage(STEP)),
    (None, replace(started(), has_rows=True), Replaying(3, (STEP,), False), Feed(STEP)),
    (None, replace(started(sealed=True, only_commit=True), has_rows=True), Finalizing(3), Publish(3)),
    (Replaying(3, (STEP,), True), AttemptFailed(2, 1, suspected=True), Live(3), ReadState(3)),
    (Replaying(3, (STEP,), True), AttemptFailed(3, 1, suspected=True), Live(3), QuarantineInputs(3)),
    (Live(3), replace(started(), is_quarantined=True), Skipping(3), PublishEmpty(3)),
    (None, replace(started(sealed=True, transform="2"), is_quarantined=True), Skipping(3), PublishEmpty(3)),
    (Skipping(3), Published(), Live(4), ReadState(4)),
    (Skipping(3), LostRace(), Live(3), ReadState(3)),
    (Finalizing(3), LostRace(), Live(3), ReadState(3)),
    (Live(3), Published(), Live(4), ReadState(4)),
    (AtBoundary(3, 1), Published(), Live(4), ReadState(4)),
]


@pytest.mark.parametrize(("state", "event", "following", "action"), ROWS)
def test_each_row_of_the_table(state: State | None, event: Event, following: State, action: object) -> None:
    """The function behaves as each row of the table in the module's docstring."""
    assert advance(state, event) == (following, action)


def test_everything_else_is_refused() -> None:
    """Each event that a state does not expect is an error of the driver."""
    states = [
        None,
        Live(3),
        Replaying(3, (STEP,), False),
        AtBoundary(3, 1),
        Finalizing(3),
        Skipping(3),
        Failed("x"),
    ]
    events: list[Event] = [
        started(),
        Replayed(STEP.sources),
        Read(),
        NoInput(),
        Appended(STEP, True, "1"),
        Decided("seal"),
        Sealed(),
        Published(),
        AttemptFailed(1, 1, suspected=False),
        LostRace(),
    ]
    allowed = {(type(state), type(event)) for state, event, *_ in ROWS}
    refused = 0
    for state, event in itertools.product(states, events):
        if (type(state), type(event)) not in allowed:
            with pytest.raises(AssertionError, match="bug in Tracelake"):
                advance(state, event)
            refused += 1
    assert refused == len(states) * len(events) - len(allowed)


def test_j11_a_changed_source_fails_loudly() -> None:
    """If a replayed input differs from the record, nothing is published, and the error names the file (J11)."""
    state, action = advance(Replaying(3, (STEP,), True), Replayed({"files": (a_range(sha256="11"),)}))
    assert isinstance(state, Failed)
    assert isinstance(action, Stop)
    assert "transaction 3: source files: a has changed" in state.reason


def test_j15_a_changed_transform_is_refused() -> None:
    """A release that shapes rows differently does not finish a transaction, and the error names the remedy (J15)."""
    state, _ = advance(None, started(transform="2"))
    assert isinstance(state, Failed)
    assert "Finish it with that release" in state.reason
    assert "pipeline retry 3" in state.reason
    late, _ = advance(Live(3), Appended(STEP, False, "2"))
    assert late == state, "so it is where a peer of another release was faster"
    held, _ = advance(None, replace(started(sealed=True, transform="2"), has_rows=True))
    assert isinstance(held, Failed)
    assert "retry" not in held.reason  # table spans has rows of that release already


def test_sources_are_compared_before_values() -> None:
    """The error names different sources first, and only then counts and checksums."""
    read: Sources = {"inbox": (a_range(records=3),)}
    assert compare(STEP.sources, read) == "source files: the journal names it, and it was not read"
    read |= {"files": (a_range(records=3),)}
    assert compare(STEP.sources, read) == "source inbox: the journal does not name it, and it was read"
    assert "1 inputs, and 2" in str(compare(STEP.sources, {"files": (a_range(), a_range("b"))}))
    assert "3 records" in str(compare(STEP.sources, {"files": (a_range(records=3),)}))
    assert compare(STEP.sources, {"files": (a_range(),)}) is None


def test_checksums_add_up_in_any_order_and_see_repeats() -> None:
    """The checksum of a transaction does not depend on partitions, and a record read twice changes it."""
    parts = [f"{value:032x}" for value in (1, 1 << 127, (1 << 128) - 1)]
    assert len({add_checksums(*order) for order in itertools.permutations(parts)}) == 1
    assert add_checksums(parts[0], parts[0]) != add_checksums(parts[0])


def test_a_seal_must_carry_the_totals_of_its_step() -> None:
    """A seal with totals that differ from its step's is damage."""
    records, checksum = totals(STEP.sources)
    assert sealed_totals_agree(STEP, Seal(3, records, checksum, "now"))
    assert not sealed_totals_agree(STEP, Seal(3, records + 1, checksum, "now"))


def test_checksums_do_not_cancel_out() -> None:
    """Checksums are added, not XORed, so a payload read twice in each of two parts is noticed."""
    seven, one = f"{7:032x}", f"{1:032x}"
    assert add_checksums(seven, seven) == f"{14:032x}"
    assert add_checksums(seven, one) == f"{8:032x}"
    assert add_checksums(f"{(1 << 128) - 1:032x}", one) == f"{0:032x}"


def an_offset_range(start: int = 5, stop: int = 9) -> OffsetRange:
    return OffsetRange(
        "c1",
        "spans",
        "t1",
        3,
        start,
        stop,
        size_bytes=10,
        sha256="00",
        records=2,
        checksum=f"{7:032x}",
        spans=4,
    )


def a_segment(path: str) -> Segment:
    return Segment(path, size_bytes=10, sha256="00", records=2, checksum=f"{7:032x}", spans=4)


@pytest.mark.parametrize("taken", [a_range(), a_segment("inbox/0.segment"), an_offset_range()])
def test_every_kind_of_range_is_read_as_it_was_written(taken: ReadRange) -> None:
    """The journal records the kind of an input, and every part of its range is read back."""
    step = Step(3, {"source": (taken,)}, "1")
    assert from_bytes(to_bytes(step), "3") == step


@pytest.mark.parametrize(
    ("recorded", "read", "difference"),
    [
        (an_offset_range(), an_offset_range(), None),
        (an_offset_range(), an_offset_range(stop=8), "1 inputs"),
        (an_offset_range(), a_segment("kafka/c1/spans/t1/3/5-9"), "was read as Segment"),
        (a_segment("a"), a_range("a"), "was read as WholeFile"),
    ],
)
def test_ranges_of_any_kind_are_compared(
    recorded: ReadRange, read: ReadRange, difference: str | None
) -> None:
    """A replay accepts only the same part of the same kind of input."""
    found = compare({"source": (recorded,)}, {"source": (read,)})
    assert (found is None) if difference is None else (found is not None and difference in found)
