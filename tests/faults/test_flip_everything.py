"""A few rounds of the campaign that damages everything."""

from __future__ import annotations

import random
from itertools import islice
from pathlib import Path

import pytest

from tests.faults.flip_everything import Campaign


def test_a_few_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is damaged is named, and nobody reads what was not written."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    campaign = Campaign(tmp_path, random.Random(7))
    for name, what, damage in islice(campaign.damages(), 1, 90, 20):
        campaign.round(name, what, damage)
    assert (campaign.rounds, campaign.wrong) == (5, [])
