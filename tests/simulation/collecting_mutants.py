"""Garbage collection of a repository with one rule broken each: what the simulator must find."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import replace

from tests.simulation.collecting import CollectScenario
from tests.simulation.mutants import Mutant
from tracelake.testing import Faults
from tracelake.versions import protocol
from tracelake.versions.gc import RepositoryCollector
from tracelake.versions.model import Answer, BranchRecord, Reference
from tracelake.versions.staging import Staging

# 1. A name is for its own epoch and the next


def cut_in_any_epoch(
    branch: BranchRecord, built: BranchRecord, head: str, done: tuple[Answer, ...]
) -> BranchRecord | None:
    """What was built long ago is published."""
    return protocol.cut(branch, replace(built, epoch=branch.epoch), head, done)


def collect_the_last_epoch(written: int, newest: int) -> bool:
    """What is written in this epoch or the one before goes, too."""
    del written, newest
    return True


def not_on_branches(self: RepositoryCollector, epoch_min_s: float, *, dry_run: bool) -> int:
    """An epoch begins, and branches are not told."""
    del epoch_min_s, dry_run
    return self._records.advance(lambda epoch: replace(epoch, number=epoch.number + 1)).number


_begin = RepositoryCollector._begin_epoch
_reached = RepositoryCollector._reached_at_once


def look_first(self: RepositoryCollector, epoch_min_s: float, *, dry_run: bool) -> int:
    """A collection looks what leads where, and begins its epoch then."""
    reached = _reached(self, [])
    vars(self)["_reached_at_once"] = lambda _: reached
    return _begin(self, epoch_min_s, dry_run=dry_run)


# 3. Acknowledged only where the branch is still at the epoch


def stage_in_any_epoch(self: Staging, branch: str, entries: Mapping[str, Reference | None]) -> None:
    """A writer looks at the token again, and not at the epoch."""
    while True:
        at = self._with_token(branch).record
        for path, named in self._fresh(entries, at.epoch).items():
            self._records.stage(at.staging, path, named)
        if self._records.read(branch).record.staging == at.staging:
            return


# 5. What cannot be reached once is never reached again


def reaches_all(self: object, commit: str) -> bool:
    """A name is given, and a commit picked, whatever leads to it."""
    del self, commit
    return True


# 7. Entries of tokens that no branch knows go, and no others


def erase_what_was_sealed(self: RepositoryCollector) -> None:
    """Entries of a request that waits to be built go, too."""
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
        "staged in any epoch", "tracelake.versions.staging.Staging.stage", stage_in_any_epoch, 200, **_STAGED
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
