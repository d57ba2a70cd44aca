"""A repository under simulation: committers, replicas, stagers, mergers and readers on one branch (PROTOCOLS §3)."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from tests.simulation.scenarios import require, several
from tests.simulation.versions_model import CONFLICT, BranchModel
from tracelake._errors import (
    ConflictError,
    IndeterminateError,
    NothingToCommitError,
    StorageError,
    UsageError,
)
from tracelake.storage import Conflict, Done, Expected, Outcome
from tracelake.testing import Actor, Faults, Process, Run, Scenario
from tracelake.testing.simulation import Simulated
from tracelake.testing.stores import SimulatedKeyValueStore
from tracelake.versions.branch import Branch
from tracelake.versions.model import TRANSACTION, Change, FileAt, PathChanges, Reference, Request, TableAt
from tracelake.versions.protocol import Refusal
from tracelake.versions.repository import Repository

MAIN: Final = "main"
DEV: Final = "dev"
CREATED: Final = "2026-01-01T00:00:00+00:00"
POISON: Final = {TRANSACTION: "none"}
"""Content that no user or pipeline requests; it makes building fail."""
DROPPED: Final = (("c/dropped", FileAt("0" * 64, 1)),)


def a_file(number: int) -> FileAt:
    """Return an entry that its size identifies."""
    return FileAt("0" * 64, number)


class Before:
    """Time and ids before a run begins: the same for each run."""

    def __init__(self) -> None:
        self._ids = itertools.count(1)

    def sleep(self, seconds: float) -> None:
        """Do not wait."""

    def now_s(self) -> float:
        """Return the initial time."""
        return 0.0

    def new_uuid(self) -> uuid.UUID:
        """Return the next number as an id."""
        return uuid.UUID(int=next(self._ids))

    def is_inside(self) -> bool:
        """Return True: it is always inside."""
        return True


class RepositoryScenario(Scenario):
    """Concurrent committers to one branch: each commit matches the sequential model, and none waits for ever.

    Replicas commit the same transactions. Committers make separate changes with ids that a second attempt repeats
    (V4); strangers have no ids. A stager stages entries, which a sweeper commits (V5, V6). A merger merges another
    branch, reverts the merge, and merges main into the other (V8). A reader reads uncommitted entries. A poisoner
    makes requests that cannot be built, and a dropper removes requests from the list.
    """

    name = "repository"
    steps_max = 6_000
    repository = Repository
    patience_polls = 1
    answers_kept = 0

    def __init__(self, rounds: int = 1, **actors: int) -> None:
        """Run this many actors of each kind (`replicas=2`) this often."""
        self._rounds = rounds
        self._counts = actors

    def actors(self) -> list[Actor]:
        acts: dict[str, Callable[[Process], None]] = {
            "replicas": self._replicate,
            "committers": self._commit,
            "strangers": self._commit_without_id,
            "stagers": self._stage,
            "sweepers": self._commit_staged,
            "mergers": self._merge,
            "readers": self._read,
            "poisoners": self._poison,
            "droppers": self._drop,
            "retriers": self._retry,
        }
        return several(acts, self._counts)

    def prepare(self, run: Run) -> None:
        """For mergers, make a branch that has changed main's entries; then let the models begin."""
        if "mergers" in self._counts:
            with Simulated(Before()):
                direct = Repository(run.direct_key_value, run.direct_objects)
                base = direct.commit_entries({f"m/{n}": a_file(0) for n in range(3)})
                direct.create_branch(DEV, base)
                direct.commit_entries({"m/0": a_file(1), "m/1": a_file(1)}, DEV)
        run.notes.update(run=run, staged=itertools.count(1), acknowledged={}, began={})
        run.notes["models"] = {name: BranchModel(name, run) for name in (MAIN, DEV)}

    def open(self, process: Process) -> Repository:
        """Open the repository as a fresh process does."""
        return self.repository(
            process.key_value,
            process.objects,
            patience_polls=self.patience_polls,
            answers_retained=self.answers_kept,
        )

    # Actors

    def _replicate(self, process: Process) -> None:
        repository = self.open(process)
        for t in range(self._rounds):
            entries = {"tables/spans": TableAt("spans", t)}
            told = ask(process, repository.commit_transaction, t, entries, created_at=CREATED)
            expect(process, f"transaction-{t}", told)

    def _commit(self, process: Process) -> None:
        repository = self.open(process)
        index = int(process.name[-1])
        for n in range(self._rounds):
            entries: dict[str, Reference] = {
                f"c/{process.name}": a_file(n + 1),
                "c/shared": a_file(10 * index + n),
                "tables/shared": TableAt("shared", index + n),  # increases, whatever the order
            }
            if n == 1:
                entries[f"m/{index + 1}"] = a_file(7)
            request = f"{process.name}-{n}"
            expect(process, request, ask(process, repository.commit_entries, entries, request_id=request))

    def _commit_without_id(self, process: Process) -> None:
        repository = self.open(process)
        for n in range(self._rounds):
            entries = {f"c/{process.name}": a_file(10 * process.attempt + n + 1)}
            told = ask(process, repository.commit_entries, entries)
            require(told in watched(process).history, f"{process.name} was told a commit that is not there")
            process.record(told)

    def _stage(self, process: Process) -> None:
        repository = self.open(process)
        for n in range(self._rounds + 1):
            path, number = f"s/{process.name}/{n % 2}", next(process.notes["staged"])
            repository.stage({path: a_file(number)})
            process.notes["acknowledged"][path] = number

    def _commit_staged(self, process: Process) -> None:
        repository = self.open(process)
        for n in range(self._rounds):
            request = f"{process.name}-{n}"
            before = process.notes["began"].setdefault(request, dict(process.notes["acknowledged"]))
            told = ask(process, repository.commit_staged, allow_empty=n % 2 == 1, request_id=request)
            expect(process, request, told)
            found = repository.entries(told) if told else {}
            expect_staged(f"the commit of {request}", before, found)

    def _merge(self, process: Process) -> None:
        repository = self.open(process)
        source = repository.head(DEV)
        request = f"{process.name}-merge"
        told = ask(process, repository.merge, source, request_id=request)
        expect(process, request, told)
        if watched(process).answers[request].refusal == CONFLICT:
            request = f"{process.name}-prefer"
            told = ask(process, repository.merge, source, prefer="source", request_id=request)
            expect(process, request, told)
        request = f"{process.name}-revert"
        expect(process, request, ask(process, repository.revert, told, request_id=request))
        request = f"{process.name}-back"
        told = ask(process, repository.merge, repository.head(), DEV, request_id=request)
        expect(process, request, told, DEV)

    def _read(self, process: Process) -> None:
        repository = self.open(process)
        for _ in range(self._rounds):
            before = dict(process.notes["acknowledged"])
            expect_staged("a look", before, repository.uncommitted())

    def _poison(self, process: Process) -> None:
        """Make requests that cannot be built, alone and with staged entries: they are refused, and no committer
        waits."""
        committer = self.open(process)._committer
        for n in range(2 * self._rounds):
            entries: PathChanges = () if n % 2 else (("c/poison", a_file(1)),)
            request_id = f"{process.name}-{n}-{process.attempt}"
            poison = Request(request_id, Change(entries, staged=not entries), "", "", CREATED, POISON)
            answer = committer.submit(MAIN, poison)
            require(answer.refusal == Refusal.FAILED, f"{process.name} was told {answer}")
            process.record(answer.refusal)

    def _drop(self, process: Process) -> None:
        """Put requests on the list, build none, and remove them, unless another actor was faster."""
        repository = self.open(process)
        for n in range(self._rounds):
            request_id = f"drop-{n}-{process.attempt}"
            request = Request(request_id, Change(staged=True, entries=DROPPED), "", "", CREATED)
            at = repository._records.read(MAIN)
            repository._committer._seal_now(MAIN, at, request)
            with suppress(UsageError):
                repository.drop_request(request_id)
            process.record(request_id)

    def _retry(self, process: Process) -> None:
        """Commit as a client does: retry an unknown result with the same request id, otherwise use a new one.

        Any put, list or get may lose its reply. An error that does not say "unknown" means that nothing is
        committed.
        """
        branch = Branch(MAIN, self.open(process))
        told: str | None = None
        number, is_unknown = 0, False
        while told is None:
            request = f"{process.name}-{process.attempt}-{number}"
            try:
                told = ask(
                    process, branch.commit, request, allow_empty=True, committer="c", request_id=request
                )
                expect(process, request, told)
            except IndeterminateError:
                process.record("unknown")
                is_unknown = True  # from now on a failure does not tell the first attempt's result
            except StorageError:
                if not is_unknown:
                    process.notes.setdefault("not done", []).append(request)
                    number += 1

    # Rules

    def invariant(self, run: Run) -> None:
        """Every branch matches its model."""
        for model in run.notes["models"].values():
            model.watch()

    def check(self, run: Run) -> None:
        """Every actor got a result, and acknowledged staged entries exist."""
        repository = Repository(run.direct_key_value, run.direct_objects)
        expect_staged("the end", run.notes["acknowledged"], repository.uncommitted())
        answers = run.notes["models"][MAIN].answers
        both = [request for request in run.notes.get("not done", ()) if request in answers]
        require(not both, f"{both} were told to have failed, and are committed")
        told = {"replicas": 1, "committers": 1, "strangers": 1, "sweepers": 1}
        expected = sum(count * self._rounds * told.get(kind, 0) for kind, count in self._counts.items())
        expected += 3 * self._counts.get("mergers", 0)
        require(len(run.history) >= expected, f"{len(run.history)} requests were answered, not {expected}")


class VersionsScenario(RepositoryScenario):
    """All actors at once."""

    name = "versions"

    def __init__(self) -> None:
        """Let each act twice."""
        super().__init__(
            2,
            replicas=2,
            committers=2,
            strangers=1,
            stagers=1,
            sweepers=1,
            mergers=1,
            readers=1,
            poisoners=1,
            droppers=1,
        )


class RetriesScenario(RepositoryScenario):
    """Clients that retry with the same request id after an unknown result, next to a committer."""

    name = "retries"

    def __init__(self) -> None:
        """Let two of them commit."""
        super().__init__(retriers=2, committers=1)


COMPLETE: Final[tuple[tuple[int, Faults, dict[str, int]], ...]] = (
    (1, Faults(lost=1), {"replicas": 2}),
    (0, Faults(kills=1), {"stagers": 1, "sweepers": 1}),
)
"""Polls, faults and actors of the complete searches of campaign `simulate-all`: some 5,000 schedules each."""


def small(patience_polls: int, actors: Mapping[str, int]) -> RepositoryScenario:
    """Return a configuration small enough for a complete search."""
    scenario = RepositoryScenario(**actors)
    scenario.patience_polls = patience_polls
    return scenario


# Requests of actors, and their expected results


def ask(process: Process, commit: Callable[..., str], *given: object, **about: object) -> str:
    """Commit, and count: no more conditional writes fail than others have succeeded during the call (§3, the
    bound).

    Return the commit. For a request that would change nothing, return the head that it met; for a conflict,
    nothing.
    """
    _count_losses(process)
    try:
        return commit(*given, **about)
    except NothingToCommitError as nothing:
        return nothing.head
    except ConflictError:
        return ""


def expect(process: Process, request: str, told: str, branch: str = MAIN) -> None:
    """Require that an actor got a result for its request."""
    answer = watched(process, branch).answers.get(request)
    if answer is None:
        raise AssertionError(f"{process.name} was told of {request}, which has no answer")
    expected = "" if answer.refusal == CONFLICT else answer.commit
    require(told == expected, f"{process.name} was told {told} of {request}, and {expected} is there")
    process.record((request, told))


def expect_staged(what: str, acknowledged: Mapping[str, int], found: Mapping[str, Reference]) -> None:
    """Require that no acknowledged staged entry is lost or older."""
    for path, number in acknowledged.items():
        there = found.get(path)
        size = there.size_bytes if isinstance(there, FileAt) else 0
        require(size >= number, f"{what} has {size} at {path}, where {number} was acknowledged")


def watched(process: Process, branch: str = MAIN) -> BranchModel:
    """Return the model with the last write, because an actor continues before the invariant is checked."""
    model: BranchModel = process.notes["models"][branch]
    model.watch()
    return model


def _count_losses(process: Process) -> None:
    store = process.key_value
    lost = own = 0
    models: dict[str, BranchModel] = process.notes["models"]
    before = sum(model.moves for model in models.values())

    def set_if(partition: str, key: str, value: bytes, expected: Expected) -> Outcome:
        nonlocal lost, own
        outcome = SimulatedKeyValueStore.set_if(store, partition, key, value, expected)
        if partition == "branches":
            own += isinstance(outcome, Done)
            lost += isinstance(outcome, Conflict)
            others = sum(model.moves for model in models.values()) - before - own
            said = f"{process.name} lost {lost} conditional writes, while others made {others}"
            require(isinstance(outcome, Done) or lost <= others, said)
        return outcome

    vars(store)["set_if"] = set_if
