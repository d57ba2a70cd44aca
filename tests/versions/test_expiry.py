"""History that expires: routine commits go, all others stay, and every walk skips the gaps."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime
from math import inf
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.versions.collected_world import World
from tracelake._errors import CommitExpiredError, RefNotFoundError
from tracelake.versions.branch_store import COLLECTOR, BranchRecords
from tracelake.versions.expiry import EXPIRY, GAPS
from tracelake.versions.gc import CollectedCommits, RepositoryCollector
from tracelake.versions.model import TABLE_WRITER, Commit, Gap, TableAt
from tracelake.versions.protocol import (
    AncestorStep,
    HistoryCommit,
    HistoryRule,
    new_gaps,
    reachable,
    retained_commits,
    retentions,
)
from tracelake.versions.tree import path_of

DAY_S = 86_400.0
WEEK = HistoryRule(7 * DAY_S)
NOW_S = 2_000 * DAY_S
WRITE: Any = {
    "committer": TABLE_WRITER,
    "metadata": {"table": "mine"},
    "created_at": "2020-01-01T00:00:00+00:00",
}
"""Fields of an old write to a user's table."""


class OldWorld(World):
    """Repository whose transactions were committed some days ago."""

    def transaction(self, number: int, days_ago: float) -> str:
        """Commit a transaction."""
        at = datetime.fromtimestamp(time.time() - days_ago * DAY_S, UTC).isoformat(timespec="seconds")
        return self.repository.commit_transaction(
            number, {"tables/s": TableAt("s", number)}, message=f"transaction {number}", created_at=at
        )

    def transactions(self, count: int, first: int = 0, days_ago: float = 100.0) -> list[str]:
        """Commit consecutive transactions, one a minute."""
        return [self.transaction(first + n, days_ago - n / 1440) for n in range(count)]

    def expire(self, rule: HistoryRule = WEEK, *, dry_run: bool = False) -> CollectedCommits:
        """Collect once with a rule for the history."""
        collector = RepositoryCollector(self.key_value, self.objects)
        return collector.collect(epoch_min_s=0.0, dry_run=dry_run, rule=rule)

    def logged(self, ref: str = "main") -> list[str]:
        """Return the ids of the commits in the log."""
        repository = self.opened()
        return [commit_id for commit_id, _ in repository.log(repository.resolve(ref))]


def test_old_transactions_expire_and_log_skips_them() -> None:
    """Old transactions disappear from the log, which goes on below them and knows their number and the oldest."""
    world = OldWorld()
    mine = world.commit("mine", 1)
    old = world.transactions(20)
    tagged = old[7]
    world.repository.tag("v1", tagged)
    new = [world.transaction(20 + n, 1.0) for n in range(3)]
    kept = [*new[::-1], old[-1], tagged, mine]
    collected = world.expire()
    assert collected.expired == 18
    assert world.logged() == kept
    told = world.opened().expired()
    assert told is not None
    assert (told.commits, told.oldest) == (18, mine)
    assert world.opened().resolve("main~5") == mine
    assert world.opened().resolve("main@7") == tagged
    assert world.expire().expired == 0, "a second collection finds nothing more"
    assert world.logged() == kept


def test_reading_at_an_expired_commit_names_the_oldest() -> None:
    """A reference to an expired commit is an error that names the oldest commit that can be read."""
    world = OldWorld()
    mine, old = world.commit("mine", 1), world.transactions(5)
    world.transaction(5, 0.0)
    world.expire()
    for ref in (old[2], old[2][:10], "main@2", "main~17"):
        with pytest.raises(CommitExpiredError, match=f"oldest commit that can be read is {mine[:12]} of 20"):
            world.opened().resolve(ref)
    for read in (world.opened().entries, world.opened().commit):
        with pytest.raises(CommitExpiredError, match=mine[:12]):
            read(old[2])
    with pytest.raises(RefNotFoundError):
        world.opened().resolve("nothing")


def test_without_an_age_nothing_expires() -> None:
    """By default, and with `none`, no commit expires, and a missing one is damage, as before."""
    world = OldWorld()
    old = world.transactions(5)
    assert world.expire(HistoryRule(None)).expired == 0
    assert world.logged() == old[::-1]


def test_one_commit_a_day_stays() -> None:
    """The last commit of each day stays for the stated time."""
    world = OldWorld()
    for day in range(20, 0, -1):
        for number in range(3):
            world.transaction(3 * (20 - day) + number, day - number / 10_000)
    world.expire(HistoryRule(2 * DAY_S, 15 * DAY_S))
    days = [
        datetime.fromisoformat(world.repository.commit(each).created_at).date() for each in world.logged()
    ]
    assert len(set(days)) == 15
    assert len(days) == 15 + 2 * 2, "of the last two days, every commit stays"


def test_what_only_expired_commits_named_is_collected() -> None:
    """Later collections delete the ranges and metaranges of expired commits."""
    world = OldWorld()
    world.transactions(50)
    world.transaction(50, 0.0)
    before = len(world.paths())
    for _ in range(3):
        world.expire()
    assert len(world.paths()) == 3 * len(world.logged()) < before / 10
    for commit_id in world.logged():
        assert world.opened().entries(commit_id)


def test_a_merge_base_stays_so_that_a_merge_is_right() -> None:
    """The commit at which a branch began stays, otherwise a merge would bring back what main has deleted."""
    world = OldWorld()
    world.transactions(3)
    world.repository.commit_entries({"f": TableAt("f", 1)})
    base = world.transactions(1, first=3)[0]
    world.transactions(1, first=4)
    world.repository.create_branch("side", base)
    for number in range(2):
        world.repository.commit_entries({"g": TableAt("g", number)}, "side", **WRITE)
    world.transactions(9, first=5)
    world.repository.commit_entries({"f": None})
    world.expire()
    assert base in world.logged()
    world.repository = world.opened()
    world.repository.merge(world.repository.resolve("side"))
    entries = world.opened().entries(world.repository.resolve("main"))
    assert "f" not in entries
    assert "g" in entries


def test_a_persons_old_commit_stays_revertible() -> None:
    """The commit before a person's commit stays, so that the change can be shown and reverted."""
    world = OldWorld()
    world.transactions(9)
    mine = world.repository.commit_entries({"mine": TableAt("s", 1)}, created_at=WRITE["created_at"])
    world.transactions(9, first=9)
    world.expire()
    repository = world.opened()
    assert [each.path for each in repository.diff(repository.commit(mine).parents[0], mine)] == ["mine"]
    repository.revert(mine)
    assert "mine" not in repository.entries(repository.resolve("main"))


def test_reverting_a_commit_whose_parent_expired_is_refused() -> None:
    """If the commit before has expired, the change of a transaction is unknown: an error that says so."""
    world = OldWorld()
    old = world.transactions(9)
    world.repository.tag("v1", old[5])
    world.transaction(9, 0.0)
    world.expire()
    for act in (world.opened().revert, world.opened().cherry_pick):
        with pytest.raises(CommitExpiredError, match="oldest"):
            act(old[5])


def test_writes_to_tables_expire_and_merged_ones_stay() -> None:
    """A write to a user's table is routine; a merge never is."""
    world = OldWorld()
    written = [world.repository.commit_entries({"tables/m": TableAt("m", n)}, **WRITE) for n in range(5)]
    world.repository.create_branch("side", written[0])
    made = world.commit("x", 1, "side")
    merged = world.repository.merge(made, created_at="2020-01-01T00:00:00+00:00", message="merge")
    more = [world.repository.commit_entries({"tables/m": TableAt("m", n)}, **WRITE) for n in range(5, 9)]
    world.expire()
    assert world.logged() == [more[-1], merged, written[4], written[0]]


def test_gaps_grow_together_when_what_lay_between_expires() -> None:
    """When the last commit between two gaps expires, one gap stays, and no record is left of the other."""
    world = OldWorld()
    old = world.transactions(12)
    world.repository.tag("v1", old[6])
    world.transaction(12, 0.0)
    world.expire()
    assert world.logged() == [world.repository.resolve("main"), old[11], old[6]]
    world.repository.delete_tag("v1")
    assert world.expire().expired == 1
    assert len(world.logged()) == 2
    told = world.opened().expired()
    assert told is not None
    assert told.commits == 11
    for _ in range(3):
        world.expire()
    assert len(list(world.key_value.scan(GAPS))) == 1
    assert not list(world.key_value.scan(COLLECTOR, EXPIRY, f"{EXPIRY}~"))
    (gap,) = world.key_value.scan(GAPS)
    assert gap.key == old[10]


@pytest.mark.parametrize("step", range(12))
def test_killed_at_any_step_another_collection_finishes(step: int) -> None:
    """A collector that is killed at any write leaves a history that reads the same, and the next one finishes."""
    world = OldWorld()
    mine, old = world.commit("mine", 1), world.transactions(9)
    world.repository.tag("v1", old[4])
    world.transaction(9, 0.0)
    kept = [world.repository.resolve("main"), old[8], old[4], mine]
    killed = KilledWorld(world, step)
    killed.run()
    log = world.logged()
    assert [each for each in log if each in kept] == kept
    assert log in (kept, [kept[0], *old[::-1], mine]), "a decision takes effect at once"
    world.expire()
    assert world.logged() == kept
    for commit_id in kept:
        world.opened().entries(commit_id)


class KilledError(BaseException):
    """The end of a process."""


class KilledWorld:
    """Stores of a process that is killed before one of its writes."""

    def __init__(self, world: OldWorld, step: int) -> None:
        self._world, self._left = world, step

    def run(self) -> None:
        """Expire, until killed."""
        world, cls = self._world, type(self._world.key_value)

        def counted(write: Any) -> Any:
            def wrapped(*args: Any) -> Any:
                self._left -= 1
                if self._left < 0:
                    raise KilledError
                return write(*args)

            return wrapped

        with pytest.MonkeyPatch.context() as patch:
            for name in ("set_if", "delete_if", "erase"):
                patch.setattr(cls, name, counted(getattr(cls, name)))
            patch.setattr(type(world.objects), "delete", counted(type(world.objects).delete))
            try:
                world.expire()
            except KilledError:
                return


def test_a_tag_given_while_its_commit_expires() -> None:
    """A tag that is given between the collector's look at the names and its decision keeps its commit."""
    world = OldWorld()
    old = world.transactions(9)
    world.transaction(9, 0.0)
    collector = RepositoryCollector(world.key_value, world.objects)
    look = collector.read_names
    given: list[str] = []

    def overtaken() -> Any:
        names = look()
        if not given:
            given.append(old[4])
            world.opened().tag("v1", old[4])
        return names

    collector.expirer.read_names = overtaken
    collector.collect(epoch_min_s=0.0, rule=WEEK)
    assert old[4] in world.logged()
    assert world.opened().entries("".join(world.opened().tags().values()))


def test_a_merge_sealed_while_its_commit_expires() -> None:
    """A merge, pick or revert that is sealed after the collector read the names is refused or keeps its commit."""
    world = OldWorld()
    old = world.transactions(9)
    world.repository.create_branch("side", old[2])
    world.commit("side", 1, "side")
    world.transaction(9, 0.0)
    collector = RepositoryCollector(world.key_value, world.objects)
    look = collector.read_names
    picked: list[str] = []

    def overtaken() -> Any:
        names = look()
        if not picked:
            picked.append(world.opened().merge(old[5], "side"))
        return names

    collector.expirer.read_names = overtaken
    collector.collect(epoch_min_s=0.0, rule=WEEK)
    assert old[5] in world.opened().commit(picked[0]).parents
    assert world.opened().entries(old[5])


def test_a_tag_for_a_commit_that_has_just_expired_is_refused() -> None:
    """Between the decision and the deletion, the commit cannot be named any more."""
    world = OldWorld()
    old = world.transactions(9)
    world.transaction(9, 0.0)
    collector = RepositoryCollector(world.key_value, world.objects)
    refused: list[str] = []
    records = collector.expirer.records
    swap = records.swap_epoch

    def decided(before: Any, after: Any) -> bool:
        done = swap(before, after)
        if done and after.expiring:
            with pytest.raises(RefNotFoundError):
                world.opened().tag("v1", old[4])
            with pytest.raises(RefNotFoundError):
                world.opened().merge(old[4])
            refused.append(old[4])
        return done

    records.swap_epoch = decided  # type: ignore[method-assign]
    collector.collect(epoch_min_s=0.0, rule=WEEK)
    assert refused
    assert world.opened().tags() == {}
    assert old[4] not in world.logged()


def test_a_commit_that_a_slow_helper_writes_again_stays_expired() -> None:
    """A helper that wakes up late may write an expired commit's object again; walks skip it all the same."""
    world = OldWorld()
    old = world.transactions(9)
    copy = world.objects.get(path_of(Commit, old[7]))
    world.transaction(9, 0.0)
    world.expire()
    world.objects.put(path_of(Commit, old[7]), copy)
    assert world.logged() == [world.repository.resolve("main"), old[8]]
    with pytest.raises(CommitExpiredError):
        world.opened().resolve(old[7])
    for _ in range(3):
        world.expire()
    assert path_of(Commit, old[7]) not in world.paths()


def test_a_slow_collector_does_not_shorten_a_gap() -> None:
    """A decision that is carried out again, after later ones, changes nothing."""
    world = OldWorld()
    old = world.transactions(12)
    world.repository.tag("v1", old[6])
    world.transaction(12, 0.0)
    collector = RepositoryCollector(world.key_value, world.objects)
    late: dict[str, Gap] = {}
    widen = collector.expirer.gaps.widen

    def remembered(commit_id: str, gap: Gap) -> None:
        late[commit_id] = gap
        widen(commit_id, gap)

    collector.expirer.gaps.widen = remembered  # type: ignore[method-assign]
    collector.collect(epoch_min_s=0.0, rule=WEEK)
    world.repository.delete_tag("v1")
    world.expire()
    log = world.logged()
    for commit_id, gap in late.items():
        widen(commit_id, gap)
    assert world.logged() == log


def test_a_damaged_commit_stops_expiry() -> None:
    """If a commit is unreadable, none expires, because the damaged one may have made a fork."""
    world = OldWorld()
    old = world.transactions(9)
    world.transaction(9, 0.0)
    world.objects.put(path_of(Commit, old[8]), b"{}")
    collected = world.expire()
    assert collected.expired == 0
    assert any(old[8] in each for each in collected.damage)
    assert path_of(Commit, old[0]) in world.paths()


def test_a_dry_run_of_expiry_changes_nothing() -> None:
    """A dry run reports the number of commits that would expire."""
    world = OldWorld()
    world.transactions(9)
    world.transaction(9, 0.0)
    before = world.paths(), world.logged()
    assert world.expire(dry_run=True).expired == 8
    assert (world.paths(), world.logged()) == before
    assert world.expire().expired == 8


def test_a_committer_that_slept_while_its_head_expired() -> None:
    """A client that repeats a request after its commit has expired does not commit twice."""
    world = OldWorld()
    world.transactions(9)
    world.transaction(9, 0.0)
    world.expire()
    repository = world.opened()
    with pytest.raises(Exception, match="expired"):
        repository.commit_transaction(3, {"tables/s": TableAt("s", 3)})
    assert len(world.logged()) == 2
    assert BranchRecords(world.key_value).epoch().expired == 8


# The rule


def line(*days_ago: float, computed: int = 0) -> dict[str, HistoryCommit]:
    """Return a line of routine commits, oldest first; the last ones have their entries computed."""
    commits: dict[str, HistoryCommit] = {}
    for number, ago in enumerate(days_ago):
        steps = (AncestorStep(f"c{number - 1}", f"c{number - 1}"),) if number else ()
        has_entries = number < len(days_ago) - computed
        created_s = NOW_S - ago * DAY_S
        commits[f"c{number}"] = HistoryCommit(
            steps, created_s, number, is_routine=True, has_entries=has_entries
        )
    return commits


def test_a_state_was_current_until_the_next_commit() -> None:
    """The commit that was current when the age began stays, and the one before it expires."""
    assert retained_commits(NOW_S, line(20, 10, 5, 1), {"c3"}, (), WEEK) == {"c1", "c2", "c3"}


def test_the_bases_of_the_next_transaction_stay() -> None:
    """The newest transaction's commit, its parent, and the indexes merged since then stay, however old they are."""
    commits = line(60, 50, 40, 30, 20, 10)
    commits["c2"] = replace(commits["c2"], is_transaction=True)
    commits["c4"] = replace(commits["c4"], is_index_merge=True)
    rule = HistoryRule(0.0)
    assert retained_commits(NOW_S, commits, {"c5"}, (), rule, "c5") == {"c1", "c2", "c4", "c5"}
    assert retained_commits(NOW_S, commits, {"c5"}, (), rule) == {"c5"}


def test_entries_of_a_kept_commit_stay_computable() -> None:
    """The ancestors from which the entries of a kept commit are computed stay."""
    assert retained_commits(NOW_S, line(30, 20, 20, 20, computed=2), {"c3"}, (), WEEK) == {"c1", "c2", "c3"}


def test_a_reason_for_each_commit_that_stays() -> None:
    """Each commit that stays has the reason that holds longest, and its end."""
    commits = line(60, 50, 40, 30, 29, 20, 12, 5, 4, 3, 1)
    commits["side"] = HistoryCommit((AncestorStep("c2", "c2"),), NOW_S - 39 * DAY_S, 3, is_routine=True)
    commits["c5"] = replace(commits["c5"], is_routine=False)
    commits["c8"] = replace(commits["c8"], has_entries=False)
    commits["c9"] = replace(commits["c9"], is_transaction=True)
    rule = HistoryRule(7 * DAY_S, 15 * DAY_S)
    reasons = retentions(NOW_S, commits, {"c10", "side"}, {"c1"}, rule, "c10")
    shown = {each: (kept.reason.name, (kept.until_s - NOW_S) / DAY_S) for each, kept in reasons.items()}
    assert shown == {
        "c0": ("NAMED", inf), "c1": ("NAMED", inf), "c2": ("FORK", inf), "side": ("NAMED", inf),
        "c4": ("PARENT", inf), "c5": ("PERSON", inf), "c6": ("DAY", 3.0), "c7": ("ENTRIES", inf),
        "c8": ("PIPELINE", inf), "c9": ("PIPELINE", inf), "c10": ("NAMED", inf),
    }  # fmt: skip
    days = retentions(NOW_S, line(20, 6, 5, 1), {"c3"}, (), HistoryRule(7 * DAY_S, 9 * DAY_S))
    assert [(kept.reason.name, kept.until) for _, kept in sorted(days.items())] == [
        ("AGE", "1975-06-25T00:00:00+00:00"), ("DAY", "1975-06-27T00:00:00+00:00"),
        ("AGE", "1975-06-30T00:00:00+00:00"), ("NAMED", None),
    ]  # fmt: skip
    everything = retentions(NOW_S, line(20, 10), {"c1"}, (), HistoryRule(None))
    assert {kept.reason.name for kept in everything.values()} == {"ALL"}


@st.composite
def histories(draw: st.DrawFn) -> tuple[dict[str, HistoryCommit], set[str]]:
    """Return commits with forks and merges, and heads."""
    commits: dict[str, HistoryCommit] = {}
    for number in range(draw(st.integers(1, 25))):
        older = sorted(commits)
        parents = draw(st.lists(st.sampled_from(older), max_size=2, unique=True)) if older else []
        generation = max((commits[each].generation + 1 for each in parents), default=0)
        is_routine = len(parents) < 2 and draw(st.booleans())
        commits[f"c{number:02d}"] = HistoryCommit(
            tuple(AncestorStep(each, each) for each in parents),
            NOW_S - draw(st.integers(0, 30)) * DAY_S / 2,
            generation,
            is_routine,
            is_routine and draw(st.booleans()),
            is_routine and draw(st.booleans()),
            draw(st.booleans()) or not parents,
        )
    heads = set(draw(st.lists(st.sampled_from(sorted(commits)), min_size=1, max_size=4)))
    return commits, heads


def reduced(
    commits: dict[str, HistoryCommit], heads: set[str], now_s: float, rule: HistoryRule
) -> dict[str, HistoryCommit]:
    """Return the history after expiry."""
    kept = retained_commits(now_s, commits, heads, (), rule, min(heads))
    graph = {each: commits[each] for each in reachable(commits, heads)}
    gaps, expired = new_gaps(graph, kept, 1_000)
    assert kept.isdisjoint(expired)
    assert kept | set(expired) == graph.keys()
    result = {}
    for each in kept:
        steps = []
        for step in commits[each].steps:
            gap = gaps.get(step.parent)
            steps.append(
                AncestorStep(step.parent, step.to, step.hidden)
                if gap is None
                else AncestorStep(step.parent, gap.below, gap.commits)
            )
        old = commits[each]
        result[each] = replace(old, steps=tuple(steps))
    return result


def ancestors_of(commits: dict[str, HistoryCommit], head: str) -> set[str]:
    """Return the commit and its ancestors."""
    return reachable(commits, [head])


@settings(max_examples=300, deadline=None)
@given(histories(), st.integers(0, 10), st.integers(0, 20))
def test_expiry_keeps_what_retained_commits_mean(
    history: tuple[dict[str, HistoryCommit], set[str]], age: int, daily: int
) -> None:
    """Among kept commits, expiry changes neither ancestry nor merge bases, and a second expiry changes nothing."""
    commits, heads = history
    rule = HistoryRule(age * DAY_S, daily * DAY_S)
    after = reduced(commits, heads, NOW_S, rule)
    assert heads <= after.keys()
    for each in after:
        assert ancestors_of(after, each) == ancestors_of(commits, each) & after.keys()
    for one in after:
        for other in after:
            common = ancestors_of(commits, one) & ancestors_of(commits, other)
            below = set().union(*(ancestors_of(commits, each) - {each} for each in common))
            assert common - below <= after.keys(), "a merge base expired"
    assert retained_commits(NOW_S, after, heads, (), rule, min(heads)) == after.keys()
    assert all(commits[each].has_entries or commits[each].steps[0].to in after for each in after)


@settings(max_examples=200, deadline=None)
@given(histories(), st.integers(0, 10), st.integers(0, 20))
def test_commits_stay_until_the_end_of_their_reason(
    history: tuple[dict[str, HistoryCommit], set[str]], age: int, daily: int
) -> None:
    """A commit stays as long as its reason says, and no reason is computed from older commits."""
    commits, heads = history
    rule = HistoryRule(age * DAY_S, daily * DAY_S)
    reasons = retentions(NOW_S, commits, heads, (), rule)
    for each, kept in reasons.items():
        end_s = min(kept.until_s, NOW_S + 100 * DAY_S)
        assert each in retained_commits(end_s, commits, heads, (), rule)
        newer = {
            name: commit for name, commit in commits.items() if commit.generation >= commits[each].generation
        }
        assert retentions(NOW_S, newer, heads & newer.keys(), (), rule)[each].until_s == kept.until_s


@settings(max_examples=200, deadline=None)
@given(histories(), st.integers(0, 10), st.integers(0, 20))
def test_every_moment_of_the_age_can_be_read(
    history: tuple[dict[str, HistoryCommit], set[str]], age: int, daily: int
) -> None:
    """Each state that was current within the age stays, and so does every commit that a person made."""
    commits, heads = history
    kept = retained_commits(NOW_S, commits, heads, (), HistoryRule(age * DAY_S, daily * DAY_S))
    for each in reachable(commits, heads):
        commit = commits[each]
        if commit.created_s >= NOW_S - age * DAY_S:
            assert each in kept
            assert {step.to for step in commit.steps} <= kept
        if not commit.is_routine:
            assert each in kept
            assert {step.to for step in commit.steps} <= kept
