"""Quarantine with one rule broken at a time: the simulator must find each."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, Final

from tests.simulation.mutants import Mutant
from tests.simulation.setting_aside import SettingAsideScenario
from tracelake.journal.model import QuarantinedInput, QuarantineRecord, ReadRange, Step, inputs_of
from tracelake.pipeline.outputs.builtin import TableOutput
from tracelake.pipeline.outputs.external import OvertakenError, Publication, SealedTransaction
from tracelake.pipeline.publish import InputAcker
from tracelake.pipeline.sources.server_inputs import INBOX
from tracelake.testing import Faults
from tracelake.versions.model import TableAt

_keep, _publish = InputAcker._keep, TableOutput.publish


def no_rows(self: TableOutput, transaction: int) -> bool:
    """The record alone decides, without a check for rows that a peer appended."""
    del self, transaction
    return False


def goes_on(self: TableOutput, sealed: SealedTransaction, publication: Publication) -> None:
    """A replica that holds rows publishes them, even if another append was first."""
    with contextlib.suppress(OvertakenError):
        _publish(self, sealed, publication)
    publication.entries[self.table.entry] = TableAt(self.table.name, sealed.transaction)


def keep_nothing(self: InputAcker, aside: QuarantineRecord, step: Step) -> list[QuarantinedInput]:
    """Segments of a quarantined transaction are deleted like any other's."""
    kept = _keep(self, aside, step)
    self._sources[INBOX].ack(list(inputs_of(step.sources.get(INBOX, ()))))
    return kept


def forget_offers(standing: QuarantinedInput | None, taken: ReadRange | None) -> QuarantinedInput | None:
    """A commit deletes offers only."""
    del taken
    return None if standing is None or standing.state == "offered" else standing


DELAYS: Final = Faults(delays=8)


def _mutant(
    what: str, where: str, wrong: Any, random_max: int, stages: Sequence[str | None], *, waits: bool = False
) -> Mutant:
    return Mutant(
        f"setting aside: {what}",
        lambda: SettingAsideScenario(stages, waits=waits),
        DELAYS,
        None,
        random_max,
        {f"tracelake.{where}": wrong},
    )


_ONE: Final = ("merge", None)

SETTING_ASIDE_MUTANTS = [
    _mutant("the record decides", "pipeline.outputs.builtin.TableOutput.has_rows", no_rows, 50, _ONE),
    _mutant(
        "overtaken, ignored", "pipeline.outputs.builtin.TableOutput.publish", goes_on, 50, _ONE, waits=True
    ),
    _mutant("segments go", "pipeline.publish.InputAcker._keep", keep_nothing, 5, ("merge", "merge")),
    _mutant(
        "a commit forgets offers only", "journal.quarantine.on_commit", forget_offers, 20, ("read", None)
    ),
]
