"""Garbage collection of a repository with one rule broken at a time: the simulator must find each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import replace

from tests.simulation.collecting import CollectScenario
from tests.simulation.mutants import Mutant
from tracelake.testing import Faults
from tracelake.versions import protocol
from tracelake.versions.commits import Staging
from tracelake.versions.gc import Reached, RepositoryCollector
from tracelake.versions.model import Answer, BranchRecord, Reference

# 1. A name is valid for its own epoch and the next


def cut_in_any_epoch(
    branch: BranchRecord, built: BranchRecord, head: str, done: tuple[Answer, ...]
) -> BranchRecord | None:
    """A commit that was built long ago is published."""
    return protocol.cut(branch, replace(built, epoch=branch.epoch), head, done)


def collect_the_last_epoch(written: int, newest: int) -> bool:
    """Objects written in this epoch or the one before are collected, too."""
    del written, newest
    return True


def not_on_branches(self: RepositoryCollector, epoch_min_s: float, *, dry_run: bool) -> int:
    """An epoch begins without an announcement to the branches."""
    del epoch_min_s, dry_run
    return self._records.advance(lambda epoch: replace(epoch, number=epoch.number + 1)).number


_begin = RepositoryCollector._begin_epoch
_reached = RepositoryCollector._reached_at_once


def look_first(self: RepositoryCollector, epoch_min_s: float, *, dry_run: bool) -> int:
    """A collection computes reachability before it begins its epoch."""
    reached = _reached(self, Reached(self._contents))
    vars(self)["_reached_at_once"] = lambda _: reached
    return _begin(self, epoch_min_s, dry_run=dry_run)


# 3. Acknowledged only if the branch is still at the epoch


def stage_in_any_epoch(self: Staging, branch: str, entries: Mapping[str, Reference | None]) -> None:
    """A writer checks the token again, but not the epoch."""
    while True:
        at = self._with_token(branch).record
        for path, named in self._fresh(entries, at.epoch).items():
            self._records.stage(at.staging, path, named)
        if self._records.read(branch).record.staging == at.staging:
            return


# 5. Unreachable objects are never reachable again


def reaches_all(self: object, commit: str) -> bool:
    """A name is created, and a commit picked, without a reachability check."""
    del self, commit
    return True


# 7. Exactly the entries of tokens that no branch knows are deleted


def erase_what_was_sealed(self: RepositoryCollector) -> None:
    """Entries of a request that waits for its build are deleted, too."""
    tokens = self._records.tokens()
    known = {at.record.staging for at in self._records.all().values()}
    for token in sorted(tokens - known):
        self._records.unstage(token)


DELAYS: Final = Faults(delays=8)
_COLLECTOR: Final = "tracelake.versions.gc.RepositoryCollector."
_COLLECT: Final = "tracelake.versions.gc."


def _mutant(what: str, where: str, wrong: Any, random_max: int, first_seed: int = 0, **actors: int) -> Mutant:
    patches = {where: wrong}
    name = f"collect: {what}"
    return Mutant(
        name, lambda: CollectScenario(2, **actors), DELAYS, None, random_max, patches, first_seed=first_seed
    )


_STAGED: Final = {"adders": 2, "sweepers": 1, "collectors": 1}
_PICKED: Final = {"branchers": 1, "pickers": 1, "collectors": 1}

COLLECT_MUTANTS = [
    _mutant(
        "cut in any epoch",
        "tracelake.versions.committer.cut",
        cut_in_any_epoch,
        100,
        committers=1,
        collectors=2,
    ),
    _mutant("the last epoch goes", _COLLECT + "is_collectable", collect_the_last_epoch, 5, **_STAGED),
    _mutant(
        "branches are not told", _COLLECTOR + "_begin_epoch", not_on_branches, 50, committers=1, collectors=2
    ),
    _mutant("looks first", _COLLECTOR + "_begin_epoch", look_first, 100, first_seed=1_900, **_STAGED),
    _mutant(
        "staged in any epoch", "tracelake.versions.commits.Staging.stage", stage_in_any_epoch, 200, **_STAGED
    ),
    _mutant("erases what was sealed", _COLLECTOR + "_erase_entries", erase_what_was_sealed, 100, **_STAGED),
    _mutant(
        "reached, whatever leads there",
        "tracelake.versions.commits.Commits.reaches",
        reaches_all,
        20,
        **_PICKED,
    ),
]
