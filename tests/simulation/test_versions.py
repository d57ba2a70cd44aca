"""The commit protocol under simulation: complete searches of small configurations, storms, adversaries (V1 to V8)."""

from __future__ import annotations

from unittest import mock

import pytest

from tests.simulation.versions import COMPLETE, RepositoryScenario, RetriesScenario, small
from tests.simulation.versions_mutants import (
    FINISH,
    announce_briefly,
    deaf,
    finish_again,
)
from tests.simulation.versions_storms import (
    Arrivals,
    Crowd,
    Endless,
    Namesakes,
    Rivals,
    Spoiler,
    drive,
    newest_first,
    oldest_call_first,
    stalled,
)
from tracelake.testing import Faults, explore, run_once, search
from tracelake.versions.branch_store import TAGS
from tracelake.versions.commits import RefClaims

STALL_MS = 10_000


@pytest.mark.parametrize(
    ("patience_polls", "faults", "actors", "schedules_max"),
    [
        (0, Faults(), {"committers": 2}, 200),
        (1, Faults(), {"committers": 2}, 200),
        (0, Faults(), {"replicas": 2}, 150),
        (0, Faults(), {"stagers": 1, "sweepers": 1}, 150),
    ],
    ids=str,
)
def test_every_schedule(
    patience_polls: int, faults: Faults, actors: dict[str, int], schedules_max: int
) -> None:
    """V4 to V7: no order of two actors' calls breaks a rule; the search is complete."""
    report = explore(small(patience_polls, actors), faults, schedules_max=schedules_max)
    assert report.failures == []
    assert report.is_complete
    assert report.completed == report.schedules


@pytest.mark.parametrize(("patience_polls", "faults", "actors"), COMPLETE, ids=str)
def test_a_slice_of_what_is_searched_in_whole(
    patience_polls: int, faults: Faults, actors: dict[str, int]
) -> None:
    """A random slice keeps the rules; with a lost reply or a kill there are thousands, which campaign
    `simulate-all` runs.

    The slice has twice as many as any mutant needs that such actors can show.
    """
    report = search(small(patience_polls, actors), faults, seed=1, schedules_max=400)
    assert report.failures == []
    assert report.completed == report.schedules == 400


@pytest.mark.parametrize("answers_kept", [0, 2])
@pytest.mark.parametrize("patience_polls", [0, 24])
def test_other_patience_and_memory(patience_polls: int, answers_kept: int) -> None:
    """No rule depends on a committer's wait or on the number of answers that the record keeps."""
    scenario = RepositoryScenario(rounds=2, committers=2, strangers=1, sweepers=2, stagers=1, mergers=1)
    scenario.patience_polls, scenario.answers_kept = patience_polls, answers_kept
    report = search(scenario, Faults(kills=2, lost=4, late=3, delays=2), seed=1, schedules_max=25)
    assert report.failures == []


def test_seed_that_failed_once() -> None:
    """A seal with a lost reply whose commit had left the record at read-back was once sealed again."""
    scenario = RepositoryScenario(rounds=3, replicas=3, committers=1)
    scenario.patience_polls = scenario.answers_kept = 0
    assert run_once(scenario, Faults(kills=2, late=4), seed=1_650_026).error is None


def test_seed_of_a_first_commit_that_lands_late() -> None:
    """A first commit was reported as failed, while its write to the branch was still in flight."""
    faults = Faults(kills=3, lost=6, late=2, delays=3, stalls=1, partitions=1)
    assert run_once(RetriesScenario(), faults, seed=3_719_477_110).error is None


@pytest.mark.parametrize("committers", [1, 8, 32])
def test_v1_calls_are_linear_in_the_committers(committers: int) -> None:
    """V1: all concurrent committers have their commits, for 48 calls on records each, at any number of them."""
    report = search(Crowd(committers), Faults(), seed=1, schedules_max=20)
    assert report.failures == []
    assert report.completed == 20


def test_v1_sixty_four_by_the_clock() -> None:
    """V1: so have 64 that take turns by the clock."""
    assert drive(Crowd(64), oldest_call_first).error is None


def test_v2_a_store_that_stalls() -> None:
    """V2: after ten seconds of silence at any call of the first three, each has its commit within two seconds."""
    for at_step in range(19, 50):
        run = drive(Arrivals(), stalled(at_step, STALL_MS), Faults(stalls=1))
        assert run.error is None
        begun_and_done = [told for _, told in run.history if isinstance(told, tuple)]
        assert len(begun_and_done) == 20
        stalled_until_s = run.stalled_until_ms / 1000
        assert all(done <= max(begun, stalled_until_s) + 2 for begun, done in begun_and_done)


def test_v2_arrivals_without_end_do_not_starve_the_oldest() -> None:
    """V2: a committer slower than the arrivals still has its commit; if its build were repeated, it never would."""
    assert drive(Endless(), oldest_call_first).error is None
    with mock.patch(FINISH, finish_again):
        assert "no progress" in str(drive(Endless(), oldest_call_first).error)


def test_v3_the_newest_first() -> None:
    """V3: all committers finish even if the newest always runs before the others."""
    run = drive(Crowd(16), newest_first)
    assert run.error is None
    assert len(run.choices) < 16 * 40


def test_v3_a_rival_for_every_conditional_write() -> None:
    """V3: the oldest may write only when it must fail. A rival seals its request; without announcements it never
    finishes."""
    run = drive(Rivals(), Spoiler())
    assert run.error is None
    assert sum(name == "oldest" and text == "set_if branches/main" for _, name, _, text, _ in run.trace) <= 5
    for name, wrong in (("announced", deaf), ("announce", announce_briefly)):
        with mock.patch(f"tracelake.versions.branch_store.BranchRecords.{name}", wrong):
            assert "no progress" in str(drive(Rivals(), Spoiler()).error)


def test_a_branch_and_a_tag_of_one_name() -> None:
    """Of a branch and a tag created at once, at most one exists; without the check of the other's claim, both
    exist."""
    faults = Faults(kills=1, lost=3, late=2)
    report = search(Namesakes(), faults, seed=1, schedules_max=150)
    assert report.failures == []
    assert report.completed == 150
    clear = RefClaims._clear

    def own_alone(self: RefClaims, partition: str, name: str) -> bool:
        found = clear(self, partition, name)
        return found or self._key_value.get(partition, name) is None or partition == TAGS

    with mock.patch.object(RefClaims, "_clear", own_alone):
        assert search(Namesakes(), Faults(), seed=1, schedules_max=150).violations == 1
