"""Each row of the tables of the archive's protocol, exhaustively."""

from __future__ import annotations

import itertools

from tracelake.archive import protocol
from tracelake.archive.protocol import CONDEMNED, LIVE, OPEN, TraceState
from tracelake.archive.retention import ArchiveOutcome

STATES = (None, OPEN, LIVE, CONDEMNED)
TRACES = (
    None,
    *(
        TraceState(hot, generation, life, None if hot else "there")
        for hot in (True, False)
        for generation in (1, 2)
        for life in (5, 6)
    ),
)


def test_finalize() -> None:
    """An upload counts if it was not discarded, the trace is hot, and generation and life are unchanged (A1, A12)."""
    for state, trace in itertools.product(STATES, TRACES):
        fate = protocol.finalize(state, trace, 1, 5)
        if state not in (OPEN, LIVE):
            assert fate is ArchiveOutcome.FAILED
        elif trace is None or not trace.is_hot:
            assert fate is ArchiveOutcome.GONE
        else:
            is_same = (trace.generation, trace.life) == (1, 5)
            assert fate is (ArchiveOutcome.ARCHIVED if is_same else ArchiveOutcome.CHANGED)


def test_objects() -> None:
    """Objects named by traces stay; all others can be discarded permanently."""
    for state, traces in itertools.product(STATES, (0, 1)):
        may = protocol.may_delete_upload(state, traces)
        assert may is (state in (OPEN, CONDEMNED) or (state == LIVE and traces == 0))


def test_restore_and_delete() -> None:
    """A restore or delete changes nothing unless the record is still the one that was read (A10)."""
    for trace in TRACES:
        archived = trace is not None and not trace.is_hot
        assert protocol.may_restore(trace, "there") is archived
        assert not protocol.may_restore(trace, "elsewhere")
        assert protocol.may_delete(trace, "there") is archived
        assert protocol.may_delete(trace, None) is (trace is not None and trace.is_hot)
        assert not protocol.may_delete(trace, "elsewhere")
