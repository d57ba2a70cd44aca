"""One rule of erasures broken at a time: the simulator must find each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tests.simulation.erasing import ErasingScenario
from tests.simulation.mutants import Mutant
from tracelake.erasure.protocol import ErasureStep, Mask, Observation, next_step, without_entry
from tracelake.erasure.store import NOTHING_MASKED
from tracelake.search.finalize import Redactions
from tracelake.shards import protocol
from tracelake.shards.model import BatchRef, ShardState
from tracelake.testing import Faults

_replace: Final = protocol.replace


def _of_any_batches(state: ShardState, run: Sequence[BatchRef], batch: BatchRef, epoch: int) -> object:
    """A compaction replaces the batches of its times, even if these have changed."""
    lower, upper = run[0].lower, run[-1].upper
    current = [ref for ref in state.batches if lower <= ref.lower and ref.upper <= upper]
    del epoch
    return _replace(state, current or run, batch, state.epoch)


def _without_collection(seen: Observation) -> ErasureStep:
    step = next_step(seen)
    return ErasureStep.FINISH if step is ErasureStep.COLLECT else step


def _at_once(mask: Mask, erasure_id: str, upper: int) -> Mask:
    del upper
    return without_entry(mask, erasure_id, 1_000)


def _apply_nothing(redactions: Redactions, paths: Sequence[str]) -> int:
    del redactions, paths
    return 0


class _Forgetful(Redactions):
    apply = _apply_nothing


def _mutant(what: str, name: str, wrong: object, *others: str, most: int = 60) -> Mutant:
    return Mutant(
        f"erasing: {what}",
        lambda: ErasingScenario(*(others or ("reader",))),
        Faults(delays=4),
        None,
        most,
        patches={name: wrong},
    )


_STORE: Final = "tracelake.erasure.store."
_ERASURES: Final = "tracelake.lake.erasure."
_ALL: Final = ("compactor", "merger", "rebuilder", "collector", "reader")
ERASING_MUTANTS: Final = [
    _mutant("a reader sees an erased row", f"{_STORE}ErasureStore.masked", lambda _: NOTHING_MASKED),
    _mutant(
        "a slow compactor undoes a redaction",
        "tracelake.shards.protocol.replace",
        _of_any_batches,
        "compactor",
    ),
    _mutant("a replay brings a row back", f"{_STORE}ErasureStore.mask_late_spans", lambda *_: None),
    _mutant("a pipeline forgets finished erasures", f"{_STORE}ErasureStore.ids_by_erasure", lambda _: {}),
    _mutant("the erasure ends before a late transaction", f"{_STORE}without_entry", _at_once),
    _mutant("replaced parts stay", f"{_ERASURES}next_step", _without_collection),
    _mutant(
        "a slow publisher undoes a redaction",
        "tracelake.pipeline.outputs.builtin.Redactions",
        _Forgetful,
        *_ALL,
        most=300,
    ),
]
