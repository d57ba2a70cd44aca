"""A few rounds of the campaign that damages the tracking store and its archive."""

from __future__ import annotations

import random
from itertools import islice
from pathlib import Path

from tests.broken import Broken, assert_caught
from tests.faults.flip_tracking import Campaign
from tracelake.archive import verify
from tracelake.tracking.database import TrackingDatabase


def test_a_few_rounds(tmp_path: Path) -> None:
    """Damage of objects and payloads is named, and a damaged file never gives a reader unwritten data."""
    campaign = Campaign(tmp_path, random.Random(7), step=89)
    rounds = [*campaign.objects(), *campaign.payloads(), *islice(campaign.file(), 20)]
    assert (campaign.wrong, campaign.rounds) == ([], len(rounds))

    def check_objects() -> None:
        list(campaign.objects())
        assert not campaign.wrong

    assert_caught(
        Broken("packs are read whole", verify._check_repository, "if is_pack(path) and", "if False and"),
        check_objects,
    )
    campaign.wrong.clear()

    def check_schema() -> None:
        campaign.damage_file(b"NOT NULL", b"NOT NUL\xff")
        assert not campaign.wrong

    check_schema()
    broken = Broken(
        "errors that quote damage", TrackingDatabase._failures, "except UnicodeDecodeError", "except KeyError"
    )
    assert_caught(broken, check_schema)
