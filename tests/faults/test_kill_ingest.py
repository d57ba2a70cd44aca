"""J1 to J5 and J8 on real processes: kill -9 at any moment leaves whole commits, and the next run finishes."""

from __future__ import annotations

from pathlib import Path

from tests.faults.kill_ingest import Campaign, split
from tests.pipeline.spans import AGENTS

TRANSACTIONS = 3
KILLS = 3
SEED = 5
"""Moments from the start of the process to the last transaction. Campaign `ingest` draws others, on all of the
data."""


def test_killed_at_random_moments(tmp_path: Path) -> None:
    """Every commit after every kill, and the final history, equal those of an undisturbed run."""
    campaign = Campaign(split(AGENTS, TRANSACTIONS, tmp_path), tmp_path, SEED, print)
    assert len(campaign.expected) == TRANSACTIONS
    campaign.run(KILLS)
