"""Writes with ids, with one rule broken at a time: the simulator must find each."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutation import Mutation, rewrite
from tests.simulation.mutants import Mutant
from tests.simulation.writes import WritesScenario
from tracelake.shards.model import Batch, Write
from tracelake.shards.protocol import UpperMismatch, _with_write, is_written
from tracelake.shards.shard import Shard, Writes
from tracelake.testing import Faults
from tracelake.user_tables import write as writing

FEW: Final = {"tracelake.shards.shard.Shard.written_max": 6}
"""A small memory of writes in the state, so that little must exist before a run begins."""
KILLS: Final = Faults(kills=3, lost=4)
_append = Shard.compare_and_append


def remembered_afterwards(self: Shard, batch: Batch, write: Write | None = None) -> UpperMismatch | None:
    """A write is remembered by a separate record once it is done."""
    mismatch = _append(self, batch)
    if mismatch is None and write is not None:
        self._writes.put_away([write])
    return mismatch


def _mutant(
    what: str, random_max: int, *words: Mutation, actors: tuple[int, int, int] = (2, 2, 2), **patches: object
) -> Mutant:
    named = {f"tracelake.{name.replace('__', '.')}": wrong for name, wrong in patches.items()}
    return Mutant(
        f"writes: {what}", lambda: WritesScenario(*actors), KILLS, None, random_max, FEW | named, words=words
    )


WRITES_MUTANTS: Final = [
    _mutant("not looked for", 10, shards__shard__Writes__find=lambda *_: None),
    _mutant(
        "the state alone is looked at",
        20,
        Mutation("", Writes.find, rewrite("_ is None", "True")),
    ),
    _mutant(
        "records alone are looked at",
        10,
        Mutation(
            "",
            Writes.find,
            rewrite("_1 = _2\n_3 = _", "_1 = _2\n_3 = () if _1 is None else (_1,)"),
        ),
    ),
    _mutant(
        "remembered afterwards",
        100,
        actors=(1, 0, 0),
        shards__shard__Shard__compare_and_append=remembered_afterwards,
    ),
    _mutant("forgotten", 20, Mutation("", Shard.compare_and_append, rewrite("_1 = _2\n_", "_1 = _2\npass"))),
    _mutant(
        "no change is not remembered",
        10,
        Mutation("", writing._append, rewrite("_1 and _", "_1")),
    ),
    _mutant("an older number is another", 50, Mutation("", is_written, rewrite("_1 >= _2", "_1 == _2"))),
    _mutant("all are forgotten at once", 20, Mutation("", _with_write, rewrite("_ not in _", "False"))),
    _mutant(
        "pieces that are parts are deleted",
        10,
        Mutation("", writing._append, rewrite("_1(..., a=_())", "_1(..., a=())")),
    ),
]
