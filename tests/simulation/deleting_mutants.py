"""One rule of deletions broken at a time: the simulator must find each."""

from __future__ import annotations

from typing import Any, Final

from tests.simulation.deleting import DeletingScenario
from tests.simulation.mutants import Mutant
from tracelake.pipeline.sources import deletions
from tracelake.shards.model import Part
from tracelake.testing import Faults

_rows_to_delete: Final = deletions.rows_to_delete


class DeletionUndone(DeletingScenario):
    """A compactor drops the retractions of older batches, so that deleted rows are live again."""

    def kept(self, retractions: tuple[Part, ...]) -> tuple[Part, ...]:
        del retractions
        return ()


class LateSpanAtOnce(DeletingScenario):
    """The late span may arrive between the decision and its transaction."""

    pause_s = 0.0


def _first_row(stored: Any, requests: Any) -> Any:
    return _rows_to_delete(stored, requests).slice(0, 1)


DELETING_MUTANTS: Final = [
    Mutant(
        "deleting: rows newer than the decision go",
        LateSpanAtOnce,
        exhaustive_max=None,
        patches={"tracelake.pipeline.sources.deletions.may_delete": lambda _decided, _newest: True},
    ),
    Mutant(
        "deleting: a part of a trace goes",
        DeletingScenario,
        exhaustive_max=None,
        patches={"tracelake.pipeline.sources.deletions.rows_to_delete": _first_row},
    ),
    Mutant("deleting: a slow compactor undoes a deletion", DeletionUndone, exhaustive_max=None),
    Mutant(
        "deleting: a recovery forgets the requests",
        lambda: DeletingScenario(2),
        Faults(kills=3, delays=4),
        None,
        200,
        patches={"tracelake.pipeline.replay.Replayer._deletions": lambda *_: []},
    ),
]
