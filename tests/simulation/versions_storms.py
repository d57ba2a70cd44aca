"""Storms: many commits at once, a store that stalls, an adversarial scheduler (V1 to V3)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import count

from tests.simulation.scenarios import require
from tests.simulation.versions import MAIN, Before, RepositoryScenario, a_file, ask, watched
from tracelake._errors import UsageError
from tracelake.testing import Actor, Choice, Fate, Faults, Process, Run, Scenario
from tracelake.testing.simulation import Simulated
from tracelake.testing.stores import SimulatedObjectStore
from tracelake.versions.branch_store import BranchRecords
from tracelake.versions.committer import BRANCH_ANSWERS_KEPT, COMMIT_PATIENCE_POLLS
from tracelake.versions.model import Change, Request
from tracelake.versions.repository import Repository

RECORDS = ("branches/", "requests", "answers/", "staged/")


def calls_to_records(run: Run) -> int:
    """Return the number of key-value store calls of a run."""
    return sum(text.partition(" ")[2].startswith(RECORDS) for _, _, _, text, _ in run.trace)


class Crowd(RepositoryScenario):
    """Committers that all begin at once, each with one change (V1). The calls on records are linear in their
    number.

    Polls for another's build are counted separately, because they depend on the duration of the build.
    """

    name = "crowd"
    patience_polls = COMMIT_PATIENCE_POLLS
    answers_kept = BRANCH_ANSWERS_KEPT
    calls_of_each_max = 16

    def __init__(self, committers: int) -> None:
        super().__init__(strangers=committers)
        self._committers = committers
        self.steps_max = 1_000 * committers

    def prepare(self, run: Run) -> None:
        """Make a first commit: on a branch without one, each committer looks up all others."""
        with Simulated(Before()):
            Repository(run.direct_key_value, run.direct_objects).commit_entries({"first": a_file(0)})
        super().prepare(run)

    def check(self, run: Run) -> None:
        """Each call has a separate commit, and the calls are linear in their number."""
        super().check(run)
        model = run.notes["models"][MAIN]
        require(len(model.history) == self._committers + 1, f"{len(model.history)} commits")
        looks = sum(text.startswith("sleep") for _, _, _, text, _ in run.trace)
        calls = calls_to_records(run) - looks
        run.notes["calls"], run.notes["looks"] = calls, looks
        most = self.calls_of_each_max * self._committers
        require(calls <= most, f"{calls} calls on records for {self._committers} commits, more than {most}")
        patience = 3 * self.patience_polls * self._committers.bit_length()  # for three cuts at most
        require(looks <= patience * self._committers, f"{looks} looks, more than {patience} for each")


class Arrivals(RepositoryScenario):
    """A committer arrives every second (V2). Each records its arrival and the time of its commit."""

    name = "arrivals"
    patience_polls = COMMIT_PATIENCE_POLLS
    answers_kept = BRANCH_ANSWERS_KEPT

    def __init__(self, committers: int = 20) -> None:
        super().__init__()
        self._committers = committers

    def actors(self) -> list[Actor]:
        return [Actor(f"committer-{index}", self._arrive) for index in range(self._committers)]

    def _arrive(self, process: Process) -> None:
        index = int(process.name.split("-")[1])
        process.sleep(index)
        told = ask(process, self.open(process).commit_entries, {f"c/{index}": a_file(1)})
        require(told in watched(process).history, f"{process.name} was told a commit that is not there")
        process.record((index, process.now_s()))


class Endless(Scenario):
    """One committer, for which every object takes 0.4 s; requests are sealed, a second apart, until it is done.

    Each sealer is killed at once, so only this committer builds.
    """

    name = "endless"
    steps_max = 2_000
    repository = Repository

    def actors(self) -> list[Actor]:
        return [Actor("oldest", self._commit), Actor("arrivals", self._arrive)]

    def _commit(self, process: Process) -> None:
        store = process.objects

        def create(path: str, data: bytes) -> bool:
            process.sleep(0.4)
            return SimulatedObjectStore.create(store, path, data)

        vars(store)["create"] = create
        repository = self.repository(process.key_value, process.objects)
        process.record(repository.commit_entries({"c/oldest": a_file(1)}))
        process.notes["done"] = True

    def _arrive(self, process: Process) -> None:
        committer = self.repository(process.key_value, process.objects)._committer
        records = BranchRecords(process.key_value)
        for number in count():
            process.sleep(1)
            if "done" in process.notes:
                return
            request = Request(f"arrival-{number}", Change((("c/new", a_file(number)),)), "", "", "", {})
            committer._seal_now(MAIN, records.read(MAIN), request)

    def check(self, run: Run) -> None:
        """The oldest has its commit."""
        require(len(run.history) == 1, "the oldest was not told of its commit")


class Rivals(Scenario):
    """One committer, and others that commit one after the other until it is done (V3)."""

    name = "rivals"
    steps_max = 2_000
    repository = Repository

    def actors(self) -> list[Actor]:
        return [Actor("oldest", self._commit), Actor("rivals", self._rival)]

    def _commit(self, process: Process) -> None:
        repository = self.repository(process.key_value, process.objects)
        process.record(repository.commit_entries({"c/oldest": a_file(1)}))
        process.notes["done"] = True

    def _rival(self, process: Process) -> None:
        for number in count():
            if "done" in process.notes:
                return
            repository = self.repository(process.key_value, process.objects)
            repository.commit_entries({"c/new": a_file(number)})

    def check(self, run: Run) -> None:
        """The oldest has its commit."""
        require(len(run.history) == 1, "the oldest was not told of its commit")


class Namesakes(RepositoryScenario):
    """A branch and a tag of one name, created at once: at most one exists, and its creator succeeded."""

    name = "namesakes"

    def actors(self) -> list[Actor]:
        return [Actor("branch", self._branch), Actor("tag", self._tag)]

    def prepare(self, run: Run) -> None:
        """Make the commit that both names refer to."""
        with Simulated(Before()):
            base = Repository(run.direct_key_value, run.direct_objects).commit_entries({"a": a_file(0)})
        super().prepare(run)
        run.notes.update(base=base, given=set())

    def _branch(self, process: Process) -> None:
        with suppress(UsageError):
            self.open(process).create_branch("name", process.notes["base"])
            process.notes["given"].add("branch")

    def _tag(self, process: Process) -> None:
        with suppress(UsageError):
            self.open(process).tag("name", process.notes["base"])
            process.notes["given"].add("tag")

    def invariant(self, run: Run) -> None:
        """No name has two meanings."""
        direct = Repository(run.direct_key_value, run.direct_objects)
        there = {"branch"} if "name" in direct.branches() else set()
        there |= {"tag"} if "name" in direct.tags() else set()
        require(len(there) <= 1, "a branch and a tag have one name")
        require(run.notes["given"] <= there, f"{run.notes['given']} was given, and {there} is there")

    def check(self, run: Run) -> None:
        """Check nothing: the invariant covers it."""


def drive(scenario: Scenario, pick: Callable[[Run], Choice], faults: Faults | None = None) -> Run:
    """Run a scenario with a custom scheduler."""
    run = Run(scenario, faults or Faults(), step_ms=1)
    while run.error is None and run.active():
        run.step(pick(run))
    run.finish()
    return run


def by_clock(run: Run) -> int:
    """Return the actor whose call has waited longest."""
    return min(
        run.active(), key=lambda index: (max(run.ready_ms(index), run.now_ms), run.ready_ms(index), index)
    )


def oldest_call_first(run: Run) -> Choice:
    """Schedule the actors in turn."""
    return Choice(by_clock(run))


def newest_first(run: Run) -> Choice:
    """Schedule the newest actor whenever it can run."""
    ready = [index for index in run.active() if run.ready_ms(index) <= run.now_ms]
    return Choice(max(ready)) if ready else Choice(by_clock(run))


def stalled(at_step: int, wait_ms: int) -> Callable[[Run], Choice]:
    """Schedule by the clock, but stall the store at one step."""

    def pick(run: Run) -> Choice:
        if len(run.choices) == at_step:
            return Choice(by_clock(run), Fate.STALL, wait_ms)
        return oldest_call_first(run)

    return pick


class Spoiler:
    """Lets the oldest write the branch's record only after a rival has, so that the write fails."""

    def __init__(self) -> None:
        self._read = ""

    def __call__(self, run: Run) -> Choice:
        """Choose the next actor."""
        entry = run.key_value.get("branches", MAIN)
        version = "" if entry is None else entry.version
        if run.choices and run.choices[-1].actor == 0 and run.trace[-1][3].endswith(f" branches/{MAIN}"):
            self._read = version
        oldest, rivals = (process.pending for process in run.processes)
        if rivals is None:
            return Choice(0)
        is_doomed = version != self._read
        waits = oldest is None or (oldest.text == f"set_if branches/{MAIN}" and not is_doomed)
        return Choice(1 if waits else 0)
