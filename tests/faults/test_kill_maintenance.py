"""S7 to S10 on real processes: compaction and collection next to a writer and a reader, all killed at random."""

from __future__ import annotations

from pathlib import Path

from tests.faults.kill_maintenance import Campaign

SEED = 3
"""`python -m tests.campaigns maintenance` draws others, and takes longer."""


def test_everybody_is_killed_at_random(tmp_path: Path) -> None:
    """Every read and, in the end, every commit equals that of a single writer's lake; no garbage remains."""
    campaign = Campaign(tmp_path, 4, SEED, print)
    assert campaign.run(5) > 0
    campaign.check()
