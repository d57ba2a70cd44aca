"""Expiry of history with one rule broken at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tests.simulation.expiring import ExpireScenario
from tests.simulation.mutants import Mutant
from tests.simulation.simulate import FAULTS
from tracelake.storage import ABSENT, settle
from tracelake.testing import Faults
from tracelake.versions import protocol
from tracelake.versions.branch_store import COLLECTOR, BranchRecords
from tracelake.versions.expiry import Ancestry, GapRecords
from tracelake.versions.model import Expiry, Gap, to_bytes

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


def hasty(self: GapRecords, key: str, expiry: Expiry) -> None:
    """A decision names a proposal that may not be written yet."""
    outcome = self._key_value.set_if(COLLECTOR, key, to_bytes(expiry), ABSENT)
    settle(self._key_value, COLLECTOR, key, outcome, is_mine=lambda _: False)


def lost_on_the_way(*_: object) -> None:
    """A walk that is inside a new gap does not find its end."""


DELAYS: Final = Faults(delays=8)
_VERSIONS: Final = "tracelake.versions."


def _mutant(
    what: str,
    where: str,
    wrong: Callable[..., Any],
    random_max: int,
    first_seed: int = 0,
    faults: Faults = DELAYS,
    **actors: int,
) -> Mutant:
    patches = {_VERSIONS + where: wrong}
    return Mutant(
        f"expire: {what}",
        lambda: ExpireScenario(2, **actors),
        faults,
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
        10,
        first_seed=46,
        faults=FAULTS,
        taggers=2,
        expirers=2,
    ),
    _mutant(
        "records alone",
        "expiry.Ancestry.find_gap",
        records_alone,
        5,
        first_seed=1062,
        faults=FAULTS,
        taggers=2,
        expirers=2,
        readers=1,
    ),
    _mutant(
        "hasty",
        "expiry.GapRecords.propose",
        hasty,
        60,
        faults=Faults(lost=30, late=30),
        pipelines=1,
        expirers=1,
    ),
    _mutant(
        "lost on the way",
        "expiry.Ancestry._gap_around",
        lost_on_the_way,
        5,
        first_seed=5000270,
        faults=FAULTS,
    ),
]
