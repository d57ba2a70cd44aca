"""Writes with ids, with one rule broken at a time: the simulator must find each."""

from __future__ import annotations

from typing import Final

from tests.broken import Broken
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
    what: str, random_max: int, *words: Broken, actors: tuple[int, int, int] = (2, 2, 2), **patches: object
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
        Broken("", Writes.find, "if recorded is None else", "if True else"),
    ),
    _mutant(
        "records alone are looked at",
        10,
        Broken(
            "",
            Writes.find,
            "state.written if recorded is None else (*state.written, recorded)",
            "() if recorded is None else (recorded,)",
        ),
    ),
    _mutant(
        "remembered afterwards",
        100,
        actors=(1, 0, 0),
        shards__shard__Shard__compare_and_append=remembered_afterwards,
    ),
    _mutant("forgotten", 20, Broken("", Shard.compare_and_append, "self._writes.put_away(away)", "pass")),
    _mutant(
        "no change is not remembered",
        10,
        Broken("", writing._append, "merged.is_empty and write_id is None", "merged.is_empty"),
    ),
    _mutant("an older number is another", 50, Broken("", is_written, ">= number", "== number")),
    _mutant("all are forgotten at once", 20, Broken("", _with_write, "old not in away and", "False and")),
    _mutant(
        "more is forgotten than has records",
        20,
        Broken("", Shard.compare_and_append, "write, away)", "write, state.written)"),
    ),
    _mutant(
        "pieces that are parts are deleted", 10, Broken("", writing._append, "keep=merged.paths()", "keep=()")
    ),
]
