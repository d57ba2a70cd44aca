"""Two interleavings that the simulation found in the journal, as short schedules."""

from __future__ import annotations

from tests.simulation.scenarios import JournalScenario
from tracelake.testing import Choice, Fate, Faults, replay


def test_a_reader_beside_a_peer_that_records_and_seals_sees_no_damage() -> None:
    """If a peer records step and seal between two reads, the reader finds neither or both (found by seed 4)."""
    for reads in (1, 2):
        schedule = [Choice(0)] * reads + [Choice(1)] * 4
        assert replay(JournalScenario(2, 1), Faults(), schedule).error is None


def test_s8_a_record_whose_write_was_lost_with_its_reply_is_written_again() -> None:
    """A write that was lost with its reply is repeated if the record does not exist (S8)."""
    schedule = [Choice(0), Choice(0), Choice(0, Fate.LOST_BEFORE)]
    run = replay(JournalScenario(2, 1), Faults(lost=1), schedule)
    assert run.error is None
    assert run.injected == 1
