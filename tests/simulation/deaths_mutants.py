"""Crash counting with one rule broken at a time: the simulator must find each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from tests.simulation.deaths import DeathsScenario, Stage
from tests.simulation.mutants import Mutant
from tracelake.pipeline.input_failures import CrashMarkers
from tracelake.testing import Faults


def all_are_dead(
    self: CrashMarkers, notes: Mapping[str, Any], enough: int, stopping: Callable[[], bool]
) -> Mapping[str, Any]:
    """Every other process counts as dead, without a check."""
    del self, stopping
    return notes if len(notes) >= enough else {}


def one_look(self: CrashMarkers, notes: Mapping[str, Any], enough: int, stopping: Callable[[], bool]) -> Any:
    """A process whose marker is unchanged between two immediate reads counts as dead."""
    del stopping
    now = self._read([])
    still = {key: note for key, note in notes.items() if now.get(key) == note}
    return still if len(still) >= enough else {}


def nothing(self: CrashMarkers, *_: object) -> None:
    """Omit a step."""
    del self


def at_fault_together(inputs: int, *, died: bool, suspected: bool) -> int:
    """All inputs of crashed runs are quarantined."""
    del inputs, died, suspected
    return 0


def never_halved(inputs: int, *, died: bool, suspected: bool) -> int:
    """The input of crashed runs is taken again in full."""
    del died, suspected
    return inputs


def never_enough(self: CrashMarkers, *_: object, **__: object) -> dict[str, int]:
    """Deaths during reads of new input are not counted."""
    del self
    return {}


DELAYS: Final = Faults(delays=3)


def _mutant(
    what: str, stage: Stage | None, patches: Mapping[str, object], random_max: int, first_seed: int = 0
) -> Mutant:
    replicas = 5 if stage is None else 2
    return Mutant(
        f"deaths: {what}",
        lambda: DeathsScenario(stage, replicas),
        DELAYS,
        None,
        random_max,
        {f"tracelake.{name}": wrong for name, wrong in patches.items()},
        first_seed=first_seed,
    )


TRIES: Final = "pipeline.input_failures.CrashMarkers"

DEATHS_MUTANTS = [
    _mutant("nobody looks on", None, {f"{TRIES}._still": all_are_dead}, 10),
    _mutant("one look", None, {f"{TRIES}._still": one_look}, 10),
    _mutant("nobody shows that he lives", None, {f"{TRIES}.beat": nothing}, 60, first_seed=50),
    _mutant("nobody notes what he does", "merge", {f"{TRIES}.begin": nothing}, 2),
    _mutant("reading does not count", "read", {f"{TRIES}.crash_counts_of_reading": never_enough}, 2),
    _mutant("all at fault, merging", "merge", {"pipeline.input_failures.narrowed": at_fault_together}, 2),
    _mutant("all at fault, reading", "read", {"pipeline.input_failures.narrowed": at_fault_together}, 2),
    _mutant("never halved", "read", {"pipeline.input_failures.narrowed": never_halved}, 2),
]
