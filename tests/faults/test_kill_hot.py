"""O1 with a hot tier, on both databases: kill -9 under load loses nothing, and acknowledged traces can be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.kill_hot import HotCampaign, tracking_database

SEED = 5


@pytest.mark.parametrize("postgres", [False, True], ids=["sqlite", "postgres"])
def test_o1_killed_while_many_send(tmp_path: Path, postgres: bool) -> None:
    """Every acknowledged span exists once after six kills; `python -m tests.campaigns hot` kills more."""
    with tracking_database(postgres):
        campaign = HotCampaign(tmp_path, SEED, print)
        campaign.run(kills=6)
    assert campaign.outcomes.unanswered
    assert campaign.looks
