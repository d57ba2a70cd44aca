"""The outbox and its users with one rule broken at a time: the simulator must find each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from sqlalchemy import select

from tests.mutants.mutation import Mutation, rewrite
from tests.simulation.mutants import Mutant
from tests.simulation.outbox import OutboxScenario
from tracelake.archive import protocol, store
from tracelake.archive.store import ArchiveStore
from tracelake.hot.rows import latest_versions
from tracelake.hot.tier import HotTier
from tracelake.testing import Faults
from tracelake.tracking.outbox import Outbox
from tracelake.tracking.schema import outbox, trace_info
from tracelake.versions.branch_store import MAIN

LATE: Final = [[(0, 1)]]
"""A late span of the trace in the tables."""
OTHER: Final = [[(1, 0)]]


def _mutant(
    what: str,
    scenario: Callable[[], OutboxScenario],
    *words: Mutation,
    **named: Any,
) -> Mutant:
    return Mutant(f"outbox: {what}", scenario, Faults(), 60, 60, words=words, patches=named)


def _out_of_order() -> OutboxScenario:
    return OutboxScenario([LATE, OTHER], archivers=0, in_order=False)


def _passes() -> OutboxScenario:
    return OutboxScenario([LATE])


def _restored() -> OutboxScenario:
    return OutboxScenario([LATE], archivers=0, restores=True)


def _deleted() -> OutboxScenario:
    return OutboxScenario([LATE], archivers=0, deletes=[0])


def main_first(self: HotTier, trace_id: str, workspace: str | None) -> tuple[Any, tuple[()]]:
    """The commit is read before the tracking store: spans that move in between are in neither (O2)."""
    committed = self._opened.read(MAIN, lambda view: view.trace_spans(trace_id, workspace))
    return latest_versions(
        [*(each for each in self._hot([trace_id], workspace, False) if len(each)), committed]
    ), ()


OUTBOX_MUTANTS: Final = [
    _mutant("O1: trimmed before the commit", lambda: OutboxScenario(archivers=0, pipeline="trims first")),
    _mutant(
        "O3: all above the last is read",
        lambda: OutboxScenario([LATE, OTHER], archivers=0, in_order=False, pipeline="by position"),
    ),
    _mutant(
        "O3: all below the last is trimmed",
        _out_of_order,
        Mutation(
            "",
            Outbox._trim,
            rewrite("_1(_2).a(*_(_3))", "_1(_2).a(sequence <= max(_3))", sequence=outbox.c.sequence),
        ),
    ),
    _mutant(
        "A18: hot payload goes with the outbox",
        _passes,
        Mutation(
            "",
            Outbox._trim,
            rewrite("_._ == a", "spans_location != a", spans_location=trace_info.c.spans_location),
        ),
    ),
    _mutant(
        "A18: late spans stay when the tables have them",
        _restored,
        Mutation("", Outbox._trim, rewrite("a(_1).b(_2, _3, _4)", "select(_1).b(_2, _3, _4)", select=select)),
    ),
    _mutant(
        "A18: late spans are nothing to a restore",
        _restored,
        Mutation("", ArchiveStore.restore, rewrite("_1 != _", "_1 == object()")),
    ),
    _mutant(
        "A13: no generation check",
        _passes,
        Mutation("", protocol.finalize, rewrite("_ == _", "True")),
    ),
    _mutant(
        "A17: what waits is archived, and nobody looks into the tables",
        _passes,
        Mutation("", ArchiveStore.begin, rewrite("_ in _", "False")),
        **{"tests.simulation.outbox_pipeline.RememberingRepository._differences": lambda *_: []},
    ),
    _mutant(
        "A13: a trace that came again is what was before",
        lambda: OutboxScenario([LATE], replicas=0, deletes=[0]),
        Mutation("", protocol.finalize, rewrite("_ != _", "False")),
    ),
    _mutant(
        "deleted, and its spans stay",
        _deleted,
        **{"tracelake.archive.store._OF_TRACES": store._OF_TRACES[1:]},
    ),
    _mutant(
        "told to be deleted, and it is not",
        _deleted,
        Mutation(
            "",
            ArchiveStore.delete,
            rewrite("for _1 in _2:\n    for _3 in a: ...", "for _1 in _2:\n    for _3 in (): ..."),
        ),
    ),
    _mutant(
        "O2: main is read before the tracking store",
        lambda: OutboxScenario([LATE], archivers=0, reads=1),
        **{"tracelake.hot.tier.HotTier._rows": main_first},
    ),
]
