"""A few rounds of the campaign that damages the tracking store and its archive."""

from __future__ import annotations

import random
from itertools import islice
from pathlib import Path

from tests.faults.flip_tracking import Campaign


def test_a_few_rounds(tmp_path: Path) -> None:
    """Damage of objects and payloads is named, and a damaged file never gives a reader unwritten data."""
    campaign = Campaign(tmp_path, random.Random(7), step=89)
    rounds = [*campaign.objects(), *campaign.payloads(), *islice(campaign.file(), 20)]
    assert (campaign.wrong, campaign.rounds) == ([], len(rounds))

    def check_objects() -> None:
        list(campaign.objects())
        assert not campaign.wrong

    campaign.wrong.clear()

    def check_schema() -> None:
        campaign.damage_file(b"NOT NULL", b"NOT NUL\xff")
        assert not campaign.wrong

    check_schema()
