"""Tests of the command that runs campaigns."""

from __future__ import annotations

import importlib.util

import pytest

from tests import campaigns


def test_every_campaign_has_its_module_and_scripts() -> None:
    """Each campaign names an existing module, existing files and existing scripts."""
    for campaign in campaigns.CAMPAIGNS.values():
        assert importlib.util.find_spec(campaign.module), campaign.module
        assert not campaign.setup or (campaigns.ROOT / "scripts" / campaign.setup).is_file()
    for files, setup in campaigns.SUITES.values():
        assert all((campaigns.ROOT / file).exists() for file in files.split())
        assert not setup or (campaigns.ROOT / "scripts" / setup).is_file()


def test_duration_and_seed_reach_the_campaign() -> None:
    """Minutes become the unit of the campaign; other options are passed on."""
    assert campaigns.command("flips", 2, 7, [])[2:] == [
        *("tests.faults.flip_everything", "--seconds", "120", "--seed", "7")
    ]
    assert campaigns.command("archive", 2, None, ["--postgres"])[2:] == [
        *("tests.faults.kill_archive", "--minutes", "2", "--postgres")
    ]
    assert campaigns.command("kafka", None, None, ["-k", "j6"])[2:] == [
        *("pytest", "-p", "no:xdist", "tests/kafka", "-k", "j6")
    ]


@pytest.mark.parametrize(
    ("name", "minutes", "seed"),
    [("hot", 1.0, None), ("simulate-all", None, 7), ("kafka", None, 7), ("kafka", 1.0, None)],
)
def test_an_option_that_a_campaign_lacks_is_refused(
    name: str, minutes: float | None, seed: int | None
) -> None:
    """A duration or a seed without effect is an error, not ignored."""
    with pytest.raises(SystemExit, match=name):
        campaigns.command(name, minutes, seed, [])


def test_list_names_every_campaign(capsys: pytest.CaptureFixture[str]) -> None:
    """`list` has a line for each campaign and suite."""
    assert campaigns.main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [*campaigns.CAMPAIGNS, *campaigns.SUITES]
