"""A few rounds of the campaign that damages everything."""

from __future__ import annotations

import random
from itertools import islice
from pathlib import Path

import pytest

from tests.faults.flip_everything import Campaign


def test_a_few_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All damage is named and no read returns unwritten data; many flips run at once, and unnamed ones are repeated
    alone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    campaign = Campaign(tmp_path, random.Random(7))
    for name, what, damage in islice(campaign.damages(), 1, 90, 20):
        campaign.round(name, what, damage)
    campaign.sweep({"tags/v1": 3, "replicas/r": 0, "answers/one": 7})
    assert (campaign.rounds, campaign.flips, campaign.wrong) == (6, 3, [])
    monkeypatch.setattr(campaign.everything, "said", lambda: "damaged record answers/one")
    campaign.sweep({"tags/v1": 3, "answers/one": 7})
    assert len(campaign.wrong) == 8
    assert all(wrong.startswith("tags/v1 (bit ") for wrong in campaign.wrong)
