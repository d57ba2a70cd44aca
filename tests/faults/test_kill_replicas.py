"""S7 on real processes: two replicas, killed and paused at random, write the same as a single one."""

from __future__ import annotations

from pathlib import Path

from tests.faults.kill_replicas import Campaign
from tests.patience import HANG_S

KILLS = 4
SEED = 5
"""Campaign `replicas` (`python -m tests.campaigns replicas`) runs longer, and with Spark."""


def test_two_replicas_killed_and_paused(tmp_path: Path) -> None:
    """The tables are those of a single writer, each request is in one transaction, and output never stopped."""
    campaign = Campaign(tmp_path, SEED, print, gap_max_s=HANG_S)
    campaign.run(KILLS)
    assert campaign.gaps.commits > 0
