"""Expiry of history with one rule broken at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tests.simulation.expiring import ExpireScenario
from tests.simulation.mutants import Mutant
from tracelake.testing import Faults
from tracelake.versions import protocol
from tracelake.versions.branch_store import BranchRecords
from tracelake.versions.expiry import Ancestry
from tracelake.versions.model import Gap

_kept = protocol.retained_commits


def without_heads(*args: Any) -> set[str]:
    """The head of a branch expires if it is a transaction's commit."""
    _, commits, heads, *_ = args
    return {each for each in _kept(*args) if not (each in heads and commits[each].is_routine)}


def without_claims(self: BranchRecords) -> set[str]:
    """The collector reads tags, but not claims of names."""
    heads = {at.record.head for at in self.all().values()}
    return (heads | set(self.tags().values())) - {""}


def records_alone(self: Ancestry, commit_id: str) -> Gap | None:
    """A walk ignores a decision whose gaps are not written yet."""
    return self.gaps.gap(commit_id)


DELAYS: Final = Faults(delays=8)
_VERSIONS: Final = "tracelake.versions."


def _mutant(
    what: str,
    where: str,
    wrong: Callable[..., Any],
    random_max: int,
    first_seed: int = 0,
    **actors: int,
) -> Mutant:
    patches = {_VERSIONS + where: wrong}
    return Mutant(
        f"expire: {what}",
        lambda: ExpireScenario(2, **actors),
        DELAYS,
        None,
        random_max,
        patches,
        first_seed=first_seed,
    )


EXPIRE_MUTANTS = [
    _mutant("a head expires", "expiry.retained_commits", without_heads, 3, pipelines=1, expirers=1),
    _mutant(
        "claims are overlooked",
        "branch_store.BranchRecords.referenced_commits",
        without_claims,
        5,
        first_seed=37,
        taggers=2,
        expirers=1,
    ),
    _mutant(
        "records alone",
        "expiry.Ancestry.find_gap",
        records_alone,
        5,
        first_seed=44,
        readers=2,
        expirers=1,
        taggers=1,
    ),
]
