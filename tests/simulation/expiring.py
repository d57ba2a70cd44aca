"""History that expires while transactions commit, people commit, merge and tag, and readers walk the history.

Real code over simulated stores. Every transaction older than a few simulated seconds expires. Under delays, kills and
lost replies, every walk from a name ends at a commit without parents or at the end of a gap, every commit on it can be
read, and no commit that a name or a person's commit needs is ever lost.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final

from tests.simulation.collecting import TOLD
from tests.simulation.scenarios import require, several
from tests.simulation.versions import Before
from tests.simulation.versions_model import Entries, entries_of, read
from tracelake._errors import CommitExpiredError, DamageError, ExpiredError
from tracelake.testing import Actor, Process, Run, Scenario
from tracelake.testing.simulation import Simulated
from tracelake.versions.branch_store import MAIN, BranchRecords
from tracelake.versions.expiry import Ancestry, GapRecords
from tracelake.versions.gc import RepositoryCollector
from tracelake.versions.model import TRANSACTION, Commit, TableAt
from tracelake.versions.protocol import HistoryRule
from tracelake.versions.repository import Repository
from tracelake.versions.tree import path_of

SIDE: Final = "side"
AT_ONCE: Final = HistoryRule(0.0)
"""Every commit that is not the newest may expire at once."""


class ExpireScenario(Scenario):
    """Actors of the scenario: pipelines commit the same transactions. Taggers tag and branch at older commits, merge
    and revert. Readers walk the history. Expirers let it expire and collect."""

    name = "expire"
    steps_max = 6_000
    collector = RepositoryCollector

    def __init__(self, rounds: int = 3, **actors: int) -> None:
        """Run this many actors of each kind this often."""
        self._rounds = rounds
        self._counts = actors or {"pipelines": 2, "taggers": 1, "readers": 1, "expirers": 1}

    def actors(self) -> list[Actor]:
        acts: dict[str, Callable[[Process], None]] = {
            "pipelines": self._pipeline,
            "taggers": self._tag,
            "readers": self._read,
            "expirers": self._expire,
        }
        return several(acts, self._counts)

    def prepare(self, run: Run) -> None:
        """Commit some transactions, a person's change, and a branch."""
        with Simulated(Before()):
            direct = Repository(run.direct_key_value, run.direct_objects)
            direct.commit_transaction(0, {"t": TableAt("t", 0)}, created_at=MOMENT)
            mine = direct.commit_entries({"mine": TableAt("m", 0)}, created_at=MOMENT)
            for number in (1, 2):
                direct.commit_transaction(number, {"t": TableAt("t", number)}, created_at=MOMENT)
            direct.create_branch(SIDE, direct.resolve("main~1"))
            direct.commit_transaction(3, {"t": TableAt("t", 3)}, created_at=MOMENT)
        run.notes.update(mine=[mine], entries={})
        self._remember(run)

    def open(self, process: Process) -> Repository:
        """Open the repository as a fresh process does."""
        return Repository(process.key_value, process.objects, patience_polls=1)

    # Actors

    def _pipeline(self, process: Process) -> None:
        repository = self.open(process)
        for number in range(4, 4 + self._rounds):
            with contextlib.suppress(ExpiredError):  # a slow replica: its commit has expired
                repository.commit_transaction(number, {"t": TableAt("t", number)}, created_at=MOMENT)

    def _tag(self, process: Process) -> None:
        repository = self.open(process)
        for number in range(2 * self._rounds):
            commit, name = "", f"{process.name}-{number}"
            with contextlib.suppress(*TOLD, ExpiredError):
                upper = repository.transaction_of(repository.head() or "") + 1
                for transaction in (upper, upper + 1):
                    repository.commit_transaction(
                        transaction, {"t": TableAt("t", transaction)}, created_at=MOMENT
                    )
                commit = repository.resolve("main~2")
            acts: tuple[Callable[[], object], ...] = (
                lambda: repository.tag(name, commit),  # noqa: B023  called at once
                lambda: repository.create_branch(f"b-{name}", commit),  # noqa: B023
                lambda: process.notes["mine"].append(repository.cherry_pick(commit)),  # noqa: B023
                lambda: repository.delete_tag(name),  # noqa: B023
                lambda: repository.commit_entries({name: TableAt("b", 1)}, f"b-{name}"),  # noqa: B023
                lambda: process.notes["mine"].append(repository.merge(f"{repository.head(SIDE)}")),
                lambda: process.notes["mine"].append(repository.revert(process.notes["mine"][0])),
                lambda: repository.delete_branch(f"b-{name}"),  # noqa: B023
            )
            for act in acts[number % 2 : None if number % 3 else 4]:
                if commit:
                    with contextlib.suppress(*TOLD, ExpiredError):
                        act()

    def _read(self, process: Process) -> None:
        for _ in range(self._rounds):
            repository = self.open(process)
            with contextlib.suppress(ExpiredError, CommitExpiredError):
                for _commit_id, _ in repository.log(repository.head() or ""):
                    pass
            process.sleep(1)

    def _expire(self, process: Process) -> None:
        for _ in range(3 * self._rounds):
            self.collector(process.key_value, process.objects).collect(epoch_min_s=0, rule=AT_ONCE)
            process.sleep(1)

    # Rules

    def invariant(self, run: Run) -> None:
        """Everything that a name leads to, across gaps, exists and reads the same as before. A decision names a
        proposal that is written."""
        records = BranchRecords(run.direct_key_value)
        decided = records.epoch().expiring
        require(
            decided in {"", *GapRecords(run.direct_key_value).proposals()}, "a decision names no proposal"
        )
        heads = {at.record.head for at in records.all().values()} | set(records.tags().values())
        state = frozenset(heads), len(run.objects.objects), records.epoch().expiring
        if run.notes.get("state") == state:
            return
        run.notes["state"] = state
        self._remember(run)

    def _remember(self, run: Run) -> None:
        records = BranchRecords(run.direct_key_value)
        heads = {at.record.head for at in records.all().values()} | set(records.tags().values())
        ancestry = Ancestry(_stored(run), records, GapRecords(run.direct_key_value))
        entries: dict[str, Entries] = run.notes["entries"]
        todo, found = sorted(heads - {""}), set()
        while todo:
            at = todo.pop()
            if at in found:
                continue
            found.add(at)
            require(path_of(Commit, at) in run.objects.objects, f"a name leads to {at}, which is gone")
            now = dict(entries_of(run, at))
            require(entries.setdefault(at, now) == now, f"{at} reads otherwise than before")
            todo += ancestry.commit(at).parents
        on_main = [head for head in (records.read(MAIN).record.head,) if head]
        for mine in run.notes["mine"][:1] if on_main else ():
            require(mine in found, "a person's commit is in no history any more")

    def check(self, run: Run) -> None:
        """In the end, only the newest transaction, the one before it, forks, and people's commits with the ones before
        them are left; and each transaction was committed once."""
        collector = self.collector(run.direct_key_value, run.direct_objects)
        for _ in range(3):
            collector.collect(epoch_min_s=0, rule=AT_ONCE)
        self.invariant(run)
        repository = Repository(run.direct_key_value, run.direct_objects)
        numbers = [
            int(commit.metadata[TRANSACTION])
            for _, commit in repository.log(repository.head() or "")
            if TRANSACTION in commit.metadata
        ]
        require(len(set(numbers)) == len(numbers), "a transaction was committed twice")
        require(numbers == sorted(numbers, reverse=True), "transactions are out of order")
        require(not BranchRecords(run.direct_key_value).epoch().expiring, "an expiry was not carried out")
        is_alone = self._counts.get("taggers", 0) == 0
        require(not is_alone or len(numbers) <= 6, "transactions did not expire")


MOMENT: Final = "1970-01-01T00:00:01+00:00"
"""Time of every transaction: long ago."""


def _stored(run: Run) -> Callable[[str], Commit]:
    def stored(commit_id: str) -> Commit:
        if path_of(Commit, commit_id) not in run.objects.objects:
            raise DamageError(f"{commit_id} is missing")
        return read(run, Commit, commit_id)

    return stored
