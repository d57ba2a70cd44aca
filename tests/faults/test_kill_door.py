"""O1 on a real server: kill -9 while 64 senders of HTTP and gRPC share segments loses nothing acknowledged."""

from __future__ import annotations

from pathlib import Path

from tests.faults.kill_door import Campaign

SEED = 3


def test_o1_killed_while_many_send(tmp_path: Path) -> None:
    """Every acknowledged span exists once after a kill, and no refused one; campaign `requests` kills more."""
    campaign = Campaign(tmp_path, SEED, print)
    campaign.run(kills=1)
    assert campaign.outcomes.unanswered
