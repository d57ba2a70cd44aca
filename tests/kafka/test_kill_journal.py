"""J1 to J9, J13 and J14 with real processes, a real broker and a real database, all killed at random."""

from __future__ import annotations

from pathlib import Path

from tests.faults.kill_journal import JournalCampaign


def test_three_sources_and_an_output_while_all_are_killed(tmp_path: Path) -> None:
    """Tables, history and output equal the input of three sources; campaign `journal` runs longer."""
    JournalCampaign(tmp_path, 2, print).run(seconds=0, events=4)
