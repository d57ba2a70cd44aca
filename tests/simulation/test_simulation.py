"""The simulator itself: runs repeat, faults happen, searches are complete, failures are short and readable."""

from __future__ import annotations

import subprocess
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.simulation.mutants import MUTANTS
from tests.simulation.scenarios import ShardScenario
from tests.simulation.simulate import FAULTS, SCENARIOS
from tracelake._errors import ContentionError, StorageError
from tracelake.storage import ABSENT, Done, Indeterminate
from tracelake.testing import (
    Actor,
    Choice,
    Fate,
    Faults,
    Process,
    Run,
    Scenario,
    Violation,
    explore,
    replay,
    run_once,
    search,
)

_PRINT = """
from tests.simulation.simulate import FAULTS, SCENARIOS
from tracelake.testing import run_once
for scenario in SCENARIOS:
    print([run_once(scenario, FAULTS, seed).fingerprint() for seed in range(4)])
"""


class Counters(Scenario):
    """Actors that each write separate keys, or one key that all share."""

    name = "counters"

    def __init__(self, actors: int, writes: int, *, shared: bool) -> None:
        self._actors, self._writes, self._shared = actors, writes, shared

    def actors(self) -> list[Actor]:
        return [Actor(f"actor-{index}", self._run) for index in range(self._actors)]

    def _run(self, process: Process) -> None:
        for turn in range(self._writes):
            process.key_value.set("p", "shared" if self._shared else process.name, f"{turn}".encode())


class OneCall(Scenario):
    """One actor that makes one conditional write and records its result."""

    name = "one call"

    def actors(self) -> list[Actor]:
        return [Actor("writer", self._run)]

    def _run(self, process: Process) -> None:
        try:
            process.record(process.key_value.set_if("p", "k", b"v", ABSENT))
        except StorageError as error:
            process.record(error)


def test_the_same_seed_gives_the_same_run_byte_for_byte() -> None:
    """Traces are equal in processes with different hash seeds, and differ between seeds."""
    traces = [
        subprocess.run(
            [sys.executable, "-c", _PRINT],
            env={"PYTHONHASHSEED": str(number), "PYTHONPATH": "."},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for number in (1, 2)
    ]
    assert traces[0] == traces[1]
    assert len(set(eval(traces[0].splitlines()[0]))) == 4


@pytest.mark.parametrize(
    ("fate", "happened", "told"),
    [
        (Fate.DONE, True, Done),
        (Fate.LOST_AFTER, True, Indeterminate),
        (Fate.LOST_BEFORE, False, Indeterminate),
        (Fate.REFUSED, False, StorageError),
        (Fate.LATE, True, Indeterminate),
    ],
)
def test_each_fate_of_a_conditional_write(fate: Fate, happened: bool, told: type) -> None:
    """The write happened or not, and the caller got this result or an unknown one."""
    run = replay(OneCall(), Faults(lost=1, late=1), [Choice(0, fate)])
    assert run.error is None
    assert (run.key_value.get("p", "k") is not None) is happened
    assert isinstance(run.history[0][1], told)


def test_a_killed_actor_begins_again_and_the_dead_make_no_calls() -> None:
    """An actor killed before its second write starts over; without a restart it stays dead."""
    schedule = [Choice(0), Choice(0, Fate.KILL)]
    run = replay(Counters(1, 2, shared=True), Faults(kills=1), schedule)
    assert [line[3] for line in run.trace] == ["set p/shared"] * 4
    assert run.processes[0].attempt == 1
    assert run.error is None
    run = replay(Counters(1, 2, shared=True), Faults(kills=1, restart=False), schedule)
    assert run.processes[0].dead
    assert len(run.trace) == 2


def test_independent_calls_are_run_in_one_order_and_dependent_ones_in_all() -> None:
    """Three actors on separate keys need one schedule; two on one key need all that differ."""
    alone = explore(Counters(3, 3, shared=False), Faults(), schedules_max=100)
    assert alone.is_complete
    assert alone.schedules == 1
    shared = explore(Counters(2, 2, shared=True), Faults(), schedules_max=100)
    assert shared.is_complete
    assert shared.schedules > 1


def test_time_and_ids_are_simulated_inside_and_real_outside() -> None:
    """An hour of sleep takes no time, ids repeat, and the real clock and ids are back afterwards."""

    class Sleeper(Scenario):
        def actors(self) -> list[Actor]:
            return [Actor("sleeper", self._run)]

        def _run(self, process: Process) -> None:
            time.sleep(3600)
            process.key_value.get("p", "k")
            process.record((time.time(), uuid.uuid4()))

    first, second = (replay(Sleeper(), Faults(), []).history[0][1] for _ in range(2))
    assert first == second
    assert isinstance(first, tuple)
    assert first[0] == 3600.0
    assert uuid.uuid4() != first[1]


def test_a_failing_run_is_shrunk_and_told() -> None:
    """A lost update is shown by few steps, with names, calls, results, and its seed."""
    mutant = next(mutant for mutant in MUTANTS if mutant.name == "shard: blind overwrite")
    failure = search(mutant.scenario(), mutant.faults, seed=1, schedules_max=100).failures[0]
    assert len(failure.choices) <= 12
    assert replay(mutant.scenario(), mutant.faults, failure.choices).error is not None
    assert f"seed {failure.seed}" in str(failure)
    assert "writer-1     set shards/spans  → 'writer-1-" in failure.story
    assert failure.seed is not None
    assert run_once(mutant.scenario(), mutant.faults, failure.seed).error is not None


def test_an_actor_that_calls_from_another_thread_is_told_of() -> None:
    """A call from another thread is reported; otherwise, the actor would neither finish nor die, without a reason."""

    class Threaded(OneCall):
        def _run(self, process: Process) -> None:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(process.key_value.get, "p", "k").result()

    assert "from another thread" in str(replay(Threaded(), Faults(), []).error)


def test_a_run_in_which_everything_fails_does_not_pass() -> None:
    """Actors that never succeed are a violation, whatever the scenario's checks report."""

    class Hopeless(OneCall):
        steps_max = 50

        def _run(self, process: Process) -> None:
            process.key_value.get("p", "k")
            raise StorageError("never today")

    error = replay(Hopeless(), Faults(), []).error
    assert isinstance(error, Violation)
    assert "no progress" in str(error)


def test_an_actor_that_loses_every_race_is_a_violation() -> None:
    """A loser is not restarted as after a store failure, because few actors lose so often except in cycles."""

    class Circling(OneCall):
        def _run(self, process: Process) -> None:
            process.key_value.get("p", "k")
            raise ContentionError("others were faster")

    error = replay(Circling(), Faults(), []).error
    assert isinstance(error, Violation)
    assert "stopped: ContentionError" in str(error)


def test_what_checks_raise_is_a_violation() -> None:
    """An invariant that cannot even read the stores is a violation."""

    class Unreadable(OneCall):
        def check(self, run: Run) -> None:
            run.objects.get("nowhere")

    assert "NotFoundError" in str(replay(Unreadable(), Faults(), []).error)


def test_all_kinds_of_faults_are_injected() -> None:
    """Random search meets every possible result of a write."""
    fates = {choice.fate for seed in range(150) for choice in run_once(SCENARIOS[0], FAULTS, seed).choices}
    assert fates == set(Fate)


def test_a_cut_off_actor_goes_on_when_it_is_healed() -> None:
    """All calls of a disconnected actor fail until the time is over; then it finishes."""
    schedule = [Choice(0, Fate.PARTITION, 5_000)]
    run = replay(ShardScenario(1, 1), Faults(partitions=1), schedule, step_ms=1)
    assert run.error is None
    assert run.processes[0].attempt > 1
    assert run.now_ms > 5_000
