"""A4, A5, A10, A12, O1 with real processes: kills under the load of an official exporter lose nothing."""

from __future__ import annotations

from pathlib import Path

from tests.faults.kill_archive import Campaign

SEED = 3


def test_a4_killed_while_an_exporter_sends(tmp_path: Path) -> None:
    """All acknowledged spans exist once, in one place, after two kills; campaign `archive` kills more."""
    campaign = Campaign(tmp_path, SEED, print, exporters=1, archivers=1, users=0)
    campaign.run(seconds=0, kills=2, layout="pack")
    assert campaign.told.acknowledged
    assert campaign.looks
