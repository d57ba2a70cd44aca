"""Garbage collection of a repository while examples are added, staged, committed, picked, named and deleted.

Real code over simulated stores. Under delays, kills and lost replies, everything reachable from a branch or tag
exists, files included, and so does every acknowledged staged entry.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Final

from tests.simulation.scenarios import require, several
from tests.simulation.versions import MAIN, Before, expect_staged
from tests.simulation.versions_model import ancestors, entries_of, read
from tracelake._errors import (
    ConflictError,
    DamageError,
    ExpiredError,
    NothingToCommitError,
    RefNotFoundError,
    UsageError,
)
from tracelake.datasets.files import write_file
from tracelake.testing import Actor, Process, Run, Scenario
from tracelake.testing.simulation import Simulated
from tracelake.versions.branch_store import BranchRecords
from tracelake.versions.gc import RepositoryCollector
from tracelake.versions.model import Commit, FileAt, Metarange, Range
from tracelake.versions.protocol import known_tokens
from tracelake.versions.repository import Repository
from tracelake.versions.tree import file_path, path_of

SIDE: Final = "side"
TOLD: Final = (ConflictError, NothingToCommitError, RefNotFoundError, UsageError)
"""Possible results of actors, in the order of an operation's steps."""


class CollectScenario(Scenario):
    """Actors of the scenario: adders stage examples, which sweepers commit; committers commit files at once. A
    brancher makes and deletes a branch with separate commits; pickers merge, pick, revert, tag and branch from its
    commits. Collectors collect, each time in a new epoch."""

    name = "collect"
    steps_max = 6_000
    answers_kept = 0
    collector = RepositoryCollector

    def __init__(self, rounds: int = 2, **actors: int) -> None:
        """Run this many actors of each kind (`adders=2`) this often; one more collector, twice as often."""
        self._rounds = rounds
        self._counts = actors or dict.fromkeys(
            ("adders", "sweepers", "committers", "branchers", "pickers", "collectors"), 1
        )

    def actors(self) -> list[Actor]:
        acts: dict[str, Callable[[Process], None]] = {
            "adders": self._add,
            "sweepers": self._sweep,
            "committers": self._commit,
            "branchers": self._branch,
            "pickers": self._pick,
            "collectors": self._collect,
        }
        return several(acts, self._counts)

    def prepare(self, run: Run) -> None:
        """Make a branch with commits that is or was deleted, then let the actors begin."""
        with Simulated(Before()):
            direct = Repository(run.direct_key_value, run.direct_objects)
            first = direct.commit_entries({"m": write_file(run.direct_objects, b"first", 0)})
            direct.create_branch(SIDE, first)
            picked = direct.commit_entries({"m": write_file(run.direct_objects, b"second", 0)}, SIDE)
        run.notes.update(acknowledged={}, seen=[picked])

    def open(self, process: Process) -> Repository:
        """Open the repository as a fresh process does."""
        return Repository(
            process.key_value, process.objects, patience_polls=1, answers_retained=self.answers_kept
        )

    # Actors

    def _add(self, process: Process) -> None:
        repository = self.open(process)
        for number in range(1, self._rounds + 2):
            path = f"s/{process.name}/{number % 2}"
            while True:
                with contextlib.suppress(ExpiredError):  # too slow: write it again
                    repository.stage({path: self._file(process, repository, number)})
                    break
            process.notes["acknowledged"][path] = number

    def _sweep(self, process: Process) -> None:
        repository = self.open(process)
        for _ in range(self._rounds):
            before = dict(process.notes["acknowledged"])
            try:
                told = repository.commit_staged()
            except NothingToCommitError as nothing:
                told = nothing.head
            except ExpiredError:  # refused, then delayed until its record expired
                continue
            expect_staged(f"the commit of {process.name}", before, repository.entries(told))

    def _commit(self, process: Process) -> None:
        repository = self.open(process)
        for number in range(1, self._rounds + 1):
            while True:
                with contextlib.suppress(ExpiredError):
                    repository.commit_entries({"c": self._file(process, repository, number)})
                    break

    def _branch(self, process: Process) -> None:
        repository = self.open(process)
        for number in range(1, self._rounds + 1):
            with contextlib.suppress(*TOLD):
                repository.delete_branch(SIDE, force=True)
            with contextlib.suppress(*TOLD, ExpiredError):
                repository.create_branch(SIDE, repository.resolve(MAIN))
                made = repository.commit_entries({"m": self._file(process, repository, number)}, SIDE)
                process.notes["seen"].append(made)
                repository.stage({"left": self._file(process, repository, number)}, SIDE)

    def _pick(self, process: Process) -> None:
        repository = self.open(process)
        for number in range(self._rounds):
            for commit in list(process.notes["seen"])[-2:]:
                for act in (
                    lambda: repository.cherry_pick(commit),  # noqa: B023  called at once
                    lambda: repository.revert(commit),  # noqa: B023
                    lambda: repository.merge(commit, prefer="source"),  # noqa: B023
                    lambda: repository.tag(f"t{number}", commit),  # noqa: B023
                    lambda: repository.create_branch(f"b{number}", commit),  # noqa: B023
                    lambda: repository.delete_tag(f"t{number}"),  # noqa: B023
                ):
                    with contextlib.suppress(*TOLD, DamageError, ExpiredError):  # of a vanished commit
                        act()

    def _collect(self, process: Process) -> None:
        for _ in range(2 * self._rounds + 1):
            self.collector(process.key_value, process.objects).collect(epoch_min_s=0)
            process.sleep(1)

    def _file(self, process: Process, repository: Repository, number: int) -> FileAt:
        """Write a file that its writer and size identify."""
        epoch = repository.epoch()
        return write_file(process.objects, number * f"{process.name[:1]}".encode(), epoch)

    # Rules

    def invariant(self, run: Run) -> None:
        """Everything reachable from a name exists."""
        records = BranchRecords(run.direct_key_value)
        heads = {at.record.head for at in records.all().values()} | set(records.tags().values())
        state = frozenset(heads), len(run.objects.objects)
        if run.notes.get("state") == state:
            return
        run.notes["state"] = state
        needed: set[str] = set()
        for head in heads:
            needed |= _needed(run, head, run.notes.setdefault("needed", {}))
        for path in needed:
            require(path in run.objects.objects, f"a name leads to {path}, which is gone")

    def check(self, run: Run) -> None:
        """Acknowledged entries and their files exist; one more collection leaves no entry that no branch knows."""
        self.collector(run.direct_key_value, run.direct_objects).collect(epoch_min_s=0)
        records = BranchRecords(run.direct_key_value)
        known = {token for at in records.all().values() for token in known_tokens(at.record)}
        require(records.tokens() <= known, "entries are staged under a token that no branch knows")
        repository = Repository(run.direct_key_value, run.direct_objects)
        found = repository.uncommitted()
        expect_staged("the end", run.notes["acknowledged"], found)
        for path, named in found.items():
            require(
                not isinstance(named, FileAt) or file_path(named) in run.objects.objects, f"{path} is gone"
            )


def _needed(run: Run, head: str, known: dict[str, frozenset[str]]) -> set[str]:
    """Return the paths of all objects that a commit needs; the contents of commits are read once."""
    needed: set[str] = set()
    for commit_id in ancestors(run, head):
        if commit_id not in known:
            known[commit_id] = frozenset(_of(run, commit_id))
        needed |= known[commit_id]
    return needed


def _of(run: Run, commit_id: str) -> Iterator[str]:
    yield path_of(Commit, commit_id)
    commit = read(run, Commit, commit_id)
    if commit.changes is None:
        yield path_of(Metarange, commit.metarange)
        for ref in read(run, Metarange, commit.metarange).ranges:
            yield path_of(Range, ref.id)
    for named in entries_of(run, commit_id).values():
        if isinstance(named, FileAt):
            yield file_path(named)
